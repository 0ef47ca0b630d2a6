"""Jobs that fail, refuse to die, hide their children or flood the disk: the agent ends them and nothing else."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arena.domain.records import EndKind
from tests.fakes.agent_process import agent_process, command_launch
from tests.fakes.scheduler import FakeScheduler, serving

pytestmark = pytest.mark.slow

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
SAVE_ON_TERM = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""
IGNORE_TERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""
# A child that leaves group, session and parent, and cleans its environment.
HIDE_A_CHILD = """
import os, subprocess, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
print("ready", flush=True)
time.sleep(600)
"""


async def test_a_polite_stop_lets_the_program_save(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            launch = command_launch(sys.executable, "-c", SAVE_ON_TERM, gpus=2)
            await scheduler.launch(launch)
            await scheduler.log_shows(launch.attempt_id, b"ready\nready")
            await scheduler.stop(launch.attempt_id, "save", 20.0)
            end = await scheduler.end(launch.attempt_id)
            assert (end.kind, end.exit_codes) == (EndKind.STOPPED, {0: 0, 1: 0})


async def test_a_program_that_ignores_the_stop_is_killed_after_the_grace(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            launch = command_launch(sys.executable, "-c", IGNORE_TERM)
            await scheduler.launch(launch)
            await scheduler.log_shows(launch.attempt_id, b"ready")
            await scheduler.stop(launch.attempt_id, "save", 0.3)
            end = await scheduler.end(launch.attempt_id)
            assert (end.kind, end.exit_codes) == (EndKind.KILLED, {0: -9})
            assert "within the grace" in end.message


async def test_a_hidden_child_is_killed_and_neighbours_are_not(tmp_path):
    scheduler = FakeScheduler()
    neighbour = subprocess.Popen(("sleep", "600"))
    try:
        async with serving(scheduler) as address:
            with agent_process(tmp_path, address) as agent:
                agent.start()
                await scheduler.connected()
                launch = command_launch(sys.executable, "-c", HIDE_A_CHILD, cwd=str(tmp_path))
                await scheduler.launch(launch)
                await scheduler.log_shows(launch.attempt_id, b"ready")
                hidden = sleepers_in(tmp_path)
                assert len(hidden) == 1
                await scheduler.stop(launch.attempt_id, "kill", 0.0)
                assert (await scheduler.end(launch.attempt_id)).kind is EndKind.KILLED
                assert sleepers_in(tmp_path) == []
                assert neighbour.poll() is None
                assert agent.process is not None
                assert agent.process.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()


def sleepers_in(directory) -> list[int]:
    output = subprocess.run(("pgrep", "-x", "sleep"), capture_output=True, text=True, check=False).stdout
    pids = [int(word) for word in output.split()]
    return [pid for pid in pids if working_directory(pid) == str(directory)]


def working_directory(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""


async def test_the_first_rank_that_dies_takes_the_others_along_and_is_named(tmp_path):
    scheduler = FakeScheduler()
    program = (
        'import os, signal, time\nif os.environ["RANK"] == "1": os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)'
    )
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            launch = command_launch(sys.executable, "-c", program, gpus=2)
            await scheduler.launch(launch)
            end = await scheduler.end(launch.attempt_id)
            assert (end.kind, end.exit_codes) == (EndKind.FAILED, {0: -9, 1: -9})
            assert end.message.startswith("rank 1 was killed by signal 9")
            assert agent.pids() == []


async def test_a_failing_rank_leaves_its_last_words(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            launch = command_launch(sys.executable, "-c", "raise ValueError('no such thing')")
            await scheduler.launch(launch)
            end = await scheduler.end(launch.attempt_id)
            assert (end.kind, end.message) == (EndKind.FAILED, "rank 0 exited with code 1")
            assert end.log_tail.endswith("ValueError: no such thing\n")


@pytest.mark.parametrize(
    ("argv", "options", "word"),
    [
        (("no-such-program",), {}, "No such file or directory: 'no-such-program'"),
        (("true",), {"cwd": "/no/such/place"}, "No such file or directory: '/no/such/place'"),
        (("true",), {"env": {"GLOO_SOCKET_IFNAME": "bogus0"}}, "GLOO_SOCKET_IFNAME names 'bogus0'"),
    ],
)
async def test_what_cannot_be_started_says_why(tmp_path, argv, options, word):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            launch = command_launch(*argv, **options)
            await scheduler.launch(launch)
            end = await scheduler.end(launch.attempt_id)
            assert end.kind is EndKind.LAUNCH_FAILED
            assert word in end.message


async def test_a_taken_port_a_held_device_and_a_foreign_lock_are_refused(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            taken = command_launch("true", job="a", master_port=int(address.rpartition(":")[2]))
            await scheduler.launch(taken)
            end = await scheduler.end(taken.attempt_id)
            assert (end.kind, end.error_code) == (EndKind.LAUNCH_FAILED, "port")
            holder = command_launch(*SLEEP, job="b")
            await scheduler.launch(holder)
            await scheduler.until(lambda: scheduler.is_started(holder.attempt_id))
            second = command_launch("true", job="c")
            await scheduler.launch(second)
            assert "n1/vgpu-0 is held by attempt b.1" in (await scheduler.end(second.attempt_id)).message
            with (agent.state_dir / "devices" / "vgpu-1.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                third = command_launch("true", job="d", first_gpu=1)
                await scheduler.launch(third)
                message = (await scheduler.end(third.attempt_id)).message
                assert f"n1/vgpu-1 is dirty: in use by process {os.getpid()}" in message
                await scheduler.until(lambda: any(e.devices[1].dirty for e in scheduler.device_changes()))
            await scheduler.until(lambda: scheduler.device_changes()[-1].devices[1].dirty is None)


async def test_odd_names_and_arguments_arrive_as_they_are(tmp_path):
    scheduler = FakeScheduler()
    directory = tmp_path / "a dir with 'quotes' and 日本語"
    directory.mkdir()
    odd = ("a b", '"c"', "$(touch oops)", "line\nbreak", "😀", "")
    async with serving(scheduler) as address:
        with agent_process(directory, address) as agent:
            agent.start()
            await scheduler.connected()
            program = "import os, sys; print(sys.argv[1:], os.getcwd())"
            launch = command_launch(sys.executable, "-c", program, *odd, cwd=str(directory))
            await scheduler.launch(launch)
            assert (await scheduler.end(launch.attempt_id)).kind is EndKind.FINISHED
            assert (await scheduler.read_log(launch.attempt_id)).decode() == f"{list(odd)} {directory}\n"
            assert not (directory / "oops").exists()


async def test_a_flood_of_output_stays_within_the_cap_and_its_ends_are_kept(tmp_path):
    scheduler = FakeScheduler()
    program = "import sys\nfor number in range(300_000): sys.stdout.write(f'{number:09d}\\n')"
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start(log_cap_bytes=100_000)
            await scheduler.connected()
            launch = command_launch(sys.executable, "-c", program)
            await scheduler.launch(launch)
            assert (await scheduler.end(launch.attempt_id)).kind is EndKind.FINISHED
            kept = sum(path.stat().st_size for path in (agent.state_dir / "attempts" / "j.1").glob("rank-*.log"))
            assert kept <= 100_000
            text = await scheduler.read_log(launch.attempt_id)
            assert text.startswith(b"000000000\n")
            assert text.endswith(b"000299999\n")
            assert text.count(b"dropped]") == 1
            chunks = scheduler.log_chunks
            assert chunks[-1].offset_bytes + len(chunks[-1].data) == 3_000_000
            assert sum(len(chunk.data) + chunk.dropped_bytes for chunk in chunks) == 3_000_000
            tail = await scheduler.read_log(launch.attempt_id, rank=0, tail_bytes=20)
            assert tail == b"000299998\n000299999\n"


async def test_a_stop_for_what_never_came_spends_its_epoch(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            launch = command_launch("true")
            await scheduler.stop(launch.attempt_id, "kill", 0.0)
            assert (await scheduler.end(launch.attempt_id)).kind is EndKind.KILLED
            await scheduler.launch(launch)
            await scheduler.until(lambda: len(scheduler.ends(launch.attempt_id)) >= 2)
            assert {end.kind for end in scheduler.ends(launch.attempt_id)} <= {EndKind.KILLED, EndKind.LAUNCH_FAILED}
            assert not (agent.state_dir / "attempts" / "j.1" / "order.json").exists()


async def test_ranks_do_not_outlive_their_supervisor(tmp_path):
    scheduler = FakeScheduler()
    async with serving(scheduler) as address:
        with agent_process(tmp_path, address) as agent:
            agent.start()
            await scheduler.connected()
            launch = command_launch(*SLEEP)
            await scheduler.launch(launch)
            await scheduler.until(lambda: scheduler.is_started(launch.attempt_id))
            supervisor = next(line["pid"] for line in agent.journal() if line["kind"] == "launched")
            os.kill(supervisor, signal.SIGKILL)
            end = await scheduler.end(launch.attempt_id)
            assert end.kind is EndKind.FAILED
            assert agent.pids() == []
