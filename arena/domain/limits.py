"""Bounds that a job sets and that cannot hold together. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from arena.domain.job import JobSpec
from arena.domain.parallel import ParallelPlan, parse_plan
from arena.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A field that another one leaves no value to, and what would do."""

    field: tuple[str, ...]
    text: str


def contradictions(spec: JobSpec) -> Iterator[Contradiction]:
    """Yield what keeps every plan out, whatever the cluster.

    Raises:
        SpecError: The job pins a plan that cannot be read.
    """
    if spec.train is None:
        return
    if spec.parallel.plan is not None:
        yield from _of_plan(spec, parse_plan(spec.parallel.plan, layer_count=spec.train.model.layers))
        return
    limits = spec.parallel
    degrees = (limits.dp_max, limits.tp_max, limits.pp_max)
    if limits.dp_max and limits.tp_max and limits.pp_max:
        most = limits.dp_max * limits.tp_max * limits.pp_max
        if most < spec.gpus.count_min:
            product = " x ".join(f"{name} {value}" for name, value in zip(_DEGREES, degrees, strict=True))
            text = f"{product} is at most {format_count(most, 'GPU')}, {_least(spec)}; at most {most} would do"
            yield Contradiction(field=("parallel",), text=text)


_DEGREES = ("dp_max", "tp_max", "pp_max")


def _of_plan(spec: JobSpec, plan: ParallelPlan) -> Iterator[Contradiction]:
    """A pinned plan has its own numbers; bounds beside it can only agree or contradict."""
    limits, count = spec.parallel, plan.gpu_count
    pinned = f"parallel.plan '{limits.plan}'"
    most = spec.gpus.count_max
    if count < spec.gpus.count_min or (most is not None and count > most):
        bound = _least(spec) if count < spec.gpus.count_min else _most(spec)
        yield Contradiction(
            field=("gpus",), text=f"{pinned} is for {format_count(count, 'GPU')}, {bound}; leave out gpus, or the plan"
        )
    found = {
        "dp_max": max(len(stage.replicas) for stage in plan.stages),
        "tp_max": max(plan.tensor_parallel_sizes),
        "pp_max": plan.pp,
        "micro_batch_max": plan.micro_batch_size,
    }
    for name, value in found.items():
        bound = getattr(limits, name)
        if bound is not None and value > bound:
            text = f"{pinned} has {value}, {name} is {bound}; leave it out, or make it at least {value}"
            yield Contradiction(field=("parallel", name), text=text)
    yield from _of_choices(spec, plan, pinned)


def _of_choices(spec: JobSpec, plan: ParallelPlan, pinned: str) -> Iterator[Contradiction]:
    limits = spec.parallel
    if limits.zero and plan.zero not in limits.zero:
        text = f"{pinned} has zero{plan.zero}, allowed is {', '.join(map(str, limits.zero))}"
        yield Contradiction(field=("parallel", "zero"), text=text)
    if limits.schedules and plan.pp > 1 and plan.schedule.value not in limits.schedules:
        text = f"{pinned} has schedule {plan.schedule.value}, allowed is {', '.join(limits.schedules)}"
        yield Contradiction(field=("parallel", "schedules"), text=text)
    named = {replica.gpu_type for stage in plan.stages for replica in stage.replicas if replica.gpu_type}
    refused = sorted(named - set(spec.gpus.types)) if spec.gpus.types else []
    if refused:
        text = f"{pinned} is on {', '.join(refused)}, gpus.types is {', '.join(spec.gpus.types)}"
        yield Contradiction(field=("gpus", "types"), text=text)


def _least(spec: JobSpec) -> str:
    return f"gpus.count is {spec.gpus.count}" if spec.gpus.count else f"gpus.min is {spec.gpus.count_min}"


def _most(spec: JobSpec) -> str:
    return f"gpus.count is {spec.gpus.count}" if spec.gpus.count else f"gpus.max is {spec.gpus.max}"
