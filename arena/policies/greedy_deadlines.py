"""What ``arena-greedy`` knows of deadlines: who can still be in time, and where. Pure: no I/O, no clock.

How the artifact treats deadlines is not published in enough detail to be followed; this is the plain reading of it. A
job that can be in time nowhere any more is served after all others, and gives way to them. No job that is in time is
changed so that it would not be. Who has no deadline, or a length that nobody knows, is served as if there were none.
"""

from __future__ import annotations

from dataclasses import dataclass

from arena.domain.grid import Cell
from arena.domain.job import JobId
from arena.policies.base import Snapshot
from arena.policies.greedy_rosters import Ask, Seat
from arena.policies.greedy_seats import Seating
from arena.policies.lengths import remaining_s

ServiceKey = tuple[bool, tuple[int, float, JobId]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """The deadlines of a decision; switched off, nobody has one."""

    snapshot: Snapshot
    is_on: bool

    def service_key(self, seating: Seating, job_id: JobId) -> ServiceKey:
        """Return the order of service: who cannot be in time comes last."""
        return self.is_lost(seating, job_id), self.snapshot.jobs[job_id].queue_key

    def is_lost(self, seating: Seating, job_id: JobId) -> bool:
        """Tell whether a job will be late wherever it goes."""
        cells = seating.cells.get(job_id)
        if not self._is_bound(job_id) or cells is None or not cells.by_ask:
            return False
        seat = seating.seats.get(job_id)
        if seat is not None and seat.cell is not None and self._is_in_time(job_id, seat.cell, change_s=0.0):
            return False
        change_s = self.snapshot.restart_s
        return not any(
            self._is_in_time(job_id, cell, change_s=change_s) for some in cells.by_ask.values() for cell in some
        )

    def allows(self, seating: Seating, job_id: JobId, ask: Ask) -> bool:
        """Tell whether a seated job may be given another ask: one that is in time must stay so."""
        seat: Seat = seating.seats[job_id]
        if not self._is_bound(job_id) or seat.cell is None or not self._is_in_time(job_id, seat.cell, change_s=0.0):
            return True
        options = seating.cells[job_id].get(ask)
        return bool(options) and self._is_in_time(job_id, options[0], change_s=self.snapshot.restart_s)

    def _is_bound(self, job_id: JobId) -> bool:
        spec = self.snapshot.jobs[job_id].spec
        return self.is_on and spec.deadline_s is not None and spec.step_limit is not None

    def _is_in_time(self, job_id: JobId, cell: Cell, *, change_s: float) -> bool:
        job = self.snapshot.jobs[job_id]
        left_s = remaining_s(self.snapshot, job_id, cell.best.estimate)
        assert left_s is not None
        assert job.spec.deadline_s is not None
        return self.snapshot.now_s + change_s + left_s <= job.submitted_at_s + job.spec.deadline_s
