"""The engine through its one port, in the simulated world: what each event leads to."""

from __future__ import annotations

import pytest

from arena.domain.commands import AnswerRegistration, BuildGrid, LaunchAttempt, StopAttempt
from arena.domain.events import (
    AttemptEnded,
    AttemptStarted,
    EndedAttempt,
    Event,
    GridBuilt,
    HeldAttempt,
    JobSubmitted,
    JobWishChanged,
    NodeDisconnected,
    NodeDrainChanged,
    NodeRegistered,
    SchedulerStarted,
    Tick,
    WorkerReported,
)
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import AttemptId, NodeId, WorkerError
from arena.domain.records import AttemptTransition, EndKind, EntryKind, JobRecord, JobState, NodeEnd, Wish
from arena.domain.replacing import replace
from arena.engine.config import EngineConfig
from arena.engine.counts import gpu_counts
from arena.engine.engine import Engine, replay
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from tests.builders import command_spec, node_info, train_spec
from tests.fakes.grids import PowerLawGrids
from tests.fakes.restarts import inputs_of, restored_from


def simulation(policy: str = "elastic", **config: float) -> Simulation:
    settings = {"shape_settle_s": 0.0, **config}
    return Simulation(
        policy=make_policy(policy),
        grids=PowerLawGrids(),
        config=EngineConfig(checkpoint_root="/ckpt", output_root="/out", **settings),  # type: ignore[arg-type]
        check=True,
    )


def submit(name: str, spec: JobSpec | None = None) -> JobSubmitted:
    return JobSubmitted(job_id=JobId(name), spec=spec or train_spec(name), user="ann", request_id=name)


def with_nodes(sim: Simulation, *names: str, gpus: int = 2, **fields: object) -> Simulation:
    for name in names:
        sim.at(0.0, NodeRegistered(info=node_info(name, gpus=gpus, **fields)))
    return sim


def attempt_of(sim: Simulation, name: str) -> AttemptId:
    found = sim.engine.state.jobs[JobId(name)].attempt_id
    assert found is not None
    return found


def kinds(sim: Simulation, job: str) -> list[str]:
    return [entry.kind.value for step in sim.steps for entry in step.history if entry.job_id == job]


def test_a_job_runs_to_its_end_on_all_that_helps() -> None:
    sim = with_nodes(simulation(), "n1", "n2")
    sim.at(1.0, submit("a"))
    sim.run()
    job = sim.ended[JobId("a")]
    assert job.state is JobState.SUCCEEDED
    assert job.epoch == 1
    launched = [step for step in sim.steps for command in step.commands if isinstance(command, LaunchAttempt)]
    assert launched, kinds(sim, "a")
    # 1 s start + 2 s load + 1000 steps at 4**-0.8 s
    assert job.ended_at_s == pytest.approx(1.0 + 3.0 + 1000 / 4**0.8 + 0.1)


def test_the_first_shrinks_for_the_second_and_grows_when_it_is_gone() -> None:
    sim = with_nodes(simulation(), "n1", "n2")
    sim.at(1.0, submit("a", train_spec("a", stop={"steps": 4000})))
    sim.at(100.0, submit("b", train_spec("b", stop={"steps": 300})))
    sim.run()
    changes = plan_changes(sim, "a")
    assert changes[0] == (4, 2)
    assert changes[-1][1] == 4
    assert {job.state for job in sim.ended.values()} == {JobState.SUCCEEDED}
    assert sim.ended[JobId("a")].progress.lost_steps == 0


def test_intent_is_recorded_in_the_step_that_commands_the_launch() -> None:
    sim = with_nodes(simulation(), "n1")
    sim.at(1.0, submit("a"))
    sim.run()
    for step in sim.steps:
        for command in step.commands:
            if isinstance(command, LaunchAttempt):
                assert command.launch.attempt_id in {attempt.attempt_id for attempt in step.attempts}
                assert command.launch.job_id in {job.job_id for job in step.jobs}


def test_a_gang_starts_whole_or_not_at_all() -> None:
    sim = with_nodes(simulation("fcfs"), "n1", "n2")
    sim.at(1.0, submit("a", train_spec("a", kind="rigid", gpus={"count": 4})))
    sim.at(1.0, submit("b", train_spec("b", kind="rigid", gpus={"count": 4})))
    sim.run(until_s=10.0)
    states = {name: job.state for name, job in sim.engine.state.jobs.items()}
    assert states == {JobId("a"): JobState.RUNNING, JobId("b"): JobState.QUEUED}
    launches = [
        command.launch.job_id for step in sim.steps for command in step.commands if isinstance(command, LaunchAttempt)
    ]
    assert launches == ["a", "a"]


