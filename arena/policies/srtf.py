"""Shortest remaining time first, preemptive. Pure: no I/O, no clock.

The remaining time is that of the declared steps on the fastest cell a job asks for. Jobs that declare none come after
those that do, in order of submission.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from arena.domain.job import JobId
from arena.policies.base import Decision, Snapshot
from arena.policies.choose import cells_asked
from arena.policies.lengths import remaining_s
from arena.policies.ranked import by_rank, contenders


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestRemainingTimeFirst:
    """The ``srtf`` policy."""

    name: str = "srtf"
    version: str = "2"
    serves_waiting_only: bool = True

    def decide(self, snapshot: Snapshot) -> Decision:
        """Give devices by remaining time."""
        return by_rank(snapshot, sorted(contenders(snapshot), key=lambda job_id: _rank(snapshot, job_id)))


def _rank(snapshot: Snapshot, job_id: JobId) -> tuple[int, float, tuple[int, float, JobId]]:
    job = snapshot.jobs[job_id]
    cells, _ = cells_asked(snapshot, job_id)
    left_s = remaining_s(snapshot, job_id, cells[0].best.estimate if cells else None)
    return -job.spec.priority, math.inf if left_s is None else left_s, job.queue_key
