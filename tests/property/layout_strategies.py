"""Strategies of models under plans whose stages and replicas may differ in everything that the worker allows."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from arena.domain.capability import unsupported
from arena.domain.job import TrainSpec
from arena.domain.parallel import ParallelPlan, Replica, Schedule, Stage

LAYERS = 4
_TRANSFORMER = {"layers": LAYERS, "hidden": 16, "heads": 4, "ffn_hidden": 24, "vocab_size": 260, "seq_len": 8}
_MODELS: tuple[dict[str, Any], ...] = (
    {"family": "gpt", **_TRANSFORMER},
    {"family": "llama", **_TRANSFORMER, "tied_embeddings": True},
    {"family": "bert", **_TRANSFORMER, "tied_embeddings": True},
    {"family": "moe", **_TRANSFORMER, "expert_count": 4},
    {"family": "vit", **_TRANSFORMER, "image_size": 8, "patch_size": 2, "class_count": 10},
    {
        "family": "wide_resnet",
        "layers": LAYERS,
        "hidden": 8,
        "image_size": 8,
        "class_count": 5,
        "group_depths": (1, 3),
        "norm_groups": 4,
    },
)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[TrainSpec, ParallelPlan]:
    """A job and a plan that the worker runs, up to 16 ranks."""
    model = draw(st.sampled_from(_MODELS))
    stages = draw(_stages())
    is_interleaved = len(stages) == 2 and draw(st.booleans())
    if is_interleaved:
        stages = (Stage(layer_count=2, replicas=stages[0].replicas),) * 2
    dp = len(stages[0].replicas)
    plan = ParallelPlan(
        stages=stages,
        micro_batch_size=draw(st.integers(1, 3)),
        schedule=Schedule.INTERLEAVED
        if is_interleaved
        else draw(st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.GPIPE])),
        virtual_stage_count=2 if is_interleaved else 1,
        zero=draw(st.integers(0, 3)),
        expert_parallel=draw(st.sampled_from([1, 2, 4])) if model["family"] == "moe" and dp > 1 else 1,
        sequence_parallel=model["family"] != "wide_resnet" and draw(st.booleans()),
    )
    train = TrainSpec.model_validate({"model": model, "global_batch": draw(st.integers(4, 9))})
    assume(unsupported(train, plan) is None)
    return train, plan


@st.composite
def _stages(draw: st.DrawFn) -> tuple[Stage, ...]:
    pp = draw(st.integers(1, 3))
    cuts = sorted(draw(st.sets(st.integers(1, LAYERS - 1), min_size=pp - 1, max_size=pp - 1)))
    counts = [stop - start for start, stop in zip([0, *cuts], [*cuts, LAYERS], strict=True)]
    return tuple(Stage(layer_count=count, replicas=draw(_replicas())) for count in counts)


@st.composite
def _replicas(draw: st.DrawFn) -> tuple[Replica, ...]:
    dp = draw(st.integers(1, 4))
    if draw(st.booleans()):
        return (Replica(tp=draw(st.sampled_from([1, 2, 4]))),) * dp
    return tuple(Replica(tp=draw(st.sampled_from([1, 2, 4]))) for _ in range(dp))
