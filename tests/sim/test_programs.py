"""Foreign programs in a replay: they say nothing between start and end, as live ones; what is known is their age."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arena.domain.events import WorkerReported
from arena.domain.job import JobId
from arena.engine.ports import Step
from arena.planner.source import PlannerGridSource
from arena.policies.registry import make_policy
from arena.sim.costs import ConstantRestart, SimCosts
from arena.sim.disturbances import Availability, Disturbance, Reclaims
from arena.sim.ledger import JobOutcome
from arena.sim.replay import REPLAY_CONFIG, Replay, ReplayJob
from arena.sim.world import Fate
from tests.builders import command_spec, shape
from tests.sim.test_disturbances import NODE
from tests.sim.test_replay import FREE

LOADING = replace(FREE, start_s=3.0, restart=ConstantRestart(first_s=5.0, again_s=7.0))


def program(name: str, at_s: float, length_s: int, *, declared_s: int | None = None, count: int = 1) -> ReplayJob:
    spec = command_spec(
        name,
        count=count,
        preemptible=True,
        retry={"restarts_max": 9},
        stop={} if declared_s is None else {"steps": declared_s},
    )
    return ReplayJob(job_id=JobId(name), submitted_at_s=at_s, spec=spec, fate=Fate(step_count=length_s))


def ran(
    policy: str,
    *jobs: ReplayJob,
    nodes: int = 1,
    costs: SimCosts = FREE,
    disturbances: tuple[Disturbance, ...] = (),
    heard: list[Step] | None = None,
) -> dict[str, JobOutcome]:
    replay = Replay(
        shape=shape(("cpu", 1, nodes)),
        policy=make_policy(policy),
        grids=PlannerGridSource(),
        costs=costs,
        config=replace(REPLAY_CONFIG, node_grace_s=15.0, backoff_s=0.0),
        disturbances=disturbances,
        check=True,
    )
    ledger = replay.run(jobs, watch=None if heard is None else heard.append)
    return {str(one.job_id): one for one in ledger.outcomes}


@pytest.mark.parametrize("policy", ["fcfs", "srtf", "arena"])
def test_nothing_is_heard_of_a_program_but_its_start_and_its_end(policy: str) -> None:
    heard: list[Step] = []
    found = ran(policy, program("a", 0.0, 100, declared_s=100), program("b", 10.0, 50), nodes=2, heard=heard)
    assert {name: one.ended_at_s for name, one in found.items()} == {"a": 100.0, "b": 60.0}
    assert not [step for step in heard if isinstance(step.event, WorkerReported)]
    assert {job.progress.step for step in heard for job in step.jobs} == {0}


def test_starting_and_loading_are_lost_and_working_is_not() -> None:
    outcome = ran("fcfs", program("a", 0.0, 100), costs=LOADING)["a"]
    assert (outcome.ended_at_s, outcome.gpu_seconds, outcome.lost_gpu_seconds) == (108.0, 108.0, 8.0)


@pytest.mark.parametrize(("arrives_at_s", "first"), [(150.0, "old"), (50.0, "new")])
def test_who_has_run_for_long_has_less_left_of_what_it_declared(arrives_at_s: float, first: str) -> None:
    """Old declares 200 s, new 100 s: at 150 s old has 50 s left and goes on, at 50 s it has 150 s left and stops."""
    found = ran("srtf", program("old", 0.0, 200, declared_s=200), program("new", arrives_at_s, 100, declared_s=100))
    assert min(found.values(), key=lambda one: one.ended_at_s).job_id == first
    assert max(one.ended_at_s for one in found.values()) == 300.0


def test_a_program_that_stops_and_goes_on_loses_what_it_loads() -> None:
    """Old runs from 8 s on; new comes at 50 s for 20 s: it starts and loads in 8 s, then old in 10 s."""
    costs = replace(LOADING, save_s=4.0)
    found = ran("srtf", program("old", 0.0, 200, declared_s=200), program("new", 50.0, 20, declared_s=20), costs=costs)
    assert found["new"].ended_at_s == 50.0 + 4.0 + 8.0 + 20.0
    assert found["old"].ended_at_s == found["new"].ended_at_s + 10.0 + 200.0 - 42.0
    assert (found["new"].lost_gpu_seconds, found["old"].lost_gpu_seconds) == (8.0, 8.0 + 4.0 + 10.0)


def test_what_a_program_had_not_saved_on_a_node_that_went_is_lost() -> None:
    """The node is taken at 250 s and given up 15 s later; a program is taken to save every 100 steps, as any job."""
    away = Reclaims(changes=(Availability(at_s=250.0, node_id=NODE, is_there=False),), grace_s=0.0)
    outcome = ran("fcfs", program("a", 0.0, 500), nodes=2, disturbances=(away,))["a"]
    assert (outcome.attempt_count, outcome.ended_at_s) == (2, 250.0 + 15.0 + 300.0)
    assert outcome.lost_gpu_seconds == 50.0 + 15.0
