"""A scheduler as a process: killed, stopped by a signal, suspended, started twice."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from arena.domain.events import HeldAttempt
from arena.domain.launch import AttemptId
from arena.rpc.v1 import agent_service_pb2 as pb
from arena.rpc.v1 import common_pb2
from tests.builders import node_info, train_spec
from tests.fakes.agent_session import AgentSession
from tests.fakes.running_scheduler import eventually
from tests.fakes.scheduler_client import SchedulerClient

pytestmark = pytest.mark.slow

GRACE_S = 3.0


class Process:
    """`arena scheduler` on a database that outlives it."""

    def __init__(self, directory: Path, port: int = 0) -> None:
        self._address_file = directory / "address"
        self._address_file.unlink(missing_ok=True)
        arguments = ["--db", str(directory / "arena.db"), "--port", str(port), "--policy", "fcfs"]
        arguments += ["--address-file", str(self._address_file), "--node-grace", str(GRACE_S)]
        arguments += ["--heartbeat-interval", "0.2"]
        self._log = (directory / "scheduler.log").open("a")
        self.child = subprocess.Popen(
            [str(Path(sys.executable).with_name("arena")), "scheduler", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )

    async def address(self) -> str:
        """Where it serves, waiting until it does."""
        await eventually(lambda: self._address_file.exists() or self.child.poll() is not None, "it serves")
        return self._address_file.read_text().strip()

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal and return the exit status."""
        with contextlib.suppress(ProcessLookupError):
            self.child.send_signal(signal.SIGCONT)
            self.child.send_signal(number)
        self._log.close()
        return self.child.wait(timeout=30)


@contextlib.asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[Process, SchedulerClient]]:
    """A process and a client of it; killed at the end."""
    process = Process(directory)
    try:
        client = SchedulerClient(await process.address())
        yield process, client
        await client.close()
    finally:
        process.end()


async def started(client: SchedulerClient, agent: AgentSession) -> tuple[str, Any]:
    """Submit a job and have the agent say that it is up."""
    job_id = await client.submit(train_spec("x", gpus={"max": 2}))
    launch = await agent.next_of("launch")
    await agent.send(pb.OpenSessionRequest(attempt_started=pb.AttemptStarted(attempt_id=launch.attempt_id)))

    async def is_up() -> bool:
        entries = await client.entries(job_id=job_id)
        return any(entry.kind == "attempt_started" for entry in entries)

    await eventually(is_up, "the attempt is up")
    return job_id, launch


async def connected(client: SchedulerClient, held: tuple[HeldAttempt, ...] = ()) -> AgentSession:
    agent = AgentSession(client.address, node_info("n1"))
    await agent.register(held=held)
    await agent.heartbeats(0.1)
    return agent


async def test_kill_9_loses_no_acknowledged_job_and_disturbs_no_running_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as (process, client):
        agent = await connected(client)
        job_id, launch = await started(client, agent)
        acknowledged = [job_id]

        async def submit_for_ever() -> None:
            while True:
                acknowledged.append(await client.submit(train_spec("later")))

        submitting = asyncio.create_task(submit_for_ever())
        await eventually(lambda: len(acknowledged) > 20, "some are acknowledged")
        process.end()
        with contextlib.suppress(Exception):
            await submitting
        await agent.close()
    async with serving(tmp_path) as (_, client):
        held = (HeldAttempt(attempt_id=AttemptId(launch.attempt_id), started=True),)
        agent = await connected(client, held)
        assert list((await agent.next_of("verdict")).keep_attempt_ids) == [launch.attempt_id]
        job = await client.job(job_id)
        assert (job.epoch, job.state) == (1, common_pb2.JOB_STATE_STARTING)
        for name in acknowledged:
            assert (await client.job(name)).job_id == name
        counts = (await client.call("GetStatus")).gpus[0]
        assert (counts.used, counts.free, counts.total) == (2, 0, 2)
        await agent.close()


async def test_a_suspended_scheduler_blames_no_agent(tmp_path: Path) -> None:
    async with serving(tmp_path) as (process, client):
        agent = await connected(client)
        job_id, _ = await started(client, agent)
        process.child.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2 * GRACE_S)  # the length of the suspension is what is tested
        process.child.send_signal(signal.SIGCONT)
        for _ in range(20):
            status = await client.call("GetStatus")
            assert status.gpus[0].used == 2
            await asyncio.sleep(0.1)
        assert agent.failure is None
        job = await client.job(job_id)
        assert (job.epoch, job.state) == (1, common_pb2.JOB_STATE_STARTING)
        await agent.close()


async def test_term_ends_it_cleanly_and_leaves_jobs_running(tmp_path: Path) -> None:
    async with serving(tmp_path) as (process, client):
        agent = await connected(client)
        _, launch = await started(client, agent)
        assert process.end(signal.SIGTERM) == 0
        assert not any(message.WhichOneof("message") == "stop_attempt" for message in agent.received)
        await agent.ended()
        await agent.close()
    async with serving(tmp_path) as (_, client):
        held = (HeldAttempt(attempt_id=AttemptId(launch.attempt_id), started=True),)
        agent = await connected(client, held)
        assert list((await agent.next_of("verdict")).keep_attempt_ids) == [launch.attempt_id]
        await agent.close()


async def test_second_servers_exit_with_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    async with serving(tmp_path) as (process, client):
        arena = str(Path(sys.executable).with_name("arena"))
        port = client.address.rpartition(":")[2]
        same_db = [arena, "scheduler", "--db", str(tmp_path / "arena.db"), "--port", "0"]
        same_port = [arena, "scheduler", "--db", str(tmp_path / "other.db"), "--port", port]
        for command, word in ((same_db, f"pid {process.child.pid}"), (same_port, "--port")):
            answer = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
            )
            assert answer.returncode != 0
            assert word in answer.stderr
            assert "Traceback" not in answer.stderr
