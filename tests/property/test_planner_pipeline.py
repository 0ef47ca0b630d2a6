"""The closed form of 1F1B against an event simulation of the schedule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.planner.pipeline import BACKWARD_SHARE, pipeline_time_s, step_end_s

times = st.floats(0.1, 10.0)


def simulate(stage_s: list[float], micro_batch_count: int) -> list[float]:
    """Run 1F1B on an event clock; return when each stage has done its last backward."""
    depth = len(stage_s)
    orders = []
    for stage in range(depth):
        warm_up = min(depth - stage - 1, micro_batch_count)
        order = [("f", index) for index in range(warm_up)]
        for index in range(micro_batch_count - warm_up):
            order += [("f", warm_up + index), ("b", index)]
        orders.append(order + [("b", index) for index in range(micro_batch_count - warm_up, micro_batch_count)])
    done: dict[tuple[str, int, int], float] = {}
    clock = [0.0] * depth
    at = [0] * depth
    while any(at[stage] < len(orders[stage]) for stage in range(depth)):
        for stage in range(depth):
            while at[stage] < len(orders[stage]):
                kind, index = orders[stage][at[stage]]
                if kind == "f":
                    needs = ("f", stage - 1, index) if stage else None
                else:
                    needs = ("b", stage + 1, index) if stage < depth - 1 else ("f", stage, index)
                if needs is not None and needs not in done:
                    break
                share = BACKWARD_SHARE if kind == "b" else 1.0 - BACKWARD_SHARE
                start_s = max(clock[stage], done[needs] if needs else 0.0)
                clock[stage] = done[kind, stage, index] = start_s + share * stage_s[stage]
                at[stage] += 1
    return clock


def closed_form(stage_s: list[float], micro_batch_count: int, chunks: int = 1) -> float:
    (total_s,) = pipeline_time_s(np.array([stage_s]), np.array([[micro_batch_count]]), np.array([chunks]))
    return float(total_s)


@settings(deadline=None)
@given(time_s=times, depth=st.integers(1, 6), extra=st.integers(0, 10))
def test_exact_for_equal_stages(time_s: float, depth: int, extra: int):
    stages = [time_s] * depth
    finished = simulate(stages, depth + extra)
    assert closed_form(stages, depth + extra) == pytest.approx(max(finished))


@settings(deadline=None)
@given(stages=st.lists(times, min_size=1, max_size=6), extra=st.integers(0, 10))
def test_an_upper_bound_for_unequal_stages_and_not_far_off(stages: list[float], extra: int):
    simulated_s = max(simulate(stages, len(stages) + extra))
    form_s = closed_form(stages, len(stages) + extra)
    assert simulated_s <= form_s * (1 + 1e-9)
    assert form_s <= 1.5 * simulated_s


@settings(deadline=None)
@given(time_s=times, depth=st.integers(1, 6), extra=st.integers(0, 6), sync=st.lists(times, min_size=6, max_size=6))
def test_the_step_ends_when_the_last_stage_has_synchronised(time_s: float, depth: int, extra: int, sync: list[float]):
    stages = [time_s] * depth
    finished = simulate(stages, depth + extra)
    after = sync[:depth]
    total = np.array([closed_form(stages, depth + extra)])
    (end_s,) = step_end_s(total, np.array([stages]), np.array([after]))
    assert end_s == pytest.approx(max(done + sync_s for done, sync_s in zip(finished, after, strict=True)))


def test_interleaving_divides_the_bubble():
    assert closed_form([3.0, 3.0], 4) == 15.0
    assert closed_form([3.0, 3.0], 4, chunks=2) == 13.5
