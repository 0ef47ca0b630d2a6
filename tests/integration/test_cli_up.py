"""`arena up` with real processes: jobs run, are saved and held when it stops, and go on when it starts again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arena.cli.local import LocalCluster, UpPlan
from arena.cli.ports import PortRange, held_ports
from arena.cli.up_jobs import hold_all
from arena.domain.records import Wish
from tests.builders import command_spec
from tests.fakes.local_cluster import free_port, wait_until
from tests.fakes.processes_here import processes_of

pytestmark = pytest.mark.slow

JOB = """\
name: gpt
train:
  model: {family: gpt, layers: 2, hidden: 32, heads: 2, seq_len: 32}
  global_batch: 4
gpus: {count: 1}
kind: rigid
stop: {steps: 100000}
checkpoint: {interval_steps: 20}
"""

Arena = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    """Runs command lines with state of their own; what `arena up` started is stopped at the end."""
    directory = tmp_path / "up"
    environ = {key: value for key, value in os.environ.items() if not key.startswith("ARENA_")}
    environ |= {"OMP_NUM_THREADS": "1", "XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}

    def call(*argv: str) -> subprocess.CompletedProcess[str]:
        address = directory / "address"
        if address.exists():
            environ["ARENA_SCHEDULER"] = address.read_text().strip()
        command = [sys.executable, "-m", "arena.cli.main", *argv]
        if argv[0] in {"up", "down"}:
            command += ["--dir", str(directory)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=150, env=environ, cwd=tmp_path, check=False
        )

    yield call
    call("down")


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def command_of(pid: int) -> bytes:
    """The command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_job_outlives_a_stop_of_everything(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    up = document(arena("up", "--detach", "--json", "--port", "0", "--agents", "1", "--gpus-per-agent", "1"))
    assert up["agents"] == 1
    log = (tmp_path / "up" / "up.log").read_bytes()
    assert b"`arena down --dir " in log
    assert b"Ctrl-C" not in log, "there is none in the background"
    for words in (("up", "--port", "0"), ("up", "--detach", "--port", "0", "--policy", "fcfs")):
        again = arena(*words)
        assert again.returncode == 3
        assert "runs on" in again.stderr
    assert (tmp_path / "up" / "up.log").read_bytes() == log

    job_id = document(arena("submit", "job.yaml", "--json"))["job_id"]
    assert arena("wait", job_id, "--for", "running", "--timeout", "90").returncode == 0
    assert arena("down").returncode == 0
    assert processes_of(tmp_path / "up") == []
    assert arena("status").returncode == 3

    document(arena("up", "--detach", "--json", "--port", "0", "--agents", "1", "--gpus-per-agent", "1"))
    assert arena("wait", job_id, "--for", "running", "--timeout", "90").returncode == 0
    detail = document(arena("job", job_id, "--json"))
    assert [attempt["epoch"] for attempt in detail["attempts"]] == [1, 2]
    assert arena("cancel", job_id).returncode == 0
    assert arena("wait", job_id, "--for", "cancelled", "--timeout", "60").returncode == 0
    assert arena("down").returncode == 0
    assert processes_of(tmp_path / "up") == []
    assert arena("down").returncode == 5


def test_jobs_outlive_a_killed_up_and_the_next_one_or_a_down_ends_what_it_left(arena: Arena, tmp_path: Path) -> None:
    words = ("up", "--detach", "--json", "--port", "0", "--gpus-per-agent", "1", "--agents")
    document(arena(*words, "1"))
    job_id = document(arena("submit", "--gpus", "1", "--json", "--", "sleep", "1000"))["job_id"]
    assert arena("wait", job_id, "--for", "running", "--timeout", "90").returncode == 0

    def killed() -> set[int]:
        os.kill(int((tmp_path / "up" / "up.pid").read_text()), signal.SIGKILL)
        return {pid for pid in processes_of(tmp_path / "up") if b"arena.cli.main" in command_of(pid)}

    before = killed()
    document(arena(*words, "2"))
    said = "ended scheduler, node-1, left by an `arena up` that was killed; they start again, jobs go on"
    assert said in (tmp_path / "up" / "up.log").read_text()
    assert not before.intersection(processes_of(tmp_path / "up"))
    detail = document(arena("job", job_id, "--json"))
    assert (detail["job"]["state"], [attempt["epoch"] for attempt in detail["attempts"]]) == ("running", [1])

    killed()
    down = arena("down")
    assert (down.returncode, down.stderr) == (0, "`arena up` was killed and left scheduler, node-1, node-2\n")
    assert processes_of(tmp_path / "up") == []
    assert (tmp_path / "up" / "held-by-up").read_text().split() == [job_id]
    assert arena("down").returncode == 5


def test_who_starts_all_in_the_background_sees_how_far_that_is(arena: Arena) -> None:
    done = arena("up", "--detach", "--port", "0", "--agents", "2", "--gpus-per-agent", "1")
    assert done.returncode == 0
    first, *counts = done.stderr.splitlines()
    assert first == "starting the scheduler ..."
    assert counts[-1] == "2 of 2 agents here"


def test_who_interrupts_a_start_in_the_background_leaves_nothing_running(tmp_path: Path) -> None:
    # Where the start is over before the interrupt comes nothing was shown, and another is interrupted.
    for turn in range(5):
        directory = tmp_path / f"up-{turn}"
        returncode, out, err = interrupted_start(directory, {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)})
        if returncode != 0:
            break
    assert (returncode, out) == (130, "")
    assert "interrupted: stopping what was started (Ctrl-C again leaves it; then `arena down --dir " in err
    assert "\nstopped, nothing of it runs any more\n" in err


