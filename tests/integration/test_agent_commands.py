"""A real agent runs users' programs: their environment, their ends, their logs."""

from __future__ import annotations

import sys

import pytest

from arena.domain.records import EndKind
from tests.fakes.agent_process import agent_process, command_launch
from tests.fakes.scheduler import FakeScheduler, serving

pytestmark = pytest.mark.slow

PRINT_CONTRACT = """
import os
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "ARENA_ATTEMPT_ID", "EXTRA"):
    print(name, os.environ[name])
print("gpus", repr(os.environ["CUDA_VISIBLE_DEVICES"]), "cwd", os.getcwd())
"""


async def test_a_program_gets_the_torchrun_environment_and_finishes(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            session = await scheduler.connected()
            assert [device.device_id for device in session.registered.info.devices] == ["n1/vgpu-0", "n1/vgpu-1"]
            assert session.registered.info.address == "127.0.0.1"
            launch = command_launch(
                sys.executable, "-c", PRINT_CONTRACT, gpus=2, env={"EXTRA": "a b"}, cwd=str(tmp_path)
            )
            await scheduler.launch(launch)
            end = await scheduler.end(launch.attempt_id)
            assert (end.kind, end.exit_codes) == (EndKind.FINISHED, {0: 0, 1: 0})
            assert scheduler.is_started(launch.attempt_id)
            text = (await scheduler.read_log(launch.attempt_id, rank=1)).decode()
            assert text.splitlines() == [
                "RANK 1",
                "WORLD_SIZE 2",
                "LOCAL_RANK 1",
                "LOCAL_WORLD_SIZE 2",
                "MASTER_ADDR 127.0.0.1",
                "ARENA_ATTEMPT_ID j.1",
                "EXTRA a b",
                f"gpus '' cwd {tmp_path}",
            ]
            assert agent.end() == 0
            kinds = [line["kind"] for line in agent.journal()]
            assert kinds == ["agent_started", "launch_intent", "launched", "started", "ended", "acked"]
