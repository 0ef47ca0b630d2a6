"""Uniform plans for a group: every dp x tp x pp, micro-batch, sharding, recomputation. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from arena.domain.allocation import GpuGroup, splits_tensor_parallel_group
from arena.domain.cluster import GpuType
from arena.domain.grid import PARETO_PLANS_MAX, Cell, Estimate, PlanEstimate
from arena.domain.job import ParallelLimits, TrainSpec
from arena.domain.parallel import ParallelPlan, Recompute, Schedule, parse_plan
from arena.domain.reason import Reason, ReasonCode, reason
from arena.planner.candidates import candidates_of, micro_batch_count
from arena.planner.capability import Capability, divisors, format_set
from arena.planner.cost import Estimates, evaluate
from arena.planner.memory import USABLE_SHARE
from arena.units import GIB

_DEFAULT_ZERO = (0, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is searched: a workload, the user's bounds on its plan, and what the worker runs."""

    train: TrainSpec
    limits: ParallelLimits
    capability: Capability

    def best_cell(self, gpu_type: GpuType, group: GpuGroup) -> Cell | Reason:
        """Return a group's best plan with its Pareto set, or why it has none."""
        plans = list(self._plans(group))
        if not plans:
            return self._no_plan(group)
        estimates = evaluate(self.train, gpu_type, group, candidates_of(plans, self.train.global_batch))
        limit_bytes = USABLE_SHARE * gpu_type.memory_bytes
        peaks = estimates.memory_bytes_by_stage.max(axis=1)
        order = [int(index) for index in np.argsort(estimates.iter_time_s, kind="stable")]
        fitting = [index for index in order if peaks[index] <= limit_bytes]
        if not fitting:
            return _too_big(estimates, limit_bytes)
        frontier = _frontier(fitting, peaks)
        best, *others = (_plan_estimate(plans[index], estimates, index) for index in frontier)
        return Cell(group=group, best=best, others=tuple(others))

    def _plans(self, group: GpuGroup) -> Iterator[ParallelPlan]:
        """Yield the plans that the model, the batch, the nodes and the worker allow, simplest first."""
        if self.limits.plan is not None:
            plan = self.pinned_plan()
            if self._refusal(plan, group) is None:
                yield plan
            return
        for tp, pp, dp in self._degrees(group):
            for plan in self._variants(tp=tp, pp=pp, dp=dp):
                if self.capability.unsupported(self.train, plan) is None:
                    yield plan

    def pinned_plan(self) -> ParallelPlan:
        """Return the plan the user pinned.

        Raises:
            SpecError: It cannot be read.
        """
        return parse_plan(self.limits.plan or "", layer_count=self.train.model.layers)

    def _degrees(self, group: GpuGroup) -> Iterator[tuple[int, int, int]]:
        count = group.gpu_count
        for tp in self._tensor_parallel_degrees(group):
            for pp in divisors(count // tp):
                dp = count // (tp * pp)
                deep = pp > min(self.limits.pp_max or pp, self.train.model.layers)
                wide = dp > min(self.limits.dp_max or dp, self.train.global_batch)
                if not deep and not wide:
                    yield tp, pp, dp

    def _tensor_parallel_degrees(self, group: GpuGroup) -> list[int]:
        """Divisors of the count that divide the model's widths and never straddle two nodes."""
        counts = [count for part in group.parts for count in part.node_counts]
        edges = list(accumulate(counts))
        sizes = self.capability.tensor_parallel_dimensions(self.train.model).values()
        return [
            tp
            for tp in divisors(group.gpu_count)
            if tp <= (self.limits.tp_max or tp)
            and all(edge % tp == 0 for edge in edges)
            and all(size % tp == 0 for size in sizes)
        ]

    def _variants(self, *, tp: int, pp: int, dp: int) -> Iterator[ParallelPlan]:
        for micro_batch_size in self._micro_batch_sizes(dp, pp):
            for zero in self._zero_stages(dp):
                for schedule, chunks in self._schedules(pp, dp, micro_batch_size):
                    for recompute in (Recompute.NONE, Recompute.FULL):
                        yield ParallelPlan.uniform(
                            layer_count=self.train.model.layers,
                            dp=dp,
                            tp=tp,
                            pp=pp,
                            micro_batch_size=micro_batch_size,
                            schedule=schedule,
                            virtual_stage_count=chunks,
                            zero=zero,
                            recompute=recompute,
                        )

    def _micro_batch_sizes(self, dp: int, pp: int) -> list[int]:
        """Divisors of a replica's samples that leave at least one micro-batch for each stage."""
        samples = -(-self.train.global_batch // dp)
        return [
            size
            for size in divisors(samples)
            if size <= (self.limits.micro_batch_max or size) and samples // size >= pp
        ]

    def _zero_stages(self, dp: int) -> tuple[int, ...]:
        allowed = tuple(sorted(set(self.limits.zero))) or _DEFAULT_ZERO
        return allowed if dp > 1 else allowed[:1]

    def _schedules(self, pp: int, dp: int, micro_batch_size: int) -> Iterator[tuple[Schedule, int]]:
        """Yield schedule and chunks per rank; without a pipeline they are all the same."""
        allowed = self.limits.schedules or ("1f1b",)
        if pp == 1:
            yield Schedule.ONE_F_ONE_B, 1
            return
        for name in sorted(set(allowed)):
            if name != "interleaved":
                yield Schedule(name), 1
            elif self.train.model.layers % (2 * pp) == 0 and self._micro_batches(dp, micro_batch_size) % pp == 0:
                yield Schedule.INTERLEAVED, 2

    def _micro_batches(self, dp: int, micro_batch_size: int) -> int:
        return micro_batch_count(self.train.global_batch, dp, micro_batch_size)

    # Why not

    def _no_plan(self, group: GpuGroup) -> Reason:
        if self.limits.plan is not None:
            refusal = self._refusal(self.pinned_plan(), group)
            return reason(ReasonCode.DIVISIBILITY, detail=f"plan '{self.limits.plan}': {refusal}")
        for plan in (plan for tp, pp, dp in self._degrees(group) for plan in self._variants(tp=tp, pp=pp, dp=dp)):
            return reason(ReasonCode.UNSUPPORTED, detail=str(self.capability.unsupported(self.train, plan)))
        return reason(ReasonCode.DIVISIBILITY, detail=f"{group}: " + "; ".join(self._bounds(group)))

    def _refusal(self, plan: ParallelPlan, group: GpuGroup) -> str | None:
        """Return why a pinned plan cannot run on a group."""
        counts = [count for part in group.parts for count in part.node_counts]
        micro_batches = self._micro_batches(plan.dp, plan.micro_batch_size)
        if plan.gpu_count != group.gpu_count:
            return f"it is for {plan.gpu_count} GPUs, the group has {group.gpu_count}"
        if plan.dp > self.train.global_batch:
            return f"global batch = {self.train.global_batch}: dp at most {self.train.global_batch}"
        if micro_batches < plan.pp:
            return f"pp{plan.pp} needs at least {plan.pp} micro-batches a step, it has {micro_batches}"
        if splits_tensor_parallel_group(plan, counts):
            return f"tp{plan.tp} would span nodes on {group}"
        return self.capability.unsupported(self.train, plan)

    def _bounds(self, group: GpuGroup) -> Iterator[str]:
        """Yield each bound that kept some dp x tp x pp = count out, with the values that would do."""
        count, model, batch = group.gpu_count, self.train.model, self.train.global_batch
        for name, size in self.capability.tensor_parallel_dimensions(model).items():
            wrong = [tp for tp in divisors(count) if size % tp]
            if wrong:
                verb = "does not divide" if len(wrong) == 1 else "do not divide"
                yield f"{name} = {size}: tp in {format_set(divisors(size))}; {', '.join(map(str, wrong))} {verb}"
        if group.node_count > 1:
            yield f"tp stays inside a node ({group})"
        dp_max = min(batch, self.limits.dp_max or batch)
        if dp_max < count:
            yield f"global batch = {batch}: dp at most {dp_max}"
        pp_max = min(model.layers, self.limits.pp_max or model.layers)
        yield f"layers = {model.layers}: pp at most {pp_max} with at least pp micro-batches of a replica's samples"


def _frontier(fitting: list[int], peaks: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[int]:
    """Return the fastest, then each that needs less memory than all faster ones."""
    kept: list[int] = []
    for index in fitting:
        if not kept or peaks[index] < peaks[kept[-1]]:
            kept.append(index)
    return kept[: PARETO_PLANS_MAX + 1]


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
