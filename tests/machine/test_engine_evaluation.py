"""Evaluations that workers report: on the job's progress and in its history, each once."""

from __future__ import annotations

import math

import pytest

from arena.domain.events import AttemptEnded, WorkerReported
from arena.domain.job import JobId
from arena.domain.launch import AttemptId, Evaluated
from arena.domain.records import EndKind, EntryKind, Evaluation, HistoryEntry, NodeEnd
from arena.sim.run import Simulation
from arena_scheduler.store.records import JOB_JSON
from tests.machine.test_engine import attempt_of, simulation, submit, with_nodes


def running() -> Simulation:
    sim = with_nodes(simulation("fcfs"), "n1")
    sim.at(1.0, submit("a"))
    sim.run(until_s=20.0)
    return sim


def evaluate(sim: Simulation, step: int, attempt_id: AttemptId | None = None, *, loss: float = 3.21) -> None:
    name = attempt_id or attempt_of(sim, "a")
    node_id = sim.engine.state.attempts[name].allocation.node_ids[0]
    report = Evaluated(step=step, loss=loss, sample_count=32, evaluate_s=0.5, accuracy=0.25)
    sim.handle(WorkerReported(node_id=node_id, attempt_id=name, report=report))


def evaluations(sim: Simulation) -> list[HistoryEntry]:
    return [entry for step in sim.steps for entry in step.history if entry.kind is EntryKind.JOB_EVALUATED]


def test_the_latest_evaluation_is_on_the_job_and_each_is_in_its_history() -> None:
    sim = running()
    for step in (5, 10):
        evaluate(sim, step)
    job = sim.engine.state.jobs[JobId("a")]
    assert job.progress.evaluation == Evaluation(
        step=10, loss=3.21, accuracy=0.25, sample_count=32, evaluate_s=0.5, at_s=sim.kernel.now_s
    )
    assert [entry.data["step"] for entry in evaluations(sim)] == [5, 10]
    assert evaluations(sim)[0].message == "evaluated at step 5, loss 3.2100, accuracy 0.2500"
    assert evaluations(sim)[0].job_id == "a"


def test_an_evaluation_that_is_told_again_changes_nothing() -> None:
    sim = running()
    for step in (10, 10, 5):
        evaluate(sim, step)
    assert [entry.data["step"] for entry in evaluations(sim)] == [10]


def test_a_later_attempt_that_repeats_a_step_evaluates_it_again() -> None:
    sim = running()
    evaluate(sim, 10)
    first = attempt_of(sim, "a")
    node_id = sim.engine.state.attempts[first].allocation.node_ids[0]
    sim.world.lose_node(node_id)
    end = NodeEnd(node_id=node_id, kind=EndKind.FAILED, error_code="crash", message="killed")
    sim.handle(AttemptEnded(node_id=node_id, attempt_id=first, end=end))
    sim.run(until_s=sim.kernel.now_s + 60.0)
    assert attempt_of(sim, "a") != first
    evaluate(sim, 10, loss=3.0)
    assert [entry.data["loss"] for entry in evaluations(sim)] == [3.21, 3.0]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_diverged_loss_is_stored_and_read_back(loss: float) -> None:
    sim = running()
    evaluate(sim, 10, loss=loss)
    job = sim.engine.state.jobs[JobId("a")]
    assert job.progress.evaluation is not None
    assert job.progress.evaluation.loss is None
    assert JOB_JSON.validate_json(JOB_JSON.dump_json(job)) == job


def test_a_job_stored_before_there_were_evaluations_is_read() -> None:
    sim = running()
    job = sim.engine.state.jobs[JobId("a")]
    old = JOB_JSON.dump_python(job, mode="json")
    del old["progress"]["evaluation"]
    del old["spec"]["train"]["evaluation"]
    assert JOB_JSON.validate_python(old) == job


def test_an_evaluation_is_a_sign_of_life() -> None:
    sim = running()
    evaluate(sim, 10)
    assert sim.engine.state.jobs[JobId("a")].progress.reported_at_s == sim.kernel.now_s
