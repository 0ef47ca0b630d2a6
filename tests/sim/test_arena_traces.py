"""Arena's published traces under the original artifact's rules: the figures its own simulator prints.

Skipped where the published data are not at hand (ARENA_DATA_DIR).
"""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path

import pytest

from arena_traces.reading import read_trace
from experiments.arena_traces.run import run_policy
from experiments.arena_traces.tables import Tables

FOLDER = Path(os.environ.get("ARENA_DATA_DIR", "../shared")) / "data" / "arena"

pytestmark = pytest.mark.skipif(not (FOLDER / "traces").is_dir(), reason="the published data are not at hand")

ARTIFACT = Namespace(artifact_rules=True, restart_s=0.0, gpus_per_type=None)


@pytest.mark.parametrize(
    ("trace", "policy", "avg_jct_s", "tolerance"),
    [
        ("pai", "fcfs", 7459.2, 0.04),
        ("venus", "fcfs", 14391.1, 0.04),
        ("pai", "arena-greedy", 2510.4, 0.02),
        ("venus", "arena-greedy", 5518.5, 0.02),
    ],
)
def test_the_published_average_is_met(trace: str, policy: str, avg_jct_s: float, tolerance: float) -> None:
    jobs = read_trace(FOLDER / "traces" / f"simulate_trace_{trace}.csv").jobs
    figures = run_policy(policy, jobs, Tables.read(FOLDER), ARTIFACT)
    assert figures["unfinished_count"] == 0
    assert figures["avg_jct_s"] == pytest.approx(avg_jct_s, rel=tolerance)
