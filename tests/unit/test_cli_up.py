"""What `arena up` makes of services that die, and what commands that then find nobody are told."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from arena.cli.children import SETTLED_S, Child, ended_text, last_line, started
from arena.cli.local import RESTARTS_MAX, LocalCluster, UpPlan
from arena.cli.main import run
from arena.cli.ports import PortRange
from arena.cli.up import _up_words
from arena.cli.up_places import Place, explained, known_place, start_ticks
from arena.domain.launch import ATTEMPT_ID_VARIABLE
from arena.errors import InternalError, UnavailableError
from arena_agent.lock import directory_lock
from arena_agent.processes import AGENT_MARK_VARIABLE

ADDRESS = "127.0.0.1:1"
NOBODY = UnavailableError(f"no scheduler answers at {ADDRESS}", why="refused", fix="start one with `arena up`")
FAILS = "import sys; sys.exit('error: no space left')"
KILLED = "import os; os.kill(os.getpid(), 9)"


def ended(name: str, script: str, folder: Path) -> Child:
    """A service that has ended by itself."""
    child = started(name, [sys.executable, "-c", script], folder / f"{name}.log")
    child.process.wait(30)
    return child


def cluster_of(child: Child, folder: Path) -> LocalCluster:
    plan = UpPlan(directory=folder, agents=1, gpus_per_agent=1, gpu_type="cpu", policy="fcfs", port=0)
    return LocalCluster(plan, PortRange(low=1, high=2), children=[child])


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (FAILS, "node-2 ended with exit code 1: no space left"),
        (KILLED, "node-2 was killed by signal 9 (SIGKILL)"),
        ("import os; os._exit(0)", "node-2 ended with exit code 0: it wrote nothing"),
    ],
)
def test_how_a_service_ended_is_told_by_its_code_or_signal(tmp_path: Path, script: str, said: str) -> None:
    assert ended_text(ended("node-2", script, tmp_path)) == said


def test_an_agent_that_died_is_started_again_and_that_is_told(tmp_path: Path) -> None:
    child = ended("node-1", KILLED, tmp_path)
    child.argv = [sys.executable, "-c", "input()"]
    first = child.process.pid
    cluster = cluster_of(child, tmp_path)
    said = "node-1 was killed by signal 9 (SIGKILL); restart 1 of at most 5, jobs go on"
    assert list(cluster.mend()) == [said]
    assert child.process.pid != first
    child.process.wait(30)
    assert child.restarts == 1


def test_one_that_dies_again_waits_before_it_is_started(tmp_path: Path) -> None:
    child = ended("node-1", FAILS, tmp_path)
    child.restarts = 3
    cluster = cluster_of(child, tmp_path)
    first = child.process.pid
    assert list(cluster.mend()) == ["node-1 ended with exit code 1: no space left; restart 4 of at most 5 in 7 s"]
    assert (list(cluster.mend()), child.process.pid) == ([], first)
    child.due_at_s = time.monotonic()
    assert list(cluster.mend()) == []
    assert child.process.pid != first
    child.process.wait(30)


@pytest.mark.parametrize(
    ("name", "restarts", "promise"),
    [
        ("node-1", 2, "restart 3 of at most 5 in 3 s, jobs go on"),
        ("node-1", 4, "restart 5 of at most 5 in 15 s"),
        ("scheduler", 4, "restart 5 of at most 5 in 15 s, jobs go on"),
    ],
)
def test_that_jobs_go_on_is_said_only_where_their_node_is_back_in_time(
    tmp_path: Path, name: str, restarts: int, promise: str
) -> None:
    child = ended(name, KILLED, tmp_path)
    child.restarts = restarts
    assert list(cluster_of(child, tmp_path).mend()) == [f"{name} was killed by signal 9 (SIGKILL); {promise}"]


def test_an_agent_that_dies_again_and_again_is_left_out_and_the_rest_goes_on(tmp_path: Path) -> None:
    child = ended("node-1", FAILS, tmp_path)
    child.restarts = RESTARTS_MAX
    cluster = cluster_of(child, tmp_path)
    (said,) = cluster.mend()
    assert said.startswith("node-1 ended with exit code 1: no space left; left out after 5 restarts, the rest goes on")
    assert list(cluster.mend()) == []


def rank_of(agent_directory: Path) -> subprocess.Popen[bytes]:
    """A process with the marks of an agent's job, until its input ends."""
    marks = {ATTEMPT_ID_VARIABLE: "j1.1", AGENT_MARK_VARIABLE: str(agent_directory)}
    argv = [sys.executable, "-c", "input()"]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, env={**os.environ, **marks})


def test_what_a_left_out_agent_ran_ends_with_it_and_nothing_else_does(tmp_path: Path) -> None:
    child = ended("node-1", FAILS, tmp_path)
    child.restarts = RESTARTS_MAX
    cluster = cluster_of(child, tmp_path)

    with rank_of(tmp_path / "node-1") as its, rank_of(tmp_path / "node-10") as other:
        list(cluster.mend())
        assert its.wait(30) == -signal.SIGKILL
        other.communicate(b"\n", timeout=30)
        assert other.returncode == 0


