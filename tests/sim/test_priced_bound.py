"""The bound that knows of contention: no schedule is below it, and where the optimum is known it is near."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.policy.bounds import TimedCell, Work, bound_of, srpt_mean_s
from experiments.policy.hesrpt_form import optimal_mean_flow_s
from experiments.policy.priced_bound import priced_mean_s

FEW = (12, 48)
"""Stretches, for small cases."""


def work(at_s: float, *cells: tuple[tuple[int, ...], float]) -> Work:
    return Work(
        submitted_at_s=at_s, cells=tuple(TimedCell(gpu_counts=counts, time_s=time_s) for counts, time_s in cells)
    )


def test_without_contention_every_job_takes_what_it_takes_alone() -> None:
    works = [work(0.0, ((1,), 100.0), ((2,), 60.0)), work(500.0, ((1,), 100.0), ((2,), 60.0))]
    assert priced_mean_s(works, [2], stretch_counts=FEW) == pytest.approx(60.0, rel=1e-9)


def test_two_jobs_that_want_the_only_gpu_are_one_after_the_other() -> None:
    # Optimum: 10 s, then 10 + 30 s; the bound knows of it what splitting a GPU between them would not save.
    works = [work(0.0, ((1,), 10.0)), work(0.0, ((1,), 30.0))]
    assert 23.0 < priced_mean_s(works, [1], stretch_counts=FEW) <= 25.0


def test_a_second_type_takes_the_second_job() -> None:
    fast, slow = ((1, 0), 100.0), ((0, 1), 150.0)
    works = [work(0.0, fast, slow), work(0.0, fast, slow)]
    # Optimum: one on each, 100 and 150 s; by taking turns both could end at 120 s.
    assert 115.0 < priced_mean_s(works, [1, 1], stretch_counts=FEW) <= 120.0 + 1e-6


@pytest.mark.parametrize("exponent", [0.5, 0.9])
def test_it_is_near_the_closed_form_of_malleable_jobs(exponent: float) -> None:
    sizes = [100.0, 200.0, 400.0, 800.0]
    works = [work(0.0, *(((count,), size / count**exponent) for count in range(1, 65))) for size in sizes]
    optimum_s = optimal_mean_flow_s(sizes, exponent=exponent, gpu_count=64)
    found_s = priced_mean_s(works, [64], stretch_counts=(16, 64))
    # Whole GPUs in turns are a little slower than the shares of one that the closed form may give.
    assert 0.97 * optimum_s < found_s < 1.001 * optimum_s


def test_it_is_near_the_optimum_of_one_machine() -> None:
    works = [work(float(at_s), ((4,), time_s)) for at_s, time_s in [(0, 50), (10, 5), (20, 30), (21, 8), (90, 20)]]
    optimum_s = srpt_mean_s(works, gpu_count=4)
    assert 0.95 * optimum_s < priced_mean_s(works, [4], stretch_counts=FEW) <= optimum_s * (1 + 1e-9)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Work], list[int]]:
    types = draw(st.integers(1, 2))
    gpu_counts = draw(st.lists(st.integers(1, 4), min_size=types, max_size=types))
    works = []
    for _ in range(draw(st.integers(1, 4))):
        cells = []
        for _ in range(draw(st.integers(1, 3))):
            kind = draw(st.integers(0, types - 1))
            count = draw(st.integers(1, gpu_counts[kind]))
            cells.append((tuple(count if each == kind else 0 for each in range(types)), draw(st.floats(1.0, 100.0))))
        works.append(work(draw(st.floats(0.0, 100.0)), *cells))
    return works, gpu_counts


def listed_mean_s(
    works: Sequence[Work], gpu_counts: Sequence[int], order: Sequence[int], picks: Sequence[int]
) -> float:
    """The mean where jobs start in this order, each as soon as the group that was picked for it is free."""
    held: list[tuple[float, float, tuple[int, ...]]] = []
    flows = []
    for index, pick in zip(order, picks, strict=True):
        one = works[index]
        cell = one.cells[pick % len(one.cells)]
        ends = sorted({one.submitted_at_s, *(end for _, end, _ in held if end > one.submitted_at_s)})
        start_s = next(at for at in ends if _fits(held, cell, at, gpu_counts))
        held.append((start_s, start_s + cell.time_s, cell.gpu_counts))
        flows.append(start_s + cell.time_s - one.submitted_at_s)
    return math.fsum(flows) / len(flows)


def _fits(
    held: Sequence[tuple[float, float, tuple[int, ...]]], cell: TimedCell, at_s: float, gpu_counts: Sequence[int]
) -> bool:
    instants = [at_s, *(start for start, _, _ in held if at_s < start < at_s + cell.time_s)]
    for instant in instants:
        used = np.sum([counts for start, end, counts in held if start <= instant < end], axis=0)
        if np.any(used + np.array(cell.gpu_counts) > np.array(gpu_counts)):
            return False
    return True


@given(cases(), st.lists(st.integers(0, 2), min_size=4, max_size=4))
@settings(max_examples=40, deadline=None)
def test_no_schedule_is_below_it(case: tuple[list[Work], list[int]], picks: list[int]) -> None:
    works, gpu_counts = case
    found_s = priced_mean_s(works, gpu_counts, stretch_counts=FEW)
    for order in permutations(range(len(works))):
        made_s = listed_mean_s(works, gpu_counts, order, picks[: len(works)])
        assert found_s <= made_s * (1 + 1e-9)
    assert found_s >= bound_of(works, gpu_count=sum(gpu_counts)).alone_s * (1 - 0.02)
