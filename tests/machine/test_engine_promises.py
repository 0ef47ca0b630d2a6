"""Promises in the engine: a policy that cannot say what it promises does no harm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest

from arena.domain.events import Event, GridBuilt, JobSubmitted, NodeDisconnected, NodeRegistered, Tick
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import NodeId
from arena.domain.reason import ReasonCode
from arena.domain.records import EntryKind, JobState
from arena.engine.config import EngineConfig
from arena.engine.decide import PolicyFault
from arena.engine.engine import Engine
from arena.engine.ports import Step
from arena.engine.state import shape_of
from arena.policies.base import Admission, Decision, Policy, Snapshot
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from tests.builders import node_info, train_spec
from tests.fakes.grids import PowerLawGrids
from tests.fakes.restarts import restored_from

A = JobId("a")
CONFIG = EngineConfig(shape_settle_s=0.0)
WITH_DEADLINE = train_spec("a", stop={"steps": 5}, deadline_s=100.0)


@dataclass(frozen=True, slots=True)
class Silent:
    """Decides as another, and fails when it is asked for a promise."""

    decides: Policy
    name: str = "silent"
    version: str = "1"

    def decide(self, snapshot: Snapshot) -> Decision:
        return self.decides.decide(snapshot)

    def admission(self, snapshot: Snapshot, job_id: JobId) -> Admission | None:
        raise ValueError(f"{job_id} is poisoned")


def with_grid(engine: Engine, spec: JobSpec) -> Step:
    """Bring a job to where its grid is there."""
    submitted: list[Event] = [
        NodeRegistered(info=node_info("n1")),
        JobSubmitted(job_id=A, spec=spec, user="ann", request_id="a"),
    ]
    for at_s, event in enumerate(submitted):
        engine.handle(event, float(at_s))
    shape = engine.state.shape
    return engine.handle(GridBuilt(job_id=A, shape=shape, grid=PowerLawGrids().grid(spec, shape), build_s=0.0), 2.0)


def test_a_policy_that_fails_on_a_promise_gives_none_and_the_job_runs() -> None:
    engine = Engine(Silent(make_policy("arena")), CONFIG)
    step = with_grid(engine, WITH_DEADLINE)
    job = engine.state.jobs[A]
    assert (job.state, job.is_deadline_promised) == (JobState.STARTING, False)
    told = [entry for entry in step.history if entry.kind is EntryKind.DECISION and entry.job_id == A]
    assert [entry.data["error"] for entry in told] == ["ValueError: a is poisoned"]


def test_who_asks_before_it_submits_is_told_that_the_policy_failed() -> None:
    engine = Engine(Silent(make_policy("arena")), CONFIG)
    engine.handle(NodeRegistered(info=node_info("n1")), 0.0)
    grid = PowerLawGrids().grid(WITH_DEADLINE, engine.state.shape)
    answer = engine.admission(engine.state, WITH_DEADLINE, grid, 1.0)
    assert answer is not None
    assert not answer.is_promised
    assert answer.reason is not None
    assert "ValueError:  is poisoned" in str(answer.reason)


def test_a_study_ends_where_its_policy_fails_on_a_promise() -> None:
    engine = Engine(Silent(make_policy("arena")), EngineConfig(shape_settle_s=0.0, is_strict=True))
    with pytest.raises(PolicyFault, match="failed when it was asked for a promise: a is poisoned"):
        with_grid(engine, WITH_DEADLINE)


def broken(steps: Iterable[Step]) -> list[tuple[float, object]]:
    """Return when it was told that a promise is broken, and why."""
    return [
        (entry.at_s, entry.data["cause"])
        for step in steps
        for entry in step.history
        if entry.kind is EntryKind.PROMISE_BROKEN and entry.job_id == A
    ]


def promised(steps: int, deadline_s: float) -> Simulation:
    """A job on a node of four GPUs, the fifth of the cluster being on another."""
    sim = Simulation(policy=make_policy("arena"), grids=PowerLawGrids(), config=CONFIG, check=True)
    sim.at(0.0, NodeRegistered(info=node_info("n1", gpus=4)))
    sim.at(0.0, NodeRegistered(info=node_info("n2", gpus=1)))
    spec = train_spec("a", stop={"steps": steps}, deadline_s=deadline_s)
    sim.at(1.0, JobSubmitted(job_id=A, spec=spec, user="ann", request_id="a"))
    sim.run(until_s=30.0)
    assert sim.engine.state.jobs[A].is_deadline_promised
    assert broken(sim.steps) == []
    return sim


def lose(sim: Simulation, name: str) -> None:
    sim.world.lose_node(NodeId(name))
    incarnation = sim.engine.state.nodes[NodeId(name)].info.incarnation
    sim.handle(NodeDisconnected(node_id=NodeId(name), incarnation=incarnation, why="gone"))


def test_it_is_told_once_that_a_promise_cannot_be_kept_any_more() -> None:
    """On four GPUs 400 steps take about 130 s, on the one that is left they would take 400 s."""
    sim = promised(400, deadline_s=250.0)
    lose(sim, "n1")
    sim.run(until_s=200.0)
    ((at_s, cause),) = broken(sim.steps)
    assert at_s < 60.0
    assert cause == "deadline_late"
    job = sim.engine.state.jobs[A]
    assert job.state is JobState.RUNNING
    assert (job.is_deadline_promised, job.is_promise_broken) == (True, True)
    assert ReasonCode.DEADLINE_LATE in [why.code for why in sim.engine.view(job).reasons]
    sim.run(until_s=1_000.0)
    assert len(broken(sim.steps)) == 1


def test_a_deadline_that_passes_was_not_kept_even_where_nothing_is_decided_about_it() -> None:
    sim = promised(400, deadline_s=250.0)
    for name in ("n1", "n2"):
        lose(sim, name)
    sim.run(until_s=300.0)
    assert broken(sim.steps) == [(251.0, "deadline_passed")]


def test_of_a_promise_that_is_kept_nothing_is_told() -> None:
    sim = promised(400, deadline_s=250.0)
    sim.run(until_s=1_000.0)
    assert sim.ended[A].state is JobState.SUCCEEDED
    assert broken(sim.steps) == []


@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_grid_that_came_too_late_is_not_found_again_after_a_restart(is_restarted: bool) -> None:
    """It was planned for nodes that others have joined since: what is asked for anew is the first that counts."""
    steps, engine = [], Engine(make_policy("arena"), CONFIG)
    steps.append(engine.handle(NodeRegistered(info=node_info("n1")), 0.0))
    shape = engine.state.shape
    steps.append(engine.handle(NodeRegistered(info=node_info("n2")), 1.0))
    late = GridBuilt(job_id=A, shape=shape, grid=PowerLawGrids().grid(WITH_DEADLINE, shape))
    event = JobSubmitted(job_id=A, spec=WITH_DEADLINE, user="ann", request_id="a", planned=late)
    steps.append(engine.handle(event, 2.0))
    if is_restarted:
        engine = Engine(make_policy("arena"), CONFIG, restored_from(steps))
        for name in ("n1", "n2"):
            engine.handle(NodeRegistered(info=node_info(name)), 3.0)
    assert A not in engine.state.grids
    shape = engine.state.shape
    engine.handle(GridBuilt(job_id=A, shape=shape, grid=PowerLawGrids().grid(WITH_DEADLINE, shape)), 4.0)
    assert engine.state.jobs[A].is_deadline_promised


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_job_that_comes_with_its_grid_is_answered_once_the_nodes_are_settled(is_settled: bool) -> None:
    """The grid may be of nodes that have come a moment ago, and that nothing is given on yet."""
    engine = Engine(make_policy("arena"), replace(CONFIG, shape_settle_s=0.5))
    engine.handle(NodeRegistered(info=node_info("n1")), 0.0)
    if is_settled:
        engine.handle(Tick(), 0.5)
    shape = shape_of(engine.state.nodes)
    planned = GridBuilt(job_id=A, shape=shape, grid=PowerLawGrids().grid(WITH_DEADLINE, shape))
    event = JobSubmitted(job_id=A, spec=WITH_DEADLINE, user="ann", request_id="a", planned=planned)
    engine.handle(event, 0.6 if is_settled else 0.1)
    if not is_settled:
        assert engine.state.jobs[A].deadline_cause is None
        engine.handle(Tick(), 0.5)
        engine.handle(planned, 0.6)
    assert engine.state.jobs[A].is_deadline_promised
