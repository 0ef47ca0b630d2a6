"""Figures of a replay by hand: windows, fairness, sizes, deadlines, step functions, intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from arena.cli.replay_results import Study
from arena.cli.replay_tables import tables_of
from arena.domain.job import JobId
from arena.domain.records import JobState
from arena.sim.bootstrap import paired_ratio
from arena.sim.figures import (
    Need,
    Window,
    binned,
    figures,
    finish_time_fairness,
    held_gpu_seconds,
    size_class,
    steady_window,
    window_figures,
)
from arena.sim.ledger import JobOutcome, Ledger


def outcome(
    name: str,
    submitted_at_s: float,
    started_at_s: float,
    ended_at_s: float,
    *,
    state: JobState = JobState.SUCCEEDED,
    held_s: float | None = None,
) -> JobOutcome:
    return JobOutcome(
        job_id=JobId(name),
        submitted_at_s=submitted_at_s,
        first_started_at_s=started_at_s,
        ended_at_s=ended_at_s,
        state=state,
        gpu_count=1,
        gpu_seconds=ended_at_s - started_at_s,
        lost_gpu_seconds=0.0,
        attempt_count=1,
        held_s=ended_at_s - started_at_s if held_s is None else held_s,
    )


def need(
    gpu_count: int = 1, alone_s: float = 100.0, deadline_s: float | None = None, *, is_longer: bool = False
) -> Need:
    return Need(gpu_count=gpu_count, alone_s=alone_s, deadline_s=deadline_s, is_longer=is_longer)


def test_the_steady_window_is_set_by_submissions_alone() -> None:
    assert steady_window([float(index) for index in range(11)]) == Window(from_s=1.0, to_s=9.0)
    assert steady_window([5.0, 5.0, 5.0]) is None
    assert steady_window([]) is None


def test_fairness_is_one_for_who_runs_alone_and_counts_what_others_ask_for() -> None:
    """One GPU, two jobs at once of 100 s each: two contend for it, then one is left for half of the second's stay."""
    outcomes = [outcome("a", 0.0, 0.0, 100.0), outcome("b", 0.0, 100.0, 200.0)]
    needs = {JobId("a"): need(), JobId("b"): need()}
    found = finish_time_fairness(outcomes, needs, gpu_count=1)
    assert found == {"a": pytest.approx(100 / (100 * 2.0)), "b": pytest.approx(200 / (100 * 1.5))}
    alone = finish_time_fairness([outcomes[0]], needs, gpu_count=4)
    assert alone == {"a": pytest.approx(1.0)}


def test_a_job_that_waits_on_an_idle_cluster_is_treated_unfairly() -> None:
    outcomes = [outcome("a", 0.0, 50.0, 150.0), outcome("b", 200.0, 200.0, 300.0)]
    needs = {JobId("a"): need(), JobId("b"): need()}
    rhos = finish_time_fairness(outcomes, needs, gpu_count=8)
    found = figures(Ledger(outcomes=outcomes, busy=[(50.0, 1)]), needs, gpu_count=8, rhos=rhos)
    assert (found.rho_max, found.unfair_share) == (pytest.approx(1.5), 0.5)


def test_deadlines_are_met_by_who_succeeds_in_time() -> None:
    outcomes = [
        outcome("met", 10.0, 10.0, 60.0),
        outcome("late", 10.0, 10.0, 61.0),
        outcome("cancelled", 10.0, 10.0, 20.0, state=JobState.CANCELLED),
        outcome("free", 10.0, 10.0, 900.0),
    ]
    due = need(deadline_s=50.0)
    needs = {JobId(name): due for name in ("met", "late", "cancelled", "unfinished")} | {JobId("free"): need()}
    rhos = finish_time_fairness(outcomes, needs, gpu_count=8)
    found = figures(Ledger(outcomes=outcomes, busy=[(10.0, 4)]), needs, gpu_count=8, rhos=rhos)
    assert (found.deadline_count, found.deadline_met_count, found.cancelled_count) == (4, 1, 1)
    assert found.summary.unfinished_count == 1


def test_deadlines_of_jobs_that_their_users_cancelled_are_counted_apart_under_every_policy() -> None:
    due = need(deadline_s=50.0)
    needs = {JobId(name): replace(due, is_cancelled=name != "met") for name in ("met", "early", "late", "unfinished")}
    needs[JobId("free")] = replace(need(), is_cancelled=True)
    ended = {"met": 60.0, "early": 20.0, "late": 61.0, "free": 30.0}
    outcomes = [
        outcome(name, 10.0, 10.0, at_s, state=JobState.SUCCEEDED if name == "met" else JobState.CANCELLED)
        for name, at_s in ended.items()
    ]
    rhos = finish_time_fairness(outcomes, needs, gpu_count=8)
    found = figures(Ledger(outcomes=outcomes, busy=[(10.0, 4)]), needs, gpu_count=8, rhos=rhos)
    assert (found.deadline_count, found.deadline_met_count, found.deadline_cancelled_count) == (4, 1, 3)


def test_who_is_late_with_more_to_do_than_it_declared_is_counted_apart() -> None:
    names = ("met", "long and met", "late", "long and late", "long and unfinished", "long and free")
    outcomes = [outcome(name, 10.0, 10.0, 60.0 if "met" in name else 61.0) for name in names if "unfin" not in name]
    needs = {
        JobId(name): need(deadline_s=None if "free" in name else 50.0, is_longer=name.startswith("long"))
        for name in names
    }
    rhos = finish_time_fairness(outcomes, needs, gpu_count=8)
    found = figures(Ledger(outcomes=outcomes, busy=[(10.0, 4)]), needs, gpu_count=8, rhos=rhos)
    assert (found.deadline_count, found.deadline_met_count, found.deadline_overrun_count) == (5, 2, 2)


