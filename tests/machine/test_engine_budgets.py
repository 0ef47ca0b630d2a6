"""Budgets in the engine: what attempts cost is counted, and who has nothing left is saved and held."""

from __future__ import annotations

import pytest

from arena.domain.events import (
    AttemptEnded,
    AttemptStarted,
    GridBuilt,
    JobSubmitted,
    JobWishChanged,
    NodeRegistered,
    Tick,
)
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import NodeId
from arena.domain.reason import ReasonCode
from arena.domain.records import AttemptState, EndKind, EntryKind, JobState, NodeEnd, Wish
from arena.engine.config import EngineConfig
from arena.engine.engine import Engine
from arena.engine.spending import PROGRAM_STOP_S
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from tests.builders import command_spec, node_info, train_spec
from tests.fakes.grids import PowerLawGrids

A = JobId("a")
USD_PER_S = 0.01
CONFIG = EngineConfig(shape_settle_s=0.0, usd_per_hour={"cpu": 3600.0 * USD_PER_S})


def running(spec: JobSpec, policy: str = "arena") -> Simulation:
    """Two GPUs of a cent a second, and a job on them."""
    sim = Simulation(policy=make_policy(policy), grids=PowerLawGrids(), config=CONFIG, check=True)
    sim.at(0.0, NodeRegistered(info=node_info("n1")))
    sim.at(1.0, JobSubmitted(job_id=A, spec=spec, user="ann", request_id="a"))
    return sim


@pytest.mark.parametrize("policy", ["arena", "fcfs"])
def test_who_has_spent_its_budget_is_saved_and_held_until_it_is_cancelled(policy: str) -> None:
    sim = running(train_spec("a", stop={}, budget_usd=2.0), policy)
    sim.run(until_s=1_000.0)
    job = sim.engine.state.jobs[A]
    assert (job.state, job.wish) == (JobState.HELD, Wish.HOLD)
    (why,) = job.reasons
    assert (why.code, why.numbers["budget_usd"]) == (ReasonCode.BUDGET_SPENT, 2.0)
    grace_usd = job.spec.grace_s * 2 * USD_PER_S
    assert 2.0 - grace_usd <= job.spent_usd <= 2.0  # what it takes to save is within the budget
    assert job.spent_usd == pytest.approx(job.gpu_seconds * USD_PER_S)
    assert job.progress.durable_step > 0
    sim.engine.handle(JobWishChanged(job_id=A, wish="run", by="ann"), 1_001.0)
    sim.engine.handle(Tick(), 1_100.0)
    assert sim.engine.state.jobs[A].state is JobState.HELD
    sim.engine.handle(JobWishChanged(job_id=A, wish="cancel", by="ann"), 1_101.0)
    assert A not in sim.engine.state.jobs


@pytest.mark.parametrize("grace_s", [0.5, 30.0, 600.0])
@pytest.mark.parametrize("budget_usd", [0.1, 0.5, 2.0])
def test_a_program_has_its_whole_budget_for_what_it_does(budget_usd: float, grace_s: float) -> None:
    """It starts anew when it is released: nothing is kept for saving, only the usual time of a stop."""
    sim = running(command_spec("a", budget_usd=budget_usd, grace_s=grace_s), "fcfs")
    sim.run(until_s=1_000.0)
    job = sim.engine.state.jobs[A]
    assert (job.state, job.wish) == (JobState.HELD, Wish.HOLD)
    asked = [one for step in sim.steps for one in step.attempts if one.stop_requested_at_s is not None]
    assert asked[0].stop_mode == "save"  # asked, not killed
    assert asked[0].stop_requested_at_s is not None
    paid_s = budget_usd / USD_PER_S
    assert asked[0].stop_requested_at_s - asked[0].launched_at_s >= paid_s - PROGRAM_STOP_S - 1e-6
    assert asked[0].stop_requested_at_s - asked[0].launched_at_s < paid_s


def test_who_has_spent_its_budget_goes_on_where_it_was_with_a_larger_one() -> None:
    sim = running(train_spec("a", stop={}, budget_usd=2.0))
    sim.run(until_s=1_000.0)
    saved_step = sim.engine.state.jobs[A].progress.durable_step
    for budget_usd in (1.0, sim.engine.state.jobs[A].spent_usd):  # has cost that much already
        sim.engine.handle(JobWishChanged(job_id=A, wish="run", by="ann", budget_usd=budget_usd), 1_001.0)
        assert (sim.engine.state.jobs[A].state, sim.engine.state.jobs[A].spec.budget_usd) == (JobState.HELD, 2.0)
    sim.at(1_002.0, JobWishChanged(job_id=A, wish="run", by="ann", budget_usd=5.0))
    sim.run(until_s=1_010.0)
    assert sim.engine.state.jobs[A].state is JobState.RUNNING
    sim.run(until_s=2_000.0)
    job = sim.engine.state.jobs[A]
    assert (job.state, job.spec.budget_usd) == (JobState.HELD, 5.0)
    assert 3.0 < job.spent_usd <= 5.0
    assert job.progress.durable_step > saved_step > 0
    (entry,) = (entry for step in sim.steps for entry in step.history if entry.kind is EntryKind.JOB_BUDGET)
    assert entry.message == "its budget is 5 USD now, by ann"


