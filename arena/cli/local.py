"""The processes of ``arena up``: started, watched, and ended without leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from arena.cli.ports import PortRange
from arena.cli.settings import user_name
from arena.client import ArenaClient, ClientSettings
from arena.domain.records import JobState, Wish
from arena.errors import ArenaError, InternalError, UnavailableError, UserError

START_LIMIT_S = 60.0
HOLD_LIMIT_S = 45.0
END_LIMIT_S = 15.0
POLL_S = 0.1
RESTART_S = 3.0
"""What a restart costs on virtual GPUs: 2.1 to 3.0 s measured on 2 cores."""
_LIVE_STATES = tuple(state for state in JobState if not state.is_terminal)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpPlan:
    """What to start.

    Args:
        directory: Holds everything: database, checkpoints, results, logs, the agents' directories.
        port: Of the scheduler; 0 takes a free one.
        policy_options: Of the policy, each ``NAME=NUMBER``.
        tenants: File of guaranteed shares.
    """

    directory: Path
    agents: int
    gpus_per_agent: int
    gpu_type: str
    policy: str
    port: int
    policy_options: tuple[str, ...] = ()
    tenants: Path | None = None

    @property
    def address_file(self) -> Path:
        """Where the scheduler writes its address once it serves."""
        return self.directory / "address"

    @property
    def ports_file(self) -> Path:
        """The ports on which ranks meet."""
        return self.directory / "ports"

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

    def policy_words(self) -> list[object]:
        """Return the words of a command line that choose the policy and what it keeps to."""
        options = [word for item in self.policy_options for word in ("--policy-option", item)]
        return ["--policy", self.policy, *options, *(["--tenants", self.tenants] if self.tenants else [])]

    def scheduler_argv(self) -> list[str]:
        """Return the command of the scheduler."""
        words: list[object] = ["scheduler", "--host", "127.0.0.1", "--port", self.port, *self.policy_words()]
        words += ["--restart", RESTART_S]
        words += ["--db", self.directory / "scheduler.db", "--address-file", self.address_file]
        words += ["--checkpoint-root", self.directory / "checkpoints", "--output-root", self.directory / "output"]
        return arena_argv(words)

    def agent_argv(self, index: int, address: str, ports: PortRange) -> list[str]:
        """Return the command of an agent; each has ports of its own, since all share this host."""
        words: list[object] = ["agent", "--node-id", f"node-{index + 1}", "--scheduler", address]
        words += ["--virtual-gpus", self.gpus_per_agent, "--gpu-type", self.gpu_type, "--address", "127.0.0.1"]
        words += ["--ports", ports.part(index, self.agents), "--place", self.directory / "checkpoints"]
        return arena_argv([*words, "--state-dir", self.agent_directory(index)])


def arena_argv(words: Sequence[object]) -> list[str]:
    """Return the command line of another process of this program."""
    return [sys.executable, "-m", "arena.cli.main", *map(str, words)]


@dataclass(slots=True)
class Service:
    """A service that runs as a process of its own."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


@dataclass(slots=True)
class LocalCluster:
    """The processes of one ``arena up``.

    Args:
        ports: On which the agents' ranks meet.
    """

    plan: UpPlan
    ports: PortRange
    address: str = ""
    children: list[Service] = field(default_factory=list)

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
            self._spawn(f"node-{index + 1}", plan.agent_argv(index, self.address, self.ports))
        with self.client() as client:
            self._wait_for(lambda: _connected_count(client) >= plan.agents, "the agents to register", stopping)
            _release_held(client, plan)

    def client(self) -> ArenaClient:
        """Return a client of this cluster's scheduler, as its own user."""
        return ArenaClient(ClientSettings(address=self.address, user=user_name()))

    def ended(self) -> Service | None:
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
        # What follows is bounded and must not be cut short: it would leave processes behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        agents = [child for child in self.children if child.name != "scheduler"]
        _end(agents)
        _kill_leftovers(self.plan)
        _end([child for child in self.children if child.name == "scheduler"])

    def _spawn(self, name: str, argv: list[str]) -> Service:
        log = self.plan.directory / f"{name}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, env=_environ()
            )
        child = Service(name, process, log)
        self.children.append(child)
        return child

    def _wait_for(self, condition: Callable[[], bool], what: str, stopping: threading.Event) -> None:
        deadline_s = time.monotonic() + START_LIMIT_S
        while not stopping.is_set() and not condition():
            if child := self.ended():
                raise death(child)
            if time.monotonic() > deadline_s:
                raise UnavailableError(f"gave up waiting for {what}", fix=f"see the logs in {self.plan.directory}")
            stopping.wait(POLL_S)


def _environ() -> dict[str, str]:
    """Return what the services inherit: settings of the caller's usual scheduler are none of theirs."""
    return {key: value for key, value in os.environ.items() if not key.startswith("ARENA_")}


def death(child: Service) -> InternalError:
    """Return the error that says how a service ended by itself."""
    lines = child.log.read_text(errors="replace").splitlines()
    code = child.process.returncode
    return InternalError(
        f"{child.name} ended with code {code}", why=lines[-1] if lines else "it wrote nothing", fix=f"see {child.log}"
    )


def _connected_count(client: ArenaClient) -> int:
    """Count the nodes whose agents are here, whatever state they were left in (drained, quarantined)."""
    return sum(node.connected for node in client.nodes())


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
        time.sleep(POLL_S)


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


def _end(children: Sequence[Service]) -> None:
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
