"""Supervisors alone, without an agent: forked from a warm launcher or started cold, and what of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from arena_agent.files import AttemptFiles, create_durably
from arena_agent.launching import write_stop
from arena_agent.processes import (
    AttemptMarks,
    kill_until_gone,
    marked_attempts,
    members,
    signal_process,
    wait_until_dead,
)
from arena_agent.procfs import ProcessIdentity, environment, is_alive, process_entry
from arena_agent.rank_log import read_tail
from arena_agent.shim.order import ExitRecord, RankOrder, ShimOrder, UnixUser
from arena_agent.warm import WarmLauncher
from tests.fakes.agent_process import until

pytestmark = pytest.mark.slow

LAUNCHER = (sys.executable, "-m", "tests.fakes.warm_launcher")
ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 30.0


def prepared(directory: Path, name: str = "j.1", **fields: Any) -> AttemptFiles:
    """An attempt's directory with an order for one rank."""
    files = AttemptFiles(directory=directory / name)
    files.directory.mkdir()
    values = {
        "attempt_id": name,
        "argv": None,
        "cwd": None,
        "env": {},
        "ranks": (RankOrder(rank=0, env={"RANK": "0"}),),
        "log_cap_bytes": 100_000,
        "grace_s": 5.0,
        "failure_delay_s": 0.1,
        **fields,
    }
    files.order.write_text(ShimOrder(**values).to_json())
    return files


def identity_of(pid: int) -> ProcessIdentity:
    entry = process_entry(pid)
    assert entry is not None
    return entry.identity


async def exit_record(files: AttemptFiles) -> ExitRecord:
    await until(files.exit.exists)
    return ExitRecord.from_mapping(json.loads(files.exit.read_text()))


def start_cold(files: AttemptFiles) -> subprocess.Popen[bytes]:
    argv = (sys.executable, "-m", "arena_agent.shim", str(files.directory))
    return subprocess.Popen(argv, start_new_session=True)


@contextlib.asynccontextmanager
async def launcher(directory: Path, argv: tuple[str, ...] = LAUNCHER) -> AsyncIterator[WarmLauncher]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "ARENA_AGENT_DIR": str(directory)}
    warm = WarmLauncher(argv, environ, directory / "launcher.log")
    running = asyncio.create_task(warm.run())
    try:
        yield warm
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def forked(warm: WarmLauncher, files: AttemptFiles, name: str = "j.1") -> ProcessIdentity:
    assert await warm.wait_ready(LIMIT_S)
    supervisor = await warm.fork(files.directory, name)
    assert supervisor is not None
    return supervisor


@pytest.mark.parametrize(
    ("deed", "code", "words"),
    [
        ("group", 0, ["threads 1 rank 0 0", "group True stdin True"]),
        ("exit", 3, ["threads 1 rank 0 0"]),
        ("raise", 1, ["RuntimeError: went wrong"]),
    ],
)
async def test_forked_ranks_run_and_exit_like_started_ones(tmp_path, deed, code, words):
    files = prepared(tmp_path, env={"DO": deed}, cwd=str(tmp_path))
    async with launcher(tmp_path) as warm:
        await wait_until_dead(await forked(warm, files))
    record = await exit_record(files)
    assert record.exit_codes == {0: code}
    text = read_tail(files.directory, 0, 4096)
    assert all(word in text.splitlines() for word in words), text


