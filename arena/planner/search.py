"""The best uniform plans of groups, with the Pareto sets of time against memory. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from arena.domain.allocation import GpuGroup, splits_tensor_parallel_group
from arena.domain.capability import job_refusals, unsupported
from arena.domain.cluster import GpuType
from arena.domain.grid import PARETO_PLANS_MAX, Cell, Estimate, PlanEstimate
from arena.domain.job import ParallelLimits, TrainSpec
from arena.domain.parallel import ParallelPlan, parse_plan
from arena.domain.reason import Reason, ReasonCode, reason
from arena.planner.bulk import Batch, Priced, batches_of, peaks_bytes, priced
from arena.planner.candidates import Floats, Ints, candidate_of
from arena.planner.cost import Estimates, evaluate
from arena.planner.layouts import Layouts, LayoutSpace, LayoutTable
from arena.planner.memory import USABLE_SHARE, memory_kind
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
        refusal = next(job_refusals(self.train, beyond_worker=self.beyond_worker), None)
        if refusal is not None:
            return [reason(ReasonCode.UNSUPPORTED, detail=refusal)] * len(wanted), Counts()
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
    """Groups with all layouts they allow."""

    search: Search
    wanted: Sequence[tuple[GpuType, GpuGroup]]
    table: LayoutTable
    batches: tuple[Batch, ...]
    plans: dict[int, ParallelPlan] = field(default_factory=dict)

    @classmethod
    def of(cls, search: Search, wanted: Sequence[tuple[GpuType, GpuGroup]]) -> _Table:
        space = LayoutSpace(train=search.train, limits=search.limits)
        table = space.table([group for _, group in wanted])
        return cls(search=search, wanted=wanted, table=table, batches=batches_of(table.layouts))

    @property
    def layouts(self) -> Layouts:
        return self.table.layouts

    def cells(self) -> tuple[list[Cell | Reason], Counts]:
        found: dict[int, Cell | Reason] = {}
        peaks_by_kind: dict[object, Floats] = {}
        timed = 0
        for gpu_type, members in self._by_type():
            kind = memory_kind(gpu_type)
            if kind not in peaks_by_kind:
                peaks_by_kind[kind] = peaks_bytes(self.search.train, gpu_type, self.batches)
            peaks = peaks_by_kind[kind]
            times = self._priced(gpu_type, members, peaks)
            timed += len(times.row)
            found |= self._cells_of(gpu_type, members, peaks, times)
        judged = sum(end - start for start, end in self.table.ranges)
        return [found[index] for index in range(len(self.wanted))], Counts(judged=judged, timed=timed)

    def _by_type(self) -> Iterator[tuple[GpuType, list[int]]]:
        """Yield each GPU type with the positions of its groups."""
        by_name: dict[str, list[int]] = {}
        for index, (gpu_type, _) in enumerate(self.wanted):
            by_name.setdefault(gpu_type.name, []).append(index)
        for members in by_name.values():
            yield self.wanted[members[0]][0], members

    def _priced(self, gpu_type: GpuType, members: Sequence[int], peaks: Floats) -> Priced:
        groups = [(self.wanted[index][1], self.table.ranges[index]) for index in members]
        fits = peaks <= USABLE_SHARE * gpu_type.memory_bytes
        return priced(self.search.train, gpu_type, groups, self.batches, fits)

    def _cells_of(
        self, gpu_type: GpuType, members: Sequence[int], peaks: Floats, times: Priced
    ) -> Mapping[int, Cell | Reason]:
        """Return the cells of the groups of one type, by position."""
        ends = np.searchsorted(times.group, np.arange(len(members) + 1))
        chosen = [
            _chosen(self.layouts, times.row[start:end], times.iter_time_s[start:end], peaks)
            for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
        ]
        rows = np.concatenate(chosen)
        group = np.repeat(np.arange(len(members)), [len(some) for some in chosen])
        estimates = iter(self._plan_estimates(gpu_type, members, rows, group)) if len(rows) else iter(())
        cells: dict[int, Cell | Reason] = {}
        for index, some in zip(members, chosen, strict=True):
            if len(some):
                best, *others = (next(estimates) for _ in range(len(some)))
                cells[index] = Cell(group=self.wanted[index][1], best=best, others=tuple(others))
            else:
                cells[index] = self._infeasible(index, peaks)
        return cells

    def _plan_estimates(
        self, gpu_type: GpuType, members: Sequence[int], rows: Ints, group: Ints
    ) -> Iterator[PlanEstimate]:
        everyone = self.layouts.take(rows).candidates()
        candidates = everyone.take(np.arange(len(rows)), group=group)
        groups = tuple(self.wanted[index][1] for index in members)
        estimates = evaluate(self.search.train, gpu_type, groups, candidates)
        return _plan_estimates(estimates, [self._plan(row) for row in rows.tolist()])

    def _plan(self, row: int) -> ParallelPlan:
        if row not in self.plans:
            self.plans[row] = self.layouts.plan(row)
        return self.plans[row]

    def _infeasible(self, index: int, peaks: Floats) -> Reason:
        gpu_type, group = self.wanted[index]
        start, end = self.table.ranges[index]
        if start == end:
            space = LayoutSpace(train=self.search.train, limits=self.search.limits)
            return reason(ReasonCode.DIVISIBILITY, detail=f"{group}: {'; '.join(space.bounds(group))}")
        leanest = start + int(peaks[start:end].argmin())
        candidates = self.layouts.take(np.array([leanest])).candidates()
        estimates = evaluate(self.search.train, gpu_type, group, candidates)
        return _too_big(estimates.memory_bytes_by_stage[0], gpu_type)


def _chosen(layouts: Layouts, rows: Ints, seconds: Floats, peaks: Floats) -> Ints:
    """Return the layouts of a group that matter: the best, then the fastest and all that need less memory than it.

    Of equally fast plans the simplest is the best: without recomputation, then with the least sharding.
    """
    if not len(rows):
        return rows
    order = np.argsort(seconds, kind="stable")
    rows, seconds = rows[order], seconds[order]
    near = rows[: int(np.searchsorted(seconds, (1.0 + NEAR_TIE_SHARE) * seconds[0], side="right"))]
    some = layouts.take(near)
    best = int((4 * (some.column("recompute") > 0) + some.column("zero")).argmin())
    least = np.minimum.accumulate(peaks[rows])
    is_front = np.concatenate(([True], least[1:] < least[:-1]))
    is_front[best] = False
    others: Ints = rows[is_front][:PARETO_PLANS_MAX]
    return np.concatenate((rows[best : best + 1], others))


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
