"""Pipeline orders of arbitrary plans: complete, in order, without deadlock; as published where stages are alike."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.micro_batches import MicroBatch, micro_batches, runs_in_step
from arena.domain.parallel import ParallelPlan, Schedule, parse_plan
from arena.domain.schedule import Action, Orders, Pass, schedule_of
from tests.property.plan_strategies import alike, runnable

PASSES = {Pass.FORWARD: "F", Pass.BACKWARD: "B"}


def orders_of(plan: ParallelPlan, global_batch: int) -> tuple[tuple[MicroBatch, ...], Orders]:
    batches = micro_batches(plan, global_batch)
    return batches, schedule_of(plan, batches)


@settings(deadline=None)
@given(drawn=runnable())
def test_every_pass_is_done_once_by_the_replica_that_has_the_micro_batch(drawn: tuple[ParallelPlan, int]) -> None:
    plan, global_batch = drawn
    batches, orders = orders_of(plan, global_batch)
    done = Counter((rank, action) for rank, order in orders.items() for action in order)
    wanted = Counter(
        ((chunk % plan.pp, batch.replicas[chunk % plan.pp]), Action(direction, chunk, index))
        for index, batch in enumerate(batches)
        for chunk in range(plan.pp * plan.virtual_stage_count)
        for direction in Pass
    )
    assert done == wanted
    assert set(orders) == {
        (stage, replica) for stage in range(plan.pp) for replica in range(len(plan.stages[stage].replicas))
    }


@settings(deadline=None)
@given(drawn=runnable())
def test_a_rank_runs_each_forward_pass_before_its_backward_pass(drawn: tuple[ParallelPlan, int]) -> None:
    _, orders = orders_of(*drawn)
    for order in orders.values():
        at = {action: index for index, action in enumerate(order)}
        for action, index in at.items():
            assert action.direction is Pass.FORWARD or at[action._replace(direction=Pass.FORWARD)] < index


@settings(deadline=None)
@given(drawn=runnable())
def test_ranks_that_wait_for_what_they_receive_all_come_to_the_end(drawn: tuple[ParallelPlan, int]) -> None:
    plan, global_batch = drawn
    _, orders = orders_of(plan, global_batch)
    at = executed(plan, orders)
    assert at == {rank: len(order) for rank, order in orders.items()}


def executed(plan: ParallelPlan, orders: Orders) -> dict[tuple[int, int], int]:
    """Run ranks with blocking receives, and with a barrier in each pass where replicas run in step."""
    chunk_count = plan.pp * plan.virtual_stage_count
    ranks = sorted(orders)
    groups = [[rank] for rank in ranks]
    if runs_in_step(plan):
        groups = [[rank for rank in ranks if rank[0] == stage] for stage in range(plan.pp)]
    at = dict.fromkeys(ranks, 0)
    done: set[Action] = set()
    moved = True
    while moved:
        moved = False
        for group in groups:
            while all(at[rank] < len(orders[rank]) for rank in group):
                actions = [orders[rank][at[rank]] for rank in group]
                is_met = len({(action.direction, action.chunk) for action in actions}) == 1
                if not is_met or not all(needs(action, chunk_count) <= done for action in actions):
                    break
                done.update(actions)
                moved = True
                for rank in group:
                    at[rank] += 1
    return at


def needs(action: Action, chunk_count: int) -> set[Action]:
    if action.direction is Pass.FORWARD:
        return {action._replace(chunk=action.chunk - 1)} if action.chunk else set()
    if action.chunk == chunk_count - 1:
        return {action._replace(direction=Pass.FORWARD)}
    return {action._replace(chunk=action.chunk + 1), action._replace(direction=Pass.FORWARD)}


@settings(deadline=None)
@given(drawn=runnable())
def test_replicas_that_run_in_step_have_the_same_order(drawn: tuple[ParallelPlan, int]) -> None:
    plan, global_batch = drawn
    _, orders = orders_of(plan, global_batch)
    if not runs_in_step(plan):
        return
    for stage in range(plan.pp):
        shapes = set()
        for (own_stage, _), order in orders.items():
            if own_stage == stage:
                turns: dict[int, int] = {}
                for action in order:
                    turns.setdefault(action.micro_batch, len(turns))
                shapes.add(tuple((action.direction, action.chunk, turns[action.micro_batch]) for action in order))
        assert len(shapes) == 1


@settings(deadline=None)
@given(pp=st.integers(1, 6), dp=st.integers(1, 3), count=st.integers(1, 12), zero=st.integers(0, 3))
def test_1f1b_is_as_published(pp: int, dp: int, count: int, zero: int) -> None:
    """Stage i warms up with pp - i - 1 forward passes, alternates, and drains (Narayanan et al., ICML 2021)."""
    plan = ParallelPlan.uniform(layer_count=pp, pp=pp, dp=dp, zero=zero)
    _, orders = orders_of(plan, dp * count)
    for (stage, _), order in orders.items():
        assert letters(order) == alternating(count, min(count, pp - stage - 1))
        assert in_flight_max(order) == min(count, pp - stage)


@settings(deadline=None)
@given(pp=st.integers(2, 5), chunks=st.integers(2, 4), rounds=st.integers(1, 4))
def test_interleaved_is_as_published(pp: int, chunks: int, rounds: int) -> None:
    """Warm-up of 2 (pp - i - 1) + (chunks - 1) pp forward passes, then alternating (Narayanan et al., SC'21)."""
    plan = ParallelPlan.uniform(
        layer_count=pp * chunks, pp=pp, schedule=Schedule.INTERLEAVED, virtual_stage_count=chunks
    )
    _, orders = orders_of(plan, pp * rounds)
    total = pp * rounds * chunks
    for (stage, _), order in orders.items():
        warm_up = min(total, 2 * (pp - stage - 1) + (chunks - 1) * pp)
        assert letters(order) == alternating(total, warm_up)
        assert in_flight_max(order) == min(total, warm_up + 1)


@settings(max_examples=30, deadline=None)
@given(drawn=alike())
def test_gpipe_runs_all_forward_passes_first(drawn: tuple[ParallelPlan, int]) -> None:
    plan, global_batch = drawn
    if plan.schedule is not Schedule.GPIPE:
        return
    _, orders = orders_of(plan, global_batch)
    for order in orders.values():
        count = len(order) // 2
        assert letters(order) == "F" * count + "B" * count


def letters(order: tuple[Action, ...]) -> str:
    return "".join(PASSES[action.direction] for action in order)


def alternating(count: int, warm_up: int) -> str:
    return "F" * warm_up + "FB" * (count - warm_up) + "B" * warm_up


def in_flight_max(order: tuple[Action, ...]) -> int:
    held = most = 0
    for action in order:
        held += 1 if action.direction is Pass.FORWARD else -1
        most = max(most, held)
    return most


GOLDEN_1F1B = (
    "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
    "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
    "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
    "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
)
"""Figure 4 of the Megatron-LM paper (SC'21), 4 stages and 8 micro-batches."""


@pytest.mark.parametrize("stage", range(4))
def test_four_stages_and_eight_micro_batches(stage: int) -> None:
    _, orders = orders_of(parse_plan("pp4", layer_count=4), 8)
    assert (
        " ".join(f"{PASSES[action.direction]}{action.micro_batch}" for action in orders[stage, 0]) == GOLDEN_1F1B[stage]
    )
    assert {action.chunk for action in orders[stage, 0]} == {stage}