def test_a_budget_that_is_raised_in_time_keeps_a_job_running() -> None:
    sim = running(train_spec("a", stop={}, budget_usd=2.0))
    sim.at(30.0, JobWishChanged(job_id=A, wish="run", by="ann", budget_usd=8.0))
    sim.run(until_s=150.0)
    job = sim.engine.state.jobs[A]
    assert (job.state, job.epoch) == (JobState.RUNNING, 1)
    sim.run(until_s=1_000.0)
    assert sim.engine.state.jobs[A].state is JobState.HELD
    assert sim.engine.state.jobs[A].spent_usd <= 8.0


def test_a_job_that_waits_for_a_larger_budget_starts_when_it_has_one() -> None:
    sim = running(train_spec("a", stop={"steps": 100}, budget_usd=0.5))
    sim.at(50.0, JobWishChanged(job_id=A, wish="run", by="ann", budget_usd=3.0))
    sim.run(until_s=1_000.0)
    assert sim.ended[A].state is JobState.SUCCEEDED


@pytest.mark.parametrize("is_up", [False, True])
def test_who_hangs_while_it_starts_costs_no_more_than_its_budget_and_its_end(*, is_up: bool) -> None:
    """There is nothing to save. Launched at 2 s on two GPUs, it has spent half a dollar 25 s later."""
    engine = Engine(make_policy("arena"), CONFIG)
    engine.handle(NodeRegistered(info=node_info("n1")), 0.0)
    spec = train_spec("a", stop={}, budget_usd=0.5)
    engine.handle(JobSubmitted(job_id=A, spec=spec, user="ann", request_id="a"), 1.0)
    shape = engine.state.shape
    engine.handle(GridBuilt(job_id=A, shape=shape, grid=PowerLawGrids().grid(spec, shape), build_s=0.0), 2.0)
    (attempt,) = engine.state.attempts.values()
    assert attempt.group.gpu_count == 2
    if is_up:
        engine.handle(AttemptStarted(node_id=NodeId("n1"), attempt_id=attempt.attempt_id), 3.0)
    engine.handle(Tick(), 26.9)
    assert engine.state.attempts[attempt.attempt_id].state is not AttemptState.STOPPING
    assert engine.next_wakeup_s is not None
    assert engine.next_wakeup_s <= 27.0
    engine.handle(Tick(), 27.0)
    stopped = engine.state.attempts[attempt.attempt_id]
    assert (stopped.state, stopped.stop_mode) == (AttemptState.STOPPING, "kill")
    end = NodeEnd(node_id=NodeId("n1"), kind=EndKind.KILLED)
    engine.handle(AttemptEnded(node_id=NodeId("n1"), attempt_id=attempt.attempt_id, end=end), 28.0)
    job = engine.state.jobs[A]
    assert (job.state, [why.code for why in job.reasons]) == (JobState.HELD, [ReasonCode.BUDGET_SPENT])
    assert job.spent_usd == pytest.approx(0.52)


def test_what_was_spent_is_what_the_attempts_held() -> None:
    sim = running(train_spec("a", stop={"steps": 50}))
    sim.run(until_s=1_000.0)
    job = sim.ended[A]
    assert job.state is JobState.SUCCEEDED
    assert job.spent_usd == pytest.approx(job.gpu_seconds * USD_PER_S)
    assert job.spent_usd > 0.0


def test_a_job_with_a_tight_budget_runs_where_it_is_cheapest_and_ends_within_it() -> None:
    """On one GPU 100 steps cost a dollar, on two 1.15; starting costs a little more."""
    sim = running(train_spec("a", stop={"steps": 100}, budget_usd=1.14))
    sim.run(until_s=1_000.0)
    job = sim.ended[A]
    assert job.state is JobState.SUCCEEDED
    assert 1.0 <= job.spent_usd <= 1.14
    assert all(attempt.group.gpu_count == 1 for step in sim.steps for attempt in step.attempts)


def test_a_job_whose_budget_cannot_suffice_waits_and_says_what_would() -> None:
    sim = running(train_spec("a", stop={"steps": 100}, budget_usd=0.5))
    sim.run(until_s=1_000.0)
    job = sim.engine.view(sim.engine.state.jobs[A])
    assert job.state is JobState.QUEUED
    why = next(reason for reason in job.reasons if reason.code is ReasonCode.BUDGET_TOO_SMALL)
    assert why.numbers["left_usd"] == 0.5
    assert why.numbers["needed_usd"] == pytest.approx(1.0, rel=0.15)
