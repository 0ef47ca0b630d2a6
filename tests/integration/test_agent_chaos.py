"""An agent that is killed again and again while jobs come and go: none is lost, none runs twice, history is clean."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter

import pytest

from arena.domain.launch import Launch
from arena.domain.records import EndKind
from tests.agent_histories import check_state_dirs
from tests.fakes.agent_process import AgentProcess, agent_process, command_launch
from tests.fakes.scheduler import FakeScheduler, serving

pytestmark = pytest.mark.slow

JOB_COUNT = 10
LIFE_S_MAX = 1.5
NOTE_RUN = """
import os, sys, time
descriptor = os.open("runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(descriptor, (os.environ["ARENA_ATTEMPT_ID"] + "\\n").encode())
time.sleep(float(sys.argv[1]))
"""


async def keep_killing(agent: AgentProcess, chance: random.Random, scheduler: FakeScheduler) -> None:
    """Kill it at random moments; where it did not even come to register, a little later the next time."""
    longest_s = LIFE_S_MAX
    while True:
        stream_count = len(scheduler.sessions)
        await asyncio.sleep(chance.uniform(0.05, longest_s))
        longest_s = LIFE_S_MAX if len(scheduler.sessions) > stream_count else 1.5 * longest_s
        await asyncio.to_thread(agent.end, signal.SIGKILL)
        agent.start()


async def run_to_its_end(scheduler: FakeScheduler, launch: Launch) -> None:
    """Launch as the real scheduler does: again on every stream on which the node does not have the attempt."""
    stream_count = 0

    def is_news() -> bool:
        return len(scheduler.sessions) > stream_count or bool(scheduler.ends(launch.attempt_id))

    while not scheduler.ends(launch.attempt_id):
        await scheduler.until(is_news)
        stream_count = len(scheduler.sessions)
        held = {item.attempt_id for item in scheduler.sessions[-1].registered.held}
        if launch.attempt_id not in held and not scheduler.ends(launch.attempt_id):
            await scheduler.try_launch(launch)


@pytest.mark.parametrize("seed", [1, 2])
async def test_no_job_is_lost_or_run_twice_by_an_agent_that_keeps_dying(tmp_path, seed):
    chance = random.Random(seed)
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            killing = asyncio.create_task(keep_killing(agent, chance, scheduler))
            names = []
            for number in range(JOB_COUNT):
                duration = str(chance.uniform(0.0, 1.0))
                launch = command_launch(sys.executable, "-c", NOTE_RUN, duration, job=f"j{number}", cwd=str(tmp_path))
                names.append(launch.attempt_id)
                await run_to_its_end(scheduler, launch)
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
            runs = Counter((tmp_path / "runs").read_text().split())
            for name in names:
                kinds = {end.kind for end in scheduler.ends(name)}
                assert len(kinds) == 1, f"seed {seed}: {name} ended as {kinds}"
                finished = kinds == {EndKind.FINISHED}
                assert runs[name] <= 1, f"seed {seed}: {name} ran {runs[name]} times"
                assert runs[name] == 1 or not finished, f"seed {seed}: {name} finished without running"
            # How often it is killed while jobs run depends on the machine; that it was is what makes this a test.
            assert sum(line["kind"] == "agent_started" for line in agent.journal()) > 1
            assert check_state_dirs([agent.state_dir]) == ()
            assert sum(scheduler.ends(name)[0].kind is EndKind.FINISHED for name in names) >= JOB_COUNT // 2
