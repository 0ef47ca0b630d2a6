"""A scheduler and agents as processes of their own, each of which a test may kill and start again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from arena.client import ArenaClient, ClientSettings
from arena.domain.cluster import NodeState
from arena.domain.job import JobSpec
from arena.domain.records import EntryKind, HistoryEntry, JobState
from arena.rpc.views import GpuCounts
from arena_agent.shim.launcher import ATTEMPT_ID_PLACEHOLDER
from tests.agent_histories import check_state_dirs

ARENA = Path(sys.executable).with_name("arena")
DEADLINE_S = 90.0
_POLL_S_MIN, _POLL_S_MAX = 0.01, 0.1
"""Between two looks at a condition: what is soon true is soon seen, and long waits leave the processor to others."""
_PORT_FIRST, _PORT_LAST, _PORTS_PER_NODE = 20_000, 31_999, 50


def wait_until(condition: Callable[[], Any], what: str, limit_s: float = DEADLINE_S) -> Any:
    """Return the condition's first true value."""
    deadline_s = time.monotonic() + limit_s
    pause_s = _POLL_S_MIN
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"gave up waiting until {what}"
        time.sleep(pause_s)
        pause_s = min(_POLL_S_MAX, 1.5 * pause_s)
    return value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_ports(count: int = _PORTS_PER_NODE) -> str:
    """Return a range in which no port is taken, for ``--ports``: other clusters may run on this host."""
    width = (_PORT_LAST - _PORT_FIRST + 1) // count
    lows = [_PORT_FIRST + count * ((os.getpid() + index) % width) for index in range(width)]
    low = next(low for low in lows if low not in _given_ports and all(map(_is_free, range(low, low + count))))
    _given_ports.add(low)
    return f"{low}-{low + count - 1}"


_given_ports: set[int] = set()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@dataclass(slots=True)
class Service:
    """A process that is started, killed and started again with the same command line."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def end(self, number: int = signal.SIGKILL) -> int:
        """Send a signal, wait for the end and return the exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def text(self) -> str:
        return self.log.read_text(errors="replace")