def test_time_without_gpus_counts_as_waiting_and_slows_down_whenever_it_is() -> None:
    """Alone 100 s: one waits 100 s before it starts, one is suspended for 200 s, one is done in half the time."""
    outcomes = [
        outcome("late", 0.0, 100.0, 200.0),
        outcome("held", 0.0, 0.0, 300.0, held_s=100.0),
        outcome("fast", 0.0, 0.0, 50.0),
    ]
    needs = {JobId(name): need() for name in ("late", "held", "fast")}
    rhos = finish_time_fairness(outcomes, needs, gpu_count=8)
    ledger = Ledger(outcomes=outcomes, busy=[(0.0, 3)])
    found = figures(ledger, needs, gpu_count=8, rhos=rhos)
    assert found.summary.avg_bounded_slowdown == pytest.approx((2.0 + 3.0 + 1.0) / 3)
    assert found.summary.queue_s == pytest.approx((100.0 + 200.0 + 0.0) / 3)
    tiny = {JobId("late"): need(alone_s=1.0)}
    found = figures(Ledger(outcomes=outcomes[:1], busy=[(0.0, 1)]), tiny, gpu_count=8, rhos=rhos)
    assert found.summary.avg_bounded_slowdown == pytest.approx(20.0)


def test_jobs_are_classed_by_the_gpus_that_they_ask_for() -> None:
    assert [size_class(count) for count in (1, 2, 4, 5, 8, 9, 17, 64, 65, 1000)] == [
        *("1", "2-4", "2-4", "5-8", "5-8", "9-16", "17-64", "17-64", "65+", "65+")
    ]
    outcomes = [outcome("a", 0.0, 0.0, 10.0), outcome("b", 0.0, 0.0, 30.0), outcome("c", 0.0, 0.0, 50.0)]
    needs = {JobId("a"): need(1), JobId("b"): need(3), JobId("c"): need(200)}
    rhos = finish_time_fairness(outcomes, needs, gpu_count=8)
    found = figures(Ledger(outcomes=outcomes, busy=[(0.0, 3)]), needs, gpu_count=8, rhos=rhos)
    assert found.p99_jct_s_by_size == {"1": 10.0, "2-4": 30.0, "65+": 50.0}


def test_a_step_function_is_integrated_exactly() -> None:
    busy = [(10.0, 2), (20.0, 5), (30.0, 0)]
    assert held_gpu_seconds(busy, Window(from_s=0.0, to_s=100.0)) == 70.0
    assert held_gpu_seconds(busy, Window(from_s=15.0, to_s=25.0)) == 35.0
    assert binned(busy, np.array([0.0, 20.0, 40.0])).tolist() == [1.0, 2.5]
    assert binned([], np.array([0.0, 20.0])).tolist() == [0.0]


def test_a_window_holds_its_jobs_and_its_own_utilisation() -> None:
    outcomes = [outcome("before", 0.0, 0.0, 10.0), outcome("inside", 20.0, 20.0, 60.0)]
    needs = {JobId("inside"): need()}
    busy = [(0.0, 1), (10.0, 0), (20.0, 1), (60.0, 0)]
    rhos = {JobId("before"): 1.0, JobId("inside"): 1.0}
    window = Window(from_s=10.0, to_s=30.0)
    found = window_figures(Ledger(outcomes=outcomes, busy=busy), needs, window, gpu_count=2, rhos=rhos)
    assert (found.summary.job_count, found.summary.avg_jct_s) == (1, 40.0)
    assert found.summary.utilisation == pytest.approx(10.0 / 40.0)


def test_a_ratio_that_is_the_same_for_every_seed_is_certain() -> None:
    ratio = paired_ratio([50.0, 100.0, 450.0], [100.0, 200.0, 900.0], seed=1)
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == (pytest.approx(0.5), pytest.approx(0.5), pytest.approx(0.5))


def test_an_interval_holds_the_ratio_and_is_the_same_twice() -> None:
    values, firsts = [80.0, 130.0, 90.0, 100.0], [100.0, 100.0, 100.0, 100.0]
    ratio = paired_ratio(values, firsts, seed=1)
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    assert 0.8 <= ratio.low < ratio.value < ratio.high <= 1.3
    assert ratio == paired_ratio(values, firsts, seed=1)


def test_one_seed_has_no_interval_and_nothing_has_no_ratio() -> None:
    ratio = paired_ratio([80.0], [100.0], seed=1)
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == (0.8, None, None)
    assert paired_ratio([float("nan")], [100.0], seed=1) is None
    assert paired_ratio([1.0], [0.0], seed=1) is None


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ((10, 4, 1, 2), ["fcfs", "10", "4", "50.0", "1", "2"]),
        ((2, 0, 0, 2), ["fcfs", "2", "0", "-", "0", "2"]),
        ((3, 3, 0, 0), ["fcfs", "3", "3", "100.0", "0", "0"]),
    ],
)
def test_the_share_of_deadlines_met_leaves_out_who_was_cancelled(counts: tuple[int, ...], shown: list[str]) -> None:
    names = ("count", "met_count", "overrun_count", "cancelled_count")
    whole = {f"deadline_{name}": count for name, count in zip(names, counts, strict=True)}
    run = {"policy": "fcfs", "seed": 0, "whole": whole, "steady": None, "window": None, "tenants": []}
    [found] = [
        table
        for table in tables_of(Study(policies=("fcfs",), seeds=(0,), runs=(run,)))
        if table.title.startswith("DEADLINES")
    ]
    assert list(found.rows[0]) == shown
