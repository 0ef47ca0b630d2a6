"""Starts the ranks of an attempt for tests, by forking from a process that has imported the worker once.

``python -m tests.fakes.rank_launcher`` is that process: it reads one JSON request a line on its standard input and
answers with one JSON line per process started and ended. ``RankLauncher`` is the test's side of it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from arena.domain.job import JobId, JobSpec
from arena.domain.launch import (
    LAUNCH_JSON,
    REPORT_JSON,
    DeviceId,
    Launch,
    Progress,
    WorkerReport,
    attempt_id,
)
from arena.domain.parallel import ParallelPlan

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
WORKER = "arena_agent.worker.main:run_rank"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def make_launch(directory: Path, spec: JobSpec, plan: ParallelPlan, *, epoch: int = 1) -> Launch:
    job_id = JobId("job-1")
    ranks = tuple(range(plan.gpu_count))
    return Launch(
        attempt_id=attempt_id(job_id, epoch),
        job_id=job_id,
        epoch=epoch,
        spec=spec,
        plan=plan,
        node_ranks=ranks,
        node_index=0,
        node_count=1,
        world_size=len(ranks),
        device_ids=tuple(DeviceId(f"cpu-{rank}") for rank in ranks),
        gpu_type="cpu",
        master_addr="127.0.0.1",
        master_port=free_port(),
        checkpoint_dir=str(directory / "checkpoints"),
        output_dir=str(directory / "output"),
    )


@dataclass(kw_only=True)
class Attempt:
    """The ranks of one launch and what they report."""

    launcher: RankLauncher
    directory: Path
    pids: list[int]
    report_path: Path

    def reports(self) -> list[WorkerReport]:
        """Return all reports so far."""
        if not self.report_path.exists():
            return []
        lines = self.report_path.read_bytes().split(b"\n")
        return [REPORT_JSON.validate_json(line) for line in lines[:-1]]

    def reports_of(self, kind: type[T]) -> list[T]:
        return [report for report in self.reports() if isinstance(report, kind)]

    def losses(self) -> dict[int, float]:
        """Return the loss of each step."""
        return {point.step: point.loss for part in self.reports_of(Progress) for point in part.points}

    def signal(self, number: int, rank: int | None = None) -> None:
        for pid in self.pids if rank is None else [self.pids[rank]]:
            if pid not in self.launcher.codes:
                os.kill(pid, number)

    def wait(self, timeout_s: float = 120.0) -> list[int]:
        """Return the exit codes of all ranks; kill them when the time is over."""
        codes = self.launcher.wait(self.pids, timeout_s)
        if codes is None:
            self.signal(signal.SIGKILL)
            raise AssertionError(f"ranks still run after {timeout_s} s:\n{self.logs()}")
        return codes

    def wait_for(self, kind: type[WorkerReport], count: int = 1, timeout_s: float = 60.0) -> None:
        """Wait until a kind of report is there."""
        deadline_s = time.monotonic() + timeout_s
        while len(self.reports_of(kind)) < count:
            self.launcher.poll(0.02)
            if time.monotonic() > deadline_s or all(pid in self.launcher.codes for pid in self.pids):
                if len(self.reports_of(kind)) >= count:
                    return
                raise AssertionError(f"no {kind.__name__}; reports {self.reports()}\n{self.logs()}")

    def wait_for_port(self, port: int, timeout_s: float = 60.0) -> None:
        """Wait until rank 0 listens for the others."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            self.launcher.poll(0.02)
        raise AssertionError(f"nobody listens on port {port}\n{self.logs()}")

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.directory.glob("rank*.log")))

    def finish(self, timeout_s: float = 120.0) -> Attempt:
        """Wait and require that every rank ends well."""
        codes = self.wait(timeout_s)
        assert set(codes) == {0}, f"exit codes {codes}\n{self.reports()[-3:]}\n{self.logs()}"
        return self


