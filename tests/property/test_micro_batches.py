"""Micro-batches of arbitrary plans: each sample once, shares as even as can be, the plan's own counts where given."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.capability import unsupported
from arena.domain.job import TrainSpec
from arena.domain.micro_batches import MicroBatch, micro_batches, replica_shares, runs_in_step
from arena.domain.parallel import ParallelPlan, Replica, Stage, parse_plan
from tests.property.plan_strategies import alike, model_of, runnable


def counts_of(plan: ParallelPlan, batches: tuple[MicroBatch, ...], stage: int) -> list[int]:
    taken = Counter(batch.replicas[stage] for batch in batches)
    assert set(taken) <= set(range(len(plan.stages[stage].replicas)))
    return [taken[replica] for replica in range(len(plan.stages[stage].replicas))]


@settings(deadline=None)
@given(drawn=runnable())
def test_each_sample_is_taken_once_and_no_micro_batch_is_too_large(drawn: tuple[ParallelPlan, int]) -> None:
    plan, global_batch = drawn
    batches = micro_batches(plan, global_batch)
    assert sorted(row for batch in batches for row in batch.rows) == list(range(global_batch))
    assert max(len(batch.rows) for batch in batches) <= plan.micro_batch_size
    assert all(len(batch.replicas) == plan.pp for batch in batches)


@settings(deadline=None)
@given(drawn=runnable())
def test_every_replica_of_every_stage_has_work(drawn: tuple[ParallelPlan, int]) -> None:
    plan, global_batch = drawn
    batches = micro_batches(plan, global_batch)
    for stage in range(plan.pp):
        assert min(counts_of(plan, batches, stage)) >= 1


@settings(deadline=None)
@given(drawn=runnable())
def test_replicas_that_run_in_step_take_equally_many(drawn: tuple[ParallelPlan, int]) -> None:
    plan, global_batch = drawn
    batches = micro_batches(plan, global_batch)
    for stage in range(plan.pp):
        counts = counts_of(plan, batches, stage)
        if runs_in_step(plan):
            assert len(set(counts)) == 1
        elif all(replica.micro_batch_count is None for replica in plan.stages[stage].replicas):
            assert max(counts) - min(counts) <= 1


@settings(deadline=None)
@given(drawn=runnable())
def test_only_replicas_that_run_in_step_compute_stand_ins(drawn: tuple[ParallelPlan, int]) -> None:
    plan, global_batch = drawn
    for batch in micro_batches(plan, global_batch):
        assert len(batch.rows) > 0 or runs_in_step(plan)
        assert batch.row_count == max(1, len(batch.rows))


@settings(deadline=None)
@given(drawn=alike())
def test_shares_are_contiguous_and_as_even_as_possible(drawn: tuple[ParallelPlan, int]) -> None:
    plan, global_batch = drawn
    shares = replica_shares(plan.stages[0], plan.micro_batch_size, global_batch)
    assert [row for share in shares for row in share] == list(range(global_batch))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@settings(deadline=None)
@given(drawn=alike())
def test_alike_stages_pass_a_micro_batch_between_namesakes(drawn: tuple[ParallelPlan, int]) -> None:
    plan, global_batch = drawn
    for batch in micro_batches(plan, global_batch):
        assert len(set(batch.replicas)) == 1


@settings(deadline=None)
@given(counts=st.lists(st.integers(1, 6), min_size=1, max_size=4), size=st.integers(1, 3))
def test_the_plans_own_counts_hold(counts: list[int], size: int) -> None:
    replicas = tuple(Replica(micro_batch_count=count) for count in counts)
    plan = ParallelPlan(stages=(Stage(layer_count=1, replicas=replicas),) * 2, micro_batch_size=size)
    batches = micro_batches(plan, sum(counts) * size)
    assert counts_of(plan, batches, 0) == counts_of(plan, batches, 1) == counts


@settings(deadline=None)
@given(counts=st.lists(st.integers(1, 6), min_size=1, max_size=3), dp=st.integers(1, 8))
def test_a_stage_with_counts_of_its_own_takes_them_from_a_leader_without(counts: list[int], dp: int) -> None:
    follower = Stage(layer_count=1, replicas=tuple(Replica(micro_batch_count=count) for count in counts))
    leader = Stage(layer_count=1, replicas=(Replica(),) * max(dp, len(counts)))
    plan = ParallelPlan(stages=(leader, follower))
    if sum(counts) < len(leader.replicas) or len(leader.replicas) == len(counts):
        return
    assert counts_of(plan, micro_batches(plan, sum(counts)), 1) == counts


def test_unequal_replicas_by_hand() -> None:
    plan = parse_plan("[layers=1 tp1*3 | layers=1 tp1*2] mb2", layer_count=2)
    assert [(list(batch.rows), batch.replicas) for batch in micro_batches(plan, 10)] == [
        ([0, 1], (0, 0)),
        ([4, 5], (1, 1)),
        ([7, 8], (2, 0)),
        ([2, 3], (0, 1)),
        ([6], (1, 0)),
        ([9], (2, 1)),
    ]


@pytest.mark.parametrize("text", ["[layers=1 tp1x8,tp1x8]", "[layers=1 tp1*3 | layers=1 tp1x1,tp1x100]"])
def test_a_replica_that_would_have_no_micro_batch_is_refused(text: str) -> None:
    layers = text.count("layers")
    plan = parse_plan(text, layer_count=layers)
    counts = [counts_of(plan, micro_batches(plan, 8), stage) for stage in range(layers)]
    assert min(min(stage) for stage in counts) == 0
    said = unsupported(TrainSpec(model=model_of(layers), global_batch=8), plan)
    assert said is not None
    assert "no micro-batch" in said
