"""Nodes that are to be empty by an instant: what runs there is saved in time, and nobody is blamed for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arena.domain.commands import StopAttempt
from arena.domain.events import (
    Event,
    HeldAttempt,
    JobSubmitted,
    JobWishChanged,
    NodeDisconnected,
    NodeDrainChanged,
    NodeNoticeChanged,
    NodeRegistered,
    ReclaimNotice,
    SchedulerStarted,
    Tick,
    WorkerReported,
)
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import Finishing, NodeId, Progress, StepPoint
from arena.domain.reason import ReasonCode
from arena.domain.records import AttemptState, JobRecord, JobState
from arena.engine.config import EngineConfig
from arena.engine.engine import Engine
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from tests.builders import command_spec, node_info, train_spec
from tests.fakes.grids import PowerLawGrids
from tests.fakes.restarts import restored_from

A = JobId("a")
N1, N2 = NodeId("n1"), NodeId("n2")
STEP_S = 2**-0.8
"""Of a job on the two GPUs of a node; one that comes at 1 s begins to step at 4 s."""


def running(*names: str, spec: JobSpec | None = None, policy: str = "fcfs") -> Simulation:
    """Nodes of two GPUs, and a job on the first of them."""
    config = EngineConfig(checkpoint_root="/ckpt", output_root="/out", shape_settle_s=0.0)
    sim = Simulation(policy=make_policy(policy), grids=PowerLawGrids(), config=config, check=True)
    for name in names or ("n1", "n2"):
        sim.at(0.0, NodeRegistered(info=node_info(name)))
    sim.at(1.0, submitted("a", spec or gang()))
    sim.run(until_s=50.0)
    assert nodes_of(sim) == ("n1",)
    return sim


def gang(**fields: object) -> JobSpec:
    return train_spec("a", kind="rigid", gpus={"count": 2}, **fields)


def submitted(name: str, spec: JobSpec) -> JobSubmitted:
    return JobSubmitted(job_id=JobId(name), spec=spec, user="ann", request_id=name)


def notice(within_s: float | None, node: NodeId = N1) -> NodeNoticeChanged:
    word = None if within_s is None else ReclaimNotice(within_s=within_s, why="the lender's word")
    return NodeNoticeChanged(node_id=node, notice=word)


def word(name: str, within_s: float = 7200.0) -> ReclaimNotice:
    return ReclaimNotice(within_s=within_s, why="the market", notice_id=name)


def job_of(sim: Simulation, name: JobId = A) -> JobRecord:
    return sim.engine.view(sim.engine.state.jobs[name])


def nodes_of(sim: Simulation, name: JobId = A) -> tuple[str, ...]:
    attempt = job_of(sim, name).attempt_id
    return sim.engine.state.attempts[attempt].allocation.node_ids if attempt is not None else ()


def stops(sim: Simulation) -> list[tuple[float, str, float]]:
    """When which kind of stop was sent, and with what grace."""
    return [
        (step.at_s, command.mode, command.grace_s)
        for step in sim.steps
        for command in step.commands
        if isinstance(command, StopAttempt)
    ]


def test_a_job_is_saved_at_once_and_goes_on_elsewhere_without_a_step_lost() -> None:
    sim = running()
    sim.at(60.0, notice(60.0))
    sim.at(120.0, NodeDisconnected(node_id=N1, incarnation="n1-1", why="it was taken back"))
    sim.run(until_s=80.0)
    job = job_of(sim)
    assert (job.state, nodes_of(sim), job.progress.durable_step) == (JobState.RUNNING, ("n2",), int(56.0 / STEP_S))
    assert stops(sim) == [(60.0, "save", 60.0)]
    sim.run()
    job = sim.ended[A]
    assert (job.state, job.progress.lost_steps, job.restart_count, job.preemption_count) == (
        JobState.SUCCEEDED,
        0,
        0,
        1,
    )
    told = [entry for step in sim.steps for entry in step.history if entry.kind.value == "job_preempted"]
    assert [entry.message for entry in told] == ["node n1 is reclaimed in 60 s: the lender's word"]


def test_a_save_may_take_as_long_as_the_node_is_there() -> None:
    """A save of 45 s, where the job grants 30 to one that others wait for."""
    sim = running()
    sim.world.costs = replace(sim.costs, save_s=45.0)
    sim.at(60.0, notice(60.0))
    sim.run(until_s=110.0)
    assert stops(sim) == [(60.0, "save", 60.0)]
    assert (nodes_of(sim), job_of(sim).progress.lost_steps) == (("n2",), 0)


def test_a_save_that_hangs_is_killed_also_when_the_word_is_withdrawn() -> None:
    sim = running()
    sim.world.costs = replace(sim.costs, save_s=10_000.0)
    sim.at(60.0, notice(60.0))
    sim.at(80.0, notice(None))
    sim.run(until_s=125.0)
    assert stops(sim) == [(60.0, "save", 60.0), (80.0 + 30.0 + 10.0, "kill", 0.0)]
    assert (job_of(sim).state, job_of(sim).epoch) == (JobState.RUNNING, 2)


def test_a_cancel_during_a_save_for_a_node_that_goes_is_over_after_the_jobs_grace() -> None:
    """A save that hangs, on a node that is there for ten minutes more."""
    sim = running(spec=gang(stop={"steps": 100_000}))
    sim.world.costs = replace(sim.costs, save_s=10_000.0)
    sim.at(60.0, notice(600.0))
    sim.at(70.0, JobWishChanged(job_id=A, wish="cancel", by="ann"))
    sim.run(until_s=115.0)
    assert stops(sim) == [(60.0, "save", 600.0), (70.0, "save", 30.0), (70.0 + 30.0 + 10.0, "kill", 0.0)]
    assert sim.ended[A].state is JobState.CANCELLED


def test_a_cancel_does_not_give_a_save_more_time_than_its_node_is_there() -> None:
    sim = running()
    sim.world.costs = replace(sim.costs, save_s=10_000.0)
    sim.at(60.0, notice(40.0))
    sim.at(90.0, JobWishChanged(job_id=A, wish="cancel", by="ann"))
    sim.run(until_s=105.0)
    assert stops(sim) == [(60.0, "save", 40.0), (90.0, "save", 10.0), (100.0, "kill", 0.0)]
    assert sim.ended[A].state is JobState.CANCELLED


def test_a_hold_lets_a_save_for_a_node_that_goes_take_its_time() -> None:
    sim = running(spec=gang(stop={"steps": 100_000}))
    sim.world.costs = replace(sim.costs, save_s=100.0)
    sim.at(60.0, notice(600.0))
    sim.at(70.0, JobWishChanged(job_id=A, wish="hold", by="ann"))
    sim.run(until_s=170.0)
    assert (stops(sim), job_of(sim).state) == ([(60.0, "save", 600.0)], JobState.HELD)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (notice(600.0), notice(None)),
        (
            NodeDrainChanged(node_id=N1, drain=True, by="root", why="new fans", within_s=600.0),
            NodeDrainChanged(node_id=N1, drain=False, by="root"),
        ),
    ],
)
def test_a_long_save_is_not_killed_because_its_node_stays_after_all(first: Event, then: Event) -> None:
    """A save of 100 s, the word withdrawn after 90: its job's grace of 30 s begins then."""
    sim = running(spec=gang(stop={"steps": 100_000}))
    sim.world.costs = replace(sim.costs, save_s=100.0)
    sim.at(60.0, first)
    sim.at(150.0, then)
    sim.run(until_s=170.0)
    assert stops(sim) == [(60.0, "save", 600.0)]
    assert (job_of(sim).state, job_of(sim).progress.lost_steps) == (JobState.RUNNING, 0)


