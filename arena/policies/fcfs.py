"""First come, first served: strictly in order, nothing moves, nobody passes. Pure: no I/O, no clock.

The plain baseline. A job gets the GPU count it asked for (malleable and moldable jobs: the largest their grid knows)
on whichever cell of that count is fastest and fits; the first job that does not fit holds up all behind it. A decision
looks at no job behind that one, so its cost does not grow with the queue or the cluster; while that one and what is
free stay as they are, whoever joins the queue changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from arena.domain.grid import Grid
from arena.domain.job import JobId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import JobRecord
from arena.policies.base import Choice, Decision, Snapshot
from arena.policies.capacity import Capacity
from arena.policies.choose import PLANNING, cells_asked, choice_of, choose_cell


class _Refusal(NamedTuple):
    """A decision that starts nobody, and the very values that it was worked out of."""

    decision: Decision
    head: JobRecord
    grid: Grid
    capacity: Capacity
    places: object
    shape: object

    def holds(self, snapshot: Snapshot) -> bool:
        """Tell whether the decision would be the same again."""
        return (
            snapshot.capacity is self.capacity
            and bool(snapshot.waiting)
            and snapshot.waiting[0] == self.head.job_id
            and snapshot.jobs[self.head.job_id] is self.head
            and snapshot.grids.get(self.head.job_id) is self.grid
            and snapshot.places is self.places
            and snapshot.shape is self.shape
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstComeFirstServed:
    """The ``fcfs`` policy."""

    name: str = "fcfs"
    version: str = "1"
    serves_waiting_only: bool = True
    # The latest decision if it started nobody, kept beside what it was worked out of.
    _refusal: _Refusal | None = field(default=None, init=False, repr=False, compare=False)

    def decide(self, snapshot: Snapshot) -> Decision:
        """Start jobs from the head of the queue until one does not fit."""
        refusal = self._refusal
        if refusal is not None and refusal.holds(snapshot):
            return refusal.decision
        decision = _decided(snapshot)
        object.__setattr__(self, "_refusal", _refusal_of(snapshot, decision))
        return decision


def _refusal_of(snapshot: Snapshot, decision: Decision) -> _Refusal | None:
    """Return a decision to keep; None where it starts somebody, or could be another one at another time."""
    if decision.choices or not snapshot.waiting:
        return None
    head = snapshot.jobs[snapshot.waiting[0]]
    grid = snapshot.grids.get(head.job_id)
    if grid is None or head.failed_starts:  # the next one counts as well; it keeps away from a node for some time only
        return None
    return _Refusal(decision, head, grid, snapshot.capacity, snapshot.places, snapshot.shape)


def _decided(snapshot: Snapshot) -> Decision:
    choices: dict[JobId, Choice | None] = {}
    reasons: dict[JobId, tuple[Reason, ...]] = {}
    capacity = snapshot.capacity
    for position, job_id in enumerate(snapshot.waiting):
        found = _start(snapshot, job_id, capacity)
        if isinstance(found, tuple):
            reasons[job_id] = found
            if found is PLANNING:
                continue
            rest = reason(ReasonCode.BEHIND, job=job_id, ahead=position + 1 - len(choices))
            return Decision(choices=choices, reasons=reasons, rest=rest)
        choices[job_id] = found
        reasons[job_id] = (found.cause,)
        if position + 1 < len(snapshot.waiting):
            capacity = capacity.take_all(found.allocation)
    return Decision(choices=choices, reasons=reasons)


def _start(snapshot: Snapshot, job_id: JobId, capacity: Capacity) -> Choice | tuple[Reason, ...]:
    cells, refusal = cells_asked(snapshot, job_id)
    if not cells:
        return refusal
    found = choose_cell(snapshot, job_id, cells, capacity)
    return (found,) if isinstance(found, Reason) else choice_of(*found)