def test_a_node_that_stays_away_is_lost_and_its_job_starts_elsewhere() -> None:
    sim = with_nodes(simulation("fcfs"), "n1", "n2")
    sim.at(1.0, submit("a", train_spec("a", kind="rigid", gpus={"count": 2})))
    sim.at(50.0, NodeDisconnected(node_id=NodeId("n1"), incarnation="n1-1", why="cable"))
    sim.run()
    job = sim.ended[JobId("a")]
    assert job.state is JobState.SUCCEEDED
    assert job.restart_count == 1
    assert job.epoch == 2
    assert "attempt_ended" in kinds(sim, "a")


def test_a_node_that_comes_back_in_its_grace_changes_nothing() -> None:
    sim = with_nodes(simulation("fcfs"), "n1")
    sim.at(1.0, submit("a"))
    sim.run(until_s=20.0)
    name = attempt_of(sim, "a")
    engine, now_s = sim.engine, 21.0
    engine.handle(NodeDisconnected(node_id=NodeId("n1"), incarnation="n1-1", why="reset"), now_s)
    held = (HeldAttempt(attempt_id=name, started=True),)
    step = engine.handle(NodeRegistered(info=node_info("n1"), held=held), now_s + 5.0)
    assert step.commands == (AnswerRegistration(node_id=NodeId("n1"), keep=(name,), kill=()),)
    engine.handle(Tick(), now_s + 60.0)
    assert engine.state.jobs[JobId("a")].attempt_id == name
    assert engine.state.jobs[JobId("a")].epoch == 1


def test_registration_verdict_kills_the_unknown_and_keeps_the_node_from_work_until_they_are_gone() -> None:
    sim = with_nodes(simulation("fcfs"), "n1")
    sim.run(until_s=1.0)
    stray = AttemptId("old.3")
    held = (HeldAttempt(attempt_id=stray, started=True),)
    step = sim.engine.handle(NodeRegistered(info=node_info("n1", incarnation="n1-2"), held=held), 2.0)
    assert AnswerRegistration(node_id=NodeId("n1"), keep=(), kill=(stray,)) in step.commands
    assert sim.engine.state.nodes[NodeId("n1")].state.value == "cleaning"
    assert [counts.free for counts in gpu_counts(sim.engine.state)] == [0]
    end = NodeEnd(node_id=NodeId("n1"), kind=EndKind.KILLED)
    sim.engine.handle(AttemptEnded(node_id=NodeId("n1"), attempt_id=stray, end=end), 3.0)
    assert sim.engine.state.nodes[NodeId("n1")].state.value == "ready"
    assert [counts.free for counts in gpu_counts(sim.engine.state)] == [2]


def test_a_lost_launch_is_sent_again_when_the_node_registers() -> None:
    engine = Engine(make_policy("fcfs"), EngineConfig(shape_settle_s=0.0))
    now_s = 0.0
    engine.handle(NodeRegistered(info=node_info("n1")), now_s)
    step = engine.handle(submit("a"), now_s)
    launch = grid_and_launch(engine, step.commands, now_s)
    step = engine.handle(NodeRegistered(info=node_info("n1", incarnation="n1-2")), now_s + 1)
    assert launch in step.commands


@pytest.mark.parametrize("situation", ["launch lost", "end not acknowledged", "freed for the next", "stop not heard"])
def test_the_verdict_is_the_first_word_to_a_node_that_registers(situation: str) -> None:
    """An agent listens to nothing before it, and registers anew: any other order would go on for ever."""
    engine = Engine(make_policy("fcfs"), EngineConfig(shape_settle_s=0.0))
    engine.handle(NodeRegistered(info=node_info("n1")), 0.0)
    name = grid_and_launch(engine, engine.handle(submit("a"), 0.0).commands, 0.0).launch.attempt_id
    held: tuple[HeldAttempt, ...] = ()
    ended: tuple[EndedAttempt, ...] = ()
    if situation == "freed for the next":
        build = next(c for c in engine.handle(submit("b"), 0.5).commands if isinstance(c, BuildGrid))
        grid = PowerLawGrids().grid(build.spec, build.shape)
        engine.handle(GridBuilt(job_id=build.job_id, shape=build.shape, grid=grid), 0.5)
    if situation == "stop not heard":
        engine.handle(AttemptStarted(node_id=NodeId("n1"), attempt_id=name), 0.6)
        engine.handle(JobWishChanged(job_id=JobId("a"), wish="cancel", by="ann"), 0.7)
        held = (HeldAttempt(attempt_id=name, started=True),)
    elif situation != "launch lost":
        end = NodeEnd(node_id=NodeId("n1"), kind=EndKind.FINISHED)
        ended = (EndedAttempt(attempt_id=name, end=end),)
    step = engine.handle(NodeRegistered(info=node_info("n1", incarnation="n1-2"), held=held, ended=ended), 1.0)
    told = [command for command in step.commands if not isinstance(command, BuildGrid)]
    assert isinstance(told[0], AnswerRegistration)
    assert len(told) > 1


