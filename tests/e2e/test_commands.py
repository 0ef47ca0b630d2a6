"""Users' own programs, from `arena submit` to their end: environment, output, cancellation, failure."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from arena.domain.records import JobState
from tests.fakes.local_cluster import ProcessCluster, pids_of, process_cluster, wait_until

pytestmark = pytest.mark.slow

TELL = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ODD NAME", "ÄPFEL")
told = {name: os.environ.get(name) for name in names}
print(json.dumps({"env": told, "cwd": os.getcwd(), "argv": sys.argv[1:]}))
for number in range(2000):
    print(f"line {number} of rank {told['RANK']}")
"""
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("the grandchild lives", flush=True)
    time.sleep(3600)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path_factory.mktemp("commands"), nodes=2, gpus=1, agent_words=["--cold"]) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ProcessCluster) -> Iterator[ProcessCluster]:
    yield shared
    shared.assert_sound()


def odd_place(directory: Path) -> Path:
    """A directory whose name has a space, quotes and letters of other scripts."""
    place = directory / "mes données 'd\"été' ☃"
    place.mkdir()
    return place


def logs_by_rank(text: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for line in text.splitlines():
        piece = json.loads(line)
        found[piece["rank"]] = found.get(piece["rank"], "") + piece["text"]
    return found


def test_a_program_gets_the_environment_of_torchrun_its_place_and_its_words(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    place = odd_place(tmp_path)
    (place / "tell it.py").write_text(TELL)
    words = ["a b", "$HOME", "*", "", "'\"", "ünï"]
    job_id = cluster.arena_json(
        *("submit", "--gpus", 2, "--env", "ODD NAME= x=1 ", "--env", "ÄPFEL=☃", "--"),
        *(sys.executable, "tell it.py", *words),
        cwd=place,
    )["job_id"]
    followed = cluster.arena("--json", "logs", "-f", job_id)
    assert followed.returncode == 0, followed.stderr
    cluster.wait_succeeded(job_id)
    logs = logs_by_rank(followed.stdout)
    assert sorted(logs) == [0, 1]
    told = {rank: json.loads(log.splitlines()[0]) for rank, log in logs.items()}
    for rank, log in logs.items():
        assert log.splitlines()[1:] == [f"line {number} of rank {rank}" for number in range(2000)]
        assert (told[rank]["cwd"], told[rank]["argv"]) == (str(place), words)
        env = told[rank]["env"]
        assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == (
            f"{rank}",
            "2",
            "0",
            "1",
        )
        assert (env["ODD NAME"], env["ÄPFEL"]) == (" x=1 ", "☃")
    meeting = {(told[rank]["env"]["MASTER_ADDR"], told[rank]["env"]["MASTER_PORT"]) for rank in told}
    assert len(meeting) == 1
    assert logs_by_rank(cluster.arena("--json", "logs", job_id).stdout) == logs


def test_cancel_leaves_no_process_of_a_program_that_ignores_term_and_forks_away(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    script = tmp_path / "stubborn.py"
    script.write_text(STUBBORN)
    spec = tmp_path / "job.yaml"
    argv = json.dumps([sys.executable, str(script)])
    spec.write_text(f"name: stubborn\nkind: rigid\ngpus: {{count: 1}}\ngrace_s: 0.5\ncommand: {{argv: {argv}}}\n")
    job_id = cluster.arena_json("submit", spec)["job_id"]
    wait_until(lambda: "grandchild lives" in cluster.arena("logs", job_id).stdout, "the grandchild lives")
    assert len(pids_of(script)) == 3
    assert cluster.arena("cancel", job_id).returncode == 0
    assert cluster.arena("wait", job_id).returncode == 1
    assert cluster.client.job(job_id).job.state is JobState.CANCELLED
    assert not pids_of(script)


def test_a_program_that_fails_at_once_says_why(cluster: ProcessCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import nonexistent\n")
    done = cluster.arena("submit", "--gpus", 1, "--wait", "--", sys.executable, "train.py", cwd=tmp_path)
    assert done.returncode == 1
    job_id = done.stdout.split()[0]
    assert cluster.client.job(job_id).job.state is JobState.FAILED
    assert cluster.client.job(job_id).job.epoch == 1
    for command in ("job", "logs"):
        assert "ModuleNotFoundError: No module named 'nonexistent'" in cluster.arena(command, job_id).stdout


def test_a_program_that_is_not_there_is_named(cluster: ProcessCluster, tmp_path: Path) -> None:
    once = ("--set", "retry.launch_failures_max=1")
    done = cluster.arena("submit", "--gpus", 1, *once, "--wait", "--", "no such program", cwd=tmp_path)
    assert done.returncode == 1
    assert "no such program" in cluster.arena("job", done.stdout.split()[0]).stdout