def test_what_is_not_saved_in_time_costs_its_steps_and_no_budget() -> None:
    """A save takes a second, the node has half of one; 15 s until it is given up, and then no backoff."""
    sim = running(spec=gang(retry={"restarts_max": 0}))
    name, point = job_of(sim).attempt_id, StepPoint(step=97, loss=1.0, step_time_s=STEP_S, tokens_per_s=1.0)
    assert name is not None
    sim.at(59.9, WorkerReported(node_id=N1, attempt_id=name, report=Progress(points=(point,))))
    sim.at(60.0, notice(0.5))
    sim.at(60.5, NodeDisconnected(node_id=N1, incarnation="n1-1", why="it was taken back"))
    sim.run(until_s=75.6)
    assert stops(sim)[:2] == [(60.0, "save", 0.5), (60.5, "kill", 0.0)]
    assert (job_of(sim).state, nodes_of(sim)) == (JobState.STARTING, ("n2",))
    sim.run()
    job = sim.ended[A]
    assert (job.state, job.restart_count, job.restarts_since_progress) == (JobState.SUCCEEDED, 0, 0)
    assert job.progress.lost_steps == 97


def test_a_gang_of_which_one_node_goes_without_being_saved_is_not_blamed_either() -> None:
    config = EngineConfig(checkpoint_root="/ckpt", shape_settle_s=0.0)
    sim = Simulation(policy=make_policy("fcfs"), grids=PowerLawGrids(), config=config, check=True)
    for name in ("n1", "n2", "n3", "n4"):
        sim.at(0.0, NodeRegistered(info=node_info(name)))
    sim.at(1.0, submitted("a", train_spec("a", kind="rigid", gpus={"count": 4}, retry={"restarts_max": 0})))
    sim.at(60.0, notice(0.5, N2))
    sim.at(60.5, NodeDisconnected(node_id=N2, incarnation="n2-1", why="it was taken back"))
    sim.run(until_s=61.0)
    assert job_of(sim).state is JobState.PREEMPTING
    sim.run()
    assert (sim.ended[A].state, sim.ended[A].restart_count) == (JobState.SUCCEEDED, 0)