def test_a_log_that_is_gone_or_long_ends_nothing(tmp_path: Path) -> None:
    child = ended("node-1", FAILS, tmp_path)
    child.log.write_text("x" * 100_000 + "\nerror: out of paper")
    assert last_line(child.log) == "out of paper"
    child.log.unlink()
    (said,) = cluster_of(child, tmp_path).mend()
    assert said.startswith("node-1 ended with exit code 1: its log cannot be read (No such file or directory); restart")
    child.process.wait(30)


def test_a_start_that_fails_is_one_more_death(tmp_path: Path) -> None:
    child = ended("node-1", FAILS, tmp_path)
    child.argv = [str(tmp_path / "gone")]
    cluster = cluster_of(child, tmp_path)
    list(cluster.mend())
    (said,) = cluster.mend()
    assert said.startswith("node-1 could not be started: [Errno 2] No such file or directory")
    assert said.endswith("; restart 2 of at most 5 in 1 s, jobs go on")
    child.argv = [sys.executable, "-c", "input()"]
    child.due_at_s = time.monotonic()
    assert list(cluster.mend()) == []
    child.process.wait(30)
    assert "could not be started" not in ended_text(child)


def test_deaths_before_a_long_life_count_no_more(tmp_path: Path) -> None:
    child = ended("scheduler", KILLED, tmp_path)
    child.restarts = RESTARTS_MAX
    child.started_at_s -= SETTLED_S + 1.0
    assert list(cluster_of(child, tmp_path).mend()) == [
        "scheduler was killed by signal 9 (SIGKILL); restart 1 of at most 5, jobs go on"
    ]
    child.process.wait(30)
    assert child.restarts == 1


def test_without_its_scheduler_all_of_it_ends(tmp_path: Path) -> None:
    child = ended("scheduler", KILLED, tmp_path)
    child.restarts = RESTARTS_MAX
    with pytest.raises(
        InternalError, match=r"scheduler was killed by signal 9 \(SIGKILL\), after 5 restarts\. See .*log"
    ):
        list(cluster_of(child, tmp_path).mend())


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Lets Ctrl-C through again: a stop ignores it in the end."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize(("restarts", "is_tried"), [(4, True), (RESTARTS_MAX, False)])
def test_a_stop_without_a_scheduler_says_that_jobs_were_not_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], restarts: int, is_tried: bool
) -> None:
    child = ended("scheduler", KILLED, tmp_path)
    child.restarts = restarts
    cluster = cluster_of(child, tmp_path)
    cluster.address = ADDRESS
    cluster.stop(threading.Event())
    said = capsys.readouterr().err
    killed = "scheduler was killed by signal 9 (SIGKILL)"
    assert (f"{killed}; started again, so that jobs are saved" in said) == is_tried
    assert f"warning: jobs were not saved, they go on from their last checkpoints: {killed}" in said


