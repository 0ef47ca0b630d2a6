"""What ``arena-greedy`` knows of jobs: their cells by ask, their seats, and who loses least by a step of its search.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge

from immutables import Map

from arena.domain.allocation import Allocation, GpuGroup, splits_tensor_parallel_group
from arena.domain.grid import Cell, Grid
from arena.domain.job import JobId, JobSpec
from arena.domain.parallel import ParallelPlan
from arena.domain.replacing import quickly_made, replace
from arena.policies.base import Snapshot

Ask = tuple[str, int]
"""GPU type and count."""

Entry = tuple[float, JobId, int]
"""Samples per second that a job loses by a step, the job, the GPUs that it has then."""


@quickly_made
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
    """A job's cells by GPU type and count, the most local first (fewest nodes, then fastest).

    Args:
        placeable: Of each ask, the groups that devices may be laid out as.
        local_steps_per_s, steps_per_s_max: Of each ask, the speed of the most local cell and of the fastest.
    """

    by_ask: Mapping[Ask, tuple[Cell, ...]]
    by_group: Mapping[GpuGroup, Cell]
    placeable: Mapping[Ask, tuple[GpuGroup, ...]]
    local_steps_per_s: Mapping[Ask, float]
    steps_per_s_max: Mapping[Ask, float]

    @classmethod
    def of(cls, grid: Grid) -> Cells:
        """Sort a grid; groups of several types are not asked for."""
        found: dict[Ask, list[Cell]] = {}
        for cell in grid.cells:
            if len(cell.group.parts) == 1:
                found.setdefault((cell.group.parts[0].gpu_type, cell.group.gpu_count), []).append(cell)
        by_ask = {ask: tuple(sorted(cells, key=_locality)) for ask, cells in found.items()}
        return cls(
            by_ask=by_ask,
            by_group={cell.group: cell for cell in reversed((*grid.cells, *grid.mixed))},
            placeable={ask: tuple(cell.group for cell in cells if _is_whole(cell)) for ask, cells in by_ask.items()},
            local_steps_per_s={ask: cells[0].steps_per_s for ask, cells in by_ask.items()},
            steps_per_s_max={ask: max(cell.steps_per_s for cell in cells) for ask, cells in by_ask.items()},
        )

    def get(self, ask: Ask) -> tuple[Cell, ...]:
        """Return the cells of an ask; empty where nothing ran or nothing was measured."""
        return self.by_ask.get(ask, ())


def _is_whole(cell: Cell) -> bool:
    plan, counts = cell.best.plan, cell.group.parts[0].node_counts
    return plan is None or not splits_tensor_parallel_group(plan, counts)


def _locality(cell: Cell) -> tuple[int, float]:
    return cell.group.node_count, cell.best.estimate.iter_time_s


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


def batch_of(spec: JobSpec) -> int:
    """Return the samples of a step; a step of a command counts as one."""
    if spec.workload is not None:
        return spec.workload.global_batch
    return spec.train.global_batch if spec.train is not None else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The jobs of a seating in the order in which a step takes them, each order worked out when first asked for.

    The search asks many seatings that differ from one in a few jobs: those are named, and put in their places anew.
    """

    snapshot: Snapshot
    cells: Mapping[JobId, Cells]
    seats: Map[JobId, Seat]
    _by_type: dict[str, list[tuple[JobId, Seat]]] = field(default_factory=dict)
    _halvings: dict[str, list[Entry]] = field(default_factory=dict)
    _moves: dict[tuple[str, str], list[Entry]] = field(default_factory=dict)
    _counts: dict[str, dict[int, int]] = field(default_factory=dict)

    def halvings(self, gpu_type: str, seats: Map[JobId, Seat], changed: frozenset[JobId]) -> Iterator[Entry]:
        """Yield who could do with half of its GPUs of a type, who loses least first."""
        if gpu_type not in self._halvings:
            self._halvings[gpu_type] = sorted(self._entries(self._of_type(gpu_type), None))
        mine = self._entries(_of_type(gpu_type, seats, changed), None)
        return _amended(self._halvings[gpu_type], mine, changed)

    def moves(self, source: str, target: str, seats: Map[JobId, Seat], changed: frozenset[JobId]) -> Iterator[Entry]:
        """Yield who could have as many GPUs of another type, who loses least first."""
        pair = source, target
        if pair not in self._moves:
            self._moves[pair] = sorted(self._entries(self._of_type(source), target))
        return _amended(self._moves[pair], self._entries(_of_type(source, seats, changed), target), changed)

    def largest(self, gpu_type: str, seats: Map[JobId, Seat], changed: frozenset[JobId]) -> int:
        """Return the GPUs of the largest seat of a type."""
        if gpu_type not in self._counts:
            counts = self._counts[gpu_type] = {}
            for _, seat in self._of_type(gpu_type):
                counts[seat.ask[1]] = counts.get(seat.ask[1], 0) + 1
        counts = self._counts[gpu_type].copy()
        for _, seat in _of_type(gpu_type, self.seats, changed):
            counts[seat.ask[1]] -= 1
        found = [count for count, number in counts.items() if number]
        return max([*found, *(seat.ask[1] for _, seat in _of_type(gpu_type, seats, changed))], default=0)

    def _of_type(self, gpu_type: str) -> list[tuple[JobId, Seat]]:
        if not self._by_type:
            for job_id, seat in self.seats.items():
                self._by_type.setdefault(seat.ask[0], []).append((job_id, seat))
        return self._by_type.get(gpu_type, [])

    def _entries(self, seats: Iterable[tuple[JobId, Seat]], target: str | None) -> list[Entry]:
        """Return what each of some jobs would lose: by half its GPUs, or by another type."""
        jobs, found = self.snapshot.jobs, []
        for job_id, seat in seats:
            if not seat.is_movable:
                continue
            gpu_type, count = seat.ask
            ask = (gpu_type, count // 2) if target is None else (target, count)
            steps_per_s = self.cells[job_id].local_steps_per_s.get(ask)
            if steps_per_s is not None:
                found.append((seat.samples_per_s - batch_of(jobs[job_id].spec) * steps_per_s, job_id, ask[1]))
        return found


def _of_type(gpu_type: str, seats: Map[JobId, Seat], jobs: frozenset[JobId]) -> list[tuple[JobId, Seat]]:
    found = [(job_id, seats.get(job_id)) for job_id in jobs]
    return [(job_id, seat) for job_id, seat in found if seat is not None and seat.ask[0] == gpu_type]


def _amended(entries: list[Entry], mine: list[Entry], changed: frozenset[JobId]) -> Iterator[Entry]:
    """Yield entries in order, those of changed jobs as they are now."""
    if not changed:
        return iter(entries)
    rest = (entry for entry in entries if entry[1] not in changed)
    return merge(rest, sorted(mine)) if mine else rest
