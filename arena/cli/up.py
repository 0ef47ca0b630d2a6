"""``arena up``: a scheduler and agents on this machine, for trying out."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from arena.cli.app import App, command
from arena.cli.children import Child, ended_text
from arena.cli.local import START_LIMIT_S, LocalCluster, UpPlan, arena_argv
from arena.cli.policy_choice import number_option, policy_flags
from arena.cli.ports import held_ports
from arena.cli.quoting import quoted
from arena.cli.services import state_home
from arena.cli.up_files import holder, runs_already, up_lock
from arena.cli.up_jobs import POLL_S
from arena.cli.up_places import Place, known_place, start_ticks
from arena.cli.whole_files import write_whole
from arena.client import DEFAULT_ADDRESS
from arena.domain.cluster import ClusterShape, NodePool
from arena.errors import UnavailableError
from arena.planner.tenantfile import check_guarantees
from arena.policies.registry import make_policy
from arena.units import format_count

_AGENTS_MAX = 64
_READY_LIMIT_S = 3 * START_LIMIT_S
"""For one in the background to have its nodes: its scheduler and its agents get a limit each."""
_START_ENDINGS = ("...", " here", "jobs go on")
"""Of the lines that are told of a start: what begins, who has arrived, what was taken over."""
_DIRECTORY = click.Path(path_type=Path, file_okay=False)


@command(asks_scheduler=False, short_help="Start everything here.")
@click.option("--agents", type=click.IntRange(1, _AGENTS_MAX), default=2, show_default=True, help="Nodes.")
@click.option(
    "--gpus-per-agent", type=click.IntRange(1, 64), default=2, show_default=True, help="Virtual GPUs of each."
)
@click.option("--gpu-type", default="cpu", show_default=True, help="Catalog name of the virtual GPUs.")
@policy_flags
@click.option("--tenants", type=click.Path(path_type=Path, dir_okay=False), help="YAML file of guaranteed GPUs.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Of the scheduler; 0 takes a free one.  [default: 50061 if free]"
)
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Serve metrics for Prometheus there.")
@click.option("--dir", "directory", type=_DIRECTORY, help="Holds everything.  [default: up in the state directory]")
@click.option("--detach", is_flag=True, help="Return once it runs; stop it with `arena down`.")
@click.option("--in-background", is_flag=True, hidden=True, help="What --detach starts: no Ctrl-C reaches it.")
def up(app: App, *, detach: bool, in_background: bool, **options: Any) -> int:
    """Start a scheduler and agents with virtual GPUs here, until Ctrl-C.

    Ctrl-C saves and holds the jobs, then stops everything; the next `arena up` on the same directory goes on with them.

    If the scheduler or an agent dies, this says so here (in DIR/up.log with --detach) with its exit code or signal, and
    starts it again, at most five times in a row; jobs go on meanwhile, those of a node that is away for 15 s elsewhere.
    Then an agent is left out with what it runs, and the rest goes on; without its scheduler everything ends,
    and commands that then find nobody at its address say why. If this is itself killed, the next one takes jobs over.

    To have a node taken away, say in how many seconds and why: `echo 60 maintenance > DIR/node-1/notice`.
    """
    numbers = tuple(number_option(item) for item in options["policy_options"])
    make_policy(options["policy"], dict(numbers))  # what is mistyped is told before anything starts
    plan = _plan(options)
    _check_tenants(plan)
    plan.directory.mkdir(parents=True, exist_ok=True)
    if detach:
        return _detach(app, plan)
    with up_lock(plan.files), _stop_signals() as stopping, held_ports(plan.agents) as ports:
        cluster = LocalCluster(plan, ports, tell=app.note)
        if said := cluster.take_over():
            _warn(said)
        try:
            plan.files.ready.unlink(missing_ok=True)
            plan.files.ports.write_text(f"{ports}\n")
            cluster.start(stopping)
            if stopping.is_set():
                return 0
            with known_place(_place(plan, cluster.address)):
                ready = f"{os.getpid()} {cluster.address}\n"
                write_whole(plan.files.ready, ready.encode(), fix="give another --dir")
                _tell(app, plan, cluster.address, is_detached=in_background)
                _watch(cluster, stopping)
            return 0
        finally:
            if stopping.is_set() and not in_background:
                click.echo("stopping: jobs are saved and held first (Ctrl-C again does not wait for that)", err=True)
            cluster.stop(stopping)


def _place(plan: UpPlan, address: str) -> Place:
    pid = os.getpid()
    return Place(address=address, directory=str(plan.directory), pid=pid, start_ticks=start_ticks(pid))


def _plan(options: dict[str, Any]) -> UpPlan:
    directory = options.pop("directory") or state_home() / "up"
    tenants: Path | None = options.pop("tenants")
    return UpPlan(directory=directory.absolute(), tenants=tenants and tenants.absolute(), **options)


def _check_tenants(plan: UpPlan) -> None:
    """Refuse shares that the scheduler would not take, or that these nodes cannot give."""
    from arena_scheduler.tenant_view import tenants_from_file

    pool = NodePool(gpu_type=plan.gpu_type, zone="default", gpus_per_node=plan.gpus_per_agent, node_count=plan.agents)
    tenants = tenants_from_file(plan.tenants, plan.policy)
    check_guarantees(tenants, ClusterShape(pools=(pool,)), source=str(plan.tenants))


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


def _watch(cluster: LocalCluster, stopping: threading.Event) -> None:
    """Mend the cluster until it is to stop, and tell the terminal (or the log) what had to be mended."""
    while not stopping.wait(POLL_S):
        for said in cluster.mend():
            _warn(said)


def _warn(said: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')}  {said}", err=True)


def _tell(app: App, plan: UpPlan, address: str, *, is_detached: bool) -> None:
    option = "" if address == DEFAULT_ADDRESS else f" --scheduler {address}"
    ports = plan.files.ports.read_text().strip()
    if app.out.json_mode:
        facts = {"agents": plan.agents, "ports": ports, "metrics": plan.metrics_url}
        app.out.document(address=address, directory=str(plan.directory), **facts)
        return
    gpus = format_count(plan.agents * plan.gpus_per_agent, f"{plan.gpu_type} GPU")
    app.out.line(f"{format_count(plan.agents, 'node')} with {gpus} at {address}, all files in {plan.directory}")
    if option:
        app.out.line(f"not at the usual {DEFAULT_ADDRESS}, so commands need --scheduler; ranks meet at ports {ports}")
    if plan.metrics_url is not None:
        app.out.line(f"metrics at {plan.metrics_url}")
    app.out.line("now:" if is_detached else "in another terminal:")
    app.out.line(f"  arena{option} submit job.yaml            # or: arena{option} submit --gpus 1 -- python train.py")
    app.out.line(f"  arena{option} status")
    down = f"it runs in the background; `arena down --dir {quoted(str(plan.directory))}`"
    app.out.line(f"{down if is_detached else 'Ctrl-C here'} saves and holds the jobs and stops everything")


def _detach(app: App, plan: UpPlan) -> int:
    """Start ``arena up`` in the background and return once its nodes are ready."""
    argv = arena_argv(_up_words(plan))
    with _own_log(plan) as file:
        background = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    child = Child("`arena up`", argv, background, plan.files.log)
    try:
        address = _ready_address(child, plan, app.note)
    except KeyboardInterrupt:
        _stop_background(background, plan)
        raise
    # It goes on without us; nobody is to wait for it.
    background.returncode = 0
    _tell(app, plan, address, is_detached=True)
    return 0


def _stop_background(background: subprocess.Popen[bytes], plan: UpPlan) -> None:
    """End one in the background, which would go on although who asked for it has turned away."""
    down = f"`arena down --dir {quoted(str(plan.directory))}` stops it"
    click.echo(f"interrupted: stopping what was started (Ctrl-C again leaves it; then {down})", err=True)
    background.terminate()
    try:
        background.wait()
    except KeyboardInterrupt:
        background.returncode = 0  # nobody waits for it
        click.echo(f"it may go on; {down}", err=True)
        raise
    click.echo("stopped, nothing of it runs any more", err=True)


@contextmanager
def _own_log(plan: UpPlan) -> Iterator[IO[bytes]]:
    """Take the log that one in the background writes, which holds its lock from now on; refuse where another has it."""
    with plan.files.log.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise runs_already(plan.files) from None
        if holder(plan.files.lock) is not None:
            raise runs_already(plan.files)
        file.truncate(0)
        plan.files.ready.unlink(missing_ok=True)
        yield file


def _ready_address(background: Child, plan: UpPlan, tell: Callable[[str], None]) -> str:
    """Wait until one in the background has all its nodes, and return where it serves; tell meanwhile what it says.

    Raises:
        UnavailableError: It ended, or is not ready in time.
    """
    deadline_s = time.monotonic() + _READY_LIMIT_S
    told = 0
    while background.process.poll() is None:
        told = _tell_start(plan.files.log, told, tell)
        with contextlib.suppress(FileNotFoundError):
            pid, address = plan.files.ready.read_text().split()
            if int(pid) == background.process.pid:
                _tell_start(plan.files.log, told, tell)
                return address
        if time.monotonic() > deadline_s:
            background.process.returncode = 0  # nobody waits for it
            fix = f"see {background.log}; `arena down --dir {quoted(str(plan.directory))}` stops it"
            raise UnavailableError(f"it is not ready after {_READY_LIMIT_S:.0f} s, and still tries", fix=fix)
        time.sleep(POLL_S)
    raise UnavailableError("it did not start", why=ended_text(background), fix=f"see {plan.directory}")


def _tell_start(log: Path, told_count: int, tell: Callable[[str], None]) -> int:
    """Tell the lines that one in the background has written of its start since; return how many there are.

    Where it ended its error is told by who waits for it, and once it is ready it says where, as who waits does.
    """
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").split("\n")[:-1]
        for line in lines[told_count:]:
            if line.endswith(_START_ENDINGS):
                tell(line)
        return len(lines)
    return told_count


def _up_words(plan: UpPlan) -> list[object]:
    words: list[object] = ["up", "--in-background", "--agents", plan.agents, "--gpus-per-agent", plan.gpus_per_agent]
    words += ["--gpu-type", plan.gpu_type, "--dir", plan.directory]
    words += [] if plan.port is None else ["--port", plan.port]
    return [*words, *plan.metrics_words(), *plan.policy_words()]