@dataclass(kw_only=True)
class RankLauncher:
    """The test's end of the forking process."""

    process: subprocess.Popen[bytes]
    codes: dict[int, int] = field(default_factory=dict)
    _started: list[int] = field(default_factory=list)
    _buffer: bytes = b""

    @classmethod
    def start(cls) -> RankLauncher:
        environ = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        folders = [ROOT, ROOT / "agents"]
        environ["PYTHONPATH"] = os.pathsep.join(str(folder) for folder in folders)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.rank_launcher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
            cwd=ROOT,
        )
        return cls(process=process)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=20)
        self.process.stdout.close()

    def launch(
        self,
        directory: Path,
        launch: Launch,
        *,
        target: str = WORKER,
        environ: Mapping[str, str] | None = None,
        ranks: Sequence[int] | None = None,
    ) -> Attempt:
        """Start the ranks of a launch; ``target`` names a function of the environment that returns an exit code."""
        place = directory / f"attempt-{launch.epoch}"
        place.mkdir(parents=True, exist_ok=True)
        launch_path = place / "launch.json"
        launch_path.write_bytes(LAUNCH_JSON.dump_json(launch))
        report_path = place / "reports.jsonl"
        pids = []
        for rank in range(launch.world_size) if ranks is None else ranks:
            variables = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(launch.world_size),
                "MASTER_ADDR": launch.master_addr,
                "MASTER_PORT": str(launch.master_port),
                "ARENA_ATTEMPT_ID": launch.attempt_id,
                "ARENA_LAUNCH": str(launch_path),
                "ARENA_REPORT": str(report_path),
                **(environ or {}),
            }
            pids.append(self._fork(target, variables, place / f"rank{rank}.log"))
        return Attempt(launcher=self, directory=place, pids=pids, report_path=report_path)

    def run(
        self, directory: Path, spec: JobSpec, plan: ParallelPlan, *, epoch: int = 1, target: str = WORKER
    ) -> Attempt:
        """Launch and wait for a good end."""
        return self.launch(directory, make_launch(directory, spec, plan, epoch=epoch), target=target).finish()

    def wait(self, pids: Sequence[int], timeout_s: float) -> list[int] | None:
        deadline_s = time.monotonic() + timeout_s
        while not all(pid in self.codes for pid in pids):
            if time.monotonic() > deadline_s:
                return None
            self.poll(0.1)
        return [self.codes[pid] for pid in pids]

    def poll(self, timeout_s: float) -> None:
        """Take in what the forking process says."""
        assert self.process.stdout is not None
        handle = self.process.stdout.fileno()
        if not select.select([handle], [], [], timeout_s)[0]:
            return
        data = os.read(handle, 65536)
        if not data:
            raise AssertionError("the rank launcher ended")
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "started" in message:
                self._started.append(message["started"])
            else:
                self.codes[message["ended"]] = message["code"]

    def _fork(self, target: str, environ: Mapping[str, str], log: Path) -> int:
        assert self.process.stdin is not None
        request = {"target": target, "environ": dict(environ), "log": str(log)}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        while not self._started:
            self.poll(60.0)
        pid = self._started.pop()
        self.codes.pop(pid, None)
        return pid


def serve() -> None:
    """Fork on request until standard input closes, then end what still runs."""
    gc.disable()
    importlib.import_module("arena_agent.worker.main")
    importlib.import_module("tests.fakes.worker_targets")
    gc.freeze()  # as the warm launcher does: no rank looks through what was imported, which would also copy it
    gc.enable()
    tasks = len(list(Path("/proc/self/task").iterdir()))
    assert tasks == 1, f"importing the worker left {tasks} threads, so forking is not safe"
    running: set[int] = set()
    buffer = b""
    while True:
        readable = select.select([0], [], [], 0.02 if running else None)[0]
        if readable:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                running.add(_fork_child(json.loads(line)))
        _reap(running)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fork_child(request: Mapping[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _become_rank(request)
    _say({"started": pid})
    return pid


def _become_rank(request: Mapping[str, Any]) -> None:
    code = 99
    try:
        handle = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(request["environ"])
        module, _, function = str(request["target"]).partition(":")
        code = getattr(importlib.import_module(module), function)(os.environ)
    except Exception:  # noqa: BLE001 - the outermost frame of the rank
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap(running: set[int]) -> None:
    for pid in sorted(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            running.discard(pid)
            _say({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(message: Mapping[str, int]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    serve()
