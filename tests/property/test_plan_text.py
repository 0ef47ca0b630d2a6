"""The text of a plan: every plan can be written, and read back as the same plan."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.parallel import ParallelPlan, Recompute, Replica, Schedule, Stage, format_plan, parse_plan
from arena.errors import SpecError

names = (
    st.none() | st.sampled_from(["t4", "a100-80", "rtx3090", "zone-ax3", "x1", "it's", "", "'"]) | st.text(max_size=6)
)
replicas = st.builds(
    Replica,
    tp=st.integers(1, 64),
    gpu_type=names,
    zone=names,
    micro_batch_count=st.none() | st.integers(1, 2**31),
)
runs = st.tuples(replicas, st.integers(1, 5)).map(lambda run: (run[0],) * run[1])


@st.composite
def plans(draw: st.DrawFn) -> ParallelPlan:
    """Plans of any form whose layers suffice for their virtual stages."""
    schedule = draw(st.sampled_from(Schedule))
    chunks = draw(st.integers(2, 4)) if schedule is Schedule.INTERLEAVED else 1
    plain = st.builds(lambda tp, dp: (Replica(tp=tp),) * dp, st.integers(1, 8), st.integers(1, 8))
    of_stage = (
        st.just(draw(plain))
        if draw(st.booleans())
        else st.lists(runs, min_size=1, max_size=3).map(lambda many: tuple(replica for run in many for replica in run))
    )
    stages = draw(
        st.lists(st.builds(Stage, layer_count=st.integers(chunks, 99), replicas=of_stage), min_size=1, max_size=5)
    )
    return ParallelPlan(
        stages=tuple(stages),
        micro_batch_size=draw(st.integers(1, 2**31)),
        schedule=schedule,
        virtual_stage_count=chunks,
        zero=draw(st.integers(0, 3)),
        recompute=draw(st.sampled_from(Recompute)),
        expert_parallel=draw(st.integers(1, 8)),
        sequence_parallel=draw(st.booleans()),
    )


@settings(deadline=None)
@given(plan=plans())
def test_a_plan_is_read_as_it_was_written(plan: ParallelPlan) -> None:
    assert parse_plan(format_plan(plan), layer_count=plan.layer_count) == plan


@settings(deadline=None)
@given(text=st.text(alphabet="dptpmbzero interleaved=layers[]|,@/x*'0123456789spg", max_size=60))
def test_any_text_is_read_or_refused_with_a_typed_error(text: str) -> None:
    try:
        plan = parse_plan(text, layer_count=8)
    except SpecError:
        return
    assert parse_plan(format_plan(plan), layer_count=8) == plan


MIXED = ParallelPlan(
    stages=(
        Stage(layer_count=5, replicas=(Replica(tp=2), Replica(tp=2))),
        Stage(layer_count=3, replicas=(Replica(gpu_type="t4", zone="zone-a", micro_batch_count=3),)),
    ),
    zero=1,
)


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("[layers=5 tp2,tp2 | layers=3 tp1@t4/zone-ax3] mb1 zero1", MIXED),
        ("[layers=5 tp2*2|layers=3 tp1@t4/zone-ax3] zero1", MIXED),
        (
            "dp4 tp2 pp2 mb1 ep2 sp",
            ParallelPlan.uniform(layer_count=8, dp=4, tp=2, pp=2, expert_parallel=2, sequence_parallel=True),
        ),
        ("", ParallelPlan.uniform(layer_count=8)),
    ],
)
def test_texts_as_people_write_them(text: str, plan: ParallelPlan) -> None:
    assert parse_plan(text, layer_count=8) == plan


def test_repeated_replicas_are_short_and_a_name_that_looks_like_a_count_is_quoted() -> None:
    assert format_plan(MIXED) == "[layers=5 tp2*2 | layers=3 tp1@t4/zone-ax3] mb1 zero1"
    gaming = Stage(layer_count=8, replicas=(Replica(gpu_type="rtx3090"),))
    assert format_plan(ParallelPlan(stages=(gaming,))) == "[layers=8 tp1@'rtx3090'] mb1"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("dq2", "unknown word 'dq2'"),
        ("dp2 dp2", "names dp twice"),
        ("sp sp", "names sp twice"),
        ("gpipe 1f1b", "two schedules: 1f1b and gpipe"),
        ("recompute=some", "unknown recompute. One of none, selective, full"),
        ("recompute=", "unknown word 'recompute='"),
        ("zero4", "zero must be 0, 1, 2 or 3: got 4"),
        ("ep0", "expert-parallel degree must be at least 1: got 0"),
        ("mb0", "micro-batch size must be at least 1"),
        ("dp0", "dp, tp and pp must be at least 1"),
        ("pp9", "8 layers, pp9 x 1 virtual stages"),
        ("pp2 layers=4,5", "need 2 numbers that sum to 8, got '4,5'"),
        ("pp2 layers=4,x,4", "need 2 numbers that sum to 8"),
        ("pp2 interleaved1", "go together"),
        ("[layers=5 tp2 | layers=4 tp1]", "places 9 layers: the model has 8"),
        ("[layers=8 tp2] dp2", "lists its stages and names dp as well"),
        ("[layers=8 tp2", "cannot be read at 'tp2': a replica is written like"),
        ("[layers=8]", "a stage starts with its layers"),
        ("[tp2]", "a stage starts with its layers"),
        ("[layers=8 tp2*0]", "a plan has 1 to 1048576 replicas"),
        ("[layers=8 tp1x0]", "at least one micro-batch: got 0"),
        ("dp999999999", "is too large: dp999999999 x pp1 is more than 1048576"),
        ("[layers=8 tp1*999999999]", "a plan has 1 to 1048576 replicas"),
        ("layers=" + "9" * 5000, "need 1 numbers that sum to 8"),
        ("dp" + "9" * 5000, "unknown word 'dp999"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_plan(text, layer_count=8)
    assert problem in caught.value.message
    assert len(caught.value.message) < 400
