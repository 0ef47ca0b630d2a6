"""What is believed of a job's length after others have ended, and that it does not pay to declare less."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import pytest

from arena.domain.history import LengthHistory
from arena.domain.job import JobId, JobSpec
from arena.domain.records import JobState, Progress
from arena.policies.base import Snapshot
from arena.policies.length_beliefs import LengthBelief, belief
from arena.policies.length_estimates import BeliefSource, LengthPrior
from tests.builders import (
    allocation_on,
    cell,
    command_spec,
    grid_of,
    holding_of,
    job_record,
    node_info,
    snapshot_of,
    train_spec,
)

JOB = JobId("a")


def history(*jobs: tuple[str, int, int | None], layers: int = 4, gpu_s_per_step: float = 2.0) -> LengthHistory:
    """What jobs have taught, each of (user, steps, declared steps)."""
    found = LengthHistory()
    for index, (user, steps, declared) in enumerate(jobs):
        stop = {} if declared is None else {"steps": declared}
        found = found.after(
            job_record(
                f"old{index:05}",
                train_spec("old", model={"layers": layers}, stop=stop),
                user=user,
                state=JobState.SUCCEEDED,
                ended_at_s=float(index),
                gpu_seconds=gpu_s_per_step * steps,
                progress=Progress(step=steps),
            )
        )
    return found


def seen(spec: JobSpec, past: LengthHistory | None = None, **fields: Any) -> Snapshot:
    """A snapshot of one waiting job, by ann."""
    return snapshot_of([node_info()], {JOB: (spec, grid_of())}, history=past or LengthHistory(), **fields)


def declared(steps: int = 1000) -> JobSpec:
    return train_spec("job", stop={"steps": steps})


UNDECLARED = train_spec("job", stop={})


def test_declarations_that_were_right_are_believed_after_a_handful() -> None:
    sigmas = [belief(seen(declared(), history(*[("ann", 700, 700)] * count)), JOB, 1.0).sigma for count in (0, 1, 5)]
    assert sigmas[0] == 0.5
    assert sigmas[1] < 0.2
    assert sigmas[2] < 0.05


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 2.0])
def test_the_spread_of_errors_is_learned(sigma: float) -> None:
    rng = random.Random(3)
    past = history(*[(f"u{n % 40}", max(1, round(9000 * math.exp(rng.gauss(0, sigma)))), 9000) for n in range(400)])
    found = belief(seen(declared(), past), JOB, 1.0)  # ann has no history of her own
    assert found.sigma == pytest.approx(sigma, rel=0.1)
    assert found.median_steps == pytest.approx(1000.0, rel=0.15)
    assert found.source is BeliefSource.DECLARED


def test_who_overruns_each_time_is_believed_to_overrun_again_and_nobody_else() -> None:
    past = history(*[("ann", 2000, 1000), ("bob", 1000, 1000)] * 10)
    anns = belief(seen(declared(), past), JOB, 1.0)
    assert anns.median_steps == pytest.approx(2000.0, rel=0.05)
    carls = belief(seen(declared(), history(*[("zoe", 2000, 1000)] + [("bob", 1000, 1000)] * 20)), JOB, 1.0)
    assert carls.median_steps == pytest.approx(1000.0, rel=0.1)


def test_where_declarations_scatter_long_ones_are_believed_less_than_short_ones() -> None:
    # Lengths and errors of the same spread: half of what sets a declaration apart is its error.
    rng = random.Random(11)
    lengths = [math.exp(rng.gauss(7.0, 1.0)) for _ in range(2000)]
    jobs = [("bob", max(1, round(one)), max(1, round(one * math.exp(rng.gauss(0.0, 1.0))))) for one in lengths]
    found = [belief(seen(declared(steps), history(*jobs)), JOB, 1.0) for steps in (148, 1097, 8103)]  # e^5, e^7, e^9
    assert [one.median_steps for one in found] == pytest.approx([math.exp(one) for one in (6.0, 7.0, 8.0)], rel=0.2)
    assert {round(one.sigma, 1) for one in found} == {0.7}  # sqrt(1/2) of the errors is left


def test_where_declarations_are_right_long_ones_are_believed_as_well() -> None:
    past = history(*[("bob", steps, steps) for steps in (10, 100, 1000, 10_000)])
    assert belief(seen(declared(100_000), past), JOB, 1.0).median_steps == pytest.approx(100_000.0, rel=1e-3)


def test_a_prior_without_spread_believes_what_is_declared() -> None:
    found = belief(seen(declared()), JOB, 1.0, prior=LengthPrior(declared_sigma=0.0))
    assert found.effective_remaining_steps(250.0) == 750.0
    assert found.effective_remaining_steps(1500.0) == 1500.0


def test_the_same_work_of_the_user_says_more_than_other_work_and_that_more_than_that_of_others() -> None:
    others = [("bob", 50_000, None)] * 20
    by_workload = history(*others, *[("ann", 300, None)] * 10)
    by_user = history(*others, *[("ann", 300, None)] * 10, layers=8)
    found = [belief(seen(UNDECLARED, past), JOB, 2.0) for past in (by_workload, by_user, history(*others))]
    assert [one.source for one in found] == [BeliefSource.WORKLOAD, BeliefSource.USER, BeliefSource.CLUSTER]
    assert found[0].median_steps == pytest.approx(300.0, rel=0.3)
    assert 300.0 < (found[1].median_steps or 0.0) < 1000.0
    assert found[2].median_steps == pytest.approx(50_000.0, rel=0.01)
    assert found[0].sigma < found[1].sigma


def test_lengths_of_other_work_are_translated_by_gpu_seconds() -> None:
    past = history(*[("bob", 1000, None)] * 5, gpu_s_per_step=8.0)
    assert belief(seen(UNDECLARED, past), JOB, 2.0).median_steps == pytest.approx(4000.0, rel=0.01)


def test_of_what_nothing_is_known_as_much_is_left_as_was_done_and_at_first_the_floor() -> None:
    found = belief(seen(UNDECLARED), JOB, 2.0, floor_gpu_s=100.0)
    assert (found.source, found.median_steps) == (BeliefSource.ATTAINED, None)
    assert found.effective_remaining_steps(0.0) == 50.0
    assert found.effective_remaining_steps(800.0) == 800.0
    assert found.quantile_remaining_steps(800.0, 0.5) == found.mean_remaining_steps(800.0) == 800.0


@pytest.mark.parametrize(("spec", "steps"), [(UNDECLARED, 450.0), (declared(100_000), 450.0), (declared(30), 30.0)])
def test_no_more_is_left_than_the_time_limit_allows(spec: JobSpec, steps: float) -> None:
    limited = spec.model_copy(update={"stop": spec.stop.model_copy(update={"time_limit_s": 900.0})})
    found = belief(seen(limited), JOB, 2.0, floor_gpu_s=1e6, prior=LengthPrior(declared_sigma=0.0))
    assert found.effective_remaining_steps(0.0) == steps


def test_a_running_job_has_the_rest_of_its_time_at_its_pace() -> None:
    grid = grid_of(cell("cpu", [2], 0.5))
    spec = train_spec("job", stop={"time_limit_s": 900.0})
    running: Mapping[str, Any] = {JOB: holding_of(grid, allocation_on(("n1", [0, 1])), since_s=400.0)}
    snapshot = snapshot_of([node_info()], {JOB: (spec, grid)}, running=running, now_s=1000.0)
    found = belief(snapshot, JOB, 1.0, floor_gpu_s=1e6)
    assert found.effective_remaining_steps(0.0) == 600.0  # 300 of 900 s are left, at 2 steps a second


def test_a_command_that_makes_no_steps_is_known_by_its_gpu_seconds() -> None:
    past = LengthHistory()
    for index in range(20):
        past = past.after(
            job_record(
                f"c{index}",
                command_spec("c"),
                user="ann",
                state=JobState.SUCCEEDED,
                ended_at_s=float(index),
                gpu_seconds=7200.0,
            )
        )
    found = belief(seen(command_spec("c", count=2), past), JOB, 2.0)
    assert (found.source, found.median_steps) == (BeliefSource.WORKLOAD, pytest.approx(3600.0, rel=0.01))
    assert found.sigma < 0.3


LENGTH = 100


def ends(first: tuple[int, LengthBelief], second: tuple[int, LengthBelief]) -> tuple[int, int]:
    """When two jobs of (length, belief) end on one machine that serves the least effective remaining work."""
    jobs, done, ended = (first, second), [0, 0], [0, 0]
    for now in range(1, first[0] + second[0] + 1):
        waiting = [index for index in (0, 1) if not ended[index]]
        served = min(waiting, key=lambda index: jobs[index][1].effective_remaining_steps(done[index]))
        done[served] += 1
        if done[served] == jobs[served][0]:
            ended[served] = now
    return ended[0], ended[1]


@pytest.mark.parametrize("rival", [30, 45, 55, 75, 97, 103, 150])
@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("sigma", [0.0, 0.05])
def test_declaring_less_ends_no_sooner_and_keeps_others_waiting(rival: int, share: float, sigma: float) -> None:
    others = rival, LengthBelief(median_steps=float(rival), sigma=sigma)
    right = ends((LENGTH, LengthBelief(median_steps=float(LENGTH), sigma=sigma)), others)
    less = ends((LENGTH, LengthBelief(median_steps=share * LENGTH, sigma=sigma)), others)
    assert less[0] >= right[0]
    assert sum(less) >= sum(right)


def test_declaring_less_delays_others_for_nothing() -> None:
    rival = 45, LengthBelief(median_steps=45.0, sigma=0.0)
    right = ends((LENGTH, LengthBelief(median_steps=100.0, sigma=0.0)), rival)
    less = ends((LENGTH, LengthBelief(median_steps=25.0, sigma=0.0)), rival)
    assert right == (145, 45)
    assert less[0] == 145
    assert less[1] > 45
