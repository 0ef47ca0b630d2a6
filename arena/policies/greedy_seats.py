"""Working copy of a decision of ``arena-greedy``: who sits where, and what one step of its search changes.

Pure: no I/O, no clock. A ``Seating`` is a value, so that the search can follow many alternatives from one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from immutables import Map

from arena.domain.allocation import Allocation
from arena.domain.grid import Cell, Grid
from arena.domain.job import JobId, JobKind, JobSpec
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import Reason
from arena.domain.replacing import replace
from arena.policies.base import Snapshot
from arena.policies.capacity import Capacity
from arena.policies.choose import choose_cell
from arena.policies.placement import fits

Ask = tuple[str, int]
"""GPU type and count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a job has or is to have.

    Args:
        cell: None for a running job whose grid no longer holds what it runs on.
        samples_per_s: What the artifact's objective adds up.
        is_movable: Whether this decision may give it another group.
        is_suspendable: Whether this decision may take everything away.
        is_new: Whether it got its devices by this decision.
    """

    ask: Ask
    cell: Cell | None
    allocation: Allocation
    samples_per_s: float
    is_movable: bool
    is_suspendable: bool
    is_new: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """A job's cells by GPU type and count, the most local first (fewest nodes, then fastest)."""

    by_ask: Mapping[Ask, tuple[Cell, ...]]

    @classmethod
    def of(cls, grid: Grid) -> Cells:
        """Sort a grid; groups of several types are not asked for."""
        found: dict[Ask, list[Cell]] = {}
        for cell in grid.cells:
            if len(cell.group.parts) == 1:
                found.setdefault((cell.group.parts[0].gpu_type, cell.group.gpu_count), []).append(cell)
        return cls(by_ask={ask: tuple(sorted(cells, key=_locality)) for ask, cells in found.items()})

    def get(self, ask: Ask) -> tuple[Cell, ...]:
        """Return the cells of an ask; empty where nothing ran or nothing was measured."""
        return self.by_ask.get(ask, ())


def data_parallel_only(grid: Grid) -> Grid:
    """Return the groups on which a plan keeps each replica whole on one GPU, with the fastest such plan of each.

    Of what a table measured no plan is known, and it goes.
    """
    cells = []
    for cell in grid.cells:
        plans = [one for one in (cell.best, *cell.others) if _is_data_parallel(one.plan, cell.group.gpu_count)]
        if plans:
            cells.append(replace(cell, best=min(plans, key=lambda one: one.estimate.iter_time_s), others=()))
    return replace(grid, cells=tuple(cells))


def _is_data_parallel(plan: ParallelPlan | None, gpu_count: int) -> bool:
    return plan is not None and plan.dp == gpu_count and plan.zero == 0


def _locality(cell: Cell) -> tuple[int, float]:
    return cell.group.node_count, cell.best.estimate.iter_time_s


def samples_per_s(spec: JobSpec, cell: Cell) -> float:
    """Return a job's speed on a cell."""
    if spec.workload is not None:
        batch = spec.workload.global_batch
    else:
        batch = spec.train.global_batch if spec.train is not None else 1
    return batch * cell.steps_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Seating:
    """All seats, and what they leave free.

    Args:
        gain: Samples per second won (or lost) against where the search began.
        suspended_for: For whom jobs lost their seats.
    """

    snapshot: Snapshot
    cells: Mapping[JobId, Cells]
    capacity: Capacity
    seats: Map[JobId, Seat] = field(default_factory=Map)
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
        speed = samples_per_s(self.snapshot.jobs[job_id].spec, cell)
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
            gain=self.gain + speed - (old.samples_per_s if old is not None else 0.0),
        )

    def suspended(self, job_id: JobId, job_for: JobId) -> Seating:
        """Return the seating without a job, which makes room for another."""
        old = self.seats[job_id]
        return replace(
            self,
            capacity=self.capacity.restore(old.allocation),
            seats=self.seats.delete(job_id),
            gain=self.gain - old.samples_per_s,
            suspended_for=self.suspended_for.set(job_id, job_for),
        )

    def resumed(self, job_id: JobId, seat: Seat) -> Seating:
        """Return the seating with a job back where it was; its devices must be free, but for those out of use."""
        return replace(
            self,
            capacity=_taken_back(self.capacity, seat.allocation),
            seats=self.seats.set(job_id, seat),
            gain=self.gain + seat.samples_per_s,
            suspended_for=self.suspended_for.delete(job_id),
        )

    def from_here(self) -> Seating:
        """Return the same seating as the beginning of a new search."""
        return replace(self, gain=0.0)

    def speed_of(self, job_id: JobId, ask: Ask) -> float | None:
        """Return a job's speed on the most local group of an ask, None where there is none."""
        options = self.cells[job_id].get(ask)
        return samples_per_s(self.snapshot.jobs[job_id].spec, options[0]) if options else None

    def by_type(self) -> dict[str, list[tuple[JobId, Seat]]]:
        """Return the seats of each GPU type, by job id."""
        found: dict[str, list[tuple[JobId, Seat]]] = {}
        for job_id, seat in sorted(self.seats.items()):
            found.setdefault(seat.ask[0], []).append((job_id, seat))
        return found

    def free_count(self, gpu_type: str) -> int:
        """Return the free GPUs of a type."""
        return self.capacity.free_count(gpu_type)


