"""What must hold of every belief about a length, whatever is declared, known and done."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from immutables import Map
from scipy.stats import lognorm

from arena.domain.history import LengthHistory
from arena.domain.job import JobId
from arena.domain.records import JobRecord, JobState, Progress
from arena.policies.base import Snapshot
from arena.policies.gittins import SIGMA_MIN, gittins_table
from arena.policies.length_beliefs import STEPS_MIN, LengthBelief, belief, effective_remaining
from tests.builders import command_spec, job_record, node_info, snapshot_of, train_spec

sigmas = st.floats(0.01, 2.5)
medians = st.floats(1.0, 1e6)
shares = st.floats(0.0, 8.0)
beliefs = st.builds(
    LengthBelief,
    median_steps=medians | st.none(),
    sigma=st.just(0.0) | sigmas,
    floor_steps=st.floats(0.01, 1e4),
    limit_steps=st.just(math.inf) | st.floats(1.0, 1e6),
)


def remaining(median: float, sigma: float, done: float, doubt: float) -> float:
    return float(gittins_table(doubt).remaining(np.array([median]), np.array([sigma]), np.array([done]))[0])


@settings(deadline=None)
@given(sigma=sigmas, share=shares)
def test_it_is_no_more_than_serving_to_the_end_or_for_an_instant_costs(sigma: float, share: float) -> None:
    if math.log(max(share, 1e-9)) > 6.0 * sigma:
        return  # a log-normal length alone has all but certainly ended
    length = lognorm(sigma)
    found = remaining(1.0, sigma, share, 0.0)
    to_the_end = math.exp(sigma**2 / 2) * float(lognorm.sf(share, sigma, scale=math.exp(sigma**2))) / length.sf(share)
    assert found <= (to_the_end - share) * 1.01 + 1e-9
    if share > 1e-9:  # what is left of the density below that is no number to compare with
        with np.errstate(divide="ignore", over="ignore"):
            assert found <= np.float64(length.sf(share)) / np.float64(length.pdf(share)) * 1.01


@settings(deadline=None)
@given(sigma=sigmas, median=medians, share=shares, factor=st.floats(1e-3, 1e3))
def test_it_scales_with_the_unit_of_work(sigma: float, median: float, share: float, factor: float) -> None:
    one = LengthBelief(median_steps=median, sigma=sigma).effective_remaining_steps(share * median)
    other = LengthBelief(median_steps=factor * median, sigma=sigma)
    scaled = other.effective_remaining_steps(share * factor * median)
    assert scaled == pytest.approx(max(factor * one, STEPS_MIN), rel=1e-3)


@settings(deadline=None)
@given(sigma=st.floats(0.0, 0.3), share=st.floats(0.0, 0.999))
def test_the_surer_the_length_the_nearer_to_what_is_left(sigma: float, share: float) -> None:
    left = LengthBelief(median_steps=1000.0, sigma=sigma).effective_remaining_steps(1000.0 * share)
    # 1 % of declarations are doubted: an end costs so much more.
    assert left == pytest.approx(1000.0 * (1.0 - share), abs=1000.0 * (min(sigma, 0.01) + 1.05 * sigma) + 1e-6)


@settings(deadline=None)
@given(sigma=st.floats(0.0, 0.5), share=st.floats(1.0, 50.0))
def test_past_all_likelihood_it_is_what_has_been_done(sigma: float, share: float) -> None:
    done = 1000.0 * share * math.exp(5.0 * max(sigma, SIGMA_MIN))  # nothing is surer than the table's least sigma
    left = LengthBelief(median_steps=1000.0, sigma=sigma).effective_remaining_steps(done)
    assert left == pytest.approx(done, rel=0.02)


@settings(deadline=None)
@given(sigma=sigmas, score=st.floats(3.0, 7.0), factor=st.floats(1.0, 3.0))
def test_past_its_declaration_a_job_only_sinks(sigma: float, score: float, factor: float) -> None:
    one = LengthBelief(median_steps=1000.0, sigma=sigma)
    done = 1000.0 * math.exp(sigma * score)
    assert one.effective_remaining_steps(done * factor) >= one.effective_remaining_steps(done) * (1.0 - 1e-9)


@settings(deadline=None)
@example(one=LengthBelief(median_steps=2.0, sigma=1.0), done=5e-324, low=0.5)
@given(one=beliefs, done=st.floats(0.0, 2e6), low=st.floats(0.01, 0.98))
def test_something_is_always_left_and_never_more_than_time_allows(one: LengthBelief, done: float, low: float) -> None:
    left = [one.effective_remaining_steps(done), one.mean_remaining_steps(done)]
    left += [one.quantile_remaining_steps(done, share) for share in (low, (1.0 + low) / 2)]
    assert all(STEPS_MIN <= steps <= max(one.limit_steps - done, STEPS_MIN) for steps in left)
    assert left[2] <= left[3]


@settings(deadline=None)
@given(sigma=sigmas, share=shares, wanted=st.floats(0.02, 0.9))
def test_a_quantile_is_the_share_of_jobs_that_have_ended_by_then(sigma: float, share: float, wanted: float) -> None:
    def going(steps: float) -> float:
        sure = float(lognorm.sf(steps, sigma, scale=1000.0))
        return 0.99 * sure + 0.01 * min(1.0, 1000.0 / max(steps, 1e-300))

    done = 1000.0 * share
    left = LengthBelief(median_steps=1000.0, sigma=sigma).quantile_remaining_steps(done, wanted)
    if left > STEPS_MIN:
        assert going(done + left) == pytest.approx((1.0 - wanted) * going(done), rel=1e-4)


users, workloads = st.sampled_from(["ann", "bob", "cy"]), st.integers(1, 3)


@st.composite
def ended_jobs(draw: st.DrawFn) -> list[JobRecord]:
    drawn = draw(st.lists(st.tuples(users, workloads, st.booleans(), st.integers(1, 10_000)), max_size=12))
    return [
        job_record(
            f"old{index}",
            train_spec("old", model={"layers": layers}, stop={"steps": 1000} if is_told else {}),
            user=user,
            state=JobState.SUCCEEDED,
            ended_at_s=float(index // 2),
            gpu_seconds=2.5 * steps,
            progress=Progress(step=steps),
        )
        for index, (user, layers, is_told, steps) in enumerate(drawn)
    ]


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    stops = st.sampled_from([{}, {"steps": 700}, {"tokens": 400_000}, {"time_limit_s": 500.0}, {"steps": 9}])
    drawn = draw(st.lists(st.tuples(users, workloads, stops, st.booleans()), min_size=1, max_size=8))
    jobs = {
        JobId(f"j{index}"): job_record(
            f"j{index}",
            command_spec("c", stop=stop) if is_command else train_spec("t", model={"layers": layers}, stop=stop),
            user=user,
        )
        for index, (user, layers, stop, is_command) in enumerate(drawn)
        if not (is_command and "tokens" in stop)
    }
    empty = snapshot_of([node_info()], {})
    return replace(empty, jobs=Map(jobs), history=LengthHistory.of(draw(ended_jobs())))


@settings(max_examples=60, deadline=None)
@given(snapshot=snapshots(), done=st.floats(0.0, 5000.0), cost=st.floats(0.01, 100.0))
def test_many_jobs_at_once_are_believed_what_each_is(snapshot: Snapshot, done: float, cost: float) -> None:
    job_ids = sorted(snapshot.jobs)
    costs = cost * np.arange(1, len(job_ids) + 1)
    steps = done / np.arange(1, len(job_ids) + 1)
    together = effective_remaining(snapshot, job_ids, costs, steps)
    alone = [
        belief(snapshot, job_id, one_cost).effective_remaining_steps(one_done)
        for job_id, one_cost, one_done in zip(job_ids, costs.tolist(), steps.tolist(), strict=True)
    ]
    assert together.tolist() == alone


@settings(max_examples=60, deadline=None)
@given(jobs=ended_jobs(), data=st.data())
def test_a_history_does_not_depend_on_how_it_was_put_together(jobs: list[JobRecord], data: st.DataObject) -> None:
    grown = LengthHistory()
    for job in jobs:
        grown = grown.after(job)
    rebuilt = LengthHistory.of(data.draw(st.permutations(jobs)))
    assert rebuilt == grown
    assert rebuilt.ended == grown.ended