@pytest.mark.usefixtures("interrupts")
def test_a_start_that_came_to_nothing_leaves_the_jobs_of_an_agent_that_lives_alone(tmp_path: Path) -> None:
    directories = [tmp_path / "node-1", tmp_path / "node-2", tmp_path / "node-3"]
    for directory in directories:
        directory.mkdir()
    cluster = cluster_of(ended("node-1", FAILS, tmp_path), tmp_path)  # as it does where its directory is in use
    cluster.children.append(ended("node-2", FAILS, tmp_path))
    with (
        directory_lock(directories[0] / "agent.lock"),
        rank_of(directories[0]) as anothers,
        rank_of(directories[1]) as its,
        rank_of(directories[2]) as not_started,
    ):
        cluster.stop(threading.Event())
        assert its.wait(30) == -signal.SIGKILL
        for rank in (anothers, not_started):
            rank.communicate(b"\n", timeout=30)
            assert rank.returncode == 0


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], str]:
    """Returns what is said where nobody listens at an address."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    return lambda: explained(NOBODY, ADDRESS).message


def place(folder: Path, *, address: str = ADDRESS, pid: int | None = None) -> Place:
    return Place(address=address, directory=str(folder), pid=pid or os.getpid())


@pytest.mark.usefixtures("told")
def test_who_finds_nobody_is_told_what_the_cluster_here_ended_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InternalError), known_place(place(tmp_path)):
        raise InternalError("scheduler was killed by signal 9 (SIGKILL)", fix="see its log")
    assert run(["status", "--scheduler", ADDRESS]) == 3
    said = capsys.readouterr().err
    assert f"no scheduler answers at {ADDRESS}: `arena up` on {tmp_path} ended at 20" in said
    assert ": scheduler was killed by signal 9 (SIGKILL). See its log. " in said
    assert f"Start it again with `arena up --dir {tmp_path}`, its jobs are kept" in said


def test_who_finds_nobody_is_told_that_it_was_stopped_or_is_gone_or_comes_back(
    told: Callable[[], str], tmp_path: Path
) -> None:
    with known_place(place(tmp_path)):
        assert "is there, but its scheduler is not. Try again in a moment" in told()
    assert f"`arena up` on {tmp_path} was stopped at 20" in told()
    killed = ended("up", KILLED, tmp_path).process.pid
    written = next((tmp_path / "arena" / "up-at").iterdir())
    with known_place(place(tmp_path, pid=killed)):
        running = written.read_text()
    written.write_text(running)
    usual = tmp_path / "arena" / "up"
    usual.mkdir()
    with known_place(place(usual)):
        pass
    assert "Start it again with `arena up`, its jobs are kept" in told()
    written.write_text(running)
    assert f"`arena up` on {tmp_path} is not there any more, and could not say why" in told()


def test_who_asks_at_the_usual_address_is_told_where_one_serves(told: Callable[[], str], tmp_path: Path) -> None:
    assert told() == NOBODY.message
    with known_place(place(tmp_path, address="127.0.0.1:2")):
        assert f"`arena up` on {tmp_path} serves at 127.0.0.1:2. Give --scheduler 127.0.0.1:2" in told()
    assert told() == NOBODY.message


def test_who_lives_elsewhere_is_named_before_who_was_stopped_here(told: Callable[[], str], tmp_path: Path) -> None:
    stopped, live = tmp_path / "stopped", tmp_path / "live"
    stopped.mkdir()
    live.mkdir()
    with known_place(place(stopped)):
        pass
    with known_place(place(live, address="127.0.0.1:2")):
        said = told()
    assert f"at {ADDRESS}: `arena up` on {live} serves at 127.0.0.1:2; `arena up` on {stopped} was stopped" in said
    assert "Give --scheduler 127.0.0.1:2" in said
    assert "start it again" not in said


@pytest.mark.usefixtures("told")
def test_who_listens_and_is_no_scheduler_is_told_of(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        listening = f"what listens at {address} does not answer as a scheduler does"
        assert listening in explained(NOBODY, address).message
        with known_place(place(tmp_path, address=address)):
            pass
        assert f"; {listening}" in explained(NOBODY, address).message
        with known_place(place(tmp_path, address="127.0.0.1:2")):
            assert f"serves at 127.0.0.1:2; {listening}" in explained(NOBODY, address).message


def test_what_is_kept_of_a_place_goes_with_its_directory(told: Callable[[], str], tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    with known_place(place(old)):
        pass
    assert "was stopped" in told()
    old.rmdir()
    with known_place(place(tmp_path, address="127.0.0.1:2")):
        pass
    assert "was stopped" not in told()


def test_a_pid_that_is_used_again_is_no_sign_of_life(told: Callable[[], str], tmp_path: Path) -> None:
    mine = replace(place(tmp_path), start_ticks=start_ticks(os.getpid()))
    with known_place(mine):
        assert "is there, but its scheduler is not" in told()
    with known_place(replace(mine, start_ticks=1)):
        assert f"`arena up` on {tmp_path} is not there any more, and could not say why" in told()


def test_what_was_half_written_when_its_writer_was_killed_is_no_place_and_goes(
    told: Callable[[], str], tmp_path: Path
) -> None:
    with known_place(place(tmp_path)):
        (written,) = (tmp_path / "arena" / "up-at").iterdir()
        half = written.with_name(f".{ADDRESS}.{ended('up', KILLED, tmp_path).process.pid}")
        half.write_text(written.read_text())
        mine = written.with_name(f".127.0.0.1:3.{os.getpid()}")
        mine.touch()
    assert "was stopped" in told()
    with known_place(place(tmp_path, address="127.0.0.1:2")):
        assert (half.exists(), mine.exists()) == (False, True)
    assert told() == NOBODY.message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_it_is_told_at_once_what_it_waits_for(
    told: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    seen: list[str] = []

    def start(self: LocalCluster, stopping: threading.Event) -> None:
        signal.raise_signal(number)
        assert stopping.is_set()

    def stop(self: LocalCluster, stopping: threading.Event) -> None:
        seen.append(stream.getvalue())

    monkeypatch.setattr(LocalCluster, "start", start)
    monkeypatch.setattr(LocalCluster, "stop", stop)
    assert run(["up", "--dir", str(tmp_path / "up")]) == 0
    assert run(["up", "--in-background", "--dir", str(tmp_path / "up")]) == 0
    assert seen == [stream.getvalue(), stream.getvalue()], "the one in the background has a log, and says nothing"
    assert stream.getvalue().startswith("stopping: jobs are saved and held first")


def test_where_metrics_are_wished_reaches_the_scheduler_also_from_the_background(tmp_path: Path) -> None:
    plan = replace(cluster_of(ended("x", "", tmp_path), tmp_path).plan, metrics_port=9464)
    words = "--metrics-port 9464"
    assert words in " ".join(plan.scheduler_argv(1))
    assert words in " ".join(map(str, _up_words(plan)))
    assert plan.metrics_url == "http://127.0.0.1:9464/metrics"
    assert "--metrics" not in " ".join(map(str, _up_words(replace(plan, metrics_port=None))))