def grid_and_launch(engine: Engine, commands: tuple[object, ...], now_s: float) -> LaunchAttempt:
    build = next(command for command in commands if isinstance(command, BuildGrid))
    grid = PowerLawGrids().grid(build.spec, build.shape)
    step = engine.handle(GridBuilt(job_id=build.job_id, shape=build.shape, grid=grid), now_s)
    return next(command for command in step.commands if isinstance(command, LaunchAttempt))


def test_cancel_is_confirmed_only_by_the_end_of_the_processes() -> None:
    sim = with_nodes(simulation(), "n1")
    sim.at(1.0, submit("a"))
    sim.at(20.0, JobWishChanged(job_id=JobId("a"), wish="cancel", by="ann"))
    sim.run(until_s=20.5)
    assert sim.engine.state.jobs[JobId("a")].state is JobState.CANCELLING
    assert [counts.free for counts in gpu_counts(sim.engine.state)] == [0]
    sim.run()
    assert sim.ended[JobId("a")].state is JobState.CANCELLED


def test_hold_stops_a_running_job_and_release_resumes_it_from_its_checkpoint() -> None:
    sim = with_nodes(simulation(), "n1")
    sim.at(1.0, submit("a"))
    sim.at(50.0, JobWishChanged(job_id=JobId("a"), wish="hold", by="ann"))
    sim.run(until_s=60.0)
    assert sim.engine.state.jobs[JobId("a")].state is JobState.HELD
    sim.at(100.0, JobWishChanged(job_id=JobId("a"), wish="run", by="ann"))
    sim.run()
    job = sim.ended[JobId("a")]
    assert job.state is JobState.SUCCEEDED
    assert job.epoch == 2
    assert job.progress.lost_steps == 0


def next_attempt(sim: Simulation, name: str) -> JobRecord:
    """Run until the job has a live attempt."""
    while True:
        job = sim.engine.state.jobs.get(JobId(name))
        if job is not None and job.attempt_id:
            return job
        before = sim.kernel.now_s
        sim.run(until_s=before + 0.5)
        sim.kernel.now_s = max(sim.kernel.now_s, before + 0.5)


def fail_launch(sim: Simulation, name: str = "a") -> None:
    """End the job's next attempt, which is on one node, before its process is up."""
    job = next_attempt(sim, name)
    assert job.attempt_id is not None
    (node_id,) = sim.engine.state.attempts[job.attempt_id].allocation.node_ids
    sim.world.lose_node(node_id)
    end = NodeEnd(node_id=node_id, kind=EndKind.LAUNCH_FAILED, message="out of processes")
    sim.handle(AttemptEnded(node_id=node_id, attempt_id=job.attempt_id, end=end))


def until_running(sim: Simulation, name: str) -> JobRecord:
    """Run until the job has made a step."""
    while (job := sim.engine.state.jobs[JobId(name)]).state is not JobState.RUNNING:
        sim.run(until_s=sim.kernel.now_s + 5.0)
    return job


def failing(sim: Simulation, name: str, error: WorkerError, times: int) -> None:
    """End the job's next attempts with an error as soon as they are up."""
    for _ in range(times):
        while True:
            job = sim.engine.state.jobs.get(JobId(name))
            if JobId(name) in sim.ended:
                return
            if job is not None and job.attempt_id and job.state is JobState.STARTING:
                break
            before = sim.kernel.now_s
            sim.run(until_s=before + 0.5)
            sim.kernel.now_s = max(sim.kernel.now_s, before + 0.5)
        attempt_id = attempt_of(sim, name)
        node_id = sim.engine.state.attempts[attempt_id].allocation.node_ids[0]
        sim.world.lose_node(node_id)
        for event in failure(node_id, attempt_id, error):
            sim.handle(event)


