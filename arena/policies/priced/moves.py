"""How often jobs were launched again of late, and until when those are left alone that were too often. Pure.

A record has no more than the instants of a job's latest launches since it was last released, not why it was launched:
one that failed counts like one that was moved.
"""

from __future__ import annotations

from collections.abc import Iterable

from arena.domain.records import JobRecord

MOVES_MAX = 4
MOVES_S = 3_600.0
"""No job is launched again more often than this in so long, but for a share or a block of time (see ``resting``)."""


def recent_moves(job: JobRecord, now_s: float) -> int:
    """Return how often a job has been launched again of late, as far as its record goes back."""
    again = job.launched_at_s[1:] if job.epoch <= len(job.launched_at_s) else job.launched_at_s
    if not again:
        return 0
    return sum(now_s - at_s < MOVES_S for at_s in again)


def rested_among_s(running: Iterable[JobRecord], now_s: float) -> float | None:
    """Return when the first of some jobs that have something may be moved again, see ``Market.rested_at_s``."""
    instants = [left_alone_until_s(job, now_s) for job in running if job.spec.preemptible]
    until_s = [at_s for at_s in instants if at_s is not None]
    return min(until_s) + 1.0 if until_s else None  # not a rounding error too early


def left_alone_until_s(job: JobRecord, now_s: float) -> float | None:
    """Return until when a job is not moved that was launched too often of late, None where it was not."""
    if len(job.launched_at_s) < MOVES_MAX or recent_moves(job, now_s) < MOVES_MAX:
        return None
    return job.launched_at_s[-MOVES_MAX] + MOVES_S
