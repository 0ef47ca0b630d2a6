"""What the engine learns of paces: from runs that are long enough, for those that come after them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.events import AttemptEnded, GridBuilt, JobSubmitted, NodeRegistered, WorkerReported
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import Progress, StepPoint
from arena.domain.paces import PaceHistory
from arena.domain.reason import ReasonCode
from arena.domain.records import EndKind, NodeEnd
from arena.engine.config import EngineConfig
from arena.engine.engine import Engine, replay
from arena.engine.ports import Restored
from arena.policies.base import Admission
from arena.policies.priced.market import Tables, market_of
from arena.policies.registry import make_policy
from arena.sim.costs import SimCosts
from arena.sim.run import Simulation
from arena_scheduler.store.records import ATTEMPT_JSON
from tests.builders import node_info, train_spec
from tests.fakes.grids import PowerLawGrids
from tests.fakes.listening import Listening
from tests.fakes.restarts import inputs_of, restored_from

CONFIG = EngineConfig(shape_settle_s=0.0)


@dataclass(frozen=True, slots=True)
class Times:
    """Every step takes so many times what is estimated."""

    slower: float

    def step_s(self, spec: JobSpec, group: GpuGroup, *, estimated_s: float) -> float:
        return estimated_s * self.slower


def after_one(slower: float, *, steps: int = 400, **fields: object) -> Simulation:
    """A job has run on four GPUs and ended; the cluster is idle again."""
    costs = SimCosts(pace=Times(slower))
    sim = Simulation(policy=make_policy("arena"), grids=PowerLawGrids(), config=CONFIG, costs=costs, check=True)
    sim.at(0.0, NodeRegistered(info=node_info("n1", gpus=4)))
    spec = train_spec("first", stop={"steps": steps}, **fields)
    sim.at(1.0, JobSubmitted(job_id=JobId("first"), spec=spec, user="ann", request_id="first"))
    sim.run(until_s=50_000.0)
    assert "first" in sim.ended
    return sim


def again(sim: Simulation) -> Engine:
    """The scheduler that comes after."""
    return Engine(make_policy("arena"), sim.config, restored_from(sim.steps))


def logs(paces: PaceHistory) -> list[float]:
    return [one.log_pace for one in paces.all]


@pytest.mark.parametrize("slower", [0.25, 1.0, 4.0])
def test_a_run_that_ends_is_remembered_by_how_it_was_against_its_estimate(slower: float) -> None:
    sim = after_one(slower, steps=1_000)
    [known] = sim.engine.state.paces.all
    assert known.log_pace == pytest.approx(-math.log(slower), abs=1e-5)
    assert (known.kind.source, known.kind.gpu_types) == ("power-law 0.8", "cpu")


def test_a_run_of_less_than_a_minute_teaches_nothing() -> None:
    assert after_one(4.0, steps=20).engine.state.paces == PaceHistory()


def test_it_is_told_with_the_step_that_ends_the_run_and_no_other() -> None:
    sim = after_one(4.0)
    [told] = [step for step in sim.steps if step.paces is not None]
    assert isinstance(told.event, AttemptEnded)
    assert told.paces == sim.engine.state.paces


def test_the_log_of_inputs_teaches_the_same() -> None:
    sim = after_one(4.0)
    other = Engine(make_policy("arena"), sim.config)
    assert list(replay(other, inputs_of(sim.steps))) == sim.steps
    assert other.state.paces == sim.engine.state.paces != PaceHistory()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_next_of_its_kind_is_planned_at_the_pace_that_was_measured(*, is_restarted: bool) -> None:
    """Also where nothing runs, and in a scheduler that starts anew; another kind of work is planned as estimated."""
    sim = after_one(4.0)
    policy = Listening(inner=make_policy("arena"))
    engine = Engine(policy, sim.config, restored_from(sim.steps))
    if not is_restarted:
        engine.state = sim.engine.state
    for at_s, (name, spec) in enumerate(
        [("same", train_spec("same", stop={"steps": 9_000})), ("other", train_spec("other", model={"layers": 9}))]
    ):
        engine.handle(JobSubmitted(job_id=JobId(name), spec=spec, user="bob", request_id=name), 60_000.0 + at_s)
        grid = PowerLawGrids().grid(spec, engine.state.shape)
        engine.handle(GridBuilt(job_id=JobId(name), shape=engine.state.shape, grid=grid), 60_000.5 + at_s)
    first = policy.snapshots[0]
    assert list(first.waiting) == ["same"]
    market = market_of(first, Tables())
    own = market.speed * market.gpu_count**-0.8
    assert own == pytest.approx([0.25] * len(own), rel=1e-4)


def asked(engine: Engine, *, steps: int, deadline_s: float) -> Admission:
    """What a job of the same kind is told before it is submitted."""
    spec = train_spec("next", stop={"steps": steps}, deadline_s=deadline_s, is_deadline_strict=True)
    answer = engine.admission(engine.state, spec, PowerLawGrids().grid(spec, engine.state.shape), 60_000.0)
    assert answer is not None
    return answer


def test_a_deadline_that_only_the_plan_would_make_is_refused() -> None:
    """400 steps take 132 s on four GPUs by the plan, and 528 s as was measured."""
    sim = after_one(4.0)
    knows_nothing = Engine(make_policy("arena"), sim.config, Restored(nodes=tuple(sim.engine.state.nodes.values())))
    assert asked(knows_nothing, steps=400, deadline_s=300.0).is_promised
    for engine in (sim.engine, again(sim)):
        answer = asked(engine, steps=400, deadline_s=300.0)
        assert not answer.is_promised
        assert answer.earliest_end_s is not None
        assert answer.earliest_end_s - 60_000.0 > 528.0
        assert "at 0.25 times the estimated speed, as jobs like it were measured to run" in str(answer.reason)


def test_a_deadline_that_the_plan_would_not_make_is_promised_where_jobs_were_faster() -> None:
    sim = after_one(0.25, steps=1_000)
    knows_nothing = Engine(make_policy("arena"), sim.config, Restored(nodes=tuple(sim.engine.state.nodes.values())))
    answer = asked(knows_nothing, steps=400, deadline_s=100.0)
    assert answer.reason is not None
    assert answer.reason.code is ReasonCode.DEADLINE_TOO_SOON
    for engine in (sim.engine, again(sim)):
        assert asked(engine, steps=400, deadline_s=100.0).is_promised


def reported(engine: Engine, times_s: Sequence[float]) -> Iterable[WorkerReported]:
    [attempt] = engine.state.attempts.values()
    points = [StepPoint(step=at, loss=1.0, step_time_s=one, tokens_per_s=1.0) for at, one in enumerate(times_s, 1)]
    for report in (Progress(points=tuple(points[:2])), Progress(points=tuple(points[1:]))):
        yield WorkerReported(node_id=attempt.allocation.node_ids[0], attempt_id=attempt.attempt_id, report=report)


def one_job() -> Engine:
    """An engine with a job of 400 steps on one GPU, just launched."""
    engine, spec = Engine(make_policy("arena"), CONFIG), train_spec("a", stop={"steps": 400}, gpus={"min": 1, "max": 1})
    engine.handle(NodeRegistered(info=node_info("n1", gpus=1)), 0.0)
    engine.handle(JobSubmitted(job_id=JobId("a"), spec=spec, user="ann", request_id="a"), 1.0)
    shape = engine.state.shape
    engine.handle(GridBuilt(job_id=JobId("a"), shape=shape, grid=PowerLawGrids().grid(spec, shape)), 2.0)
    return engine


@pytest.mark.parametrize("told_s", [math.nan, math.inf, -math.inf, 0.0, -9.0, 1e-308, 1e308])
def test_a_step_time_that_cannot_be_is_not_kept_of_a_job(told_s: float) -> None:
    """Programs tell it by clocks that may be set back: what looks at it later needs a number, or none."""
    engine = one_job()
    for at_s, event in enumerate(reported(engine, [2.0, 2.0, told_s]), 10):
        engine.handle(event, float(at_s))
    progress = engine.state.jobs[JobId("a")].progress
    assert (progress.step, progress.step_time_s) == (3, None)
    again_s = engine.next_wakeup_s
    assert again_s is not None
    assert 11.0 < again_s < 1e6
    for event in reported(engine, [2.0, 2.0, told_s, 4.0]):
        engine.handle(event, 20.0)
    assert engine.state.jobs[JobId("a")].progress.step_time_s == 4.0


@pytest.mark.parametrize("nonsense", [[], [math.nan], [math.inf], [0.0], [-9.0], [1e308, 1e308]])
def test_of_a_run_the_mean_of_its_steps_counts_without_the_first(nonsense: list[float]) -> None:
    """Also where steps are told of twice; the last one alone may be odd, and programs may tell anything."""
    engine = one_job()
    for at_s, event in enumerate(reported(engine, [50.0, 2.0, 2.0, *nonsense, 4.0, 8.0]), 10):
        engine.handle(event, float(at_s))
    [attempt] = engine.state.attempts.values()
    assert ATTEMPT_JSON.validate_json(ATTEMPT_JSON.dump_json(attempt)) == attempt
    [node_id] = attempt.allocation.node_ids
    end = NodeEnd(node_id=node_id, kind=EndKind.FAILED)
    engine.handle(AttemptEnded(node_id=node_id, attempt_id=attempt.attempt_id, end=end), 100.0)
    assert logs(engine.state.paces) == [pytest.approx(-math.log(4.0), abs=1e-6)]
