"""``arena up`` and ``arena down``: a scheduler and agents on this machine, for trying out."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import click

from arena.cli.app import App, command
from arena.cli.quoting import quoted
from arena.cli.services import state_home
from arena.client import DEFAULT_ADDRESS, ArenaClient, ClientSettings
from arena.domain.cluster import NodeState
from arena.domain.records import JobState, Wish
from arena.errors import AlreadyRunningError, ArenaError, InternalError, NotFoundError, UnavailableError, UserError

START_LIMIT_S = 60.0
HOLD_LIMIT_S = 45.0
END_LIMIT_S = 15.0
_POLL_S = 0.1
_PORT_FIRST, _PORT_LAST = 20_000, 31_999
_AGENTS_MAX = 64
_DIRECTORY = click.Path(path_type=Path, file_okay=False)
_LIVE_STATES = tuple(state for state in JobState if not state.is_terminal)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpPlan:
    """What to start.

    Args:
        directory: Holds everything: database, checkpoints, results, logs, the agents' directories.
        port: Of the scheduler; 0 takes a free one.
    """

    directory: Path
    agents: int
    gpus_per_agent: int
    gpu_type: str
    policy: str
    port: int

    @property
    def address_file(self) -> Path:
        """Where the scheduler writes its address once it serves."""
        return self.directory / "address"

    @property
    def lock(self) -> Path:
        """Held while ``arena up`` runs on this directory; holds its pid."""
        return self.directory / "up.pid"

    @property
    def held_file(self) -> Path:
        """Jobs that were held when it was stopped, to be released when it starts again."""
        return self.directory / "held-by-up"

    def agent_directory(self, index: int) -> Path:
        """Return the state directory of an agent, counted from 0."""
        return self.directory / f"node-{index + 1}"

    def scheduler_argv(self) -> list[str]:
        """Return the command of the scheduler."""
        words: list[object] = ["scheduler", "--host", "127.0.0.1", "--port", self.port, "--policy", self.policy]
        words += ["--db", self.directory / "scheduler.db", "--address-file", self.address_file]
        words += ["--checkpoint-root", self.directory / "checkpoints", "--output-root", self.directory / "output"]
        return _arena(words)

    def agent_argv(self, index: int, address: str) -> list[str]:
        """Return the command of an agent; each has ports of its own, since all share this host."""
        width = (_PORT_LAST - _PORT_FIRST + 1) // self.agents
        low = _PORT_FIRST + index * width
        words: list[object] = ["agent", "--node-id", f"node-{index + 1}", "--scheduler", address]
        words += ["--virtual-gpus", self.gpus_per_agent, "--gpu-type", self.gpu_type, "--address", "127.0.0.1"]
        words += ["--ports", f"{low}-{low + width - 1}", "--place", self.directory / "checkpoints"]
        return _arena([*words, "--state-dir", self.agent_directory(index)])


def _arena(words: Sequence[object]) -> list[str]:
    return [sys.executable, "-m", "arena.cli.main", *map(str, words)]


@command(short_help="Start everything here.")
@click.option("--agents", type=click.IntRange(1, _AGENTS_MAX), default=2, show_default=True, help="Nodes.")
@click.option(
    "--gpus-per-agent", type=click.IntRange(1, 64), default=2, show_default=True, help="Virtual GPUs of each."
)
@click.option("--gpu-type", default="cpu", show_default=True, help="Catalog name of the virtual GPUs.")
@click.option("--policy", default="elastic", show_default=True, help="Scheduling policy.")
@click.option("--port", type=click.IntRange(0, 65535), help="Of the scheduler; 0 takes a free one.  [default: 50061]")
@click.option("--dir", "directory", type=_DIRECTORY, help="Holds everything.  [default: up in the state directory]")
@click.option("--detach", is_flag=True, help="Return once it runs; stop it with `arena down`.")
def up(app: App, detach: bool, **options: Any) -> int:
    """Start a scheduler and agents with virtual GPUs here, until Ctrl-C.

    Ctrl-C saves and holds the jobs, then stops everything; the next `arena up` on the same directory goes on with them.
    """
    plan = _plan(options)
    plan.directory.mkdir(parents=True, exist_ok=True)
    if detach:
        return _detach(app, plan)
    with _lock(plan), _stop_signals() as stopping:
        cluster = _Cluster(plan)
        try:
            cluster.start(stopping)
            if not stopping.is_set():
                _tell(app, plan, cluster.address)
            return _watch(cluster, stopping)
        finally:
            cluster.stop(stopping)


def _plan(options: dict[str, Any]) -> UpPlan:
    directory = options.pop("directory") or state_home() / "up"
    port = options.pop("port")
    if port is None:
        port = int(DEFAULT_ADDRESS.rpartition(":")[2])
    return UpPlan(directory=directory.absolute(), port=port, **options)


@contextmanager
def _lock(plan: UpPlan) -> Iterator[None]:
    with plan.lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunningError(
                f"`arena up` runs on {plan.directory} already", fix="stop it with `arena down`, or give another --dir"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C (or TERM, or the terminal's end) into an event; a second one raises."""
    stopping = threading.Event()

    def stop(number: int, frame: object) -> None:
        if stopping.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopping.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield stopping
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@dataclass(slots=True)
class _Child:
    """A service that runs as a process of its own."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


@dataclass(slots=True)
class _Cluster:
    """The processes of one ``arena up``."""

    plan: UpPlan
    address: str = ""
    children: list[_Child] = field(default_factory=list)

    def start(self, stopping: threading.Event) -> None:
        """Start the scheduler, then the agents, and wait until all nodes are registered."""
        plan = self.plan
        plan.address_file.unlink(missing_ok=True)
        self._spawn("scheduler", plan.scheduler_argv())
        self._wait_for(plan.address_file.exists, "the scheduler to serve", stopping)
        if stopping.is_set():
            return
        self.address = plan.address_file.read_text().strip()
        for index in range(plan.agents):
            self._spawn(f"node-{index + 1}", plan.agent_argv(index, self.address))
        with self.client() as client:
            self._wait_for(lambda: _ready_count(client) >= plan.agents, "the agents to register", stopping)
            _release_held(client, plan)

    def client(self) -> ArenaClient:
        """Return a client of this cluster's scheduler, as its own user."""
        from arena.cli.settings import user_name

        return ArenaClient(ClientSettings(address=self.address, user=user_name()))

    def ended(self) -> _Child | None:
        """Return a service that ended by itself."""
        return next((child for child in self.children if child.process.poll() is not None), None)

    def stop(self, stopping: threading.Event) -> None:
        """Hold the jobs, then end agents and scheduler, and whatever their jobs left behind."""
        stopping.set()
        if self.address and self.ended() is None:
            try:
                with self.client() as client:
                    _hold_all(client, self.plan)
            except (ArenaError, KeyboardInterrupt) as error:
                sys.stderr.write(f"warning: jobs were not saved: {str(error) or 'interrupted'}\n")
        agents = [child for child in self.children if child.name != "scheduler"]
        _end(agents)
        _kill_leftovers(self.plan)
        _end([child for child in self.children if child.name == "scheduler"])

    def _spawn(self, name: str, argv: list[str]) -> _Child:
        log = self.plan.directory / f"{name}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, env=_environ()
            )
        child = _Child(name, process, log)
        self.children.append(child)
        return child

    def _wait_for(self, condition: Any, what: str, stopping: threading.Event) -> None:
        deadline_s = time.monotonic() + START_LIMIT_S
        while not stopping.is_set() and not condition():
            if child := self.ended():
                raise _death(child)
            if time.monotonic() > deadline_s:
                raise UnavailableError(f"gave up waiting for {what}", fix=f"see the logs in {self.plan.directory}")
            stopping.wait(_POLL_S)


