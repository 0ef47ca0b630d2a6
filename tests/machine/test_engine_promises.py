"""Promises in the engine: a policy that cannot say what it promises does no harm."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from arena.domain.events import Event, GridBuilt, JobSubmitted, NodeRegistered
from arena.domain.job import JobId, JobSpec
from arena.domain.records import EntryKind, JobState
from arena.engine.config import EngineConfig
from arena.engine.decide import PolicyFault
from arena.engine.engine import Engine
from arena.engine.ports import Step
from arena.policies.base import Admission, Decision, Policy, Snapshot
from arena.policies.registry import make_policy
from tests.builders import node_info, train_spec
from tests.fakes.grids import PowerLawGrids

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


def test_a_study_ends_where_its_policy_fails_on_a_promise() -> None:
    engine = Engine(Silent(make_policy("arena")), EngineConfig(shape_settle_s=0.0, is_strict=True))
    with pytest.raises(PolicyFault, match="failed when it was asked for a promise: a is poisoned"):
        with_grid(engine, WITH_DEADLINE)
