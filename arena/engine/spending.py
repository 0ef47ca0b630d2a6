"""What attempts cost, and when a job's budget ends. Pure: no I/O, no clock.

A GPU costs its type's price from launch to verified end, whatever is done with it: starting, loading and saving count.
"""

from __future__ import annotations

from collections.abc import Mapping

from arena.domain.allocation import GpuGroup
from arena.domain.reason import ReasonCode
from arena.domain.records import AttemptRecord, JobRecord, Wish

PROGRAM_STOP_S = 1.0
"""What is kept of a program's budget for its stop; one that takes longer to end than this costs that more."""


def usd_per_s(group: GpuGroup, usd_per_hour: Mapping[str, float]) -> float:
    """Return what a second of a group costs; types without a price cost nothing."""
    if not usd_per_hour:
        return 0.0
    return sum(part.gpu_count * usd_per_hour.get(part.gpu_type, 0.0) for part in group.parts) / 3600.0


def spent_usd(job: JobRecord, attempt: AttemptRecord | None, usd_per_hour: Mapping[str, float], now_s: float) -> float:
    """Return what a job has cost by now, its live attempt included."""
    if attempt is None or not attempt.is_live:
        return job.spent_usd
    return job.spent_usd + max(now_s - attempt.launched_at_s, 0.0) * usd_per_s(attempt.group, usd_per_hour)


def is_spent(job: JobRecord) -> bool:
    """Tell whether nothing is left of a job's budget, or it is held because no more than its saving took was left."""
    if job.spec.budget_usd is None:
        return False
    is_held_for_it = job.wish is Wish.HOLD and any(one.code is ReasonCode.BUDGET_SPENT for one in job.reasons)
    return is_held_for_it or job.spent_usd >= job.spec.budget_usd


def spent_at_s(job: JobRecord, attempt: AttemptRecord, usd_per_hour: Mapping[str, float]) -> float | None:
    """Return when an attempt will have used up its job's budget, None where it never does."""
    if job.spec.budget_usd is None:
        return None
    price = usd_per_s(attempt.group, usd_per_hour)
    if price <= 0.0:
        return None
    return attempt.launched_at_s + max(job.spec.budget_usd - job.spent_usd, 0.0) / price


def saved_from_s(
    job: JobRecord, attempt: AttemptRecord, usd_per_hour: Mapping[str, float], ends_at_s: float
) -> float | None:
    """Return when an attempt is to be stopped so that its job saves within its budget, None where that is never.

    Saving may take the job's grace; no more than half of the time that is paid for is kept for it, or a small budget
    would buy nothing else. One that ends by itself in time needs none of it. A program starts anew whatever it is
    given to save in, so all but the usual time of its stop is its own; one that takes its grace to stop costs more.

    Args:
        ends_at_s: When the attempt is expected to end by itself, infinity where nobody can tell.
    """
    spent_s = spent_at_s(job, attempt, usd_per_hour)
    if spent_s is None or ends_at_s <= spent_s:
        return spent_s
    stop_s = job.spec.grace_s if job.spec.keeps_checkpoints else min(PROGRAM_STOP_S, job.spec.grace_s)
    return max(spent_s - stop_s, (attempt.launched_at_s + spent_s) / 2.0)