def _environ() -> dict[str, str]:
    """Return what the services inherit: settings of the caller's usual scheduler are none of theirs."""
    return {key: value for key, value in os.environ.items() if not key.startswith("ARENA_")}


def _death(child: _Child) -> InternalError:
    lines = child.log.read_text(errors="replace").splitlines()
    code = child.process.returncode
    return InternalError(
        f"{child.name} ended with code {code}", why=lines[-1] if lines else "it wrote nothing", fix=f"see {child.log}"
    )


def _ready_count(client: ArenaClient) -> int:
    return client.status(job_count_max=1).node_count_by_state.get(NodeState.READY, 0)


def _hold_all(client: ArenaClient, plan: UpPlan) -> None:
    """Hold every job that wants to run, and wait until none holds GPUs."""
    held = [job.job_id for job in client.jobs(states=_LIVE_STATES) if job.wish is Wish.RUN]
    # Written first: a job that is held but not listed here would wait for ever.
    plan.held_file.write_text("".join(f"{job_id}\n" for job_id in held))
    for job_id in held:
        try:
            client.hold(job_id)
        except UserError:
            continue  # it ended in the meantime
    deadline_s = time.monotonic() + HOLD_LIMIT_S
    while client.status(job_count_max=1).active_jobs:
        if time.monotonic() > deadline_s:
            raise UnavailableError(f"some were still running after {HOLD_LIMIT_S:.0f} s")
        time.sleep(_POLL_S)


