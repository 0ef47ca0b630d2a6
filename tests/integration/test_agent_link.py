"""The link of a real agent: refusals that end it, verdicts, streams that break, stops that cross a restart."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import grpc
import pytest
import trustme

from arena.domain.records import EndKind
from arena.errors import (
    AlreadyRunningError,
    AuthenticationError,
    PermissionDeniedError,
    ProtocolVersionError,
)
from tests.fakes.agent_process import agent_process, command_launch, free_port, until
from tests.fakes.scheduler import FakeScheduler, serving

pytestmark = pytest.mark.slow

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
SAVE_SLOWLY_ON_TERM = """
import os, signal, sys, time
terms = []
signal.signal(signal.SIGTERM, lambda *_: terms.append(1))
print("ready", flush=True)
while not os.path.exists("saved"):
    time.sleep(0.01)
print("terms", len(terms), flush=True)
"""


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (ProtocolVersionError("agent n1 speaks protocol version 9, the scheduler speaks 1"), 7),
        (AuthenticationError("no token was given"), 6),
        (PermissionDeniedError("this token is not an agent's"), 6),
        (AlreadyRunningError("node n1 is already connected from 10.0.0.9"), 3),
    ],
)
async def test_a_refusal_for_good_ends_the_agent_with_the_schedulers_words(tmp_path, error, exit_code):
    scheduler = FakeScheduler()
    scheduler.refusal = error
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            assert await agent.exit_code() == exit_code
            assert agent.log.read_text().splitlines()[-1] == error.message


async def test_a_token_goes_to_the_scheduler_whose_certificate_is_trusted_and_to_no_other(tmp_path):
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trusted, foreign = FakeScheduler(), FakeScheduler()
    port = free_port()
    with agent_process(tmp_path, f"127.0.0.1:{port}") as agent:
        async with serving(foreign, port, server_credentials(stranger)):
            agent.start(tls_ca=str(tmp_path / "ca.pem"), token="secret")
            await until(lambda: "no session with the scheduler" in agent.log.read_text())
        async with serving(trusted, port, server_credentials(authority)):
            assert (await trusted.connected()).token == "Bearer secret"
        assert foreign.sessions == []
        assert "secret" not in agent.log.read_text()


def server_credentials(authority: trustme.CA) -> grpc.ServerCredentials:
    certificate = authority.issue_cert("127.0.0.1")
    chain = b"".join(pem.bytes() for pem in certificate.cert_chain_pems)
    return grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)])


async def test_an_agent_waits_for_its_scheduler_and_comes_back_to_it(tmp_path):
    port = free_port()
    with agent_process(tmp_path, f"127.0.0.1:{port}") as agent:
        agent.start()
        launch = command_launch(*SLEEP)
        first = FakeScheduler()
        async with serving(first, port):
            await first.connected()
            await first.launch(launch)
            await first.until(lambda: first.is_started(launch.attempt_id))
            before = agent.pids()
        second = FakeScheduler()
        async with serving(second, port):
            session = await second.connected()
            assert [item.attempt_id for item in session.registered.held] == [launch.attempt_id]
            assert session.registered.info.incarnation == first.sessions[0].registered.info.incarnation
            await second.until(lambda: len(second.heard("heartbeat")) >= 3)
            assert agent.pids() == before


async def test_the_verdict_kills_what_the_scheduler_does_not_want(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            kept, killed = command_launch(*SLEEP, job="keep"), command_launch(*SLEEP, job="kill", first_gpu=1)
            for launch in (kept, killed):
                await scheduler.launch(launch)
                await scheduler.until(lambda launch=launch: scheduler.is_started(launch.attempt_id))
            scheduler.kill = (killed.attempt_id,)
            agent.end(signal.SIGKILL)
            agent.start()
            assert (await scheduler.end(killed.attempt_id)).kind is EndKind.KILLED
            assert scheduler.ends(kept.attempt_id) == []
            assert any(_environment(pid, kept.attempt_id) for pid in agent.pids())
            assert not any(_environment(pid, killed.attempt_id) for pid in agent.pids())


def _environment(pid: int, attempt_id: str) -> bool:
    return f"ARENA_ATTEMPT_ID={attempt_id}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


async def test_an_agent_killed_during_a_polite_stop_leaves_the_ranks_their_grace(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            launch = command_launch(sys.executable, "-c", SAVE_SLOWLY_ON_TERM, cwd=str(tmp_path))
            await scheduler.launch(launch)
            await scheduler.log_shows(launch.attempt_id, b"ready")
            await scheduler.stop(launch.attempt_id, "save", 60.0)
            await until((agent.state_dir / "attempts" / launch.attempt_id / "stop.json").exists)
            agent.end(signal.SIGKILL)
            agent.start()
            await scheduler.connected(2)
            await scheduler.stop(launch.attempt_id, "save", 60.0)  # as the scheduler repeats it
            (tmp_path / "saved").touch()
            end = await scheduler.end(launch.attempt_id)
            assert (end.kind, end.exit_codes) == (EndKind.STOPPED, {0: 0})
            assert b"terms 1" in await scheduler.read_log(launch.attempt_id)


async def test_a_supervisor_that_hangs_is_cleared_away(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start(supervisor_margin_s=0.5)
            await scheduler.connected()
            launch = command_launch(*SLEEP)
            await scheduler.launch(launch)
            await scheduler.until(lambda: scheduler.is_started(launch.attempt_id))
            supervisor = next(line["pid"] for line in agent.journal() if line["kind"] == "launched")
            os.kill(supervisor, signal.SIGSTOP)
            await scheduler.stop(launch.attempt_id, "kill", 0.0)
            assert (await scheduler.end(launch.attempt_id)).kind is EndKind.KILLED
            assert agent.pids() == []


async def test_a_log_is_followed_while_it_is_written_and_until_its_end(tmp_path):
    scheduler = FakeScheduler()
    program = (
        "import os, time\nprint('one', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('two')"
    )
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            launch = command_launch(sys.executable, "-c", program, cwd=str(tmp_path))
            await scheduler.launch(launch)
            await scheduler.until(lambda: scheduler.is_started(launch.attempt_id))
            reading = asyncio.create_task(scheduler.read_log(launch.attempt_id, follow=True))
            await scheduler.until(lambda: any(b"one" in chunk.data for chunk in scheduler.log_chunks))
            (tmp_path / "go").touch()
            assert await reading == b"one\ntwo\n"
            assert await scheduler.read_log(launch.attempt_id, offset_bytes_by_rank={0: 4}) == b"two\n"
            assert await scheduler.read_log(launch.attempt_id, offset_bytes_by_rank={1: 4}) == b"one\ntwo\n"


async def test_many_short_jobs_leave_no_process_behind(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start(virtual_gpus=1)
            await scheduler.connected()
            for number in range(20):
                launch = command_launch("true", job=f"job{number}")
                await scheduler.launch(launch)
                assert (await scheduler.end(launch.attempt_id)).kind is EndKind.FINISHED
            assert agent.process is not None
            children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text().split()
            assert children == []
            assert len(scheduler.sessions) == 1
