"""A scheduler that starts anew goes on as the one before it would have: it knows the same, and decides the same."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, replace

from arena.domain.commands import BuildGrid
from arena.domain.events import Event, GridBuilt, JobSubmitted, NodeRegistered, SchedulerStarted
from arena.domain.job import JobId
from arena.engine.config import EngineConfig
from arena.engine.engine import Engine, replay
from arena.engine.ports import Step
from arena.engine.reports import RESTART_SAMPLES_MAX
from arena.engine.state import ClusterState
from arena.policies.base import Decision, Policy, Snapshot
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from tests.builders import node_info, train_spec
from tests.fakes.grids import PowerLawGrids
from tests.fakes.restarts import FORGOTTEN, inputs_of, restored_from

STARTED = SchedulerStarted(scheduler_version="1", policy="elastic", policy_version="1")
LENGTHS = {"a": 4000, "b": 300, "c": 900, "d": 500}


def with_plan_changes(policy: Policy, config: EngineConfig) -> Simulation:
    """Jobs that shrink for each other and grow again, so that what a restart costs is measured several times."""
    sim = Simulation(policy=policy, grids=PowerLawGrids(), config=config, check=True)
    for name in ("n1", "n2"):
        sim.at(0.0, NodeRegistered(info=node_info(name)))
    for index, (name, steps) in enumerate(LENGTHS.items()):
        spec = train_spec(name, stop={"steps": steps})
        sim.at(1.0 + 150.0 * index, JobSubmitted(job_id=JobId(name), spec=spec, user="ann", request_id=name))
    return sim


def test_at_every_step_a_store_knows_what_the_state_does() -> None:
    config = EngineConfig(shape_settle_s=0.0)
    sim = with_plan_changes(make_policy("elastic"), config)
    sim.run()
    assert sim.engine.state.restart_sample_count > 1
    engine, steps = Engine(make_policy("elastic"), config), list[Step]()
    for at_s, event in inputs_of(sim.steps):
        steps.append(engine.handle(event, at_s))
        if steps[-1].event.kind in {"tick", "worker_reported"} and len(steps) % 20:
            continue  # there are thousands of them
        again = Engine(make_policy("elastic"), config, restored_from(steps)).state
        for one in fields(ClusterState):
            if one.name not in FORGOTTEN:
                assert getattr(again, one.name) == getattr(engine.state, one.name), f"{one.name} at {at_s:g} s"


def test_what_a_restart_was_measured_to_cost_is_taken_before_what_is_assumed() -> None:
    sim = with_plan_changes(make_policy("elastic"), EngineConfig(shape_settle_s=0.0))
    assert restored_from(sim.steps).restart_cost is None
    sim.run()
    known = sim.engine.state
    again = Engine(make_policy("elastic"), EngineConfig(restart_s=7_777.0), restored_from(sim.steps)).state
    assert (again.restart_s, again.restart_sample_count) == (known.restart_s, known.restart_sample_count)
    new = Engine(make_policy("elastic"), EngineConfig(restart_s=7_777.0), restored_from([])).state
    assert (new.restart_s, new.restart_sample_count) == (7_777.0, 0)


def test_it_is_written_with_the_step_that_measured_it_and_no_other() -> None:
    sim = with_plan_changes(make_policy("elastic"), EngineConfig(shape_settle_s=0.0))
    sim.run()
    told = [step.restart_cost for step in sim.steps if step.restart_cost is not None]
    changed = [name for name in LENGTHS for _ in range(sim.ended[JobId(name)].reconfiguration_count)]
    assert len(told) == len(changed)
    assert [one.sample_count for one in told] == [min(count + 1, RESTART_SAMPLES_MAX) for count in range(len(told))]
    assert told[-1].mean_s == sim.engine.state.restart_s


class Telling:
    """A policy that tells with each decision what it was told that a restart costs."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name, self.version = policy.name, policy.version

    def decide(self, snapshot: Snapshot) -> Decision:
        decision = self._policy.decide(snapshot)
        return replace(decision, numbers={**decision.numbers, "restart_s": snapshot.restart_s})


def test_the_log_of_two_schedulers_replays_to_what_they_decided() -> None:
    policy = Telling(make_policy("elastic"))
    sim = with_plan_changes(policy, EngineConfig(shape_settle_s=0.0))
    sim.run(until_s=440.0)
    cost_s = sim.engine.state.restart_s
    assert sim.engine.state.restart_sample_count > 0
    second, steps = Engine(policy, sim.config, restored_from(sim.steps)), list(sim.steps)
    spec = train_spec("e", stop={"steps": 900})
    left = deque[Event]([STARTED, JobSubmitted(job_id=JobId("e"), spec=spec, user="ann", request_id="e")])
    while left:
        steps.append(second.handle(left.popleft(), 441.0))
        for command in steps[-1].commands:
            if isinstance(command, BuildGrid):
                grid = PowerLawGrids().grid(command.spec, command.shape)
                left.append(GridBuilt(job_id=command.job_id, shape=command.shape, grid=grid))
    decided = [step.decision for step in steps[len(sim.steps) :] if step.decision is not None]
    assert decided
    assert {decision.numbers["restart_s"] for decision in decided} == {cost_s}
    again = Engine(policy, sim.config)
    assert [step.decision for step in replay(again, inputs_of(steps))] == [step.decision for step in steps]