def failure(node_id: NodeId, name: AttemptId, error: WorkerError) -> tuple[Event, ...]:
    end = NodeEnd(node_id=node_id, kind=EndKind.FAILED, error_code=error.code, message=error.message)
    return (
        AttemptStarted(node_id=node_id, attempt_id=name),
        WorkerReported(node_id=node_id, attempt_id=name, report=error),
        AttemptEnded(node_id=node_id, attempt_id=name, end=end),
    )


@pytest.mark.parametrize(("restarts_max", "attempts"), [(0, 1), (2, 3)])
def test_restarts_end_with_the_budget(restarts_max: int, attempts: int) -> None:
    sim = with_nodes(simulation("fcfs"), "n1")
    sim.at(1.0, submit("a", train_spec("a", retry={"restarts_max": restarts_max})))
    failing(sim, "a", WorkerError(code="crash", rank=0, message="boom"), times=10)
    job = sim.ended[JobId("a")]
    assert (job.state, job.epoch) == (JobState.FAILED, attempts)
    assert "boom" in job.error


def test_a_hopeless_error_is_not_repeated() -> None:
    sim = with_nodes(simulation("fcfs"), "n1")
    sim.at(1.0, submit("a"))
    failing(sim, "a", WorkerError(code="config", rank=0, message="no such file"), times=1)
    assert sim.ended[JobId("a")].state is JobState.FAILED


def test_a_checkpoint_nobody_can_load_holds_the_job_for_its_user() -> None:
    sim = with_nodes(simulation("fcfs"), "n1")
    sim.at(1.0, submit("a"))
    failing(sim, "a", WorkerError(code="checkpoint", rank=0, message="model has 4 layers, checkpoint 6"), times=1)
    job = sim.engine.state.jobs[JobId("a")]
    assert (job.state, job.wish) == (JobState.HELD, Wish.HOLD)
    assert "checkpoint 6" in str(job.reasons[0])


def test_a_taken_port_is_tried_again_with_another_and_costs_no_budget() -> None:
    sim = with_nodes(simulation("fcfs"), "n1")
    sim.at(1.0, submit("a", train_spec("a", retry={"restarts_max": 0})))
    failing(sim, "a", WorkerError(code="port", rank=0, message="in use"), times=3)
    ports = [
        command.launch.master_port
        for step in sim.steps
        for command in step.commands
        if isinstance(command, LaunchAttempt)
    ]
    assert len(set(ports)) == len(ports) == 4
    sim.run()
    assert sim.ended[JobId("a")].state is JobState.SUCCEEDED


def test_launch_failures_fail_the_job_and_quarantine_the_node() -> None:
    sim = with_nodes(simulation("fcfs"), "n1")
    sim.at(1.0, submit("a", train_spec("a", retry={"launch_failures_max": 3})))
    for _ in range(3):
        job = next_attempt(sim, "a")
        sim.world.lose_node(NodeId("n1"))
        end = NodeEnd(node_id=NodeId("n1"), kind=EndKind.LAUNCH_FAILED, message="No such file: python")
        sim.handle(AttemptEnded(node_id=NodeId("n1"), attempt_id=job.attempt_id, end=end))
    failed = sim.ended[JobId("a")]
    assert failed.state is JobState.FAILED
    assert "No such file" in failed.error
    assert "tried 3 of 3" in failed.error
    assert sim.engine.state.nodes[NodeId("n1")].state.value == "quarantined"


ONE_GPU = {"min": 1, "max": 1}


@pytest.mark.parametrize("spec", [train_spec("a", gpus=ONE_GPU, stop={"steps": 5000}), command_spec("a", count=1)])
def test_launches_that_fail_count_in_a_row(spec: JobSpec) -> None:
    """A job that is moved for months is not failed by the third launch of its life that does not work."""
    sim = with_nodes(simulation("fcfs", quarantine_after=100), "n1")
    sim.at(1.0, submit("a", spec))
    fail_launch(sim)
    fail_launch(sim)
    assert sim.engine.state.jobs[JobId("a")].launch_failure_count == 2
    assert until_running(sim, "a").launch_failure_count == 0


