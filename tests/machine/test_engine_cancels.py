"""Cancels of many jobs: one event, one step, one decision, and what as many single ones would have led to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from arena.domain.events import EVENT_JSON, Event, JobsCancelled, JobSubmitted, JobWishChanged, NodeRegistered
from arena.domain.job import JobId
from arena.domain.records import JobRecord, JobState, Wish
from arena.engine.config import EngineConfig
from arena.engine.engine import replay
from arena.engine.invariants import violations
from arena.policies.base import Decision, Policy, Snapshot
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from tests.builders import node_info, train_spec
from tests.fakes.grids import PowerLawGrids

JOB_COUNT = 310
CANCELLED = tuple(JobId(f"j{index:03}") for index in range(300))


class Counting:
    """A policy that counts how often it is asked."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name, self.version = policy.name, policy.version
        self.ask_count = 0

    def decide(self, snapshot: Snapshot) -> Decision:
        self.ask_count += 1
        return self._policy.decide(snapshot)


def cluster_of_jobs(policy: Policy) -> Simulation:
    """Some of the jobs run, most wait."""
    config = EngineConfig(checkpoint_root="/ckpt", output_root="/out", shape_settle_s=0.0)
    sim = Simulation(policy=policy, grids=PowerLawGrids(), config=config, check=True)
    for name in ("n1", "n2"):
        sim.at(0.0, NodeRegistered(info=node_info(name, gpus=4)))
    for index in range(JOB_COUNT):
        spec = train_spec(f"j{index:03}", kind="rigid", gpus={"count": 1}, stop={"steps": 100_000})
        event = JobSubmitted(job_id=JobId(spec.name), spec=spec, user="ann", request_id=spec.name)
        sim.at(1.0 + 0.001 * index, event)
    sim.run(until_s=50.0)
    return sim


def what_became(sim: Simulation, job_ids: Sequence[JobId]) -> list[tuple[JobState, Wish]]:
    def of(job: JobRecord) -> tuple[JobState, Wish]:
        return job.state, job.wish

    return [of(sim.engine.state.jobs[name] if name in sim.engine.state.jobs else sim.ended[name]) for name in job_ids]


@pytest.mark.parametrize("name", ["fcfs", "elastic"])
def test_a_cancel_of_many_jobs_is_one_step_and_one_decision(name: str) -> None:
    policy = Counting(make_policy(name))
    sim = cluster_of_jobs(policy)
    running = {job_id for job_id, job in sim.engine.state.jobs.items() if job.state is JobState.RUNNING}
    assert running & set(CANCELLED)
    before = policy.ask_count
    step = sim.engine.handle(JobsCancelled(job_ids=CANCELLED, by="ann"), 50.0)
    assert policy.ask_count - before == 1
    cancelled = {job.job_id: job.state for job in step.jobs if job.wish is Wish.CANCEL}
    assert set(cancelled) == set(CANCELLED)
    assert {job_id for job_id, state in cancelled.items() if state is JobState.CANCELLING} == running & set(CANCELLED)
    assert violations(sim.engine.state) == []


def test_one_event_for_all_leads_to_what_one_for_each_leads_to() -> None:
    ends = []
    for events in (
        [JobsCancelled(job_ids=CANCELLED, by="ann")],
        [JobWishChanged(job_id=job_id, wish="cancel", by="ann") for job_id in CANCELLED],
    ):
        sim = cluster_of_jobs(make_policy("fcfs"))
        for event in events:
            sim.at(50.0, event)
        sim.run(until_s=500.0)
        ends.append(what_became(sim, [JobId(f"j{index:03}") for index in range(JOB_COUNT)]))
    assert ends[0] == ends[1]
    assert ends[0].count((JobState.CANCELLED, Wish.CANCEL)) == len(CANCELLED)


def test_who_is_over_unknown_or_named_twice_does_not_keep_the_others_from_being_cancelled() -> None:
    sim = cluster_of_jobs(make_policy("fcfs"))
    names = tuple(JobId(name) for name in ("j305", "nobody", "j305", "j000", "j306"))
    sim.engine.handle(JobWishChanged(job_id=JobId("j306"), wish="cancel", by="ann"), 50.0)
    step = sim.engine.handle(JobsCancelled(job_ids=names, by="ann"), 50.0)
    assert {job.job_id for job in step.jobs if job.wish is Wish.CANCEL} == {"j305", "j000"}


def test_the_log_with_it_replays_and_a_log_of_before_it_is_read() -> None:
    sim = cluster_of_jobs(make_policy("elastic"))
    sim.at(50.0, JobsCancelled(job_ids=CANCELLED, by="ann"))
    sim.run(until_s=100.0)
    stored = [(step.at_s, EVENT_JSON.dump_json(step.event)) for step in sim.steps]
    inputs: list[tuple[float, Event]] = [(at_s, EVENT_JSON.validate_json(text)) for at_s, text in stored]
    again = Simulation(policy=make_policy("elastic"), grids=PowerLawGrids(), config=sim.engine.config).engine
    assert list(replay(again, inputs)) == sim.steps
    old = b'{"kind":"job_wish_changed","job_id":"j1","wish":"cancel","by":"ann","budget_usd":null}'
    assert EVENT_JSON.validate_json(old) == JobWishChanged(job_id=JobId("j1"), wish="cancel", by="ann")
