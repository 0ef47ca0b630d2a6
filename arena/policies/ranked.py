"""Devices by rank: who ranks higher displaces who ranks lower. Pure: no I/O, no clock.

The part that preemptive policies share; they differ in the rank alone. A job gets what it asks for, on its fastest free
cell; what runs stays where it is unless somebody of higher rank needs its devices. A job that fits nowhere is passed
by those below it: nothing is kept free for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from arena.domain.allocation import Allocation
from arena.domain.grid import Cell
from arena.domain.job import JobId, JobKind
from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.base import Choice, Decision, Snapshot
from arena.policies.choose import cells_asked, choice_of, choose_cell


def by_rank(snapshot: Snapshot, order: Sequence[JobId]) -> Decision:
    """Give devices in the order of rank.

    Args:
        order: The waiting jobs and those that run and may be stopped (see ``contenders``), best rank first.
    """
    draft = _Draft(snapshot, order)
    for job_id in order:
        draft.serve(job_id)
    return draft.decision()


def contenders(snapshot: Snapshot) -> list[JobId]:
    """Return the jobs that compete for devices: those that wait, and those that run and may be stopped."""
    stoppable = [
        job_id
        for job_id, holding in sorted(snapshot.holding.items())
        if holding.movable and snapshot.jobs[job_id].spec.preemptible
    ]
    return [*snapshot.waiting, *stoppable]


class _Draft:
    def __init__(self, snapshot: Snapshot, order: Sequence[JobId]) -> None:
        self._snapshot = snapshot
        self._capacity = snapshot.capacity
        # Lowest rank last; taken from the end while devices are needed.
        self._displaceable = [job_id for job_id in order if job_id in snapshot.holding]
        self._displaced_by: dict[JobId, JobId] = {}
        self._choices: dict[JobId, Choice] = {}
        self._reasons: dict[JobId, tuple[Reason, ...]] = {}
        self._rank = {job_id: rank for rank, job_id in enumerate(order)}

    def serve(self, job_id: JobId) -> None:
        """Let a job keep what it has, or find it devices."""
        if job_id in self._snapshot.holding and job_id not in self._displaced_by:
            self._displaceable.remove(job_id)
            return
        if job_id in self._displaced_by and self._snapshot.jobs[job_id].spec.kind is not JobKind.MALLEABLE:
            return  # it keeps what it was started with, or starts again when its turn comes
        cells, refusal = cells_asked(self._snapshot, job_id)
        if not cells:
            self._reasons[job_id] = refusal
            return
        found = self._found(job_id, cells, self._held_by(job_id))
        if isinstance(found, Reason):
            self._reasons[job_id] = (found,)
            return
        is_running = job_id in self._snapshot.holding
        choice = choice_of(*found, ReasonCode.MOVED if is_running else ReasonCode.STARTED)
        self._capacity = self._capacity.take_all(choice.allocation)
        self._choices[job_id] = choice
        self._reasons[job_id] = (choice.cause,)

    def _held_by(self, job_id: JobId) -> Allocation | None:
        holding = self._snapshot.holding.get(job_id)
        return None if holding is None else holding.allocation

    def _found(
        self, job_id: JobId, cells: Sequence[Cell], prefer: Allocation | None
    ) -> tuple[Cell, Allocation] | Reason:
        """Look for free devices, then displace from the lowest rank upwards; nobody is displaced in vain."""
        refusal = choose_cell(self._snapshot, job_id, cells, self._capacity, prefer)
        if not isinstance(refusal, Reason):
            return refusal
        types = {part.gpu_type for cell in cells for part in cell.group.parts}
        capacity, victims = self._capacity, []
        for victim in reversed(self._displaceable):
            holding = self._snapshot.holding[victim]
            if self._rank[victim] < self._rank[job_id]:
                break
            if not any(part.gpu_type in types for part in holding.group.parts):
                continue
            capacity = capacity.restore(holding.allocation)
            victims.append(victim)
            found = choose_cell(self._snapshot, job_id, cells, capacity, prefer)
            if not isinstance(found, Reason):
                self._displace(victims, found[1], job_id)
                return found
        return refusal

    def _displace(self, victims: Sequence[JobId], taken: Allocation, job_id: JobId) -> None:
        """Displace those whose devices are taken; the others are left alone after all."""
        for victim in victims:
            allocation = self._snapshot.holding[victim].allocation
            if allocation.device_ids & taken.device_ids:
                self._displaceable.remove(victim)
                self._displaced_by[victim] = job_id
                self._capacity = self._capacity.restore(allocation)

    def decision(self) -> Decision:
        """Return what changes; who was displaced and found nothing else is suspended."""
        choices: dict[JobId, Choice | None] = dict(self._choices)
        for victim, job_id in sorted(self._displaced_by.items()):
            if victim not in choices:
                choices[victim] = None
                self._reasons[victim] = (reason(ReasonCode.PREEMPTED, job=job_id),)
        return Decision(choices=choices, reasons=dict(sorted(self._reasons.items())))
