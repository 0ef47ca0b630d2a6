"""The planner offers what the worker runs, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from arena.domain.allocation import GpuGroup
from arena.domain.capability import REFUSALS, Feature, unsupported
from arena.domain.job import ModelFamily, ParallelLimits, TrainSpec
from arena.domain.parallel import ParallelPlan, Recompute, Schedule
from arena.errors import SpecError
from arena.planner.layout_space import LayoutSpace
from arena.planner.source import PlannerGridSource
from tests.builders import shape, train_spec
from tests.property.train_strategies import trains

ALL = ParallelLimits(zero=(0, 1, 2, 3), schedules=("1f1b", "gpipe", "interleaved"))
counts = st.integers(1, 12)


@settings(max_examples=40, deadline=None)
@given(train=trains, count=counts)
def test_every_layout_that_is_priced_is_one_that_the_worker_runs(train: TrainSpec, count: int) -> None:
    layouts = LayoutSpace(train=train, limits=ALL).layouts(GpuGroup.of("cpu", (count,)))
    plans = [layouts.plan(index) for index in range(0, len(layouts), max(1, len(layouts) // 200))]
    assert [(str(plan), unsupported(train, plan)) for plan in plans if unsupported(train, plan)] == []
    assert all(plan.gpu_count == count for plan in plans)


@settings(max_examples=25, deadline=None)
@given(train=trains)
def test_every_plan_of_a_grid_is_one_that_the_worker_runs(train: TrainSpec) -> None:
    spec = train_spec(parallel=ALL.model_dump()).model_copy(update={"train": train})
    for cell in PlannerGridSource().grid(spec, shape(("a100-80", 4, 2))).cells:
        for found in (cell.best, *cell.others):
            assert found.plan is not None
            assert unsupported(train, found.plan) is None


@st.composite
def plans(draw: st.DrawFn, train: TrainSpec) -> ParallelPlan:
    """Uniform plans, many of which cannot run."""
    dp, pp = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    schedule = draw(st.sampled_from(Schedule))
    try:
        return ParallelPlan.uniform(
            layer_count=train.model.layers,
            dp=dp,
            tp=draw(st.integers(1, 6)),
            pp=pp,
            micro_batch_size=1,
            schedule=schedule,
            virtual_stage_count=2 if schedule is Schedule.INTERLEAVED else 1,
            zero=draw(st.integers(0, 3)),
            recompute=draw(st.sampled_from(Recompute)),
            expert_parallel=draw(st.integers(1, 3)),
            sequence_parallel=draw(st.booleans()),
        )
    except SpecError:
        assume(False)
        raise


@settings(max_examples=150, deadline=None)
@given(data=st.data(), train=trains)
def test_what_is_left_out_is_refused_with_a_text_or_pruned_by_a_stated_rule(
    data: st.DataObject, train: TrainSpec
) -> None:
    plan = data.draw(plans(train))
    layouts = LayoutSpace(train=train, limits=ALL).layouts(GpuGroup.of("cpu", (plan.gpu_count,)))
    offered = {layouts.plan(index) for index in range(len(layouts))}
    said = unsupported(train, plan)
    if plan in offered:
        assert said is None
    elif not is_pruned(train, plan):
        assert said


def is_pruned(train: TrainSpec, plan: ParallelPlan) -> bool:
    """The rules of ``arena.planner.layouts``."""
    samples = -(-train.global_batch // plan.dp)
    return (
        (plan.dp == 1 and plan.zero > 0)
        or (plan.pp == 1 and plan.schedule is not Schedule.ONE_F_ONE_B)
        or (train.model.family is ModelFamily.WIDE_RESNET and plan.recompute is Recompute.SELECTIVE)
        or (plan.schedule is Schedule.INTERLEAVED and (samples % plan.pp > 0 or train.model.layers % (2 * plan.pp) > 0))
    )


@pytest.mark.parametrize("family", ModelFamily)
def test_the_table_has_a_row_for_each_family_and_a_reason_for_each_refusal(family: ModelFamily) -> None:
    assert set(REFUSALS[family]) <= set(Feature)
    assert all(len(text) > 10 for text in REFUSALS[family].values())
