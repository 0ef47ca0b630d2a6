"""A real agent runs training ranks: forked from the warm launcher, stopped politely, started cold without it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from arena.domain.launch import Finished, Ready, Stopped
from arena.domain.records import EndKind
from tests.fakes.agent_process import AgentProcess, agent_process, train_launch
from tests.fakes.scheduler import FakeScheduler, serving

pytestmark = pytest.mark.slow


def launcher_pid(agent: AgentProcess) -> int | None:
    names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in agent.pids()}
    return next((pid for pid, name in names.items() if name == "arena-launcher"), None)


def environment_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


async def test_training_starts_warm_stops_politely_and_goes_on_under_another_plan(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start(warm_launcher=True)
            await scheduler.connected()
            first = train_launch(tmp_path, "dp2", steps=1_000_000)
            await scheduler.launch(first)
            await scheduler.until(lambda: len(scheduler.reports(first.attempt_id)) >= 2)
            launcher = launcher_pid(agent)
            assert launcher is not None
            assert "Threads:\t1\n" in Path(f"/proc/{launcher}/status").read_text()
            marked = [pid for pid in agent.pids() if b"ARENA_ATTEMPT_ID=t.1" in environment_of(pid)]
            assert len(marked) == 3  # the supervisor and two ranks
            await scheduler.stop(first.attempt_id, "save", 20.0)
            end = await scheduler.end(first.attempt_id)
            assert end.kind is EndKind.STOPPED, end
            stopped = [report for report in scheduler.reports(first.attempt_id) if isinstance(report, Stopped)]
            assert len(stopped) == 1
            steps = stopped[0].step + 3
            second = train_launch(tmp_path, "tp2", steps=steps, epoch=2)
            await scheduler.launch(second)
            end = await scheduler.end(second.attempt_id)
            assert end.kind is EndKind.FINISHED, end
            reports = scheduler.reports(second.attempt_id)
            assert [report.resumed_step for report in reports if isinstance(report, Ready)] == [stopped[0].step]
            assert [report.step for report in reports if isinstance(report, Finished)] == [steps]


async def test_a_dead_launcher_is_replaced_and_not_missed(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start(warm_launcher=True)
            await scheduler.connected()
            launch = train_launch(tmp_path, "dp1", steps=2)
            await scheduler.launch(launch)
            assert (await scheduler.end(launch.attempt_id)).kind is EndKind.FINISHED
            launcher = launcher_pid(agent)
            assert launcher is not None
            os.kill(launcher, signal.SIGKILL)
            again = train_launch(tmp_path, "dp1", steps=2, job="u")
            await scheduler.launch(again)
            assert (await scheduler.end(again.attempt_id)).kind is EndKind.FINISHED
