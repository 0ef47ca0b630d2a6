"""The best uniform plan of a group, with the Pareto set of time against memory. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from arena.domain.allocation import GpuGroup, splits_tensor_parallel_group
from arena.domain.capability import job_refusals, unsupported
from arena.domain.cluster import GpuType
from arena.domain.grid import PARETO_PLANS_MAX, Cell, Estimate, PlanEstimate
from arena.domain.job import ParallelLimits, TrainSpec
from arena.domain.parallel import ParallelPlan, Recompute, parse_plan
from arena.domain.reason import Reason, ReasonCode, reason
from arena.planner.candidates import Candidates, candidate_of
from arena.planner.cost import Estimates, evaluate
from arena.planner.layouts import LayoutSpace
from arena.planner.memory import USABLE_SHARE
from arena.units import GIB

NEAR_TIE_SHARE = 0.03
"""Plans within so much of the fastest count as equally fast (the model errs by more); the simplest of them wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is searched: a workload, and the user's bounds on its plan."""

    train: TrainSpec
    limits: ParallelLimits

    def best_cell(self, gpu_type: GpuType, group: GpuGroup) -> Cell | Reason:
        """Return a group's best plan with its Pareto set, or why it has none."""
        refusal = next(job_refusals(self.train), None)
        if refusal is not None:
            return reason(ReasonCode.UNSUPPORTED, detail=refusal)
        if self.limits.plan is not None:
            plan = self.pinned_plan()
            refusal = self._refusal(plan, group)
            if refusal is not None:
                return reason(ReasonCode.DIVISIBILITY, detail=f"plan '{self.limits.plan}': {refusal}")
            return self._priced(gpu_type, group, candidate_of(plan, self.train.global_batch), lambda _: plan)
        space = LayoutSpace(train=self.train, limits=self.limits)
        layouts = space.layouts(group)
        if not len(layouts):
            return reason(ReasonCode.DIVISIBILITY, detail=f"{group}: {'; '.join(space.bounds(group))}")
        return self._priced(gpu_type, group, layouts.candidates(), layouts.plan)

    def pinned_plan(self) -> ParallelPlan:
        """Return the plan the user pinned.

        Raises:
            SpecError: It cannot be read.
        """
        return parse_plan(self.limits.plan or "", layer_count=self.train.model.layers)

    def _priced(
        self, gpu_type: GpuType, group: GpuGroup, candidates: Candidates, plan_of: Callable[[int], ParallelPlan]
    ) -> Cell | Reason:
        """Price all candidates at once and make plans of the few that matter."""
        estimates = evaluate(self.train, gpu_type, group, candidates)
        limit_bytes = USABLE_SHARE * gpu_type.memory_bytes
        peaks = estimates.memory_bytes_by_stage.max(axis=1)
        order = np.argsort(estimates.iter_time_s, kind="stable")
        fitting = [int(index) for index in order[peaks[order] <= limit_bytes]]
        if not fitting:
            return _too_big(estimates, limit_bytes)
        made = lru_cache(maxsize=None)(plan_of)
        supported = lru_cache(maxsize=None)(lambda index: unsupported(self.train, made(index)) is None)
        fastest = next((index for index in fitting if supported(index)), None)
        if fastest is None:
            refusal = unsupported(self.train, made(fitting[0]))
            return reason(ReasonCode.UNSUPPORTED, detail=str(refusal))
        near_s = (1.0 + NEAR_TIE_SHARE) * float(estimates.iter_time_s[fastest])
        near = [index for index in fitting if estimates.iter_time_s[index] <= near_s and supported(index)]
        best = min(near, key=lambda index: _simplicity(made(index)))
        others = [index for index in _frontier(fitting, peaks.tolist(), supported) if index != best]
        return Cell(
            group=group,
            best=_plan_estimate(made(best), estimates, best),
            others=tuple(_plan_estimate(made(index), estimates, index) for index in others[:PARETO_PLANS_MAX]),
        )

    def _refusal(self, plan: ParallelPlan, group: GpuGroup) -> str | None:
        """Return why a pinned plan cannot run on a group."""
        counts = [count for part in group.parts for count in part.node_counts]
        if plan.gpu_count != group.gpu_count:
            return f"it is for {plan.gpu_count} GPUs, the group has {group.gpu_count}"
        refusal = unsupported(self.train, plan)
        if refusal is None and splits_tensor_parallel_group(plan, counts):
            return f"tp{max(plan.tensor_parallel_sizes)} would span nodes on {group}"
        return refusal


def _simplicity(plan: ParallelPlan) -> tuple[bool, int]:
    """Order equally fast plans: without recomputation, then with the least sharding; then the faster (stable)."""
    return plan.recompute is not Recompute.NONE, plan.zero


def _frontier(fitting: list[int], peaks: list[float], supported: Callable[[int], bool]) -> Iterator[int]:
    """Yield the fastest, then each that needs less memory than all faster ones."""
    least = float("inf")
    for index in fitting:
        if peaks[index] < least and supported(index):
            least = peaks[index]
            yield index


def _too_big(estimates: Estimates, limit_bytes: float) -> Reason:
    """Tell by how much the plan with the least memory misses."""
    by_stage = estimates.memory_bytes_by_stage
    leanest = int(by_stage.max(axis=1).argmin())
    stage = int(by_stage[leanest].argmax())
    return reason(
        ReasonCode.MEMORY,
        needed_gib=float(by_stage[leanest, stage]) / GIB,
        stage=stage,
        capacity_gib=limit_bytes / GIB,
    )


def _plan_estimate(plan: ParallelPlan, estimates: Estimates, index: int) -> PlanEstimate:
    memory = estimates.memory_bytes_by_stage[index]
    return PlanEstimate(
        plan=plan,
        estimate=Estimate(
            iter_time_s=float(estimates.iter_time_s[index]),
            memory_bytes_by_stage=tuple(int(size) for size in memory[: plan.pp]),
            breakdown_s={name: float(part[index]) for name, part in sorted(estimates.breakdown_s.items())},
            relative_error=float(estimates.relative_error[index]),
            usd_per_step=float(estimates.usd_per_step[index]),
        ),
    )
