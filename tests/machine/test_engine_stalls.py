"""A job that shows no further step is said to have stalled, with its reasons; one that does again is not."""

from __future__ import annotations

from typing import Any

import pytest

from arena.domain.events import AttemptEnded, AttemptStarted, Event, JobSubmitted, NodeRegistered, Tick, WorkerReported
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import CheckpointSaved, Evaluated, NodeId, Progress, Ready, StepPoint, WorkerReport
from arena.domain.reason import ReasonCode
from arena.domain.records import AttemptState, EndKind, EntryKind, HistoryEntry, JobRecord, JobState, NodeEnd
from arena.engine.config import EngineConfig
from arena.engine.engine import Engine
from arena.engine.state import reasons_of
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from tests.builders import command_spec, node_info, train_spec
from tests.fakes.grids import PowerLawGrids

A, N1 = JobId("a"), NodeId("n1")
CONFIG = EngineConfig(checkpoint_root="/ckpt", shape_settle_s=0.0)


class Told:
    """A job that has been launched at 1.0 s, whose workers say what the test says."""

    def __init__(self, spec: JobSpec) -> None:
        sim = Simulation(policy=make_policy("fcfs"), grids=PowerLawGrids(), config=CONFIG, check=True)
        sim.at(0.0, NodeRegistered(info=node_info("n1")))
        sim.at(1.0, JobSubmitted(job_id=A, spec=spec, user="ann", request_id="a"))
        sim.run(until_s=1.5)
        self.engine: Engine = sim.engine
        self.stalls: list[HistoryEntry] = []
        self.handle(AttemptStarted(node_id=N1, attempt_id=self.attempt_id), 2.0)

    @property
    def job(self) -> JobRecord:
        return self.engine.state.jobs[A]

    @property
    def attempt_id(self) -> str:
        assert self.job.attempt_id is not None
        return self.job.attempt_id

    def handle(self, event: Event, at_s: float) -> None:
        """Have the engine look whenever it wants to until an instant, then handle an event there."""
        while (due_s := self.engine.next_wakeup_s) is not None and due_s < at_s:
            self._handle(Tick(), due_s)
        self._handle(event, at_s)

    def _handle(self, event: Event, at_s: float) -> None:
        step = self.engine.handle(event, at_s)
        self.stalls += [entry for entry in step.history if entry.kind is EntryKind.JOB_STALLED]

    def report(self, report: WorkerReport, at_s: float) -> None:
        self.handle(WorkerReported(node_id=N1, attempt_id=self.attempt_id, report=report), at_s)

    def step(self, step: int, at_s: float) -> None:
        point = StepPoint(step=step, loss=1.0, step_time_s=1.0, tokens_per_s=1.0)
        self.report(Progress(points=(point,)), at_s)

    def ready(self, at_s: float) -> None:
        self.report(Ready(resumed_step=0, checkpoint=None, rendezvous_s=0.1, load_s=0.1), at_s)

    def wait(self, at_s: float) -> None:
        self.handle(Tick(), at_s)

    def codes(self) -> list[ReasonCode]:
        return [one.code for one in reasons_of(self.engine.state, self.job)[0]]


def trained(**fields: object) -> Told:
    told = Told(train_spec("a", **fields))
    told.ready(3.0)
    return told


def test_a_job_without_a_step_for_too_long_has_stalled_and_says_so() -> None:
    told = trained()
    told.step(5, 10.0)
    told.wait(69.0)
    assert (told.stalls, told.codes()) == ([], [ReasonCode.STARTED])
    told.wait(71.0)
    assert told.job.progress.stalled_since_s == 10.0
    assert [(entry.at_s, entry.data["since_s"]) for entry in told.stalls] == [(70.0, 10.0)]
    assert told.codes() == [ReasonCode.STARTED, ReasonCode.STALLED]
    assert str(told.job.reasons[-1]) == "no step came within 60 s after step 5: it seems to hang"
    told.wait(1000.0)
    assert len(told.stalls) == 1


@pytest.mark.parametrize("sign", ["step", "evaluation"])
def test_one_that_goes_on_has_stalled_no_more(sign: str) -> None:
    told = trained(stall_timeout_s=20.0)
    told.step(5, 10.0)
    told.wait(31.0)
    assert told.stalls
    if sign == "step":
        told.step(6, 40.0)
    else:
        told.report(Evaluated(step=5, loss=1.0, sample_count=1, evaluate_s=1.0), 40.0)
    assert told.job.progress.stalled_since_s is None
    assert told.codes() == [ReasonCode.STARTED]
    told.wait(61.0)
    assert len(told.stalls) == 2, "and again"


@pytest.mark.parametrize(
    ("fields", "due_s"), [({}, 303.0), ({"stall_timeout_s": 20.0}, 303.0), ({"stall_timeout_s": 400.0}, 403.0)]
)
def test_one_that_makes_no_first_step_has_stalled(fields: dict[str, object], due_s: float) -> None:
    told = trained(**fields)
    told.wait(due_s - 1.0)
    assert told.stalls == []
    told.wait(due_s + 1.0)
    assert [entry.at_s for entry in told.stalls] == [due_s]
    assert told.job.state is JobState.STARTING
    assert f"{due_s - 3.0:.0f} s after its ranks had met" in str(told.job.reasons[-1])
    told.step(1, due_s + 9.0)
    assert told.codes() == [ReasonCode.STARTED]
    assert told.job.progress.stalled_since_s is None


