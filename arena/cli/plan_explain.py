"""A plan of the user's own on each group that fits its size: time, memory by part, or why it cannot run.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from arena.cli.plan_grid import Work, usable_bytes
from arena.domain.allocation import GpuGroup, splits_tensor_parallel_group
from arena.domain.capability import refusals
from arena.domain.cluster import ClusterShape, GpuType
from arena.domain.grid import Cell, Estimate, PlanEstimate
from arena.domain.job import JobSpec, TrainSpec
from arena.domain.parallel import ParallelPlan
from arena.planner.candidates import candidate_of
from arena.planner.cost import evaluate
from arena.planner.groups import groups_of
from arena.planner.memory import Memory, memory_of_plan
from arena.planner.search import Search
from arena.units import GIB, format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes of one GPU of a stage by what they are for (see ``arena.planner.memory``); ``total_bytes`` is the peak."""

    state_bytes: int
    gathered_bytes: int
    activations_bytes: int
    working_bytes: int
    logits_bytes: int
    exchange_bytes: int
    context_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOnGroup:
    """A plan on a group.

    Args:
        refusals: Everything that keeps it from running there.
        estimate: None where the plan is refused for more than its memory.
        best: The best plan that the search finds for the group, None where there is none.
    """

    group: GpuGroup
    refusals: tuple[str, ...]
    estimate: Estimate | None
    memory_by_stage: tuple[StageMemory, ...]
    usable_memory_bytes: int
    units_per_s: float | None
    usd_per_million_units: float | None
    best: PlanEstimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A plan, what keeps it from running anywhere, and what it does on each group of its size."""

    plan: ParallelPlan
    refusals: tuple[str, ...]
    groups: tuple[PlanOnGroup, ...]

    @property
    def runs_somewhere(self) -> bool:
        """Whether a group can run the plan."""
        return any(not one.refusals for one in self.groups)


def names_gpus(plan: ParallelPlan) -> bool:
    """Return whether a plan names GPU types or zones."""
    return any(replica.gpu_type or replica.zone for stage in plan.stages for replica in stage.replicas)


def explain(
    plan: ParallelPlan,
    spec: JobSpec,
    train: TrainSpec,
    *,
    shape: ClusterShape,
    gpu_types: Mapping[str, GpuType],
    beyond_worker: bool = False,
) -> Explanation:
    """Return what a plan does on every group of its size (``beyond_worker``: whether or not the worker runs it)."""
    general = tuple(refusals(train, plan, beyond_worker=beyond_worker))
    search = Search(train=train, limits=spec.parallel.model_copy(update={"plan": None}), beyond_worker=beyond_worker)
    groups = tuple(
        _on_group(plan, search, group=group, gpu_type=gpu_types[group.parts[0].gpu_type], general=general)
        for group in _groups(plan, spec, shape)
    )
    return Explanation(plan=plan, refusals=(*general, *_size_refusals(plan, spec, shape, groups)), groups=groups)


def _groups(plan: ParallelPlan, spec: JobSpec, shape: ClusterShape) -> Iterator[GpuGroup]:
    for gpu_type in _types(spec, shape):
        yield from groups_of(shape, gpu_type, [plan.gpu_count], nodes_max=spec.gpus.nodes_max)


def _types(spec: JobSpec, shape: ClusterShape) -> list[str]:
    present = set(shape.gpu_count_by_type)
    return sorted(present & set(spec.gpus.types) if spec.gpus.types else present)


def _size_refusals(
    plan: ParallelPlan, spec: JobSpec, shape: ClusterShape, groups: tuple[PlanOnGroup, ...]
) -> Iterator[str]:
    if not groups:
        per_zone: dict[tuple[str, str], int] = {}
        for pool in shape.pools:
            key = (pool.gpu_type, pool.zone)
            per_zone[key] = per_zone.get(key, 0) + pool.gpus_per_node * pool.node_count
        types = _types(spec, shape)
        most = [f"{gpu_type}/{zone} {count}" for (gpu_type, zone), count in per_zone.items() if gpu_type in types]
        wanted = f" (the job accepts {', '.join(spec.gpus.types)})" if spec.gpus.types else ""
        within = f" on at most {format_count(spec.gpus.nodes_max, 'node')}" if spec.gpus.nodes_max else ""
        there = ", ".join(most) or f"none of {', '.join(sorted(shape.gpu_count_by_type))}"
        gpus = format_count(plan.gpu_count, "GPU")
        yield f"it is for {gpus} of one type in one zone{within}; the cluster has {there}{wanted}"


def _on_group(
    plan: ParallelPlan, search: Search, *, group: GpuGroup, gpu_type: GpuType, general: tuple[str, ...]
) -> PlanOnGroup:
    train = search.train
    work, usable = Work.of(train), usable_bytes(gpu_type)
    told = (*general, *_placement_refusals(plan, group))
    found = search.best_cell(gpu_type, group)
    estimate = None if told else estimate_of(plan, train, gpu_type, group)
    stages = () if told else stage_memory(plan, train, gpu_type)
    return PlanOnGroup(
        group=group,
        refusals=(*told, *_memory_refusals(stages, usable)),
        estimate=estimate,
        memory_by_stage=stages,
        usable_memory_bytes=usable,
        units_per_s=work.units_per_s(estimate) if estimate else None,
        usd_per_million_units=work.usd_per_million_units(estimate) if estimate else None,
        best=found.best if isinstance(found, Cell) else None,
    )


def _placement_refusals(plan: ParallelPlan, group: GpuGroup) -> Iterator[str]:
    if splits_tensor_parallel_group(plan, [count for part in group.parts for count in part.node_counts]):
        yield f"tp{max(plan.tensor_parallel_sizes)} would span nodes on {group}; tp stays inside a node"


def _memory_refusals(stages: tuple[StageMemory, ...], usable: int) -> Iterator[str]:
    for index, stage in enumerate(stages):
        if stage.total_bytes > usable:
            yield f"needs {stage.total_bytes / GIB:.1f} GiB on stage {index}, has {usable / GIB:.1f}"


def estimate_of(plan: ParallelPlan, train: TrainSpec, gpu_type: GpuType, group: GpuGroup) -> Estimate:
    """Return what the cost model says of one plan of any form."""
    found = evaluate(train, gpu_type, group, candidate_of(plan, train.global_batch))
    return Estimate(
        iter_time_s=float(found.iter_time_s[0]),
        memory_bytes_by_stage=tuple(int(size) for size in found.memory_bytes_by_stage[0, : plan.pp]),
        breakdown_s={name: float(part[0]) for name, part in sorted(found.breakdown_s.items())},
        relative_error=float(found.relative_error[0]),
        usd_per_step=float(found.usd_per_step[0]),
    )


def stage_memory(plan: ParallelPlan, train: TrainSpec, gpu_type: GpuType) -> tuple[StageMemory, ...]:
    """Return the memory of each stage of a plan by part."""
    memory = memory_of_plan(train, plan, gpu_type)
    return tuple(_stage(memory, index) for index in range(plan.pp))


def _stage(memory: Memory, index: int) -> StageMemory:
    return StageMemory(
        state_bytes=int(memory.state[0, index]),
        gathered_bytes=int(memory.gathered[0, index]),
        activations_bytes=int(memory.activations[0, index]),
        working_bytes=int(memory.working[0, index]),
        logits_bytes=int(memory.logits[0, index]),
        exchange_bytes=int(memory.exchange[0, index]),
        context_bytes=int(memory.context[0, index]),
        total_bytes=int(memory.total[0, index]),
    )
