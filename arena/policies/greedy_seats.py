"""Working copy of a decision of ``arena-greedy``: who sits where. Pure: no I/O, no clock.

A ``Seating`` is a value, so that the search can follow many alternatives from one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from immutables import Map

from arena.domain.allocation import Allocation, GpuGroup
from arena.domain.grid import Cell
from arena.domain.job import JobId, JobKind
from arena.domain.reason import Reason
from arena.domain.replacing import quickly_made, replace
from arena.policies.base import Holding, Snapshot
from arena.policies.capacity import Capacity
from arena.policies.choose import choose_cell
from arena.policies.greedy_rosters import Ask, Cells, Entry, Roster, Seat, batch_of

CHANGED_MAX = 12
"""Jobs that may differ from a roster before a new one pays."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Seating:
    """All seats, and what they leave free.

    Args:
        gain: Samples per second won (or lost) against where the search began.
        suspended_for: For whom jobs lost their seats.
        roster: Of a seating from which this one came.
        changed: Jobs that sit otherwise than there, or no longer.
    """

    snapshot: Snapshot
    cells: Mapping[JobId, Cells]
    capacity: Capacity
    seats: Map[JobId, Seat]
    roster: Roster
    changed: frozenset[JobId] = frozenset()
    gain: float = 0.0
    suspended_for: Map[JobId, JobId] = field(default_factory=Map)

    def seated(self, job_id: JobId, ask: Ask) -> Seating | Reason:
        """Return the seating with a job on the most local free group of an ask, its old devices given back first."""
        old = self.seats.get(job_id)
        capacity = self.capacity.restore(old.allocation) if old is not None else self.capacity
        options = self.cells[job_id].get(ask)
        found = choose_cell(self.snapshot, job_id, options, capacity, old.allocation if old is not None else None)
        if isinstance(found, Reason):
            return found
        cell, allocation = found
        speed = batch_of(self.snapshot.jobs[job_id].spec) * cell.steps_per_s
        seat = Seat(
            ask=ask,
            cell=cell,
            allocation=allocation,
            samples_per_s=speed,
            is_movable=True,
            is_suspendable=old is not None and old.is_suspendable,
            is_new=old is None or old.is_new,
        )
        return replace(
            self,
            capacity=capacity.take_all(allocation),
            seats=self.seats.set(job_id, seat),
            changed=self.changed | {job_id},
            gain=self.gain + speed - (old.samples_per_s if old is not None else 0.0),
        )

    def suspended(self, job_id: JobId, job_for: JobId) -> Seating:
        """Return the seating without a job, which makes room for another."""
        old = self.seats[job_id]
        return replace(
            self,
            capacity=self.capacity.restore(old.allocation),
            seats=self.seats.delete(job_id),
            changed=self.changed | {job_id},
            gain=self.gain - old.samples_per_s,
            suspended_for=self.suspended_for.set(job_id, job_for),
        )

    def resumed(self, job_id: JobId, seat: Seat) -> Seating:
        """Return the seating with a job back where it was; its devices must be free, but for those out of use."""
        return replace(
            self,
            capacity=_taken_back(self.capacity, seat.allocation),
            seats=self.seats.set(job_id, seat),
            changed=self.changed | {job_id},
            gain=self.gain + seat.samples_per_s,
            suspended_for=self.suspended_for.delete(job_id),
        )

    def from_here(self) -> Seating:
        """Return the same seating as the beginning of a new search."""
        if len(self.changed) <= CHANGED_MAX:
            return replace(self, gain=0.0)
        roster = Roster(snapshot=self.snapshot, cells=self.cells, seats=self.seats)
        return replace(self, gain=0.0, roster=roster, changed=frozenset())

    def halvings(self, gpu_type: str) -> Iterator[Entry]:
        """Yield who could do with half of its GPUs of a type, who loses least first."""
        return self.roster.halvings(gpu_type, self.seats, self.changed)

    def moves(self, source: str, target: str) -> Iterator[Entry]:
        """Yield who could have as many GPUs of another type, who loses least first."""
        return self.roster.moves(source, target, self.seats, self.changed)

    def largest(self, gpu_type: str) -> int:
        """Return the GPUs of the largest seat of a type."""
        return self.roster.largest(gpu_type, self.seats, self.changed)

    def speed_of(self, job_id: JobId, ask: Ask) -> float | None:
        """Return a job's speed on the most local group of an ask, None where there is none."""
        steps_per_s = self.cells[job_id].local_steps_per_s.get(ask)
        return None if steps_per_s is None else batch_of(self.snapshot.jobs[job_id].spec) * steps_per_s

    def speed_max(self, job_id: JobId, ask: Ask) -> float:
        """Return a job's speed on the fastest group of an ask that it has."""
        return batch_of(self.snapshot.jobs[job_id].spec) * self.cells[job_id].steps_per_s_max[ask]

    def free_count(self, gpu_type: str) -> int:
        """Return the free GPUs of a type."""
        return self.capacity.free_count(gpu_type)

    def has_room(self, job_id: JobId, ask: Ask) -> bool:
        """Tell whether a job fits as an ask says, if every node sees its checkpoints; where not, it never does."""
        return has_room(self.capacity, self.cells[job_id].placeable.get(ask, ()))


def has_room(capacity: Capacity, groups: tuple[GpuGroup, ...]) -> bool:
    """Tell whether any of some groups of one GPU type finds its nodes."""
    return any(
        _finds_nodes(capacity, pool, group.parts[0].node_counts)
        for group in groups
        for pool in capacity.pools
        if pool[0] == group.parts[0].gpu_type and group.parts[0].zone in {None, pool[1]}
    )


def _finds_nodes(capacity: Capacity, pool: tuple[str, str], counts: tuple[int, ...]) -> bool:
    """Tell whether there is a node of its own for every count; they go from large to small."""
    holes, found = capacity.pools[pool], 0
    if holes.free_count < sum(counts):
        return False
    size = holes.largest
    for index, count in enumerate(counts):
        while size >= count:
            found, size = found + len(holes.by_size[size]), size - 1
        if found <= index:
            return False
    return True


def _taken_back(capacity: Capacity, allocation: Allocation) -> Capacity:
    """Return the value without an allocation that was given up; what a drained node has did not come free by that."""
    for share in allocation.shares:
        free = frozenset(share.device_ids) & set(capacity.free_on(share.node_id))
        capacity = capacity.take(share.node_id, free) if free else capacity
    return capacity


def seat_of(snapshot: Snapshot, job_id: JobId, holding: Holding, cells: Cells | None) -> Seat:
    """Return the seat of a job that has devices."""
    spec = snapshot.jobs[job_id].spec
    is_free = holding.movable and spec.preemptible
    cell: Cell | None = cells.by_group.get(holding.group) if cells is not None else None
    return Seat(
        ask=(holding.group.parts[0].gpu_type, holding.group.gpu_count),
        cell=cell,
        allocation=holding.allocation,
        samples_per_s=batch_of(spec) * cell.steps_per_s if cell is not None else 0.0,
        is_movable=is_free and spec.kind is JobKind.MALLEABLE and cells is not None,
        is_suspendable=is_free,
    )


def opening(snapshot: Snapshot, cells: Mapping[JobId, Cells], seats: Mapping[JobId, Seat]) -> Seating:
    """Return the seating as it is."""
    taken = Map(seats)
    roster = Roster(snapshot=snapshot, cells=cells, seats=taken)
    return Seating(snapshot=snapshot, cells=cells, capacity=snapshot.capacity, seats=taken, roster=roster)
