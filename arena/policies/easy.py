"""First come, first served with EASY backfilling (Lifka 1995; Mu'alem and Feitelson 2001). Pure: no I/O, no clock.

The first job that does not fit has a reservation: the earliest instant at which the running jobs will have left enough
room for it, by what they declare. A later job may pass it only if that does not move the reservation: it ends by then,
or what it takes is not needed then. Where a running job declares no length, it is taken to run for ever, so nobody
passes on the GPU types that the reservation waits for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from arena.domain.allocation import Allocation
from arena.domain.grid import Cell
from arena.domain.job import JobId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import JobState
from arena.policies.base import Choice, Decision, Holding, Snapshot
from arena.policies.capacity import Capacity
from arena.policies.choose import cells_asked, choice_of, choose_cell
from arena.policies.lengths import remaining_s
from arena.policies.placement import fits

BACKFILL_MAX = 1000
"""Jobs behind the first that are looked at, so that a decision does not grow with the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EasyBackfill:
    """The ``fcfs-easy`` policy."""

    name: str = "fcfs-easy"
    version: str = "2"
    serves_waiting_only: bool = True

    def decide(self, snapshot: Snapshot) -> Decision:
        """Start jobs from the head of the queue; behind the first that does not fit, those that do not delay it."""
        draft = _Draft(snapshot)
        looked_at = 0
        for job_id in snapshot.waiting:
            looked_at += draft.reservation is not None
            if looked_at > BACKFILL_MAX:
                break
            draft.serve(job_id)
        rest = reason(ReasonCode.BEHIND, job=draft.first_waiting, ahead=1) if draft.first_waiting else None
        return Decision(choices=draft.choices, reasons=draft.reasons, rest=rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reservation:
    """The first waiting job's place in the future.

    Args:
        cells: What it asks for.
        at_s: When it will have room; minus infinity where nobody can tell, so that nothing ends before it.
        capacity: What will be free then, before it has taken its part.
    """

    cells: Sequence[Cell]
    at_s: float
    capacity: Capacity

    def is_kept_by(self, allocation: Allocation, ends_at_s: float) -> bool:
        """Tell whether the job can start at its instant as well if these devices are taken now."""
        if ends_at_s <= self.at_s:
            return True
        left = _without(self.capacity, allocation)
        return any(fits(left, cell.group) for cell in self.cells)


class _Draft:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._capacity = snapshot.capacity
        self._ends: list[tuple[float, JobId, Allocation]] = [
            (self._ends_at_s(job_id, holding), job_id, holding.allocation)
            for job_id, holding in snapshot.holding.items()
        ]
        self.choices: dict[JobId, Choice | None] = {}
        self.reasons: dict[JobId, tuple[Reason, ...]] = {}
        self.first_waiting: JobId | None = None
        self.reservation: _Reservation | None = None

    def _ends_at_s(self, job_id: JobId, holding: Holding) -> float:
        """Return when a job that has devices will leave them; one that does not run yet has its start before it."""
        start_s = 0.0 if self._snapshot.jobs[job_id].state is JobState.RUNNING else self._snapshot.restart_s
        return self._snapshot.now_s + start_s + _or_never(remaining_s(self._snapshot, job_id, holding.estimate))

    def serve(self, job_id: JobId) -> None:
        """Start a job if it fits and delays nobody; the first that does not fit gets a reservation."""
        cells, refusal = cells_asked(self._snapshot, job_id)
        if not cells:
            self.reasons[job_id] = refusal
            return
        found = choose_cell(self._snapshot, job_id, cells, self._capacity)
        if isinstance(found, Reason):
            self.reasons[job_id] = (found,)
            if self.reservation is None:
                self.first_waiting = job_id
                self.reservation = self._reserved(job_id, cells)
            return
        cell, allocation = found
        left_s = remaining_s(self._snapshot, job_id, cell.best.estimate)
        ends_at_s = self._snapshot.now_s + self._snapshot.restart_s + _or_never(left_s)
        if self.reservation is not None and not self.reservation.is_kept_by(allocation, ends_at_s):
            assert self.first_waiting is not None
            self.reasons[job_id] = (reason(ReasonCode.BEHIND, job=self.first_waiting, ahead=1),)
            return
        self._start(job_id, cell, allocation, ends_at_s)

    def _start(self, job_id: JobId, cell: Cell, allocation: Allocation, ends_at_s: float) -> None:
        self._capacity = self._capacity.take_all(allocation)
        self._ends.append((ends_at_s, job_id, allocation))
        if self.reservation is not None and ends_at_s > self.reservation.at_s:
            left = _without(self.reservation.capacity, allocation)
            self.reservation = _Reservation(cells=self.reservation.cells, at_s=self.reservation.at_s, capacity=left)
        choice = choice_of(cell, allocation)
        self.choices[job_id] = choice
        self.reasons[job_id] = (choice.cause,)

    def _reserved(self, job_id: JobId, cells: Sequence[Cell]) -> _Reservation:
        """Let running jobs end one after the other until the job fits; never, where their ends are not known."""
        capacity = self._capacity
        for ends_at_s, _, allocation in sorted(self._ends, key=lambda end: end[:2]):
            if math.isinf(ends_at_s):
                break
            capacity = capacity.restore(allocation)
            found = choose_cell(self._snapshot, job_id, cells, capacity)
            if not isinstance(found, Reason):
                return _Reservation(cells=cells, at_s=ends_at_s, capacity=capacity)
        return _Reservation(cells=cells, at_s=-math.inf, capacity=_all_of(capacity, self._ends))


def _or_never(value_s: float | None) -> float:
    return math.inf if value_s is None else value_s


def _all_of(capacity: Capacity, ends: Iterable[tuple[float, JobId, Allocation]]) -> Capacity:
    for _, _, allocation in ends:
        capacity = capacity.restore(allocation)
    return capacity


def _without(capacity: Capacity, allocation: Allocation) -> Capacity:
    """Return what is left of the free devices without an allocation's, whether or not they are free."""
    for share in allocation.shares:
        free = frozenset(capacity.free_on(share.node_id)) & frozenset(share.device_ids)
        capacity = capacity.take(share.node_id, free) if free else capacity
    return capacity