def test_a_program_that_told_of_steps_stalls_if_its_user_said_when() -> None:
    told = Told(command_spec("a", stall_timeout_s=30.0))
    told.wait(500.0)
    assert told.stalls == [], "it may never tell of any"
    told.step(1, 501.0)
    told.wait(532.0)
    assert [entry.at_s for entry in told.stalls] == [531.0]
    assert told.codes() == [ReasonCode.STARTED, ReasonCode.STALLED]


def test_of_a_program_whose_user_said_nothing_nobody_knows() -> None:
    told = Told(command_spec("a"))
    told.step(1, 10.0)
    told.wait(100_000.0)
    assert told.stalls == []


@pytest.mark.parametrize("is_program", [False, True])
def test_a_new_attempt_has_not_stalled_for_what_the_last_one_told(is_program: bool) -> None:
    fields = {"stall_timeout_s": 20.0, "retry": {"restarts_max": 3}}
    told = Told(command_spec("a", **fields)) if is_program else trained(**fields)
    told.step(5, 10.0)
    told.wait(31.0)
    end = NodeEnd(node_id=N1, kind=EndKind.FAILED, error_code="crash", message="it died")
    told.handle(AttemptEnded(node_id=N1, attempt_id=told.attempt_id, end=end), 40.0)
    assert told.job.progress.stalled_since_s is None
    assert ReasonCode.STALLED not in [one.code for one in told.job.reasons]
    told.wait(45.0)
    told.handle(AttemptStarted(node_id=N1, attempt_id=told.attempt_id), 46.0)
    told.wait(80.0)
    assert len(told.stalls) == 1
    told.step(9, 90.0)
    told.wait(111.0)
    assert [entry.at_s for entry in told.stalls[1:]] == [110.0]


@pytest.mark.parametrize("is_program", [False, True])
def test_one_that_is_to_be_restarted_is_killed_and_counts_as_failed(is_program: bool) -> None:
    fields = {"stall_timeout_s": 20.0, "retry": {"restarts_max": 1, "on_stall": "restart"}}
    told = Told(command_spec("a", **fields)) if is_program else trained(**fields)
    told.step(5, 10.0)
    told.wait(31.0)
    attempt = told.engine.state.attempts[told.attempt_id]
    assert (attempt.state, attempt.stop_mode) == (AttemptState.STOPPING, "kill")
    assert told.codes() == [ReasonCode.STARTED, ReasonCode.STALLED]
    end = NodeEnd(node_id=N1, kind=EndKind.KILLED, message="killed on request")
    step = told.engine.handle(AttemptEnded(node_id=N1, attempt_id=attempt.attempt_id, end=end), 32.0)
    job = step.jobs[-1]
    assert job.state is JobState.QUEUED
    assert "no step came within 20 s after step 5" in str(job.reasons[0])
    assert job.restarts_since_progress == 1


def test_one_that_is_only_told_of_runs_on() -> None:
    told = trained(stall_timeout_s=20.0)
    told.step(5, 10.0)
    told.wait(31.0)
    assert told.stalls
    assert told.engine.state.attempts[told.attempt_id].state is AttemptState.RUNNING


def test_what_is_being_stopped_is_not_killed_for_a_stall() -> None:
    """Its time limit is over, and it saves for longer than it may be silent."""
    told = trained(stall_timeout_s=5.0, stop={"time_limit_s": 10.0}, grace_s=20.0, retry={"on_stall": "restart"})
    told.step(5, 10.0)
    for at_s in range(14, 41):
        told.step(at_s, float(at_s))
    told.wait(46.0)
    assert told.stalls
    assert told.engine.state.attempts[told.attempt_id].stop_mode == "save"


@pytest.mark.parametrize(
    ("fields", "missing"),
    [({}, "stall_timeout_s"), ({"stall_timeout_s": 60.0, "retry": {"restarts_max": 0}}, "restarts_max")],
)
def test_one_that_is_to_be_restarted_must_say_when_and_how_often(fields: dict[str, Any], missing: str) -> None:
    retry = {"on_stall": "restart", **fields.get("retry", {})}
    with pytest.raises(ValueError, match=missing):
        train_spec("a", **{**fields, "retry": retry})


def test_a_save_is_a_sign_of_life_and_an_evaluation_takes_its_time() -> None:
    told = trained(stall_timeout_s=20.0)
    told.step(5, 10.0)
    told.report(CheckpointSaved(step=5, name="step-5", size_bytes=1, save_s=25.0), 29.0)
    told.wait(48.0)
    assert not told.stalls
    told.report(Evaluated(step=5, loss=1.0, accuracy=None, sample_count=1, evaluate_s=60.0), 48.5)
    told.wait(160.0)
    assert not told.stalls
    told.wait(170.0)
    assert told.stalls
