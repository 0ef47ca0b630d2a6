"""How fast `arena` replays 100,000 jobs on 10,000 GPUs on one core (aim: < 10 min), and what a cadence costs.

The scripts are those of ``test_replay_speed``. At four submissions and ends a second a decision at every event is one
about very little; gathered for some seconds, as ``arena replay --decide-after`` does, there are fewer of them, and who
comes waits for some of that time before anybody looks at it.
"""

from __future__ import annotations

import gc
import resource
from dataclasses import replace

import pytest

from arena.policies.registry import make_policy
from arena.sim.ledger import Ledger
from arena.sim.metrics import Summary
from tests.benchmarks.test_replay_speed import large, scripts, timed

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(7200)]

JOBS, FIRST, WARM = 100_000, 10_000, 1_000
TOOK_S, MEMORY_MB = 600.0, 2_000.0
CADENCES_S = (0.0, 1.0, 5.0)
CADENCE_S = 5.0


def replayed(count: int, decide_after_s: float) -> tuple[Ledger, Summary, float]:
    """Replay the first jobs, deciding so long after what happened."""
    replay = large(make_policy("arena"))
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)  # as ``arena.cli.main`` does
    return timed(replace(replay, config=replace(replay.config, decide_after_s=decide_after_s)), scripts(count))


def memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def said(ledger: Ledger, summary: Summary, took_s: float) -> str:
    each_ms = 1e3 * took_s / ledger.decision_count
    return (
        f"{took_s:.0f} s, {ledger.decision_count:,} decisions, {each_ms:.2f} ms for each, in all; average JCT "
        f"{summary.avg_jct_s:.2f} s, queueing {summary.queue_s:.2f} s, restarts a job {summary.restarts_per_job:.4f}"
    )


def test_what_a_cadence_costs(capsys: pytest.CaptureFixture[str]) -> None:
    found = {cadence_s: replayed(FIRST, cadence_s) for cadence_s in CADENCES_S}
    with capsys.disabled():
        print(f"\n{FIRST:,} scripts under arena, decisions gathered for")
        for cadence_s, (ledger, summary, took_s) in found.items():
            print(f"  {cadence_s:4.0f} s: {said(ledger, summary, took_s)}")
    assert all(not summary.unfinished_count for _, summary, _ in found.values())
    assert found[CADENCE_S][2] * JOBS / FIRST < TOOK_S


def test_100_000_jobs_on_10_000_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    replayed(WARM, CADENCE_S)
    before_mb = memory_mb()
    ledger, summary, took_s = replayed(JOBS, CADENCE_S)
    after_mb = memory_mb()
    with capsys.disabled():
        print(f"\n{JOBS:,} scripts under arena, decisions gathered for {CADENCE_S:.0f} s:")
        print(f"  {said(ledger, summary, took_s)}")
        print(f"  {after_mb:.0f} MB at most, {1e3 * (after_mb - before_mb) / JOBS:.2f} KB a job")
    assert summary.unfinished_count == 0
    assert after_mb < MEMORY_MB
    assert took_s < TOOK_S
