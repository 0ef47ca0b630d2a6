"""How fast jobs run against their estimates, from those that run to those that do not yet. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from arena.domain.job import JobId
from arena.domain.records import JobState
from arena.policies.base import Snapshot

PACE_TOLERANCE = 0.05
PACE_MAX = 10.0
"""Measured step times count where they are off by more than the first and by less than the second factor."""

TRUST_RESTARTS = 10.0
TRUST_S_MIN = 60.0
"""A measurement over so many restarts, a minute at least, counts as much as what was expected before it."""


def paces(snapshot: Snapshot, jobs: Sequence[tuple[JobId, int]]) -> list[float]:
    """Return by which factor each job is faster than its grid says, on all its groups.

    Estimates are wrong alike for like jobs. A job that is not measured is taken to be off by as much as those with its
    grid, else as all that run: were it believed instead, whoever runs would look worse than whoever waits, and equal
    jobs would displace each other for ever. A measurement starts from the same expectation and is trusted with time:
    the first steps are slow.

    Args:
        jobs: Contenders, each with a number that those with the same grid share.
    """
    measured = _measured(snapshot, jobs)
    if not measured:
        return [1.0] * len(jobs)
    overall = median(log_pace for log_pace, _ in measured.values())
    by_grid: dict[int, list[float]] = {}
    for at, (log_pace, _) in measured.items():
        by_grid.setdefault(jobs[at][1], []).append(log_pace)
    expected = {grid: median(found) for grid, found in by_grid.items()}
    factors = [_factor(overall)] * len(jobs)
    known = {grid: _factor(log_pace) for grid, log_pace in expected.items()}
    for at, (_, grid) in enumerate(jobs):
        if at in measured:
            own, trust = measured[at]
            factors[at] = _factor(expected[grid] + trust * (own - expected[grid]))
        elif grid in known:
            factors[at] = known[grid]
    return factors


def _factor(log_pace: float) -> float:
    return 1.0 if abs(log_pace) < math.log1p(PACE_TOLERANCE) else math.exp(log_pace)


def _measured(snapshot: Snapshot, jobs: Sequence[tuple[JobId, int]]) -> dict[int, tuple[float, float]]:
    """Return the logarithm of each running job's speed over its estimate, and how far to trust it, 0 to 1."""
    records, holdings, limit = snapshot.jobs, snapshot.holding, math.log(PACE_MAX)
    known_s = max(TRUST_RESTARTS * snapshot.restart_s, TRUST_S_MIN)
    found = {}
    for at, (job_id, _) in enumerate(jobs):
        job = records[job_id]
        measured_s = job.progress.step_time_s
        if not measured_s or job.state is not JobState.RUNNING:
            continue
        holding = holdings.get(job_id)
        if holding is None or holding.estimate is None:
            continue
        log_pace = min(max(math.log(holding.estimate.iter_time_s / measured_s), -limit), limit)
        ran_s = max(snapshot.now_s - holding.since_s - snapshot.restart_s, 0.0)
        found[at] = (log_pace, ran_s / (ran_s + known_s))
    return found
