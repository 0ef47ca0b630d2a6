"""First come, first served: strictly in order, nothing moves, nobody passes. Pure: no I/O, no clock.

The plain baseline. A job gets the GPU count it asked for (malleable and moldable jobs: the largest their grid knows)
on whichever cell of that count is fastest and fits; the first job that does not fit holds up all behind it. A decision
looks at no job behind that one, so its cost does not grow with the queue or the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from arena.domain.job import JobId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.base import Choice, Decision, Snapshot
from arena.policies.capacity import Capacity
from arena.policies.choose import PLANNING, cells_asked, choice_of, choose_cell


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstComeFirstServed:
    """The ``fcfs`` policy."""

    name: str = "fcfs"
    version: str = "1"
    serves_waiting_only: bool = True

    def decide(self, snapshot: Snapshot) -> Decision:
        """Start jobs from the head of the queue until one does not fit."""
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
