"""Deadlines and budgets of the policy `arena` on any snapshot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.job import JobId
from arena.domain.reason import ReasonCode
from arena.policies.base import Admission, Snapshot
from arena.policies.priced.market import is_due
from arena.policies.priced.policy import PricedPolicy
from arena.policies.priced.timetable import Timetable
from tests.builders import node_info, scaling_grid, snapshot_of, train_spec

sized = settings(max_examples=40, deadline=None)
NODES = [node_info(f"n{index}", gpus=4) for index in range(3)]
GRID = scaling_grid("cpu", [[1], [2], [4], [4, 4]])
RESTART_S = 10.0

wishes = st.lists(
    st.tuples(st.integers(10, 2_000), st.none() | st.floats(1.0, 8.0), st.none() | st.floats(0.01, 3.0)),
    min_size=1,
    max_size=8,
)


def waiting(asked: list[tuple[int, float | None, float | None]]) -> Snapshot:
    """Jobs of so many steps, with a deadline and a budget as multiples of what they need at least."""
    jobs = {}
    for at, (steps, tightness, thrift) in enumerate(asked):
        deadline_s = None if tightness is None else tightness * (RESTART_S + steps / 8**0.8)
        budget_usd = None if thrift is None else thrift * steps
        spec = train_spec(f"j{at}", stop={"steps": steps}, deadline_s=deadline_s, budget_usd=budget_usd)
        jobs[f"j{at}"] = (spec, GRID)
    snapshot = snapshot_of(NODES, jobs, restart_s=RESTART_S, usd_per_hour={"cpu": 3_600.0})
    now_s = snapshot.now_s
    records = {name: replace(job, submitted_at_s=now_s) for name, job in snapshot.jobs.items()}
    return replace(snapshot, jobs=snapshot.jobs.update(records))  # type: ignore[attr-defined]  # an immutable map


def promised(snapshot: Snapshot, job_id: JobId, **fields: float) -> Snapshot:
    job = snapshot.jobs[job_id]
    spec = job.spec.model_copy(update=fields)
    changed = replace(job, spec=spec, is_deadline_promised=True)
    return replace(snapshot, jobs=snapshot.jobs.set(job_id, changed))  # type: ignore[attr-defined]


@sized
@given(asked=wishes)
def test_promises_are_given_one_after_the_other_and_none_breaks_one_before(
    asked: list[tuple[int, float | None, float | None]],
) -> None:
    """Each is asked for with what could be promised before it; all that got one are planned together in the end."""
    policy, snapshot = PricedPolicy(), waiting([(steps, tightness, None) for steps, tightness, _ in asked])
    given_ids = []
    for job_id in snapshot.waiting:
        answer = policy.admission(snapshot, job_id)
        assert (answer is not None) == is_due(snapshot.jobs[job_id], snapshot.now_s)
        if answer is not None and answer.is_promised:
            snapshot = promised(snapshot, job_id)
            given_ids.append(job_id)
    for job_id in snapshot.waiting:
        told = [str(reason.code) for reason in policy.explain(snapshot, job_id)]
        assert ("deadline_kept" in told) == (job_id in given_ids)


@sized
@given(asked=wishes)
def test_the_date_that_is_told_would_have_been_promised(
    asked: list[tuple[int, float | None, float | None]],
) -> None:
    policy, snapshot = PricedPolicy(), waiting([(steps, tightness, None) for steps, tightness, _ in asked])
    for job_id in snapshot.waiting:
        answer = policy.admission(snapshot, job_id)
        if answer is None:
            continue
        if not answer.is_promised:
            assert answer.earliest_end_s is not None
            job = snapshot.jobs[job_id]
            assert job.spec.deadline_s is not None
            assert answer.earliest_end_s > job.submitted_at_s + job.spec.deadline_s
            later = promised(snapshot, job_id, deadline_s=answer.earliest_end_s - job.submitted_at_s + 1e-3)
            again = policy.admission(later, job_id)
            assert again is not None
            assert again.is_promised
        else:
            snapshot = promised(snapshot, job_id)


def test_a_job_that_declares_nothing_is_promised_nothing() -> None:
    snapshot = snapshot_of(NODES, {"a": (train_spec("a", stop={}, deadline_s=1e6), GRID)})
    answer = PricedPolicy().admission(snapshot, JobId("a"))
    assert answer is not None
    assert (answer.is_promised, answer.earliest_end_s) == (False, None)
    assert answer.reason is not None
    assert answer.reason.code is ReasonCode.DEADLINE_UNKNOWN


def test_an_idle_cluster_promises_what_a_job_needs_alone() -> None:
    snapshot = waiting([(1_000, 3.0, None)])
    assert PricedPolicy().admission(snapshot, JobId("j0")) == Admission(
        is_promised=True, earliest_end_s=snapshot.now_s + 3.0 * (RESTART_S + 1_000 / 8**0.8)
    )


@sized
@given(asked=wishes)
def test_nobody_starts_on_what_it_cannot_pay(asked: list[tuple[int, float | None, float | None]]) -> None:
    """A GPU costs a dollar a second here, so what a job costs is what it holds."""
    snapshot = waiting(asked)
    for job_id, choice in PricedPolicy().decide(snapshot).choices.items():
        job = snapshot.jobs[job_id]
        if choice is None or job.spec.budget_usd is None:
            continue
        assert choice.estimate is not None
        assert job.spec.stop.steps is not None
        held_s = RESTART_S + job.spec.stop.steps * choice.estimate.iter_time_s
        assert held_s * choice.group.gpu_count <= job.spec.budget_usd * (1 + 1e-9)


@sized
@given(asked=wishes)
def test_who_has_neither_deadline_nor_budget_is_decided_about_as_ever(
    asked: list[tuple[int, float | None, float | None]],
) -> None:
    """Deadlines that have passed and budgets without prices change nothing, bit by bit."""
    plain = waiting([(steps, None, None) for steps, _, _ in asked])
    late = waiting([(steps, tightness, None) for steps, tightness, _ in asked])
    past = {name: replace(job, submitted_at_s=late.now_s - 1e9) for name, job in late.jobs.items()}
    old = {name: replace(job, submitted_at_s=late.now_s - 1e9) for name, job in plain.jobs.items()}
    rich = replace(waiting([(steps, None, thrift) for steps, _, thrift in asked]), usd_per_hour={})
    policy = PricedPolicy()
    assert policy.decide(rich) == policy.decide(plain)
    one = policy.decide(replace(late, jobs=late.jobs.update(past)))  # type: ignore[attr-defined]
    other = policy.decide(replace(plain, jobs=plain.jobs.update(old)))  # type: ignore[attr-defined]
    assert one.choices == other.choices


pieces = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40), st.integers(1, 30)), max_size=8)


@sized
@given(taken=pieces, count=st.integers(1, 4), length=st.integers(1, 40), until=st.integers(1, 80))
def test_the_latest_and_the_earliest_stretch_are_those_of_a_search_second_by_second(
    taken: list[tuple[int, int, int]], count: int, length: int, until: int
) -> None:
    room, free = Timetable(0.0, np.array([4.0])), [4] * 200
    for amount, start, duration in taken:
        room.take(np.array([float(amount)]), float(start), float(start + duration))
        for second in range(start, start + duration):
            free[second] -= amount
    starts = [at for at in range(150) if all(left >= count for left in free[at : at + length])]
    fitting = [at for at in starts if at + length <= until]
    assert room.latest(np.array([float(count)]), float(length), float(until)) == (max(fitting) if fitting else None)
    assert room.earliest(np.array([float(count)]), float(length)) == min(starts)


@sized
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 4), length=st.integers(1, 400), until=st.integers(1, 900))
def test_the_latest_stretch_is_found_among_hundreds_of_intervals(
    seed: int, count: int, length: int, until: int
) -> None:
    rng = np.random.default_rng(seed)
    room, free = Timetable(0.0, np.array([4.0])), np.full(2_000, 4.0)
    for start, duration in zip(rng.integers(0, 850, 150).tolist(), rng.integers(1, 9, 150).tolist(), strict=True):
        room.take(np.array([1.0]), float(start), float(start + duration))
        free[start : start + duration] -= 1.0
    fits = [at for at in range(until - length + 1) if (free[at : at + length] >= count).all()]
    assert room.latest(np.array([float(count)]), float(length), float(until)) == (max(fits) if fits else None)
