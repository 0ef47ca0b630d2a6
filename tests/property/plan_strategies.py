"""Strategies of plans that the worker runs, with the batch they run on."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from arena.domain.capability import unsupported
from arena.domain.job import ModelSpec, TrainSpec
from arena.domain.parallel import ParallelPlan, Replica, Schedule, Stage

EXPERTS = 12


def model_of(layer_count: int) -> ModelSpec:
    """A tiny mixture of experts, which every feature of a plan applies to."""
    return ModelSpec.model_validate(
        {"family": "moe", "layers": layer_count, "hidden": 8, "heads": 2, "expert_count": EXPERTS}
    )


@st.composite
def runnable(draw: st.DrawFn) -> tuple[ParallelPlan, int]:
    """A plan of any form that the worker runs, and the global batch."""
    plan, global_batch = draw(alike()) if draw(st.booleans()) else draw(unlike())
    train = TrainSpec(model=model_of(plan.layer_count), global_batch=global_batch)
    assume(unsupported(train, plan) is None)
    return plan, global_batch


@st.composite
def alike(draw: st.DrawFn) -> tuple[ParallelPlan, int]:
    """Stages with the same replicas, under any schedule."""
    pp, dp, chunks = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    is_interleaved = pp > 1 and chunks > 1
    schedule = Schedule.INTERLEAVED if is_interleaved else draw(st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.GPIPE]))
    plan = ParallelPlan.uniform(
        layer_count=pp * chunks,
        dp=dp,
        pp=pp,
        micro_batch_size=draw(st.integers(1, 3)),
        schedule=schedule,
        virtual_stage_count=chunks if is_interleaved else 1,
        zero=draw(st.integers(0, 3)),
        expert_parallel=draw(st.sampled_from([ep for ep in (1, 2, 3, 4) if dp % ep == 0])),
    )
    return plan, draw(st.integers(dp, 40))


@st.composite
def unlike(draw: st.DrawFn) -> tuple[ParallelPlan, int]:
    """Stages with replicas of their own, some with micro-batch counts that sum to the same."""
    micro_batch_size = draw(st.integers(1, 3))
    total = draw(st.integers(4, 16))
    stages = tuple(draw(_stage(total)) for _ in range(draw(st.integers(1, 4))))
    dp_max = max(len(stage.replicas) for stage in stages)
    plan = ParallelPlan(
        stages=stages,
        micro_batch_size=micro_batch_size,
        schedule=draw(st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.GPIPE])),
        zero=draw(st.integers(0, 3)),
    )
    return plan, draw(st.integers(dp_max, total * micro_batch_size))


@st.composite
def _stage(draw: st.DrawFn, total: int) -> Stage:
    dp = draw(st.integers(1, 4))
    counts: list[int | None] = [None] * dp
    if draw(st.booleans()):
        cuts = sorted(draw(st.lists(st.integers(1, total - 1), min_size=dp - 1, max_size=dp - 1, unique=True)))
        counts = [end - start for start, end in zip([0, *cuts], [*cuts, total], strict=True)]
    tp = draw(st.sampled_from([1, 2]))
    return Stage(layer_count=1, replicas=tuple(Replica(tp=tp, micro_batch_count=count) for count in counts))