@dataclass(slots=True)
class Node:
    """An agent with its state directory."""

    node_id: str
    state_dir: Path
    service: Service

    def journal(self) -> list[dict[str, Any]]:
        lines = (self.state_dir / "journal.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def launched(self) -> list[str]:
        """Attempts in the order in which they got a supervisor."""
        return [entry["attempt_id"] for entry in self.journal() if entry["kind"] == "launched"]

    def reports(self, attempt_id: str) -> list[dict[str, Any]]:
        """What the workers said, read from their file, whoever lives."""
        try:
            lines = (self.state_dir / "attempts" / attempt_id / "report.jsonl").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def rank_pids(self, attempt_id: str) -> dict[int, int]:
        """Living ranks of an attempt by rank."""
        try:
            started = json.loads((self.state_dir / "attempts" / attempt_id / "started.json").read_text())
        except FileNotFoundError:
            return {}
        return {int(rank): pid for rank, (pid, _) in started["ranks"].items() if is_running(pid)}

    def launcher_pid(self) -> int | None:
        """The process that ranks are forked from."""
        return next((pid for pid in pids_of(self.state_dir) if attempt_of(pid) == ATTEMPT_ID_PLACEHOLDER), None)


@dataclass(slots=True)
class Gate:
    """Stops a job's ranks where they next touch their checkpoint place (start, save, end), for as long as it is shut.

    It is the lock that a worker takes there. With it a moment of a job's life lasts until the test has done its work,
    however fast the machine is.
    """

    root: Path
    _lock: IO[str] | None = None

    def shut(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        lock = (self.root / ".fence.lock").open("a")
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._lock = lock

    def open(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def let_pass_until(self, condition: Callable[[], Any], what: str) -> None:
        """Open the gate until something has happened; it is shut again long before the ranks' next save."""
        self.open()
        wait_until(condition, what)
        self.shut()


@dataclass(slots=True)
class ProcessCluster:
    """The processes of one test cluster, and what a test asks of them."""

    directory: Path
    address: str
    scheduler: Service
    client: ArenaClient
    environment: Mapping[str, str]
    nodes: dict[str, Node] = field(default_factory=dict)
    gates: list[Gate] = field(default_factory=list)

    # Services

    @property
    def address_file(self) -> Path:
        return self.directory / "address"

    def start_scheduler(self) -> None:
        self.address_file.unlink(missing_ok=True)
        self.scheduler.start()
        wait_until(lambda: self.address_file.exists() or not self.scheduler.is_alive, "the scheduler serves")
        assert self.scheduler.is_alive, self.scheduler.text()

    def add_node(self, node_id: str, *, gpus: int, words: Sequence[object] = (), **environment: str) -> Node:
        """Start an agent and wait until its node is ready."""
        node = self.make_node(node_id, gpus=gpus, words=words, **environment)
        self.nodes[node_id] = node
        node.service.start()
        self.wait_ready(node_id)
        return node

    def make_node(self, node_id: str, *, gpus: int, words: Sequence[object] = (), **environment: str) -> Node:
        """Return an agent that is not started; its log is apart from that of others with the same name."""
        name = f"{node_id}-{len(list(self.directory.glob('*.log')))}" if node_id in self.nodes else node_id
        state_dir = self.directory / name
        argv: list[object] = ["agent", "--node-id", node_id, "--scheduler", self.address, "--virtual-gpus", gpus]
        argv += ["--address", "127.0.0.1", "--ports", free_ports()]
        argv += ["--place", self.directory / "checkpoints", "--state-dir", state_dir, *words]
        log = self.directory / f"{name}.log"
        service = Service([str(ARENA), *map(str, argv)], {**self.environment, **environment}, log)
        return Node(node_id, state_dir, service)

    def wait_ready(self, node_id: str) -> None:
        wait_until(lambda: self.node_state(node_id) is NodeState.READY, f"node {node_id} is ready")

    def node_state(self, node_id: str) -> NodeState | None:
        found = next((node for node in self.client.nodes() if node.node_id == node_id and node.connected), None)
        return found.state if found else None

    # Commands

    def arena(self, *words: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the real command line against this cluster."""
        return subprocess.run(
            [str(ARENA), *map(str, words)],
            cwd=cwd,
            env={**self.environment, "ARENA_SCHEDULER": self.address, **environment},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def arena_json(self, *words: object, cwd: Path | None = None, **environment: str) -> Any:
        """Run a command that must succeed and return the JSON it prints."""
        done = self.arena("--json", *words, cwd=cwd, **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, spec: JobSpec) -> str:
        return self.client.submit(spec).job_id

    def submit_gated(self, spec: JobSpec) -> tuple[str, Gate]:
        """Submit a job that is placed once all nodes are free, and cannot start training before its gate opens."""
        with self.drained():
            job_id = self.submit(spec)
            self.client.hold(job_id)
            gate = Gate(Path(spec.checkpoint.dir or self.directory / "checkpoints") / job_id)
            gate.shut()
            self.gates.append(gate)
        # With its grid made for all nodes: one that has just registered counts half a second later.
        if spec.gpus.count_max is not None:
            counts = spec.gpus.count_max - spec.gpus.count_min + 1
            self.wait_entry(job_id, EntryKind.GRID_BUILT, cell_count=counts)
        self.client.release(job_id)
        return job_id, gate

    @contextmanager
    def drained(self) -> Iterator[None]:
        """No node takes work meanwhile."""
        for node_id in self.nodes:
            self.client.drain(node_id, why="the test wants it")
        try:
            yield
        finally:
            for node_id in self.nodes:
                self.client.undrain(node_id)

    # What happened

    def wait_entry(self, job_id: str, kind: EntryKind, limit_s: float = DEADLINE_S, **data: object) -> HistoryEntry:
        """Return the first history entry of this kind with these facts."""
        stream = self.client.stream_events(job_id=job_id, kinds=[kind], follow=True, deadline_s=limit_s)
        for entry in stream:
            if all(entry.data.get(key) == value for key, value in data.items()):
                return entry
        raise AssertionError(f"no {kind} {data} of {job_id}; its history:\n{self.story(job_id)}")

    def wait_state(self, job_id: str, state: JobState) -> None:
        self.wait_entry(job_id, EntryKind.JOB_STATE, after=state.value)

    def wait_succeeded(self, job_id: str) -> None:
        stream = self.client.stream_events(
            job_id=job_id, kinds=[EntryKind.JOB_STATE], follow=True, deadline_s=DEADLINE_S
        )
        for entry in stream:
            if JobState(str(entry.data["after"])).is_terminal:
                break
        assert self.client.job(job_id).job.state is JobState.SUCCEEDED, self.story(job_id)

    def entries(self, job_id: str, *kinds: EntryKind) -> list[HistoryEntry]:
        return list(self.client.stream_events(job_id=job_id, kinds=kinds))

    def story(self, job_id: str) -> str:
        return "\n".join(f"{entry.at_s:.2f} {entry.kind} {entry.message}" for entry in self.entries(job_id))

    def steps(self, job_id: str) -> list[tuple[str, int]]:
        """Every step that was reported, in order, with its attempt."""
        return [
            (str(entry.attempt_id), int(step))
            for entry in self.entries(job_id, EntryKind.JOB_PROGRESS)
            for step in entry.data["steps"]  # type: ignore[attr-defined]  # a list of numbers by its contract
        ]

    def rank_pids(self, attempt_id: str) -> dict[int, int]:
        """Living ranks of an attempt on all nodes."""
        return {rank: pid for node in self.nodes.values() for rank, pid in node.rank_pids(attempt_id).items()}

    def reports(self, attempt_id: str, kind: str) -> list[dict[str, Any]]:
        """What the attempt's ranks reported, from their files."""
        return [report for node in self.nodes.values() for report in node.reports(attempt_id) if report["kind"] == kind]

    def saved_step(self, attempt_id: str) -> int:
        """Step of the attempt's last own checkpoint."""
        return max((report["step"] for report in self.reports(attempt_id, "checkpoint_saved")), default=0)

    def gpu_counts(self) -> GpuCounts:
        (counts,) = self.client.status().gpus
        return counts

    # Soundness

    def assert_sound(self) -> None:
        """What must hold after every test: nothing runs, nothing is held, and the agents' own history is clean."""
        for gate in self.gates:
            gate.open()
        wait_until(self._is_idle, "no job is left and all GPUs are free")
        with_journal = [node.state_dir for node in self.nodes.values() if (node.state_dir / "journal.jsonl").exists()]
        assert check_state_dirs(with_journal) == ()
        for node in self.nodes.values():
            launched = node.launched()
            assert len(launched) == len(set(launched)), launched
            assert not attempts_alive(node.state_dir)

    def _is_idle(self) -> bool:
        status = self.client.status()
        for counts in status.gpus:
            assert counts.free + counts.used + counts.draining + counts.dirty == counts.total, counts
        live = sum(count for state, count in status.job_count_by_state.items() if not state.is_terminal)
        return live == 0 and all(counts.free == counts.total for counts in status.gpus)

    def stop(self) -> None:
        """End everything, whatever state it is in."""
        self.client.close()
        services = [*(node.service for node in self.nodes.values()), self.scheduler]
        for service in services:
            if service.is_alive:
                service.end(signal.SIGTERM)
        # What a failed test left behind.
        for pid in pids_of(self.directory):
            if attempt_of(pid) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not pids_of(self.directory), "no process of the cluster is left")


ELASTIC_AT_ONCE = ("--policy", "elastic", "--policy-option", "change_interval_s=0")
"""For tests that must know beforehand who changes when."""


@contextmanager
def process_cluster(
    directory: Path,
    *,
    nodes: int = 2,
    gpus: int = 1,
    words: Sequence[object] = (),
    agent_words: Sequence[object] = (),
    settings: Mapping[str, Any] | None = None,
) -> Iterator[ProcessCluster]:
    """A scheduler (``words`` are added to its command line) with nodes ``n1``, ``n2``, ...; stopped at the end."""
    directory = directory.resolve()
    address = f"127.0.0.1:{free_port()}"
    base = {key: value for key, value in os.environ.items() if not key.startswith("ARENA_")}
    environment = {**base, "OMP_NUM_THREADS": "1", "HOME": str(directory), "XDG_STATE_HOME": str(directory / "state")}
    argv: list[object] = ["scheduler", "--port", address.rpartition(":")[2], "--db", directory / "scheduler.db"]
    argv += ["--checkpoint-root", directory / "checkpoints", "--output-root", directory / "output"]
    argv += ["--address-file", directory / "address", "--heartbeat-interval", 0.5, "--node-grace", DEADLINE_S]
    argv += words
    scheduler = Service([str(ARENA), *map(str, argv)], environment, directory / "scheduler.log")
    client = ArenaClient(ClientSettings(address=address, user="tester", retry_s=DEADLINE_S, **(settings or {})))
    cluster = ProcessCluster(directory, address, scheduler, client, environment)
    try:
        cluster.start_scheduler()
        for index in range(nodes):
            cluster.add_node(f"n{index + 1}", gpus=gpus, words=agent_words)
        yield cluster
        cluster.assert_sound()
    finally:
        cluster.stop()


def pids_of(directory: Path) -> tuple[int, ...]:
    """Living processes that were started for anything in a directory, but for this one."""
    mark = str(directory).encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            told = (path / "cmdline").read_bytes() + (path / "environ").read_bytes()
            if mark in told and int(path.name) != os.getpid() and is_running(int(path.name)):
                found.append(int(path.name))
    return tuple(sorted(found))


def attempt_of(pid: int) -> str | None:
    """The attempt that a process was started for."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    name = b"ARENA_ATTEMPT_ID="
    return next((item.removeprefix(name).decode() for item in variables if item.startswith(name)), None)


def attempts_alive(state_dir: Path) -> dict[int, str | None]:
    """Living processes of attempts of one agent, the warm launcher apart."""
    found = {pid: attempt_of(pid) for pid in pids_of(state_dir)}
    return {pid: name for pid, name in found.items() if name not in {None, ATTEMPT_ID_PLACEHOLDER}}


def is_running(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False