def test_without_another_node_it_waits_says_why_and_goes_on_when_the_word_is_withdrawn() -> None:
    sim = running("n1")
    sim.at(60.0, notice(60.0))
    sim.at(61.0, submitted("b", train_spec("b")))
    sim.run(until_s=70.0)
    job = job_of(sim)
    assert (job.state, sim.engine.state.nodes[N1].state.value) == (JobState.QUEUED, "drained")
    assert [str(one) for one in job.reasons] == [
        "needs 2 cpu GPUs, 0 of 2 free",
        "it had to leave node n1: the lender's word (by its lender)",
    ]
    assert job_of(sim, JobId("b")).state is JobState.QUEUED
    sim.at(80.0, notice(None))
    sim.run(until_s=85.0)
    assert nodes_of(sim) == ("n1",)
    assert sim.engine.state.nodes[N1].state.value == "ready"
    sim.run()
    assert {job.state for job in sim.ended.values()} == {JobState.SUCCEEDED}


def test_right_after_its_stop_it_waits_because_its_node_is_reclaimed() -> None:
    sim = running("n1")
    sim.at(60.0, notice(60.0))
    sim.run(until_s=60.5)
    (found,) = job_of(sim).reasons
    assert (found.code, job_of(sim).state) == (ReasonCode.NODE_RECLAIMED, JobState.PREEMPTING)


