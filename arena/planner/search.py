"""The best uniform plans of groups, with the Pareto sets of time against memory. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

import numpy as np

from arena.domain.allocation import GpuGroup, splits_tensor_parallel_group
from arena.domain.capability import job_refusals, unsupported
from arena.domain.cluster import GpuType
from arena.domain.grid import PARETO_PLANS_MAX, Cell, Estimate, PlanEstimate
from arena.domain.job import ParallelLimits, TrainSpec
from arena.domain.parallel import ParallelPlan, parse_plan
from arena.domain.reason import Reason, ReasonCode, reason
from arena.planner.bulk import Memories, Priced, batches_of, priced
from arena.planner.candidates import Floats, Ints, candidate_of
from arena.planner.cost import Estimates, evaluate
from arena.planner.layout_space import LayoutSpace, LayoutTable
from arena.planner.layouts import Layouts
from arena.planner.memory import USABLE_SHARE, memory_kind
from arena.planner.network import Place
from arena.planner.splits import EVEN
from arena.units import GIB

NEAR_TIE_SHARE = 0.03
"""Plans within so much of the fastest count as equally fast (the model errs by more); the simplest of them wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many plans a search looked at: one layout on one group is one plan.

    Args:
        judged: Plans whose memory was compared with the GPU's.
        timed: Those that fit, and were timed.
    """

    judged: int = 0
    timed: int = 0

    def plus(self, other: Counts) -> Counts:
        """Add what another search looked at."""
        return Counts(judged=self.judged + other.judged, timed=self.timed + other.timed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is searched: a workload, and the user's bounds on its plan.

    Args:
        beyond_worker: Whether to offer what the worker does not run, as long as some program could.
    """

    train: TrainSpec
    limits: ParallelLimits
    beyond_worker: bool = False

    def best_cell(self, gpu_type: GpuType, group: GpuGroup) -> Cell | Reason:
        """Return a group's best plan with its Pareto set, or why it has none."""
        return self.cells([(gpu_type, group)])[0][0]

    def cells(self, wanted: Sequence[tuple[GpuType, GpuGroup]]) -> tuple[list[Cell | Reason], Counts]:
        """Return for each group its best plan with its Pareto set, or why it has none.

        Groups are searched together: what is the same on several of them is computed once.
        """
        told = "; ".join(job_refusals(self.train, beyond_worker=self.beyond_worker))
        if told:
            return [reason(ReasonCode.UNSUPPORTED, detail=told)] * len(wanted), Counts()
        if self.limits.plan is not None:
            return [self._pinned_cell(gpu_type, group) for gpu_type, group in wanted], Counts()
        return _Table.of(self, wanted).cells()

    def pinned_plan(self) -> ParallelPlan:
        """Return the plan the user pinned.

        Raises:
            SpecError: It cannot be read.
        """
        return parse_plan(self.limits.plan or "", layer_count=self.train.model.layers)

    def _pinned_cell(self, gpu_type: GpuType, group: GpuGroup) -> Cell | Reason:
        plan = self.pinned_plan()
        refusal = self._refusal(plan, group)
        if refusal is not None:
            return reason(ReasonCode.DIVISIBILITY, detail=f"plan '{self.limits.plan}': {refusal}")
        estimates = evaluate(self.train, gpu_type, group, candidate_of(plan, self.train.global_batch))
        by_stage = estimates.memory_bytes_by_stage[0]
        if by_stage.max() > USABLE_SHARE * gpu_type.memory_bytes:
            return _too_big(by_stage, gpu_type)
        return Cell(group=group, best=next(_plan_estimates(estimates, [plan])))

    def _refusal(self, plan: ParallelPlan, group: GpuGroup) -> str | None:
        """Return why a pinned plan cannot run on a group."""
        counts = [count for part in group.parts for count in part.node_counts]
        if plan.gpu_count != group.gpu_count:
            return f"it is for {plan.gpu_count} GPUs, the group has {group.gpu_count}"
        refusal = unsupported(self.train, plan, beyond_worker=self.beyond_worker)
        if refusal is None and splits_tensor_parallel_group(plan, counts):
            return f"tp{max(plan.tensor_parallel_sizes)} would span nodes on {group}"
        return refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Places with all layouts they allow."""

    search: Search
    places: tuple[Place, ...]
    table: LayoutTable
    plans: dict[int, ParallelPlan] = field(default_factory=dict)

    @classmethod
    def of(cls, search: Search, wanted: Sequence[tuple[GpuType, GpuGroup]]) -> _Table:
        places = tuple(Place(gpu_type=gpu_type, group=group) for gpu_type, group in wanted)
        space = LayoutSpace(train=search.train, limits=search.limits)
        return cls(search=search, places=places, table=space.table([place.group for place in places]))

    def cells(self) -> tuple[list[Cell | Reason], Counts]:
        """Return what is found for each place."""
        if not len(self.table.layouts):
            return [self._no_layout(place) for place in self.places], Counts()
        batches = batches_of(self.table.layouts)
        found: dict[int, Cell | Reason] = {}
        timed = 0
        for members in self._alike():
            memories = Memories.of(self.search.train, self.places[members[0]], batches)
            plans = self._priced(members, memories)
            timed += len(plans.row)
            found |= self._cells_of(members, plans)
        judged = sum(end - start for start, end in self.table.ranges)
        return [found[index] for index in range(len(self.places))], Counts(judged=judged, timed=timed)

    def _alike(self) -> Iterable[list[int]]:
        """Return the positions of places on which plans need the same memory."""
        by_kind: dict[Hashable, list[int]] = {}
        for index, place in enumerate(self.places):
            by_kind.setdefault(memory_kind(place.gpu_type), []).append(index)
        return by_kind.values()

    def _priced(self, members: Sequence[int], memories: Memories) -> Priced:
        return priced(
            self.search.train,
            [(self.places[index], self.table.ranges[index]) for index in members],
            memories,
            [USABLE_SHARE * self.places[index].gpu_type.memory_bytes for index in members],
        )

    def _cells_of(self, members: Sequence[int], plans: Priced) -> Mapping[int, Cell | Reason]:
        ends = np.searchsorted(plans.place, np.arange(len(members) + 1)).tolist()
        chosen = [
            start
            + _chosen(self.table.layouts, plans.row[start:end], plans.iter_time_s[start:end], plans.memories.peaks)
            for start, end in pairwise(ends)
        ]
        estimates = iter(self._plan_estimates(plans, np.concatenate(chosen)))
        cells: dict[int, Cell | Reason] = {}
        for index, some in zip(members, chosen, strict=True):
            if len(some):
                best, *others = islice(estimates, len(some))
                cells[index] = Cell(group=self.places[index].group, best=best, others=tuple(others))
            else:
                cells[index] = self._infeasible(index, plans.memories)
        return cells

    def _plan_estimates(self, plans: Priced, chosen: Ints) -> list[PlanEstimate]:
        rows = plans.row[chosen].tolist()
        for row in rows:
            if row not in self.plans:
                self.plans[row] = self.table.layouts.plan(row)
        found: dict[int, PlanEstimate] = {}
        for which, estimates in plans.estimates(chosen):
            positions = which.tolist()
            some = _plan_estimates(estimates, [self.plans[rows[position]] for position in positions])
            found.update(zip(positions, some, strict=True))
        return [found[position] for position in range(len(rows))]

    def _infeasible(self, index: int, memories: Memories) -> Reason:
        place = self.places[index]
        start, end = self.table.ranges[index]
        if start == end:
            return self._no_layout(place)
        leanest = start + int(memories.peaks[start:end].argmin())
        return _too_big(memories.of_layout(leanest), place.gpu_type)

    def _no_layout(self, place: Place) -> Reason:
        space = LayoutSpace(train=self.search.train, limits=self.search.limits)
        return reason(ReasonCode.DIVISIBILITY, detail=f"{place.group}: {'; '.join(space.bounds(place.group))}")


def _chosen(layouts: Layouts, rows: Ints, seconds: Floats, peaks: Floats) -> Ints:
    """Return which plans of a place matter: the best, then the fastest and all that need less memory than faster ones.

    Of equally fast plans the simplest is the best: without recomputation, then with one even run of layers for each
    rank, then with the least sharding.
    """
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    order = np.argsort(seconds, kind="stable")
    near = rows[order[: int(np.count_nonzero(seconds <= (1.0 + NEAR_TIE_SHARE) * seconds.min()))]]
    some = layouts.take(near)
    is_odd = (some.column("virtual_stage_count") > 1) | (some.column("split") != EVEN) | some.is_mixed
    best = int((8 * (some.column("recompute") > 0) + 4 * is_odd + some.column("zero")).argmin())
    least = np.minimum.accumulate(peaks[rows[order]])
    is_front = np.concatenate(([True], least[1:] < least[:-1]))
    is_front[best] = False
    others: Ints = order[is_front][:PARETO_PLANS_MAX]
    return np.concatenate((order[best : best + 1], others))


def _too_big(by_stage: Floats, gpu_type: GpuType) -> Reason:
    """Tell by how much a plan misses."""
    stage = int(by_stage.argmax())
    return reason(
        ReasonCode.MEMORY,
        needed_gib=float(by_stage[stage]) / GIB,
        stage=stage,
        capacity_gib=USABLE_SHARE * gpu_type.memory_bytes / GIB,
    )


def _plan_estimates(estimates: Estimates, plans: Sequence[ParallelPlan]) -> Iterator[PlanEstimate]:
    names = sorted(estimates.breakdown_s)
    parts = np.stack([estimates.breakdown_s[name] for name in names], axis=1).tolist()
    memory = estimates.memory_bytes_by_stage.astype(np.int64).tolist()
    columns = np.stack((estimates.iter_time_s, estimates.relative_error, estimates.usd_per_step), axis=1).tolist()
    for index, plan in enumerate(plans):
        iter_time_s, relative_error, usd_per_step = columns[index]
        yield PlanEstimate(
            plan=plan,
            estimate=Estimate(
                iter_time_s=iter_time_s,
                memory_bytes_by_stage=tuple(memory[index][: plan.pp]),
                breakdown_s=dict(zip(names, parts[index], strict=True)),
                relative_error=relative_error,
                usd_per_step=usd_per_step,
            ),
        )
