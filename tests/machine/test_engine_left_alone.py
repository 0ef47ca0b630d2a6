"""Attempts that an agent had leave a node that goes while there was no scheduler to ask for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arena.domain.events import AttemptEnded, EndedAttempt, HeldAttempt, NodeRegistered
from arena.domain.launch import NodeId
from arena.domain.records import EndKind, JobState, NodeEnd
from tests.builders import command_spec, node_info
from tests.machine.test_engine_reclaims import N1, A, gang, job_of, nodes_of, running, stops, word


def left(node_id: NodeId, kind: EndKind = EndKind.STOPPED) -> NodeEnd:
    return NodeEnd(node_id=node_id, kind=kind, left_for="the market")


@pytest.mark.parametrize("kind", [EndKind.STOPPED, EndKind.KILLED, EndKind.FAILED])
def test_what_an_agent_had_leave_by_itself_is_queued_again_and_nobody_is_blamed(kind: EndKind) -> None:
    """Its node comes back to a scheduler that was away; it still goes."""
    sim = running("n1", spec=gang(retry={"restarts_max": 0}))
    name = job_of(sim).attempt_id
    assert name is not None
    ended = (EndedAttempt(attempt_id=name, end=left(N1, kind)),)
    sim.at(60.0, NodeRegistered(info=node_info("n1"), ended=ended, notice=word("w1", 30.0)))
    sim.run(until_s=61.0)
    job = job_of(sim)
    assert (job.state, job.restart_count, job.preemption_count, job.launch_failure_count) == (JobState.QUEUED, 0, 1, 0)
    assert str(job.reasons[-1]) == "it had to leave node n1: the market (by its lender)"
    told = [entry.message for step in sim.steps for entry in step.history if entry.kind.value == "job_preempted"]
    assert told == [
        "stopped by its agent, with no scheduler to ask: it had to leave node n1: the market (by its lender)"
    ]


def test_what_an_agent_is_having_leave_is_told_once_and_asked_by_the_scheduler_as_well() -> None:
    sim = running()
    name = job_of(sim).attempt_id
    assert name is not None
    held = (HeldAttempt(attempt_id=name, started=True, left_for="the market"),)
    sim.at(60.0, NodeRegistered(info=node_info("n1"), held=held, notice=word("w1", 30.0)))
    sim.at(60.5, NodeRegistered(info=node_info("n1", incarnation="n1-2"), held=held, notice=word("w1", 29.5)))
    sim.run(until_s=80.0)
    assert stops(sim) == [(60.0, "save", 30.0), (60.5, "save", 29.5)]
    assert (job_of(sim).preemption_count, nodes_of(sim)) == (1, ("n2",))


def test_a_scheduler_that_comes_back_leaves_a_save_that_an_agent_began_until_its_node_goes() -> None:
    """A save of 100 s, where the job grants 30 to one that others wait for, on a node that is there for 500."""
    sim = running(spec=gang(stop={"steps": 100_000}))
    sim.world.costs = replace(sim.costs, save_s=100.0)
    name = job_of(sim).attempt_id
    assert name is not None
    held = (HeldAttempt(attempt_id=name, started=True, left_for="the market"),)
    sim.at(60.0, NodeRegistered(info=node_info("n1"), held=held, notice=word("w1", 500.0)))
    sim.run(until_s=170.0)
    assert stops(sim) == [(60.0, "save", 500.0)]
    assert (job_of(sim).progress.lost_steps, nodes_of(sim)) == (0, ("n2",))


def test_a_node_that_stays_after_all_gives_a_save_that_its_agent_began_the_jobs_grace() -> None:
    sim = running(spec=gang(stop={"steps": 100_000}))
    sim.world.costs = replace(sim.costs, save_s=10_000.0)
    name = job_of(sim).attempt_id
    assert name is not None
    held = (HeldAttempt(attempt_id=name, started=True, left_for="the market"),)
    sim.at(60.0, NodeRegistered(info=node_info("n1"), held=held))
    sim.run(until_s=115.0)
    assert stops(sim) == [(60.0, "save", 30.0), (60.0 + 30.0 + 10.0, "kill", 0.0)]


def test_a_result_that_is_durable_counts_also_where_its_agent_had_asked_it_to_leave() -> None:
    sim = running()
    name = job_of(sim).attempt_id
    assert name is not None
    sim.at(60.0, AttemptEnded(node_id=N1, attempt_id=name, end=left(N1, EndKind.FINISHED)))
    sim.run(until_s=61.0)
    assert (sim.ended[A].state, sim.ended[A].preemption_count) == (JobState.SUCCEEDED, 0)


def test_a_program_that_its_agent_had_leave_is_held_for_its_user() -> None:
    sim = running("n1", spec=command_spec("a", count=2, stop={"steps": 500}, preemptible=False))
    name = job_of(sim).attempt_id
    assert name is not None
    sim.at(60.0, AttemptEnded(node_id=N1, attempt_id=name, end=left(N1, EndKind.KILLED)))
    sim.run(until_s=61.0)
    assert job_of(sim).state is JobState.HELD
