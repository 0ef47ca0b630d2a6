"""Attempts on their way out: a stop that had to be sharpened to a kill costs no budget; who ends is not moved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arena.domain.commands import StopAttempt
from arena.domain.events import AttemptEnded, JobSubmitted, JobWishChanged, NodeRegistered, Tick, WorkerReported
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import Finished, NodeId
from arena.domain.records import EndKind, JobRecord, JobState, NodeEnd
from arena.engine.config import EngineConfig
from arena.policies.registry import make_policy
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
