"""A policy that fails on some jobs goes on with the others; who is to blame is found, wherever it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from arena.domain.events import JobSubmitted, JobWishChanged, NodeRegistered, Tick
from arena.domain.job import JobId
from arena.domain.reason import ReasonCode
from arena.domain.records import EntryKind, JobState
from arena.engine.config import EngineConfig
from arena.engine.draft import Draft
from arena.engine.outcome import backoff_s
from arena.engine.state import ClusterState
from arena.policies.base import Decision, Policy, Snapshot
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from tests.builders import command_spec, node_info
from tests.fakes.grids import PowerLawGrids


@dataclass(slots=True)
class Failing:
    """First come, first served, unless it sees one of some jobs."""

    on: frozenset[str]
    name: str = "failing"
    version: str = "1"
    asked: int = 0
    _policy: Policy = field(default_factory=lambda: make_policy("fcfs"))

    def decide(self, snapshot: Snapshot) -> Decision:
        self.asked += 1
        if snapshot.waiting and self.on & {*snapshot.waiting, *snapshot.holding}:
            raise KeyError("boom")
        return self._policy.decide(snapshot)


def simulation(policy: Policy, gpus: int = 4) -> Simulation:
    config = EngineConfig(checkpoint_root="/ckpt", shape_settle_s=0.0)
    sim = Simulation(policy=policy, grids=PowerLawGrids(), config=config, check=True)
    sim.at(0.0, NodeRegistered(info=node_info("n1", gpus=gpus)))
    return sim


def submit(sim: Simulation, at_s: float, *names: str, steps: int = 20) -> None:
    for name in names:
        spec = command_spec(name, count=1, stop={"steps": steps})
        sim.at(at_s, JobSubmitted(job_id=JobId(name), spec=spec, user="ann", request_id=name))


def states(sim: Simulation) -> dict[str, JobState]:
    return {job_id: job.state for job_id, job in {**sim.ended, **sim.engine.state.jobs}.items()}


@pytest.mark.parametrize("guilty", [{"j00"}, {"j25"}, {"j49"}, {"j03", "j31"}])
def test_of_many_that_wait_those_are_held_on_whom_it_fails(guilty: set[str]) -> None:
    sim = simulation(Failing(on=frozenset(guilty)))
    names = [f"j{at:02}" for at in range(50)]
    submit(sim, 1.0, *names)
    sim.run(until_s=5_000.0)
    found = states(sim)
    assert {name for name in names if found[name] is JobState.HELD} == guilty
    assert all(found[name] is JobState.SUCCEEDED for name in names if name not in guilty)


def test_of_very_many_on_whom_it_fails_nobody_else_is_held() -> None:
    guilty = {f"j{at:03}" for at in range(0, 300, 11)}
    sim = simulation(Failing(on=frozenset(guilty)))
    names = [f"j{at:03}" for at in range(300)]
    submit(sim, 1.0, *names)
    sim.run(until_s=3_000.0)
    held = {name for name, state in states(sim).items() if state is JobState.HELD}
    innocent = [job for job in sim.engine.state.jobs.values() if job.job_id not in guilty]
    assert held <= guilty
    assert not any(job.evaluation_failure_count for job in innocent)


def test_one_that_runs_runs_on_and_nobody_else_is_held_for_it() -> None:
    policy = Failing(on=frozenset())
    sim = simulation(policy)
    submit(sim, 1.0, "bad", steps=5_000)
    sim.run(until_s=10.0)
    policy.on = frozenset({"bad"})
    submit(sim, 20.0, "g0", "g1", "g2")
    sim.run(until_s=100.0)
    assert {states(sim)[name] for name in ("g0", "g1", "g2")} == {JobState.SUCCEEDED}
    before = policy.asked
    submit(sim, 101.0, "g3")
    sim.run(until_s=101.5)
    assert policy.asked - before <= 9, "it is known by now"
    bad = sim.engine.state.jobs[JobId("bad")]
    assert bad.evaluation_failure_count == 1
    assert (bad.state, bad.preemption_count) == (JobState.RUNNING, 0)
    assert [one.code for one in bad.reasons] == [ReasonCode.INTERNAL_ERROR]


def test_where_it_always_fails_nobody_is_blamed() -> None:
    names = ("a", "b", "c")
    sim = simulation(Failing(on=frozenset(names)))
    submit(sim, 1.0, *names)
    sim.run(until_s=600.0)
    assert set(states(sim).values()) == {JobState.QUEUED}
    told = [entry.message for step in sim.steps for entry in step.history if entry.kind is EntryKind.DECISION]
    assert "the policy failed: KeyError: 'boom'" in told


def test_it_is_asked_a_bounded_number_of_times() -> None:
    policy = Failing(on=frozenset({"bad"}))
    sim = simulation(policy, gpus=1)
    submit(sim, 1.0, "first", steps=100_000)
    submit(sim, 2.0, *(f"j{at:03}" for at in range(300)), "bad")
    sim.run(until_s=3.0)
    before = policy.asked
    sim.at(4.0, JobWishChanged(job_id=JobId("j299"), wish="cancel", by="ann"))
    sim.run(until_s=4.5)
    assert policy.asked - before <= 70


def test_what_fails_for_weeks_waits_no_longer_than_the_longest_wait() -> None:
    config = EngineConfig(backoff_s=1.0, backoff_s_max=300.0)
    draft = Draft(ClusterState(), Tick(), 0.0, config)
    assert [backoff_s(draft, count) for count in (1, 2, 9, 10, 100_000)] == [1.0, 2.0, 256.0, 300.0, 300.0]