def test_who_is_released_has_failed_no_launch() -> None:
    sim = with_nodes(simulation("fcfs", quarantine_after=100), "n1")
    sim.at(1.0, submit("a", train_spec("a", gpus=ONE_GPU)))
    fail_launch(sim)
    for wish in ("hold", "run"):
        sim.handle(JobWishChanged(job_id=JobId("a"), wish=wish, by="ann"))
    assert sim.engine.state.jobs[JobId("a")].launch_failure_count == 0


def test_after_a_restore_from_a_copy_attempts_have_numbers_that_nobody_has_seen() -> None:
    sim = with_nodes(simulation("arena"), "n1")
    sim.engine.state = replace(sim.engine.state, epoch_floor=500)
    sim.at(1.0, submit("a", train_spec("a", stop={"steps": 2_000})))
    sim.at(100.0, submit("b", train_spec("b", stop={"steps": 50})))
    sim.run()
    made = {one.attempt_id: one for step in sim.steps for one in step.attempts}
    assert min(one.epoch for one in made.values()) == 501
    assert {name: one.transition for name, one in made.items() if one.epoch == 501} == {
        "a.501": AttemptTransition.START,
        "b.501": AttemptTransition.START,
    }
    assert {job.state for job in sim.ended.values()} == {JobState.SUCCEEDED}


def test_drain_lets_work_end_and_takes_no_new() -> None:
    sim = with_nodes(simulation("fcfs"), "n1")
    sim.at(1.0, submit("a"))
    sim.at(2.0, submit("b"))
    sim.at(20.0, NodeDrainChanged(node_id=NodeId("n1"), drain=True, by="root", why="disk"))
    sim.run(until_s=21.0)
    node = sim.engine.state.nodes[NodeId("n1")]
    assert node.state.value == "draining"
    assert "disk" in node.state_cause
    assert [(c.total, c.draining, c.used) for c in gpu_counts(sim.engine.state)] == [(2, 2, 0)]
    sim.run(until_s=2000.0)
    assert sim.engine.state.nodes[NodeId("n1")].state.value == "drained"
    assert sim.engine.state.jobs[JobId("b")].state is JobState.QUEUED
    evaluated = sim.engine.view(sim.engine.state.jobs[JobId("b")]).evaluated_at_s
    assert evaluated is not None
    assert evaluated > 1900.0
    sim.at(2001.0, NodeDrainChanged(node_id=NodeId("n1"), drain=False, by="root"))
    sim.run()
    assert sim.ended[JobId("b")].state is JobState.SUCCEEDED


def test_a_job_waits_for_devices_whose_processes_are_not_gone() -> None:
    sim = with_nodes(simulation(), "n1")
    sim.at(1.0, submit("a", train_spec("a", stop={"steps": 5000})))
    sim.at(200.0, submit("b"))
    sim.run(until_s=200.5)
    reasons = [str(found) for found in sim.engine.view(sim.engine.state.jobs[JobId("b")]).reasons]
    assert any("waiting for a.1" in text for text in reasons), reasons


def test_reasons_before_the_first_look_say_so() -> None:
    engine = Engine(make_policy("fcfs"), EngineConfig(shape_settle_s=0.0))
    engine.handle(submit("a"), 0.0)
    assert [found.code.value for found in engine.view(engine.state.jobs[JobId("a")]).reasons] == ["no_nodes"]


def test_a_poisoned_job_is_held_and_the_others_run() -> None:
    sim = with_nodes(simulation(), "n1")
    sim.at(1.0, submit("bad", train_spec("poisoned")))
    sim.at(2.0, submit("good"))
    sim.run()
    assert sim.ended[JobId("good")].state is JobState.SUCCEEDED
    bad = sim.engine.state.jobs[JobId("bad")]
    assert bad.state is JobState.HELD
    assert "no grid for poisoned" in str(bad.reasons[0])


def test_a_time_limit_ends_a_command() -> None:
    sim = with_nodes(simulation("fcfs"), "n1")
    sim.at(1.0, submit("a", command_spec("a", count=1, stop={"time_limit_s": 30.0})))
    sim.run()
    assert sim.ended[JobId("a")].state is JobState.FAILED
    assert "time limit" in sim.ended[JobId("a")].error
    assert sim.ended[JobId("a")].ended_at_s == pytest.approx(33.1, abs=0.5)


