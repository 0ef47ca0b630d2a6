"""Agents and their processes die at every point; a new agent on the same directory puts things right."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arena.domain.records import EndKind
from arena_agent.procfs import process_entry
from tests.fakes.agent_process import AgentProcess, agent_process, command_launch, until
from tests.fakes.scheduler import FakeScheduler, serving

pytestmark = pytest.mark.slow

COUNT_LINES = """
import itertools, os, time
for number in itertools.count():
    print(number, flush=True)
    time.sleep(0.01)
    if os.path.exists("enough"):
        break
"""
SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


def leave_stray(agent: AgentProcess, name: str) -> subprocess.Popen[bytes]:
    marks = {"ARENA_ATTEMPT_ID": name, "ARENA_AGENT_DIR": str(agent.state_dir)}
    return subprocess.Popen(("sleep", "600"), env={**os.environ, **marks}, start_new_session=True)


async def test_a_killed_agent_leaves_its_job_alone_and_the_next_one_takes_it_up(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            launch = command_launch(sys.executable, "-c", COUNT_LINES, cwd=str(tmp_path))
            await scheduler.launch(launch)
            await scheduler.until(lambda: scheduler.is_started(launch.attempt_id))
            before = agent.pids()
            agent.end(signal.SIGKILL)
            assert agent.pids() == before
            agent.start()
            session = await scheduler.connected(2)
            assert [(item.attempt_id, item.started) for item in session.registered.held] == [("j.1", True)]
            assert agent.pids() == before
            assert scheduler.ends(launch.attempt_id) == []
            (tmp_path / "enough").touch()
            end = await scheduler.end(launch.attempt_id)
            assert end.kind is EndKind.FINISHED
            lines = (await scheduler.read_log(launch.attempt_id)).split()
            assert [int(line) for line in lines] == list(range(len(lines)))
            assert len(lines) > 1
            launched = [line for line in agent.journal() if line["kind"] == "launched"]
            assert len(launched) == 1


async def test_an_agent_that_comes_back_to_nothing_says_so_at_once(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            launch = command_launch(*SLEEP)
            await scheduler.launch(launch)
            await scheduler.until(lambda: scheduler.is_started(launch.attempt_id))
            agent.end(signal.SIGKILL)
            for pid in agent.pids():
                os.kill(pid, signal.SIGKILL)
            agent.start()
            end = await scheduler.end(launch.attempt_id)
            assert end.kind is EndKind.FAILED
            assert "nobody saw them exit" in end.message


async def test_a_job_that_ends_while_there_is_no_agent_is_not_lost(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            launch = command_launch(sys.executable, "-c", COUNT_LINES, cwd=str(tmp_path))
            await scheduler.launch(launch)
            await scheduler.until(lambda: scheduler.is_started(launch.attempt_id))
            agent.end(signal.SIGKILL)
            (tmp_path / "enough").touch()
            exit_file = agent.state_dir / "attempts" / "j.1" / "exit.json"
            await until(exit_file.exists)
            agent.start()
            assert (await scheduler.end(launch.attempt_id)).kind is EndKind.FINISHED


async def test_an_end_is_told_until_it_is_acknowledged_and_not_after(tmp_path):
    scheduler = FakeScheduler()
    scheduler.acknowledges = False
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            launch = command_launch("true")
            await scheduler.launch(launch)
            await scheduler.until(lambda: len(scheduler.ends(launch.attempt_id)) >= 2)
            agent.end()
            agent.start()
            session = await scheduler.connected(2)
            assert [item.attempt_id for item in session.registered.ended] == [launch.attempt_id]
            scheduler.acknowledges = True
            agent.end()
            agent.start()
            await scheduler.connected(3)
            await until(lambda: agent.journal()[-1]["kind"] == "acked")
            agent.end()
            agent.start()
            session = await scheduler.connected(4)
            assert session.registered.ended == ()
            assert session.registered.held == ()


async def test_an_epoch_that_was_seen_is_refused_even_after_a_restart(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            await scheduler.launch(command_launch("true", epoch=5))
            assert (await scheduler.end(command_launch("true", epoch=5).attempt_id)).kind is EndKind.FINISHED
            await until(lambda: agent.journal()[-1]["kind"] == "acked")
            agent.end(signal.SIGKILL)
            agent.start()
            await scheduler.connected(2)
            await scheduler.launch(command_launch("true", epoch=4))
            end = await scheduler.end(command_launch("true", epoch=4).attempt_id)
            assert end.kind is EndKind.LAUNCH_FAILED
            assert "epoch 4 of job j is older: this node has seen epoch 5" in end.message


async def test_an_intent_without_processes_is_given_up_for_good(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            agent.end(signal.SIGKILL)
            intent = '{"wall_s": 1.0, "boot_s": 1.0, "kind": "launch_intent", "attempt_id": "j.1", "job_id": "j",'
            with (agent.state_dir / "journal.jsonl").open("a") as journal:
                journal.write(f'{intent} "epoch": 1, "devices": ["n1/vgpu-0"]}}\n{{"torn')
            agent.start()
            end = await scheduler.end(command_launch("x").attempt_id)
            assert end.kind is EndKind.LAUNCH_FAILED  # which may be repeated, also for a program that may not run twice
            assert end.message == "the agent was restarted before the processes came up"
            assert (agent.state_dir / "attempts" / "j.1" / "claim.json").exists()


async def test_a_supervisor_that_the_journal_does_not_know_yet_is_adopted(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            launch = command_launch(sys.executable, "-c", COUNT_LINES, cwd=str(tmp_path))
            await scheduler.launch(launch)
            await scheduler.until(lambda: scheduler.is_started(launch.attempt_id))
            before = agent.pids()
            agent.end(signal.SIGKILL)
            journal = agent.state_dir / "journal.jsonl"
            lines = journal.read_text().splitlines(keepends=True)
            journal.write_text("".join(lines[:2]))  # as if the agent had died right after the intent
            agent.start()
            session = await scheduler.connected(2)
            await until(lambda: agent.journal()[-1]["kind"] == "started")
            assert [item.attempt_id for item in session.registered.held] == [launch.attempt_id]
            assert agent.pids() == before
            (tmp_path / "enough").touch()
            assert (await scheduler.end(launch.attempt_id)).kind is EndKind.FINISHED


async def test_after_a_reboot_pids_of_the_boot_before_mean_nothing(tmp_path):
    scheduler = FakeScheduler()
    bystander = subprocess.Popen(("sleep", "600"), start_new_session=True)
    entry = process_entry(bystander.pid)
    assert entry is not None
    try:
        async with serving(scheduler) as address:
            with agent_process(tmp_path, address) as agent:
                agent.start()
                await scheduler.connected()
                launch = command_launch(*SLEEP)
                await scheduler.launch(launch)
                await scheduler.until(lambda: scheduler.is_started(launch.attempt_id))
                agent.end(signal.SIGKILL)
                for pid in agent.pids():
                    os.kill(pid, signal.SIGKILL)
                old_boot(agent, {"pid": bystander.pid, "start_ticks": entry.identity.start_ticks})
                agent.start()
                assert (await scheduler.end(launch.attempt_id)).kind is EndKind.FAILED
                assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def old_boot(agent: AgentProcess, supervisor: dict[str, int]) -> None:
    """Make what the agent wrote look as if it came from another boot, in which a bystander's pid was a supervisor."""
    path = agent.state_dir / "journal.jsonl"
    lines = [
        {**line, **({"boot_id": "another"} if line["kind"] == "agent_started" else {})}
        | (supervisor if line["kind"] == "launched" else {})
        for line in agent.journal()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (agent.state_dir / "attempts" / "j.1" / "claim.json").write_text(json.dumps({**supervisor, "boot_id": "another"}))


async def test_strays_of_an_unknown_attempt_are_killed_before_the_node_is_ready(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            stray = leave_stray(agent, "old.7")
            bystander = subprocess.Popen(("sleep", "600"), env={**os.environ, "ARENA_ATTEMPT_ID": "old.7"})
            try:
                agent.start()
                session = await scheduler.connected()
                assert session.registered.info.problem is not None
                assert session.registered.info.problem.startswith("cleaning: ")
                assert await asyncio.to_thread(stray.wait, 30) == -signal.SIGKILL
                await scheduler.until(lambda: any(event.problem is None for event in scheduler.device_changes()))
                assert bystander.poll() is None
            finally:
                for process in (stray, bystander):
                    process.kill()
                    process.wait()


async def test_a_second_agent_on_the_directory_is_refused_and_names_the_first(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            first = agent.process
            assert first is not None
            agent.start()
            try:
                assert await agent.exit_code() == 3
            finally:
                agent.process = first
            assert f"process {first.pid} holds it" in agent.log.read_text()


async def test_the_agent_never_imports_torch(tmp_path):
    program = (
        "import sys, arena_agent.app, arena_agent.shim.__main__, arena_agent.report\n"
        "sys.exit(any(name == 'torch' or name.startswith('torch.') for name in sys.modules))"
    )
    assert await asyncio.to_thread(subprocess.call, (sys.executable, "-c", program)) == 0


async def test_reports_that_were_not_read_yet_come_before_the_end(tmp_path):
    scheduler = FakeScheduler()
    reports = 'import os; open(os.environ["ARENA_REPORT"], "a").write(%r)'
    line = '{"kind": "checkpoint_saved", "step": 7, "name": "c", "size_bytes": 1, "save_s": 0.1}\n'
    program = f"import time, pathlib\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\n{reports % line}"
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            launch = command_launch(sys.executable, "-c", program, cwd=str(tmp_path))
            await scheduler.launch(launch)
            await scheduler.until(lambda: scheduler.is_started(launch.attempt_id))
            await let_end_without_agent(scheduler, tmp_path, agent)
            await scheduler.until(lambda: bool(scheduler.ends(launch.attempt_id)))
            kinds = [m.WhichOneof("message") for s in scheduler.sessions[1:] for m in s.messages]
            told = [kind for kind in kinds if kind in {"worker_report", "attempt_ended"}]
            assert told == ["worker_report", "attempt_ended"]


async def let_end_without_agent(scheduler: FakeScheduler, directory: Path, agent: AgentProcess) -> None:
    agent.end(signal.SIGKILL)
    (directory / "go").touch()
    await until((agent.state_dir / "attempts" / "j.1" / "exit.json").exists)
    agent.start()
    await scheduler.connected(2)
