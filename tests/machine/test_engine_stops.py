"""Attempts on their way out: a stop that had to be sharpened to a kill costs no budget; who ends is not moved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arena.domain.commands import StopAttempt
from arena.domain.events import (
    AttemptEnded,
    JobSubmitted,
    JobWishChanged,
    NodeDrainChanged,
    NodeRegistered,
    Tick,
    WorkerReported,
)
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import CheckpointSaved, Finished, NodeId
from arena.domain.records import EndKind, JobRecord, JobState, NodeEnd
from arena.engine.config import EngineConfig
from arena.policies.registry import make_policy
from arena.sim.costs import SimCosts
from arena.sim.run import Simulation
from tests.builders import command_spec, node_info, train_spec
from tests.fakes.grids import PowerLawGrids

N1 = NodeId("n1")


def held_too_late(spec: JobSpec, kind: EndKind) -> JobRecord:
    """Hold a running job whose node answers only after the scheduler has asked for a kill."""
    config = EngineConfig(checkpoint_root="/ckpt", shape_settle_s=0.0)
    sim = Simulation(policy=make_policy("fcfs"), grids=PowerLawGrids(), config=config, check=True)
    sim.at(0.0, NodeRegistered(info=node_info("n1")))
    sim.at(1.0, JobSubmitted(job_id=JobId("a"), spec=spec, user="ann", request_id="a"))
    sim.run(until_s=20.0)
    job = sim.engine.state.jobs[JobId("a")]
    assert job.state is JobState.RUNNING
    assert job.attempt_id is not None
    engine = sim.engine
    engine.handle(JobWishChanged(job_id=job.job_id, wish="hold", by="ann"), 21.0)
    step = engine.handle(Tick(), 21.0 + spec.grace_s + config.stop_margin_s)
    assert [command.mode for command in step.commands if isinstance(command, StopAttempt)] == ["kill"]
    end = NodeEnd(node_id=N1, kind=kind, message="killed on request")
    step = engine.handle(AttemptEnded(node_id=N1, attempt_id=job.attempt_id, end=end), 65.0)
    return step.jobs[-1]


@pytest.mark.parametrize("kind", [EndKind.KILLED, EndKind.STOPPED])
@pytest.mark.parametrize("spec", [command_spec("a"), train_spec("a", retry={"restarts_max": 0})])
def test_a_job_that_was_held_is_held_also_when_it_had_to_be_killed(spec: JobSpec, kind: EndKind) -> None:
    job = held_too_late(spec, kind)
    assert (job.state, job.restarts_since_progress) == (JobState.HELD, 0)


def test_a_job_that_failed_meanwhile_has_failed() -> None:
    assert held_too_late(command_spec("a"), EndKind.FAILED).state is JobState.FAILED


@pytest.mark.parametrize("word", ["finished", "ended"])
def test_what_is_about_to_end_may_not_be_moved(word: str) -> None:
    """A gang on two nodes says that it has finished, or is gone from one of them: its devices are on their way out."""
    sim = Simulation(policy=make_policy("fcfs"), grids=PowerLawGrids(), config=EngineConfig(shape_settle_s=0.0))
    for name in ("n1", "n2"):
        sim.at(0.0, NodeRegistered(info=node_info(name)))
    sim.at(1.0, JobSubmitted(job_id=JobId("a"), spec=train_spec("a"), user="ann", request_id="a"))
    sim.run(until_s=20.0)
    state = sim.engine.state
    name, before = state.jobs[JobId("a")].attempt_id, state.holding[JobId("a")]
    assert name is not None
    assert before.movable
    assert before.allocation.node_ids == ("n1", "n2")
    finished = WorkerReported(node_id=N1, attempt_id=name, report=Finished(step=9, loss=1.0, output=None))
    ended = AttemptEnded(node_id=N1, attempt_id=name, end=NodeEnd(node_id=N1, kind=EndKind.FINISHED))
    sim.engine.handle(finished if word == "finished" else ended, 21.0)
    assert sim.engine.state.jobs[JobId("a")].state is JobState.RUNNING
    assert sim.engine.state.holding[JobId("a")] == replace(before, movable=False)


def launched(spec: JobSpec, costs: SimCosts | None = None) -> Simulation:
    """A job that runs on a node of its own since long enough to have made steps, at 20.0 s."""
    config = EngineConfig(checkpoint_root="/ckpt", shape_settle_s=0.0)
    sim = Simulation(
        policy=make_policy("fcfs"), grids=PowerLawGrids(), costs=costs or SimCosts(), config=config, check=True
    )
    sim.at(0.0, NodeRegistered(info=node_info("n1")))
    sim.at(1.0, JobSubmitted(job_id=JobId("a"), spec=spec, user="ann", request_id="a"))
    sim.run(until_s=20.0)
    return sim


def saved(sim: Simulation, save_s: float) -> WorkerReported:
    """Its word that a save took so long."""
    name = sim.engine.state.jobs[JobId("a")].attempt_id
    assert name is not None
    report = CheckpointSaved(step=10, name="step-10", size_bytes=1, save_s=save_s)
    return WorkerReported(node_id=N1, attempt_id=name, report=report)


@pytest.mark.parametrize("drained_within_s", [None, 50.0])
@pytest.mark.parametrize(("save_s", "grace_s"), [(None, 30.0), (10.0, 30.0), (45.0, 67.5)])
def test_a_job_has_the_time_to_stop_that_its_saves_take(
    save_s: float | None, grace_s: float, drained_within_s: float | None
) -> None:
    """As long as the agent is told, and no longer than its node is there."""
    sim = launched(train_spec("a"))
    engine, config = sim.engine, sim.engine.config
    if save_s is not None:
        engine.handle(saved(sim, save_s), 21.0)
    ends_at_s = 22.0 + grace_s + config.stop_margin_s
    step = engine.handle(JobWishChanged(job_id=JobId("a"), wish="hold", by="ann"), 22.0)
    if drained_within_s is not None:
        drain = NodeDrainChanged(node_id=N1, drain=True, by="ann", why="repair", within_s=drained_within_s)
        engine.handle(drain, 22.0)
        ends_at_s = min(ends_at_s, 22.0 + drained_within_s)
    assert [command.grace_s for command in step.commands if isinstance(command, StopAttempt)] == [grace_s]
    step = engine.handle(Tick(), ends_at_s - 0.1)
    assert not [command for command in step.commands if isinstance(command, StopAttempt)]
    assert engine.next_wakeup_s == pytest.approx(ends_at_s)
    step = engine.handle(Tick(), ends_at_s)
    assert [command.mode for command in step.commands if isinstance(command, StopAttempt)] == ["kill"]


def test_a_save_that_takes_long_is_not_waited_for_beyond_the_end_of_its_node() -> None:
    sim = launched(train_spec("a"))
    engine = sim.engine
    engine.handle(saved(sim, 45.0), 21.0)
    drain = NodeDrainChanged(node_id=N1, drain=True, by="ann", why="repair", within_s=50.0)
    steps = [
        engine.handle(drain, 22.0),
        engine.handle(JobWishChanged(job_id=JobId("a"), wish="cancel", by="ann"), 24.0),
    ]
    stops = [command for step in steps for command in step.commands if isinstance(command, StopAttempt)]
    assert [stop.grace_s for stop in stops] == [50.0, 48.0]


def test_what_the_saves_of_an_attempt_before_took_is_not_forgotten() -> None:
    """An attempt that is moved before its first save has the time that its job's saves take."""
    spec = train_spec("a", stop={"steps": 5_000}, checkpoint={"interval_steps": 4_000})
    sim = launched(spec, SimCosts(save_s=45.0))
    sim.handle(saved(sim, 45.0))
    for at_s in (100.0, 300.0, 500.0):
        for after_s, wish in ((0.0, "hold"), (100.0, "run")):
            sim.at(at_s + after_s, JobWishChanged(job_id=JobId("a"), wish=wish, by="ann"))
    sim.run(until_s=700.0)
    stops = [one for step in sim.steps for one in step.commands if isinstance(one, StopAttempt)]
    assert [stop.grace_s for stop in stops] == [67.5] * 3
