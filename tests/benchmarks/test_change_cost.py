"""What a plan change costs, from the decision to the first step of the new attempt, in parts (real processes)."""

from __future__ import annotations

import io
import statistics
from pathlib import Path

import pytest

from arena.cli.output import Output
from experiments.demo.run import PARTS, cluster_of, play

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]

RUNS = 3


def test_change_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = []
    for run in range(RUNS):
        with cluster_of(tmp_path / f"run-{run}", agents=2, gpus_per_agent=2) as cluster:
            entries = play(cluster, Output(json_mode=False, stream=io.StringIO()), others_at_step=60)
        found = [entry["data"] for entry in entries if entry["kind"] == "plan_changed"]
        assert found, "no plan change"
        changes += found
    with capsys.disabled():
        print(f"\nplan changes of a running job, {len(changes)} in {RUNS} runs (median, min to max):")
        for part in (*PARTS, "cost_s"):
            values = [float(change[part]) for change in changes]
            print(f"  {part:14} {statistics.median(values):6.2f} s   {min(values):.2f} to {max(values):.2f}")