def interrupted_start(directory: Path, environ: dict[str, str]) -> tuple[int, str, str]:
    """Exit code and outputs of a start that got Ctrl-C once it had begun; whatever is left of it is stopped."""
    words = ("up", "--detach", "--port", "0", "--agents", "1", "--gpus-per-agent", "1", "--dir", str(directory))
    command = [sys.executable, "-m", "arena.cli.main", *words]
    environ = {**environ, "XDG_STATE_HOME": str(directory.parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as up:
        assert up.stderr is not None
        try:
            assert up.stderr.readline() == "starting the scheduler ...\n"
            up.send_signal(signal.SIGINT)
            out, err = up.communicate(timeout=120)
            left = processes_of(directory)
        finally:
            subprocess.run([*command[:3], "down", "--dir", str(directory)], check=False, env=environ)
    assert up.returncode == 0 or left == []
    return up.returncode, out, err


def test_a_start_in_the_background_that_fails_says_why_and_of_two_at_once_one_starts(arena: Arena) -> None:
    words = ("up", "--detach", "--agents", "1", "--gpus-per-agent", "1", "--port")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        failed = arena(*words, str(taken.getsockname()[1]))
    assert failed.returncode == 3
    assert failed.stderr.count("error: ") == 1
    assert "it did not start: `arena up` ended with exit code 70: scheduler ended with exit code 3: " in failed.stderr
    with ThreadPoolExecutor(2) as threads:
        one, other = sorted(threads.map(lambda _: arena(*words, "0"), range(2)), key=lambda done: done.returncode)
    assert (one.returncode, other.returncode) == (0, 3), one.stderr + other.stderr
    assert "already, or is being started there" in other.stderr
    assert arena("status").returncode == 0


def test_jobs_outlive_an_agent_and_the_scheduler_and_the_terminal_says_what_died(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    document(arena("up", "--detach", "--json", "--port", "0", "--agents", "1", "--gpus-per-agent", "1"))
    job_id = document(arena("submit", "job.yaml", "--json"))["job_id"]
    assert arena("wait", job_id, "--for", "running", "--timeout", "90").returncode == 0
    (agent,) = (pid for pid in processes_of(tmp_path / "up") if b"\0agent\0" in command_of(pid))
    (scheduler,) = (pid for pid in processes_of(tmp_path / "up") if b"\0scheduler\0--host" in command_of(pid))
    before = document(arena("job", job_id, "--json"))["job"]["progress"]["step"]
    for pid in (agent, scheduler):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: arena("nodes", "--json").returncode == 0, "the scheduler is back")
    wait_until(lambda: document(arena("nodes", "--json"))["nodes"][0]["connected"], "the agent is back")
    wait_until(lambda: document(arena("job", job_id, "--json"))["job"]["progress"]["step"] > before, "the job goes on")
    assert [attempt["epoch"] for attempt in document(arena("job", job_id, "--json"))["attempts"]] == [1]
    log = (tmp_path / "up" / "up.log").read_text()
    for name in ("node-1", "scheduler"):
        assert f"{name} was killed by signal 9 (SIGKILL); restart 1 of at most 5, jobs go on" in log
    assert arena("down").returncode == 0
    assert f"`arena up` on {tmp_path / 'up'} was stopped at" in arena("status").stderr


def test_a_command_runs_with_the_arguments_directory_and_environment_of_its_user(arena: Arena, tmp_path: Path) -> None:
    with held_ports(1) as others:  # as another `arena up` on this host does
        up = document(arena("up", "--detach", "--json", "--port", "0", "--agents", "1", "--gpus-per-agent", "1"))
        assert up["ports"] != str(others)
    odd = 'a b "c" $(x) 日本語 😀'
    script = "import os, sys; print(sys.argv[1]); print(os.getcwd()); print(os.environ['GREETING'])"
    argv = ("submit", "--gpus", "1", "--name", odd, "--env", "GREETING=hi there", "--wait", "--")
    done = arena(*argv, sys.executable, "-c", script, odd)
    assert done.returncode == 0, done.stderr
    logs = arena("logs", odd, "--rank", "0")
    assert logs.stdout.splitlines() == [odd, str(tmp_path), "hi there"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A scheduler of `arena up`, without nodes."""
    before = signal.getsignal(signal.SIGINT)
    plan = UpPlan(directory=tmp_path, agents=0, gpus_per_agent=1, gpu_type="cpu", policy="fcfs", port=0)
    cluster = LocalCluster(plan, PortRange(low=1, high=2))
    yield cluster
    cluster.stop(threading.Event())
    signal.signal(signal.SIGINT, before)


def test_metrics_are_served_where_they_are_asked_for_also_after_a_restart(cluster: LocalCluster) -> None:
    cluster.plan = replace(cluster.plan, metrics_port=free_port())
    cluster.start(threading.Event())
    scheduler, url = cluster.children[0], cluster.plan.metrics_url
    assert url is not None

    def jobs() -> str:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=30) as page:
            return "\n".join(line for line in page.read().decode().splitlines() if line.startswith("arena_jobs{"))
        return ""

    assert 'arena_jobs{state="queued"} 0.0' in jobs()
    with cluster.client() as client:
        client.submit(command_spec("a"), allow_infeasible=True)
    assert 'arena_jobs{state="queued"} 1.0' in jobs()
    scheduler.process.kill()
    scheduler.process.wait(30)
    assert jobs() == ""
    assert list(cluster.mend())
    wait_until(lambda: 'arena_jobs{state="queued"} 1.0' in jobs(), "they are served again")


def test_a_stop_while_the_scheduler_is_away_holds_the_jobs_and_forgets_none_held_before(cluster: LocalCluster) -> None:
    held_file = cluster.plan.files.held
    cluster.start(threading.Event())
    with cluster.client() as client:
        before = client.submit(command_spec("before"), allow_infeasible=True).job_id
        hold_all(client, held_file)  # as a stop did whose next start failed
        job_id = client.submit(command_spec("now"), allow_infeasible=True).job_id
    scheduler = cluster.children[0].process
    scheduler.kill()
    scheduler.wait(30)
    cluster.stop(threading.Event())  # before the restart is due
    assert held_file.read_text().split() == [before, job_id]
    assert processes_of(cluster.plan.directory) == []

    cluster.children.clear()
    cluster.start(threading.Event())
    with cluster.client() as client:
        assert {job.job_id: job.wish for job in client.jobs()} == {before: Wish.RUN, job_id: Wish.RUN}
    assert not held_file.exists()