@pytest.mark.parametrize(
    ("fields", "at_s"),
    [
        ({}, 60.0),
        ({"grace_s": 10.0}, 60.0),
        ({"preemptible": False}, 160.0 - 60.0),
        ({"preemptible": False, "grace_s": 10.0}, 160.0 - 20.0),
        ({"stop": {"steps": 160}}, None),  # ends at 96 s
        ({"stop": {"steps": 160}, "grace_s": 1000.0}, None),
        ({"stop": {"steps": 190}, "grace_s": 1000.0}, 60.0),  # would end at 113 s, in the second half
        ({"stop": {"steps": 190}}, 60.0),  # would end at 113 s, within two graces of the end
    ],
)
def test_who_leaves_when(fields: dict[str, object], at_s: float | None) -> None:
    sim = running(spec=gang(**fields))
    sim.at(60.0, notice(100.0))
    sim.run(until_s=159.0)
    assert [stop[0] for stop in stops(sim)] == ([] if at_s is None else [at_s])
    sim.run()
    assert (sim.ended[A].state, sim.ended[A].progress.lost_steps) == (JobState.SUCCEEDED, 0)


def test_a_node_that_is_to_be_empty_tonight_is_left_ten_minutes_before() -> None:
    sim = running(spec=gang(stop={"steps": 100_000}))
    sim.at(60.0, NodeDrainChanged(node_id=N1, drain=True, by="root", why="new fans", within_s=7200.0))
    sim.run(until_s=7300.0)
    assert stops(sim) == [(60.0 + 7200.0 - 600.0, "save", 600.0)]
    assert nodes_of(sim) == ("n2",)
    assert sim.engine.state.nodes[N1].state_cause == "new fans (by root), empty within 7200 s"


def test_a_drain_without_a_time_takes_the_time_back() -> None:
    sim = running()
    sim.at(60.0, NodeDrainChanged(node_id=N1, drain=True, by="root", why="new fans", within_s=7200.0))
    sim.at(70.0, NodeDrainChanged(node_id=N1, drain=True, by="root", why="new fans"))
    sim.run()
    assert (sim.ended[A].state, stops(sim)) == (JobState.SUCCEEDED, [])


def test_at_the_end_of_an_admins_time_what_does_not_save_is_killed() -> None:
    sim = running()
    sim.at(60.0, NodeDrainChanged(node_id=N1, drain=True, by="root", why="fire", within_s=0.5))
    sim.run(until_s=65.0)
    assert stops(sim) == [(60.0, "save", 0.5), (60.5, "kill", 0.0)]
    assert (nodes_of(sim), job_of(sim).progress.durable_step, job_of(sim).restart_count) == (("n2",), 0, 0)


def test_what_has_made_no_step_is_stopped_at_once() -> None:
    sim = running()
    sim.at(60.0, JobWishChanged(job_id=A, wish="cancel", by="ann"))
    sim.at(70.0, submitted("b", gang()))
    sim.at(71.5, notice(60.0))
    sim.run(until_s=75.0)
    assert stops(sim)[1:] == [(71.5, "kill", 0.0)]
    assert nodes_of(sim, JobId("b")) == ("n2",)


def test_what_finishes_has_until_the_end() -> None:
    sim = running()
    name = job_of(sim).attempt_id
    assert name is not None
    sim.at(60.0, WorkerReported(node_id=N1, attempt_id=name, report=Finishing(step=70, condition="steps")))
    sim.at(61.0, notice(40.0))
    sim.run(until_s=100.9)
    assert sim.engine.state.attempts[name].state is AttemptState.FINISHING
    assert stops(sim) == []
    sim.run(until_s=101.0)
    assert stops(sim) == [(101.0, "kill", 0.0)]
    sim.run()
    assert (sim.ended[A].state, sim.ended[A].restart_count) == (JobState.SUCCEEDED, 0)


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"preemptible": True}, JobState.QUEUED),
        ({"preemptible": False, "retry": {"restarts_max": 1}}, JobState.QUEUED),
        ({"preemptible": False}, JobState.HELD),
    ],
)
def test_a_program_is_told_a_grace_before_and_repeated_if_its_user_says_so(
    fields: dict[str, object], state: JobState
) -> None:
    sim = running("n1", spec=command_spec("a", count=2, stop={"steps": 500}, **fields))
    sim.at(60.0, notice(60.0))
    sim.run(until_s=110.0)
    assert stops(sim) == [(90.0, "save", 30.0)]
    job = job_of(sim)
    assert (job.state, job.restart_count) == (state, 0)
    sim.at(111.0, notice(None))
    if state is JobState.HELD:
        assert [str(one) for one in job.reasons] == [
            "node n1 is reclaimed in 30 s: the lender's word",
            "held by Arena, since a program may not be safe to repeat: release it if it is",
        ]
        sim.at(112.0, JobWishChanged(job_id=A, wish="run", by="ann"))
    sim.run()
    assert sim.ended[A].state is JobState.SUCCEEDED