async def test_a_forked_supervisor_carries_its_attempts_mark_and_outlives_the_launcher(tmp_path):
    files = prepared(tmp_path, env={"DO": "save"})
    async with launcher(tmp_path) as warm:
        supervisor = await forked(warm, files)
        await until(lambda: "ready" in read_tail(files.directory, 0, 4096))
    marked = marked_attempts(str(tmp_path))
    shim, rank = marked["j.1"]
    assert shim.pid == supervisor.pid
    assert environment(rank.pid)[b"ARENA_ATTEMPT_ID"] == b"j.1"
    write_stop(files, "save", 20.0)
    assert signal_process(supervisor, signal.SIGTERM)
    record = await exit_record(files)
    assert (record.exit_codes, record.stop_mode, record.grace_expired) == ({0: 0}, "save", False)
    await wait_until_dead(supervisor)
    assert "j.1" not in marked_attempts(str(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change accounts")
async def test_a_forked_rank_changes_to_its_users_account(tmp_path):
    files = prepared(tmp_path, env={"DO": "who"}, user=UnixUser(uid=12345, gid=23456, group_ids=(23456, 34567)))
    async with launcher(tmp_path) as warm:
        await wait_until_dead(await forked(warm, files))
    assert (await exit_record(files)).exit_codes == {0: 0}
    assert "uid 12345 gid 23456 groups [23456, 34567]" in read_tail(files.directory, 0, 4096).splitlines()


async def test_a_launcher_that_cannot_come_up_is_not_waited_for(tmp_path):
    async with launcher(tmp_path, ("false",)) as warm:
        async with asyncio.timeout(LIMIT_S):
            is_given_up = False
            while not is_given_up:
                with contextlib.suppress(TimeoutError):  # not before it has tried
                    is_given_up = not await asyncio.wait_for(warm.wait_ready(1e9), 0.1)
        assert await warm.fork(tmp_path, "j.1") is None


async def test_an_attempt_id_that_does_not_fit_is_started_cold(tmp_path):
    async with launcher(tmp_path) as warm:
        assert await warm.wait_ready(LIMIT_S)
        assert await warm.fork(tmp_path, "j" * 200 + ".1") is None


async def test_an_attempt_that_was_given_up_is_not_started(tmp_path):
    files = prepared(tmp_path, argv=("touch", "started"), cwd=str(tmp_path))
    assert create_durably(files.claim, "{}")
    assert await asyncio.to_thread(start_cold(files).wait, LIMIT_S) == 0
    assert not files.started.exists()
    assert not (tmp_path / "started").exists()


async def test_two_supervisors_of_one_attempt_run_it_once(tmp_path):
    files = prepared(tmp_path, argv=("sh", "-c", "echo once >> log; sleep 0.3"), cwd=str(tmp_path))
    processes = [start_cold(files), start_cold(files)]
    for process in processes:
        await asyncio.to_thread(process.wait, LIMIT_S)
    assert (tmp_path / "log").read_text() == "once\n"


async def test_a_device_that_is_locked_is_not_used(tmp_path):
    lock = tmp_path / "vgpu-0.lock"
    first = prepared(tmp_path, "a.1", argv=("sleep", "600"), lock_paths=(str(lock),))
    second = prepared(tmp_path, "b.1", argv=("true",), lock_paths=(str(lock),))
    holder = start_cold(first)
    try:
        await until(first.started.exists)
        await asyncio.to_thread(start_cold(second).wait, LIMIT_S)
        assert (await exit_record(second)).launch_error == "virtual GPU vgpu-0 is held by another process"
    finally:
        write_stop(first, "kill", 0.0)
        holder.terminate()
        await asyncio.to_thread(holder.wait, LIMIT_S)
    assert (await exit_record(first)).exit_codes == {0: -9}


async def test_only_marked_processes_of_this_agent_are_members(tmp_path):
    def sleeper(**marks: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(("sleep", "600"), env={**os.environ, **marks}, start_new_session=True)

    ours = sleeper(ARENA_ATTEMPT_ID="j.1", ARENA_AGENT_DIR=str(tmp_path))
    others = [
        sleeper(ARENA_ATTEMPT_ID="j.1", ARENA_AGENT_DIR="/another/agent"),
        sleeper(ARENA_ATTEMPT_ID="j.11", ARENA_AGENT_DIR=str(tmp_path)),
        sleeper(),
    ]
    try:
        marks = AttemptMarks(attempt_id="j.1", agent_mark=str(tmp_path), supervisor=None)
        await until(lambda: [entry.pid for entry in members(marks)] == [ours.pid])
        assert await kill_until_gone(lambda: members(marks)) == ()
        assert ours.wait() == -signal.SIGKILL
        assert [other.poll() for other in others] == [None, None, None]
    finally:
        for process in (ours, *others):
            process.kill()
            process.wait()


async def test_a_pid_that_was_given_to_another_process_is_not_touched():
    process = subprocess.Popen(("sleep", "600"), start_new_session=True)
    try:
        real = identity_of(process.pid)
        stale = ProcessIdentity(pid=real.pid, start_ticks=real.start_ticks - 1)
        assert not is_alive(stale)
        assert not signal_process(stale, signal.SIGKILL)
        assert members(AttemptMarks(attempt_id="j.1", agent_mark="/none", supervisor=stale)) == ()
        assert process.poll() is None
        assert signal_process(real, signal.SIGKILL)
        await wait_until_dead(real)
    finally:
        process.kill()
        process.wait()
