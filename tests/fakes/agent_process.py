"""A real agent process for tests, with its directory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arena.domain.job import CommandSpec, GpuLimits, JobId, JobKind, JobSpec
from arena.domain.launch import DeviceId, Launch, attempt_id
from arena.domain.parallel import parse_plan
from tests.agent_histories import check_state_dirs
from tests.builders import train_spec

_PROGRAM = """
import json, logging, pathlib, sys
logging.basicConfig(level=logging.INFO)
from arena.errors import ArenaError
from arena_agent.app import run_agent
from arena_agent.config import AgentConfig
values = json.loads(sys.argv[1])
values["state_dir"] = pathlib.Path(values["state_dir"])
values["tls_ca"] = pathlib.Path(values["tls_ca"]) if "tls_ca" in values else None
values["checkpoint_places"] = tuple(map(pathlib.Path, values.get("checkpoint_places", ())))
try:
    sys.exit(run_agent(AgentConfig(**values)))
except ArenaError as error:
    print(error.message, file=sys.stderr)
    sys.exit(error.exit_code)
"""


@dataclass(slots=True)
class AgentProcess:
    """Starts and ends agents on one state directory."""

    state_dir: Path
    scheduler: str
    node_id: str = "n1"
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.state_dir.with_suffix(".agent.log")

    def start(self, **options: Any) -> None:
        values = {
            "node_id": self.node_id,
            "scheduler": self.scheduler,
            "state_dir": str(self.state_dir),
            "virtual_gpus": 2,
            "warm_launcher": False,
            **options,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                (sys.executable, "-c", _PROGRAM, json.dumps(values)), stdout=log, stderr=log
            )

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)

    async def exit_code(self) -> int:
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, 60)

    def journal(self) -> list[dict[str, Any]]:
        lines = (self.state_dir / "journal.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def pids(self) -> list[int]:
        """Living processes started by this agent for attempts (not the agent)."""
        found = []
        mark = f"ARENA_AGENT_DIR={self.state_dir}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                is_ours = mark in (path / "environ").read_bytes().split(b"\0")
                is_zombie = (path / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            if is_ours and not is_zombie:
                found.append(int(path.name))
        return sorted(found)


@contextmanager
def agent_process(directory: Path, scheduler: str, node_id: str = "n1") -> Iterator[AgentProcess]:
    """Yield an agent that is not started yet; at the end it and all its jobs' processes are killed."""
    agent = AgentProcess(directory.resolve() / f"state-{node_id}", scheduler, node_id)
    try:
        yield agent
    finally:
        if agent.process is not None:
            agent.process.kill()
            agent.process.wait(30)
        while pids := agent.pids():
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
    if (agent.state_dir / "journal.jsonl").exists():
        assert check_state_dirs([agent.state_dir]) == ()


async def until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Wait for a condition over files and processes."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command_launch(
    *argv: str,
    job: str = "j",
    epoch: int = 1,
    node_id: str = "n1",
    gpus: int = 1,
    first_gpu: int = 0,
    master_port: int | None = None,
    **command: Any,
) -> Launch:
    """A launch of a user's program on virtual GPUs of one node."""
    spec = JobSpec(
        name=job,
        kind=JobKind.RIGID,
        gpus=GpuLimits(count=gpus),
        command=CommandSpec(argv=argv, **command),
        grace_s=5.0,
    )
    return Launch(
        attempt_id=attempt_id(JobId(job), epoch),
        job_id=JobId(job),
        epoch=epoch,
        spec=spec,
        plan=None,
        node_ranks=tuple(range(gpus)),
        node_index=0,
        node_count=1,
        world_size=gpus,
        device_ids=tuple(DeviceId(f"{node_id}/vgpu-{first_gpu + index}") for index in range(gpus)),
        gpu_type="cpu",
        master_addr="127.0.0.1",
        master_port=master_port or free_port(),
        checkpoint_dir="",
        output_dir="",
    )


def train_launch(
    directory: Path, plan: str, *, steps: int, job: str = "t", epoch: int = 1, node_id: str = "n1", interval: int = 100
) -> Launch:
    """A launch of a tiny GPT over all ranks of a plan, on virtual GPUs of one node."""
    layout = parse_plan(plan, layer_count=2)
    spec = train_spec(
        job,
        model={"layers": 2, "hidden": 32, "heads": 2, "seq_len": 32},
        stop={"steps": steps},
        checkpoint={"interval_steps": interval},
        grace_s=20.0,
    )
    base = command_launch("unused", job=job, epoch=epoch, node_id=node_id, gpus=layout.gpu_count)
    return replace(
        base,
        spec=spec,
        plan=layout,
        checkpoint_dir=str(directory / "checkpoints"),
        output_dir=str(directory / "output"),
    )
