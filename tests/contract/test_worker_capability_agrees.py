"""The planner's table of what workers run and the worker's own word agree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from arena.domain.job import JobSpec
from arena.domain.parallel import ParallelPlan, Schedule
from arena.planner.capability import WorkerCapability
from arena_agent.worker.capability import unsupported

GLOBAL_BATCH = 8


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    model = {
        "family": draw(st.sampled_from(["gpt", "llama"])),
        "layers": draw(st.sampled_from([4, 6])),
        "hidden": 48,
        "heads": draw(st.sampled_from([4, 6])),
        "kv_heads": draw(st.sampled_from([None, 2])),
        "vocab_size": draw(st.sampled_from([100, 256, 50_257])),
        "tied_embeddings": draw(st.booleans()),
    }
    train = {
        "model": model,
        "global_batch": GLOBAL_BATCH,
        "precision": draw(st.sampled_from(["fp32", "bf16", "fp16"])),
    }
    return JobSpec.model_validate({"name": "job", "train": train, "stop": {"steps": 1}})


@st.composite
def plans(draw: st.DrawFn, layer_count: int) -> ParallelPlan:
    pp = draw(st.integers(1, 3))
    schedule = draw(st.sampled_from(Schedule))
    is_interleaved = schedule is Schedule.INTERLEAVED and 2 * pp <= layer_count
    return ParallelPlan.uniform(
        layer_count=layer_count,
        dp=draw(st.integers(1, GLOBAL_BATCH)),
        tp=draw(st.integers(1, 4)),
        pp=pp,
        micro_batch_size=draw(st.integers(1, 4)),
        schedule=schedule if is_interleaved or schedule is Schedule.GPIPE else Schedule.ONE_F_ONE_B,
        virtual_stage_count=2 if is_interleaved else 1,
        zero=draw(st.integers(0, 3)),
        sequence_parallel=draw(st.booleans()),
    )


@given(data=st.data())
def test_planner_and_worker_refuse_the_same_uniform_plans(data: st.DataObject) -> None:
    spec = data.draw(specs())
    assert spec.train is not None
    plan = data.draw(plans(spec.train.model.layers))
    ours, theirs = unsupported(spec, plan), WorkerCapability().unsupported(spec.train, plan)
    assert (ours is None) == (theirs is None), (ours, theirs)