def test_the_log_replays_to_the_same_steps_and_state() -> None:
    sim = with_nodes(simulation(), "n1", "n2")
    sim.at(1.0, submit("a", train_spec("a", stop={"steps": 4000})))
    sim.at(100.0, submit("b", train_spec("b", stop={"steps": 300})))
    sim.at(150.0, NodeDisconnected(node_id=NodeId("n2"), incarnation="n2-1", why="cable"))
    sim.run()
    again = Engine(make_policy("elastic"), sim.config)
    steps = list(replay(again, inputs_of(sim.steps)))
    assert steps == sim.steps
    assert again.state == sim.engine.state


def test_a_restart_restores_what_was_recorded() -> None:
    sim = with_nodes(simulation(), "n1", "n2")
    sim.at(1.0, submit("a", train_spec("a", stop={"steps": 4000})))
    sim.at(100.0, submit("b", train_spec("b", stop={"steps": 3000})))
    sim.run(until_s=101.0)  # amid the change
    before = sim.engine.state
    after = Engine(make_policy("elastic"), sim.config, restored_from(sim.steps)).state
    assert after.jobs == before.jobs
    assert after.attempts == before.attempts
    assert (after.holders, after.reserved, after.capacity) == (before.holders, before.reserved, before.capacity)
    assert (after.queue, after.holding, after.shape) == (before.queue, before.holding, before.shape)


def test_after_a_restart_nodes_have_their_grace_again() -> None:
    sim = with_nodes(simulation(), "n1")
    sim.at(1.0, submit("a"))
    sim.run(until_s=20.0)
    engine = Engine(make_policy("elastic"), sim.config, restored_from(sim.steps))
    started = SchedulerStarted(scheduler_version="1", policy="elastic", policy_version="1")
    engine.handle(started, 5000.0)
    assert engine.next_wakeup_s is not None
    engine.handle(Tick(), 5014.0)
    assert engine.state.jobs[JobId("a")].attempt_id is not None
    engine.handle(Tick(), 5015.0)
    assert engine.state.jobs[JobId("a")].attempt_id is None


def test_rollback_is_putting_the_old_state_back() -> None:
    sim = with_nodes(simulation(), "n1")
    sim.run(until_s=0.5)
    saved = sim.engine.state
    first = sim.engine.handle(submit("a"), 1.0)
    sim.engine.state = saved
    assert sim.engine.handle(submit("a"), 1.0) == first


def test_stop_goes_to_every_node_once() -> None:
    sim = with_nodes(simulation(), "n1", "n2")
    sim.at(1.0, submit("a"))
    sim.at(30.0, JobWishChanged(job_id=JobId("a"), wish="hold", by="ann"))
    sim.run(until_s=40.0)
    stops = [command for step in sim.steps for command in step.commands if isinstance(command, StopAttempt)]
    assert sorted(stop.node_id for stop in stops) == ["n1", "n2"]


def on_nodes_with_places_of_their_own(policy: str) -> Simulation:
    sim = simulation(policy)
    for name, marker in (("n1", "a"), ("n2", "b")):
        sim.at(0.0, NodeRegistered(info=node_info(name, visible_places={"/ckpt": marker})))
    sim.at(1.0, submit("a"))
    sim.run(until_s=10.0)
    return sim


def test_a_job_is_not_spread_over_nodes_that_see_different_checkpoint_places() -> None:
    sim = on_nodes_with_places_of_their_own("elastic")
    attempt = sim.engine.state.attempts[attempt_of(sim, "a")]
    assert len(attempt.allocation.shares) == 1


def test_the_reason_names_the_checkpoint_place_that_keeps_a_job_waiting() -> None:
    sim = on_nodes_with_places_of_their_own("fcfs")  # which asks for all four GPUs and nothing less
    reasons = sim.engine.view(sim.engine.state.jobs[JobId("a")]).reasons
    assert "checkpoint place /ckpt" in str(reasons[0])


def test_a_restart_asks_again_for_grids_that_were_being_built() -> None:
    engine = Engine(make_policy("fcfs"), EngineConfig(shape_settle_s=0.0))
    steps = [engine.handle(NodeRegistered(info=node_info("n1")), 0.0), engine.handle(submit("a"), 1.0)]
    again = Engine(make_policy("fcfs"), engine.config, restored_from(steps))
    started = SchedulerStarted(scheduler_version="1", policy="fcfs", policy_version="1")
    step = again.handle(started, 2.0)
    assert [command.job_id for command in step.commands if isinstance(command, BuildGrid)] == ["a"]


