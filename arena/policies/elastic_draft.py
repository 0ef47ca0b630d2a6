"""The elastic policy's working copy of a decision: who gets what, and what that leaves. Pure: no I/O, no clock."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from math import log

from arena.domain.allocation import Allocation
from arena.domain.grid import Cell
from arena.domain.job import JobId, JobKind
from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.base import Choice, Snapshot
from arena.policies.capacity import Capacity
from arena.policies.choose import choose_cell
from arena.policies.elastic_rules import ElasticRules, is_elastic
from arena.policies.placement import fits, fits_when_empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a job is to have; ``cell`` is None while a running job keeps what it has.

    Args:
        speed_per_s: Optimizer steps per second.
    """

    cell: Cell | None
    allocation: Allocation
    gpu_count: int
    gpu_type: str
    speed_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One growth step of a job: what it would have, and log speed gained for each GPU added."""

    seat: Seat
    rate: float


class ElasticDraft:
    """Grows from a snapshot by ``admit``, ``drain_for`` and ``grow``; read by ``choices``.

    Attributes:
        reasons: Why each job that was looked at waits, stays or changes.
        started: Jobs that got devices, in order.
        drained_for: The job that waited too long, if any.
        eligible_at_s: Instants at which a job becomes changeable that was left alone for now.
    """

    def __init__(self, snapshot: Snapshot, rules: ElasticRules) -> None:
        self._snapshot = snapshot
        self._rules = rules
        self._capacity = snapshot.capacity
        self.reasons: dict[JobId, tuple[Reason, ...]] = {}
        self.started: list[JobId] = []
        self.drained_for: JobId | None = None
        self.eligible_at_s: list[float] = []
        self._drained_types: frozenset[str] = frozenset()
        self._running = {
            job_id: seat for job_id in sorted(snapshot.holding) if (seat := self._running_seat(job_id)) is not None
        }
        self._seats: dict[JobId, Seat] = dict(self._running)
        self._shrunk_for: dict[JobId, JobId] = {}
        self._unpaid_gain_s: dict[JobId, float] = {}
        self._counted: Capacity | None = None
        self._free: dict[str, int] = {}
        self._spare = {job_id: spare for job_id in self._running if (spare := self._spare_count(job_id)) > 0}
        self._victims = sorted(self._spare, key=lambda job_id: (-self._spare[job_id], job_id))

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing is free and nobody can shrink any more."""
        return not self._capacity.rooms and not self._victims

    def admit(self, job_id: JobId) -> bool:
        """Give a waiting job its smallest group, shrinking others where needed; say why not otherwise."""
        cells = [cell for cell in smallest(self._cells(job_id)) if not self._is_drained(cell)]
        if not cells:
            self.reasons[job_id] = (self._no_cells_reason(job_id),)
            return False
        found = choose_cell(self._snapshot, job_id, cells, self._capacity)
        if isinstance(found, Reason):
            refusal = found
            found = self._admit_by_shrinking(job_id, cells) or refusal
        if isinstance(found, Reason):
            self.reasons[job_id] = (found,)
            return False
        cell, allocation = found
        self._capacity = self._capacity.take_all(allocation)
        self._seats[job_id] = seat_of(cell, allocation)
        self.started.append(job_id)
        return True

    def drain_for(self, job_id: JobId) -> None:
        """Keep the GPU types a job could start on for it alone, unless the nodes that are up could never hold it."""
        cells = [cell for cell in smallest(self._cells(job_id)) if fits_when_empty(self._capacity, cell.group)]
        if cells:
            self.drained_for = job_id
            self._drained_types = frozenset(part.gpu_type for cell in cells for part in cell.group.parts)

    def grow(self) -> None:
        """Hand out what is free, one step at a time, to whoever gains most by it.

        A job's best step can only get worse while others take devices, so a step that is still the best after a
        second look is the best of all (lazy greedy).
        """
        if not self._capacity.rooms:
            return
        queue = [(-rate, job_id) for job_id in self._growers() if (rate := self._rate_at_best(job_id)) is not None]
        heapq.heapify(queue)
        while queue and self._capacity.rooms:
            _, job_id = heapq.heappop(queue)
            growth = self._best_growth(job_id)
            if growth is None:
                continue
            if queue and (-growth.rate, job_id) > queue[0]:
                heapq.heappush(queue, (-growth.rate, job_id))
                continue
            self._capacity = self._capacity_without(job_id).take_all(growth.seat.allocation)
            self._seats[job_id] = growth.seat
            rate = self._rate_at_best(job_id)
            if rate is not None:
                heapq.heappush(queue, (-rate, job_id))

    def choices(self) -> dict[JobId, Choice | None]:
        """Return the changes, with their causes recorded as reasons too."""
        changed: dict[JobId, Choice | None] = {}
        for job_id, gain_s in self._unpaid_gain_s.items():
            told = reason(ReasonCode.CHANGE_NOT_WORTH_IT, gain_s=gain_s, cost_s=self._snapshot.restart_s)
            self.reasons[job_id] = (told,)
        for job_id, seat in sorted(self._seats.items()):
            if seat.cell is None or self._is_as_before(job_id, seat):
                continue
            cause = self._cause(job_id, seat, seat.cell)
            changed[job_id] = Choice(
                group=seat.cell.group,
                plan=seat.cell.best.plan,
                estimate=seat.cell.best.estimate,
                allocation=seat.allocation,
                cause=cause,
            )
            self.reasons[job_id] = (cause,)
        return changed

    # What runs

    def _running_seat(self, job_id: JobId) -> Seat | None:
        """Return the seat of a job that may be resized now."""
        holding, job = self._snapshot.holding[job_id], self._snapshot.jobs.get(job_id)
        if job is None or holding.estimate is None or job_id not in self._snapshot.grids:
            return None
        if not is_elastic(job, holding):
            return None
        eligible_at_s = self._rules.eligible_at_s(self._snapshot, holding)
        if eligible_at_s > self._snapshot.now_s:
            self.eligible_at_s.append(eligible_at_s)
            return None
        return Seat(
            cell=None,
            allocation=holding.allocation,
            gpu_count=holding.allocation.gpu_count,
            gpu_type=holding.group.parts[0].gpu_type,
            speed_per_s=1.0 / holding.estimate.iter_time_s,
        )

    def _spare_count(self, job_id: JobId) -> int:
        """GPUs a running job could give up; none if it ends sooner than a restart takes."""
        job, holding = self._snapshot.jobs[job_id], self._snapshot.holding[job_id]
        if self._rules.remaining_s(job, holding) < self._snapshot.restart_s:
            return 0
        cells = self._shrink_cells(job_id)
        return self._running[job_id].gpu_count - cells[0].group.gpu_count if cells else 0

    def _shrink_cells(self, job_id: JobId) -> list[Cell]:
        """The smallest cells on the type the job runs on."""
        gpu_type = self._running[job_id].gpu_type
        return smallest(cell for cell in self._cells(job_id) if cell.group.parts[0].gpu_type == gpu_type)

    def _admit_by_shrinking(self, job_id: JobId, cells: list[Cell]) -> tuple[Cell, Allocation] | None:
        """Shrink victims one by one until the job fits; leave everything as it was if it never does."""
        types = {part.gpu_type for cell in cells for part in cell.group.parts}
        victims = [victim for victim in self._victims if self._running[victim].gpu_type in types]
        spare = sum(self._spare[victim] for victim in victims)
        free = sum(self._capacity.free_count(gpu_type) for gpu_type in sorted(types))
        if free + spare < cells[0].group.gpu_count:
            return None
        capacity = self._capacity
        shrunk: dict[JobId, Seat] = {}
        for victim in victims:
            given = capacity.restore(self._seats[victim].allocation)
            smaller = choose_cell(
                self._snapshot, victim, self._shrink_cells(victim), given, self._seats[victim].allocation
            )
            if isinstance(smaller, Reason):
                continue
            shrunk[victim] = seat_of(*smaller)
            capacity = given.take_all(smaller[1])
            found = choose_cell(self._snapshot, job_id, cells, capacity)
            if not isinstance(found, Reason):
                self._accept(shrunk, capacity, job_id)
                return found
        return None

    def _accept(self, shrunk: Mapping[JobId, Seat], capacity: Capacity, job_id: JobId) -> None:
        self._capacity = capacity
        self._seats.update(shrunk)
        self._shrunk_for.update(dict.fromkeys(shrunk, job_id))
        self._victims = [victim for victim in self._victims if victim not in shrunk]

    # Growth

    def _growers(self) -> Iterator[JobId]:
        """Jobs that may grow in this decision, in a fixed order."""
        jobs = self._snapshot.jobs
        yield from sorted(self._running)
        yield from (job_id for job_id in self.started if jobs[job_id].spec.kind is not JobKind.RIGID)

    def _rate_at_best(self, job_id: JobId) -> float | None:
        """Return a bound on the rate of a job's next step that looks at numbers of devices only."""
        return max((rate for rate, _ in self._steps(job_id)), default=None)

    def _best_growth(self, job_id: JobId) -> Growth | None:
        """Return the placeable step with the largest rate that is worth a restart, if one is needed."""
        steps = sorted(enumerate(self._steps(job_id)), key=lambda step: (-step[1][0], step[0]))
        if not steps:
            return None
        seat = self._seats[job_id]
        capacity = self._capacity_without(job_id)
        prefer = self._running[job_id].allocation if job_id in self._running else seat.allocation
        for _, (rate, cell) in steps:
            if not fits(capacity, cell.group) or not self._pays(job_id, seat, cell):
                continue
            found = choose_cell(self._snapshot, job_id, (cell,), capacity, prefer)
            if not isinstance(found, Reason):
                return Growth(seat=seat_of(*found), rate=rate)
        return None

    def _steps(self, job_id: JobId) -> Iterator[tuple[float, Cell]]:
        """Yield the larger, faster cells there may be devices for, each with its log speed gained per GPU added."""
        seat, cells = self._seats[job_id], self._cells(job_id)
        free = self._free_by_type()
        most = seat.gpu_count + sum(free.values())
        first = bisect_right(cells, seat.gpu_count, key=_count)
        for index in range(first, bisect_right(cells, most, key=_count)):
            cell = cells[index]
            count, gpu_type = _count(cell), cell.group.parts[0].gpu_type
            room = free.get(gpu_type, 0) + (seat.gpu_count if gpu_type == seat.gpu_type else 0)
            speedup = cell.steps_per_s / seat.speed_per_s
            if len(cell.group.parts) == 1 and count > room:
                continue
            if speedup >= self._rules.speedup_min and not self._is_drained(cell):
                yield log(speedup) / (count - seat.gpu_count), cell

    def _free_by_type(self) -> dict[str, int]:
        """Count free devices by type, once for each state of the capacity."""
        if self._counted is not self._capacity:
            self._counted = self._capacity
            self._free = {}
            for (gpu_type, _), holes in self._capacity.pools.items():
                self._free[gpu_type] = self._free.get(gpu_type, 0) + holes.free_count
        return self._free

    def _pays(self, job_id: JobId, seat: Seat, cell: Cell) -> bool:
        """Tell whether a step is worth its restart; free for jobs that start or change anyway."""
        if seat.cell is not None:
            return True
        job, holding = self._snapshot.jobs[job_id], self._snapshot.holding[job_id]
        gain_s = self._rules.remaining_s(job, holding) * (1.0 - seat.speed_per_s / cell.steps_per_s)
        if gain_s > self._snapshot.restart_s:
            return True
        self._unpaid_gain_s[job_id] = max(gain_s, self._unpaid_gain_s.get(job_id, 0.0))
        return False

    def _capacity_without(self, job_id: JobId) -> Capacity:
        """What would be free if a job gave up what the draft has given it."""
        return self._capacity.restore(self._seats[job_id].allocation)

    # Words

    def _cells(self, job_id: JobId) -> tuple[Cell, ...]:
        return self._snapshot.grids[job_id].cells

    def _is_drained(self, cell: Cell) -> bool:
        return any(part.gpu_type in self._drained_types for part in cell.group.parts)

    def _no_cells_reason(self, job_id: JobId) -> Reason:
        if self._cells(job_id):
            assert self.drained_for is not None
            return reason(ReasonCode.BEHIND, job=self.drained_for, ahead=1)
        infeasible = self._snapshot.grids[job_id].infeasible
        detail = str(infeasible[0].reason) if infeasible else "its grid is empty"
        return reason(ReasonCode.NO_FEASIBLE_PLAN, detail=detail)

    def _is_as_before(self, job_id: JobId, seat: Seat) -> bool:
        holding = self._snapshot.holding.get(job_id)
        return (
            holding is not None
            and seat.cell is not None
            and holding.group == seat.cell.group
            and holding.allocation.device_ids == seat.allocation.device_ids
        )

    def _cause(self, job_id: JobId, seat: Seat, cell: Cell) -> Reason:
        before = self._running.get(job_id)
        if before is None:
            return reason(ReasonCode.STARTED, group=str(cell.group))
        if seat.gpu_count > before.gpu_count:
            speedup = seat.speed_per_s / before.speed_per_s
            return reason(ReasonCode.GREW, before=before.gpu_count, after=seat.gpu_count, speedup=speedup)
        if seat.gpu_count < before.gpu_count:
            job = self._shrunk_for[job_id]
            return reason(ReasonCode.SHRANK, before=before.gpu_count, after=seat.gpu_count, job=job)
        return reason(ReasonCode.MOVED, group=str(cell.group))


def _count(cell: Cell) -> int:
    return cell.group.gpu_count


def seat_of(cell: Cell, allocation: Allocation) -> Seat:
    """Return the seat a cell gives on some devices."""
    return Seat(
        cell=cell,
        allocation=allocation,
        gpu_count=allocation.gpu_count,
        gpu_type=cell.group.parts[0].gpu_type,
        speed_per_s=cell.steps_per_s,
    )


def smallest(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells of the smallest GPU count, fastest first, from cells sorted as a grid sorts them."""
    remaining = iter(cells)
    first = next(remaining, None)
    if first is None:
        return []
    return [first, *takewhile(lambda cell: cell.group.gpu_count == first.group.gpu_count, remaining)]