def _taken_back(capacity: Capacity, allocation: Allocation) -> Capacity:
    """Return the value without an allocation that was given up; what a drained node has did not come free by that."""
    for share in allocation.shares:
        free = frozenset(share.device_ids) & set(capacity.free_on(share.node_id))
        capacity = capacity.take(share.node_id, free) if free else capacity
    return capacity


def opening(snapshot: Snapshot, cells: Mapping[JobId, Cells]) -> Seating:
    """Return the seating as it is."""
    seats: dict[JobId, Seat] = {}
    for job_id, holding in snapshot.holding.items():
        spec = snapshot.jobs[job_id].spec
        is_free = holding.movable and spec.preemptible
        part = holding.group.parts[0]
        grid = snapshot.grids.get(job_id)
        cell = grid.cell(holding.group) if grid is not None else None
        seats[job_id] = Seat(
            ask=(part.gpu_type, holding.group.gpu_count),
            cell=cell,
            allocation=holding.allocation,
            samples_per_s=samples_per_s(spec, cell) if cell is not None else 0.0,
            is_movable=is_free and spec.kind is JobKind.MALLEABLE and job_id in cells,
            is_suspendable=is_free,
        )
    return Seating(snapshot=snapshot, cells=cells, capacity=snapshot.capacity, seats=Map(seats))


Allowed = Callable[["Seating", JobId, Ask], bool]
"""Tells whether a seated job may be given an ask."""


def steps_from(
    seating: Seating, types: Sequence[str], *, halves: bool, moves: bool, allowed: Allowed | None = None
) -> Iterator[Seating]:
    """Yield what one step of the search can make of a seating.

    On each GPU type the job loses half its GPUs whose loss is least, among those that hold at least half of the type's
    largest allocation; from each type to each other the job moves, at the same count, that gains most by it.
    """
    by_type = seating.by_type()
    for gpu_type in types:
        if halves:
            yield from _halved(seating, gpu_type, by_type.get(gpu_type, []), allowed)
    for source in types:
        for target in types if moves else ():
            if source != target:
                yield from _moved(seating, target, by_type.get(source, []), allowed)


def _halved(
    seating: Seating, gpu_type: str, seats: Sequence[tuple[JobId, Seat]], allowed: Allowed | None
) -> Iterator[Seating]:
    largest = max((seat.ask[1] for _, seat in seats), default=0)
    losses = []
    for job_id, seat in seats:
        count = seat.ask[1]
        if seat.is_movable and count >= 2 and 2 * count >= largest:
            speed = seating.speed_of(job_id, (gpu_type, count // 2))
            if speed is not None and (allowed is None or allowed(seating, job_id, (gpu_type, count // 2))):
                losses.append((seat.samples_per_s - speed, job_id, count // 2))
    for _, job_id, count in sorted(losses)[:1]:
        after = seating.seated(job_id, (gpu_type, count))
        if isinstance(after, Seating):
            yield after


def _moved(
    seating: Seating, target: str, seats: Sequence[tuple[JobId, Seat]], allowed: Allowed | None
) -> Iterator[Seating]:
    free = seating.free_count(target)
    losses = []
    for job_id, seat in seats:
        if seat.is_movable and seat.ask[1] <= free:
            speed = seating.speed_of(job_id, (target, seat.ask[1]))
            if speed is not None and (allowed is None or allowed(seating, job_id, (target, seat.ask[1]))):
                losses.append((seat.samples_per_s - speed, job_id, seat.ask[1]))
    for _, job_id, count in sorted(losses):
        # What it has now is of another type: it fits there as things are, or not at all.
        if not any(fits(seating.capacity, cell.group) for cell in seating.cells[job_id].get((target, count))):
            continue
        after = seating.seated(job_id, (target, count))
        if isinstance(after, Seating):
            yield after
            return
