"""How fast jobs run against their estimates, from those that run to those that do not yet. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from arena.domain.job import JobId
from arena.domain.records import JobRecord, JobState
from arena.policies.base import Holding, Snapshot

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
    measured = {job_id: found for job_id, _ in jobs if (found := _measured(snapshot, job_id)) is not None}
    if not measured:
        return [1.0] * len(jobs)
    expected = _expected(measured, jobs)
    overall = median(pace for pace, _ in measured.values())
    factors = []
    for job_id, grid in jobs:
        log_pace = expected.get(grid, overall)
        if job_id in measured:
            own, trust = measured[job_id]
            log_pace += trust * (own - log_pace)
        factors.append(1.0 if abs(log_pace) < math.log1p(PACE_TOLERANCE) else math.exp(log_pace))
    return factors


def _expected(measured: Mapping[JobId, tuple[float, float]], jobs: Sequence[tuple[JobId, int]]) -> dict[int, float]:
    """Return the median logarithm by grid."""
    by_grid: dict[int, list[float]] = {}
    for job_id, grid in jobs:
        if job_id in measured:
            by_grid.setdefault(grid, []).append(measured[job_id][0])
    return {grid: median(found) for grid, found in by_grid.items()}


def _measured(snapshot: Snapshot, job_id: JobId) -> tuple[float, float] | None:
    """Return the logarithm of a running job's speed over its estimate, and how far to trust it, 0 to 1."""
    holding, job = snapshot.holding.get(job_id), snapshot.jobs[job_id]
    measured_s = _step_s(job)
    if holding is None or holding.estimate is None or not measured_s:
        return None
    limit = math.log(PACE_MAX)
    log_pace = min(max(math.log(holding.estimate.iter_time_s / measured_s), -limit), limit)
    return log_pace, _trust(snapshot, holding)


def _step_s(job: JobRecord) -> float | None:
    return job.progress.step_time_s if job.state is JobState.RUNNING else None


def _trust(snapshot: Snapshot, holding: Holding) -> float:
    ran_s = max(snapshot.now_s - holding.since_s - snapshot.restart_s, 0.0)
    return ran_s / (ran_s + max(TRUST_RESTARTS * snapshot.restart_s, TRUST_S_MIN))