def test_a_job_that_has_ended_gives_no_stale_reason() -> None:
    sim = with_nodes(simulation(), "n1")
    sim.at(1.0, submit("a"))
    sim.run()
    assert sim.ended[JobId("a")].reasons == ()


@pytest.mark.parametrize(("restarts_max", "state"), [(None, JobState.FAILED), (1, JobState.SUCCEEDED)])
def test_a_command_on_a_lost_node_is_repeated_only_if_its_user_allows_it(
    restarts_max: int | None, state: JobState
) -> None:
    sim = with_nodes(simulation("fcfs"), "n1", "n2")
    limits = {"retry": {"restarts_max": restarts_max}, "stop": {"steps": 100}}
    sim.at(1.0, submit("a", command_spec("a", count=2, **limits)))
    sim.at(20.0, NodeDisconnected(node_id=NodeId("n1"), incarnation="n1-1", why="cable"))
    sim.run()
    assert sim.ended[JobId("a")].state is state


def test_a_program_that_cannot_be_started_fails_its_job_at_once_and_not_the_node() -> None:
    sim = with_nodes(simulation("fcfs"), "n1")
    sim.at(1.0, submit("a", command_spec("a", count=1)))
    job = next_attempt(sim, "a")
    sim.world.lose_node(NodeId("n1"))
    assert job.attempt_id is not None
    message = "No such file or directory: 'pyhton'"
    end = NodeEnd(node_id=NodeId("n1"), kind=EndKind.LAUNCH_FAILED, error_code="config", message=message)
    sim.handle(AttemptEnded(node_id=NodeId("n1"), attempt_id=job.attempt_id, end=end))
    assert (sim.ended[JobId("a")].state, sim.ended[JobId("a")].error) == (JobState.FAILED, message)
    assert sim.engine.state.nodes[NodeId("n1")].launch_failure_count == 0


def plan_changes(sim: Simulation, name: str) -> list[tuple[object, object]]:
    return [
        (entry.data["from_gpu_count"], entry.data["to_gpu_count"])
        for step in sim.steps
        for entry in step.history
        if entry.kind is EntryKind.PLAN_CHANGED and entry.job_id == name
    ]


def test_a_launch_that_failed_is_no_plan_that_a_job_had() -> None:
    """The port is taken at its first launch: it begins late, and nothing has changed."""
    sim = with_nodes(simulation("fcfs"), "n1")
    sim.at(1.0, submit("a"))
    failing(sim, "a", WorkerError(code="port", rank=0, message="in use"), times=1)
    sim.run()
    assert sim.ended[JobId("a")].state is JobState.SUCCEEDED
    assert plan_changes(sim, "a") == []


def test_a_change_whose_launch_fails_first_is_told_from_the_plan_that_ran() -> None:
    """It shrinks from four GPUs to two, at the second try."""
    sim = with_nodes(simulation("elastic"), "n1", "n2")
    sim.at(1.0, submit("a", train_spec("a", stop={"steps": 100_000})))
    sim.at(60.0, submit("b", train_spec("b", gpus={"count": 2}, kind="rigid", stop={"steps": 50})))
    sim.run(until_s=60.0)
    while (job := sim.engine.state.jobs[JobId("a")]).epoch < 2:
        sim.run(until_s=sim.kernel.now_s + 0.25)
        sim.kernel.now_s += 0.25
    assert job.attempt_id is not None
    node_id = sim.engine.state.attempts[job.attempt_id].allocation.node_ids[0]
    sim.world.lose_node(node_id)
    for event in failure(node_id, job.attempt_id, WorkerError(code="port", rank=0, message="in use")):
        sim.handle(event)
    sim.run(until_s=300.0)
    assert plan_changes(sim, "a")[0] == (4, 2)


def test_a_job_that_was_stopped_and_goes_on_as_it_was_has_not_changed_its_plan() -> None:
    sim = with_nodes(simulation("fcfs"), "n1")
    sim.at(1.0, submit("a"))
    sim.at(20.0, JobWishChanged(job_id=JobId("a"), wish="hold", by="ann"))
    sim.at(200.0, JobWishChanged(job_id=JobId("a"), wish="run", by="ann"))
    sim.run()
    assert sim.ended[JobId("a")].epoch == 2
    assert plan_changes(sim, "a") == []
    assert sim.engine.state.restart_sample_count == 0
