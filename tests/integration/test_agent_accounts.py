"""Where the agent is root and users are known by token, a job runs as its user and never as root."""

from __future__ import annotations

import os
import pwd
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from arena.domain.records import EndKind
from tests.fakes.agent_process import agent_process, command_launch
from tests.fakes.scheduler import FakeScheduler, serving

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="only root can change accounts")]

WHO = """
echo "$(id -u) $(id -g) $HOME $USER"
echo '{"kind": "finishing", "step": 1, "condition": "told"}' >> "$ARENA_REPORT"
cat "$ARENA_LAUNCH" > /dev/null && echo read
( : > "$(dirname "$ARENA_REPORT")/exit.json" ) 2> /dev/null || echo not mine
"""


async def test_a_job_runs_as_its_user(tmp_path):
    nobody = pwd.getpwnam("nobody")
    scheduler = FakeScheduler()
    # pytest's own directories are closed to others.
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        async with serving(scheduler) as address:
            with agent_process(directory, address) as agent:
                agent.start(token="t")
                await scheduler.connected()
                launch = command_launch("sh", "-c", WHO, cwd="/")
                launch = replace(launch, spec=launch.spec.model_copy(update={"user": "nobody"}))
                await scheduler.launch(launch)
                end = await scheduler.end(launch.attempt_id)
                text = (await scheduler.read_log(launch.attempt_id)).decode()
                assert end.kind is EndKind.FINISHED, (end, text)
                assert text.splitlines() == [
                    f"{nobody.pw_uid} {nobody.pw_gid} {nobody.pw_dir} nobody",
                    "read",
                    "not mine",
                ]
                assert len(scheduler.reports(launch.attempt_id)) == 1


async def test_a_user_without_an_account_is_refused(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start(token="t")
            await scheduler.connected()
            launch = command_launch("true")
            launch = replace(launch, spec=launch.spec.model_copy(update={"user": "no such user"}))
            await scheduler.launch(launch)
            end = await scheduler.end(launch.attempt_id)
            assert (end.kind, end.error_code) == (EndKind.LAUNCH_FAILED, "config")
            assert "'no such user' has no account on this node" in end.message
