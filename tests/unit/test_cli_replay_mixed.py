"""``arena replay --grids mixed``: jobs of a trace may be given groups over several GPU types."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from arena.cli.main import run
from tests.trace_files import ARENA_HEAD, table, written

CLUSTER = "nodes: [{type: a100-40, count: 1, gpus: 2}, {type: a40, count: 1, gpus: 2}]\n"


def completed_s(folder: Path, grids: str) -> float:
    out = folder / grids
    argv = ["replay", "trace.csv", "--cluster", "cluster.yaml", "--policy", "arena", "--grids", grids, "--no-report"]
    assert run([*argv, "--restart-s", "10", "--out", str(out)]) == 0
    (job,) = csv.DictReader((out / "jobs.csv").read_text().splitlines())
    return float(job["ended_at_s"]) - float(job["submitted_at_s"])


def test_a_lone_job_is_done_sooner_with_the_gpus_of_both_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "trace.csv", table(ARENA_HEAD, "one,0,10,bert__760M,1000,1024,4,a100-40"))
    (tmp_path / "cluster.yaml").write_text(CLUSTER)

    assert completed_s(tmp_path, "mixed") < 0.95 * completed_s(tmp_path, "planner")