def _release_held(client: ArenaClient, plan: UpPlan) -> None:
    """Release what the last ``arena up`` on this directory held."""
    if not plan.held_file.exists():
        return
    for job_id in plan.held_file.read_text().split():
        try:
            client.release(job_id)
        except UserError:
            continue  # cancelled, or another database
    plan.held_file.unlink()


def _end(children: Sequence[_Child]) -> None:
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
    deadline_s = time.monotonic() + END_LIMIT_S
    for child in children:
        try:
            child.process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()


def _kill_leftovers(plan: UpPlan) -> None:
    """Kill ranks that outlived their agents; only those that carry an agent's mark."""
    from arena_agent.processes import marked_attempts, signal_process

    for index in range(plan.agents):
        for entries in marked_attempts(str(plan.agent_directory(index).resolve())).values():
            for entry in entries:
                signal_process(entry.identity, signal.SIGKILL)


def _watch(cluster: _Cluster, stopping: threading.Event) -> int:
    while not stopping.wait(_POLL_S):
        if child := cluster.ended():
            raise _death(child)
    return 0


def _tell(app: App, plan: UpPlan, address: str) -> None:
    option = "" if address == DEFAULT_ADDRESS else f" --scheduler {address}"
    if app.out.json_mode:
        app.out.document(address=address, directory=str(plan.directory), agents=plan.agents)
        return
    gpus = plan.agents * plan.gpus_per_agent
    app.out.line(f"{plan.agents} nodes with {gpus} {plan.gpu_type} GPUs at {address}, all files in {plan.directory}")
    app.out.line("in another terminal:")
    app.out.line(f"  arena{option} submit job.yaml            # or: arena{option} submit --gpus 1 -- python train.py")
    app.out.line(f"  arena{option} status")
    app.out.line("Ctrl-C saves and holds the jobs and stops everything")


def _detach(app: App, plan: UpPlan) -> int:
    """Start ``arena up`` in the background and return once its nodes are ready."""
    log = plan.directory / "up.log"
    with log.open("wb") as file:
        background = subprocess.Popen(
            _arena(_up_words(plan)), stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    deadline_s = time.monotonic() + 2 * START_LIMIT_S
    while b"\n" not in log.read_bytes():
        if background.poll() is not None or time.monotonic() > deadline_s:
            break
        time.sleep(_POLL_S)
    if background.poll() is not None:
        raise UnavailableError("it did not start", why=_last_line(log), fix=f"see {plan.directory}")
    # It goes on without us; nobody is to wait for it.
    background.returncode = 0
    _tell_detached(app, plan)
    return 0


def _up_words(plan: UpPlan) -> list[object]:
    words: list[object] = ["up", "--agents", plan.agents, "--gpus-per-agent", plan.gpus_per_agent]
    return [*words, "--gpu-type", plan.gpu_type, "--policy", plan.policy, "--port", plan.port, "--dir", plan.directory]


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else "it wrote nothing"


def _tell_detached(app: App, plan: UpPlan) -> None:
    _tell(app, plan, plan.address_file.read_text().strip())
    if not app.out.json_mode:
        app.out.line(f"it runs in the background; stop it with `arena down --dir {quoted(str(plan.directory))}`")


@command(short_help="Stop what `arena up` started.")
@click.option("--dir", "directory", type=_DIRECTORY, help="That of `arena up`.  [default: up in the state directory]")
def down(app: App, directory: Path | None) -> None:
    """Stop what `arena up --detach` started: jobs are saved and held, then everything ends."""
    lock = (directory or state_home() / "up") / "up.pid"
    try:
        file = lock.open("r+")
    except OSError as error:
        raise NotFoundError(f"`arena up` never ran on {lock.parent}", why=str(error.strerror)) from error
    with file:
        if _is_free(file):
            raise NotFoundError(f"nothing runs on {lock.parent}")
        # The lock is held, so the pid in it is that of its living holder.
        os.kill(int(file.read().strip()), signal.SIGTERM)
        deadline_s = time.monotonic() + HOLD_LIMIT_S + 3 * END_LIMIT_S
        while not _is_free(file):
            if time.monotonic() > deadline_s:
                raise UnavailableError("it does not end", fix=f"see {lock.parent / 'up.log'}")
            time.sleep(_POLL_S)
    if app.out.json_mode:
        app.out.document(stopped=str(lock.parent))
    else:
        app.out.line(f"stopped {lock.parent}")


def _is_free(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(file, fcntl.LOCK_UN)
    return True
