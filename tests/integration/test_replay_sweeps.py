"""Sweeps of ``arena replay`` as processes: killed, resumed, two at once, without a place for their results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.local_cluster import wait_until
from tests.trace_files import ITP_HEAD, table, written

pytestmark = pytest.mark.slow
DEADLINE_S = 120.0


@pytest.fixture
def argv(tmp_path: Path) -> list[str]:
    """A sweep of twelve runs, kept in ``out``."""
    rows = (f"j{index},{index * 40},{60 + index % 7 * 100},{1 + index % 4}" for index in range(100))
    written(tmp_path / "trace.csv", table(ITP_HEAD, *rows))
    (tmp_path / "cluster.yaml").write_text("nodes: [{type: cpu, count: 1, gpus: 4}]\n")
    command = [sys.executable, "-m", "arena.cli.main", "replay", "trace.csv", "--cluster", "cluster.yaml"]
    study = ["--policy", "fcfs,srtf", "--lengths", "predicted", "--seeds", "6"]
    return [*command, *study, "--out", "out", "--no-report", "--json"]


@contextmanager
def started(argv: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def kept(folder: Path) -> dict[str, bytes]:
    found = (folder / "out" / "runs").glob("*.json")
    return {path.name: path.read_bytes() for path in found}


def digests(document: str) -> list[list[str]]:
    return [[run["digest"] for run in policy["runs"]] for policy in json.loads(document)["policies"]]


def test_a_sweep_that_is_killed_leaves_no_process_and_goes_on_where_it_was(argv: list[str], tmp_path: Path) -> None:
    with started([*argv, "--jobs", "2"], tmp_path) as process:
        wait_until(lambda: len(kept(tmp_path)) >= 2, "two runs are kept", DEADLINE_S)
        process.kill()
        # Standard output is open in its workers as well: it ends when the last of them has.
        process.communicate(timeout=DEADLINE_S)
    before = kept(tmp_path)
    assert 2 <= len(before) < 12
    resumed = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    after = kept(tmp_path)
    assert len(after) == 12
    assert before.items() <= after.items()
    whole = subprocess.run([*argv, "--out", "other"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert digests(resumed.stdout) == digests(whole.stdout)


def test_a_worker_that_is_killed_is_told_as_what_it_is(argv: list[str], tmp_path: Path) -> None:
    with started([*argv, "--jobs", "2"], tmp_path) as process:
        workers = wait_until(lambda: workers_of(process.pid), "a worker is there", DEADLINE_S)
        os.kill(workers[0], signal.SIGKILL)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 8
    error = json.loads(err.splitlines()[-1])["error"]
    assert error["what"] == "a process that made runs was killed"
    assert "fewer --jobs" in error["fix"]


def workers_of(pid: int) -> list[int]:
    found = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(line.split()[0]) for line in found.stdout.splitlines() if "LokyProcess" in line]


def test_two_sweeps_in_one_directory_at_once_both_have_all_results(argv: list[str], tmp_path: Path) -> None:
    with started(argv, tmp_path) as first, started(argv, tmp_path) as second:
        outs = [process.communicate(timeout=DEADLINE_S)[0] for process in (first, second)]
        assert (first.returncode, second.returncode) == (0, 0)
    assert digests(outs[0]) == digests(outs[1]) == digests((tmp_path / "out" / "results.json").read_text())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"jobs.csv", "results.csv", "results.json", "runs"}
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 12