def test_what_is_being_held_stays_held_and_what_moves_goes_where_it_was_to_go() -> None:
    sim = running()
    sim.at(60.0, JobWishChanged(job_id=A, wish="hold", by="ann"))
    sim.at(60.5, notice(60.0))
    sim.run(until_s=70.0)
    assert (job_of(sim).state, stops(sim)) == (JobState.HELD, [(60.0, "save", 30.0)])


def test_a_lender_who_keeps_lending_does_not_undo_what_an_admin_did() -> None:
    sim = running()
    sim.at(60.0, NodeDrainChanged(node_id=N1, drain=True, by="root", why="new fans"))
    sim.at(61.0, notice(7200.0))
    sim.at(62.0, notice(None))
    sim.run(until_s=63.0)
    node = sim.engine.state.nodes[N1]
    assert (node.state.value, node.leaving, stops(sim)) == ("draining", node.drain, [])
    sim.at(64.0, notice(7200.0))
    sim.at(65.0, NodeDrainChanged(node_id=N1, drain=False, by="root"))
    sim.run(until_s=66.0)
    assert sim.engine.state.nodes[N1].state.value == "ready"


def test_a_registration_says_anew_whether_the_node_goes() -> None:
    sim = running()
    word = ReclaimNotice(within_s=7200.0, why="x")
    sim.at(60.0, NodeRegistered(info=node_info("n2"), notice=word))
    sim.run(until_s=61.0)
    assert sim.engine.state.nodes[N2].state.value == "drained"
    sim.at(62.0, NodeRegistered(info=node_info("n2", incarnation="n2-2")))
    sim.run(until_s=63.0)
    assert sim.engine.state.nodes[N2].state.value == "ready"


def test_a_machine_that_comes_in_place_of_one_that_went_is_told_of_as_ready_alone() -> None:
    sim = running()
    sim.at(60.0, notice(60.0))
    sim.at(120.0, NodeDisconnected(node_id=N1, incarnation="n1-1", why="it was taken back"))
    sim.at(200.0, NodeRegistered(info=node_info("n1", incarnation="n1-2")))
    sim.run(until_s=201.0)
    history = [entry for step in sim.steps if step.at_s == 200.0 for entry in step.history]
    assert [entry.message for entry in history if entry.node_id == N1] == ["lost -> ready"]


def test_a_scheduler_that_starts_anew_knows_who_is_to_leave() -> None:
    sim = running(spec=gang(preemptible=False))
    sim.at(60.0, NodeDrainChanged(node_id=N1, drain=True, by="root", why="new fans", within_s=100.0))
    sim.run(until_s=61.0)
    name = job_of(sim).attempt_id
    assert name is not None
    again = Engine(make_policy("fcfs"), sim.config, restored_from(sim.steps))
    again.handle(SchedulerStarted(scheduler_version="1", policy="fcfs", policy_version="1"), 62.0)
    again.handle(NodeRegistered(info=node_info("n1"), held=(HeldAttempt(attempt_id=name, started=True),)), 63.0)
    again.handle(NodeRegistered(info=node_info("n2")), 63.0)
    sent: list[tuple[float, str]] = []
    while (now_s := again.next_wakeup_s) is not None and now_s <= 100.0:
        commands = again.handle(Tick(), now_s).commands
        sent += [(now_s, command.mode) for command in commands if isinstance(command, StopAttempt)]
    assert sent == [(100.0, "save")]
