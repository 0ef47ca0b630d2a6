"""Studies: what jobs of a trace ask for and are told, digests, and runs that must fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from arena.domain.allocation import Allocation, GpuGroup
from arena.domain.cluster import ClusterShape
from arena.domain.grid import Grid, GridSource
from arena.domain.job import JobId, JobKind, JobSpec, WorkloadSpec
from arena.domain.records import JobState
from arena.domain.trace import TraceJob, TraceOutcome
from arena.engine.ports import Step
from arena.errors import InternalError, SpecError, UserError
from arena.planner.source import PlannerGridSource
from arena.planner.tables import TableGrids
from arena.policies.registry import make_policy, policy_names
from arena.sim.asks import Asked, Asking, Lengths, Telling, Unplaceable, replay_jobs
from arena.sim.checks import ReplayFaultError, Watchdog
from arena.sim.costs import ConstantRestart, SimCosts
from arena.sim.replay import Replay
from arena.sim.sources import ReplayGrids
from arena.sim.study import Runner, Scenario, digest_of, policy_for, policy_named
from arena.sim.timeline import all_devices
from tests.builders import shape, train_spec

COSTS = SimCosts(start_s=0.0, restart=ConstantRestart(first_s=10.0, again_s=10.0), save_s=0.0, exit_s=0.0)
NET = WorkloadSpec(name="net__1B", global_batch=8)
CLUSTER = shape(("a100", 4, 2), ("v100", 4, 1))
TIMES = {("a100", (4,)): 1.0, ("a100", (4, 4)): 0.6, ("v100", (2,)): 3.0, ("v100", (4,)): 2.0}


def table(times: Mapping[tuple[str, tuple[int, ...]], float] = TIMES) -> TableGrids:
    return TableGrids(
        name="hand", iter_time_s={NET: {GpuGroup.of(kind, at): time_s for (kind, at), time_s in times.items()}}
    )


def grids() -> ReplayGrids:
    return ReplayGrids(planner=PlannerGridSource(), table=table())


def traced(
    row: int, at_s: float = 0.0, duration_s: float | None = 100.0, gpu_count: int = 1, **fields: Any
) -> TraceJob:
    return TraceJob(
        job_id=JobId(f"j{row}"), row=row, submitted_at_s=at_s, duration_s=duration_s, gpu_count=gpu_count, **fields
    )


def trained(row: int, *, gpu_count: int, gpu_type: str | None = None, steps: int = 100, **fields: Any) -> TraceJob:
    return traced(row, gpu_count=gpu_count, gpu_type=gpu_type, step_count=steps, workload=NET, **fields)


def asked(job: TraceJob, cluster: ClusterShape = CLUSTER, **fields: Any) -> Asked:
    found = Asking(grids=grids(), shape=cluster, **fields).asked(job)
    assert isinstance(found, Asked)
    return found


def scenario(
    *jobs: TraceJob, cluster: ClusterShape = CLUSTER, source: GridSource | None = None, **fields: Any
) -> Scenario:
    made = tuple(asked(job, cluster) for job in jobs)
    return Scenario(jobs=made, shape=cluster, grids=source or grids(), costs=COSTS, **fields)


def test_a_job_of_which_only_the_duration_is_known_is_rigid_and_runs_as_long() -> None:
    found = asked(traced(1, duration_s=99.6, gpu_count=3))
    assert (found.spec.kind, found.step_count, found.step_s, found.gpu_count) == (JobKind.RIGID, 100, 1.0, 3)
    result = Runner(scenario=scenario(traced(1, at_s=5.0, duration_s=99.6, gpu_count=3))).run(
        make_policy("fcfs"), label="fcfs"
    )
    [outcome] = result.outcomes
    assert (outcome.completion_s, outcome.gpu_seconds, outcome.lost_gpu_seconds) == (110.0, 330.0, 30.0)
    assert result.rhos == {"j1": pytest.approx(1.0)}


def test_a_job_asks_for_its_type_and_count_or_the_nearest_that_runs() -> None:
    exact = asked(trained(1, gpu_count=4, gpu_type="v100"))
    assert (exact.gpu_type, exact.gpu_count, exact.step_s, exact.is_as_traced) == ("v100", 4, 2.0, True)
    more = asked(trained(2, gpu_count=1, gpu_type="a100"))
    assert (more.gpu_type, more.gpu_count, more.is_as_traced) == ("a100", 4, False)
    less = asked(trained(3, gpu_count=64, gpu_type="v100"))
    assert (less.gpu_count, less.is_as_traced) == (4, False)
    other = asked(trained(4, gpu_count=4, gpu_type="h100"))
    assert (other.gpu_type, other.step_s, other.is_as_traced) == (None, 1.0, False)


def test_what_can_run_nowhere_is_told_and_not_replayed() -> None:
    found = Asking(grids=grids(), shape=CLUSTER).asked(traced(1, gpu_count=64))
    assert isinstance(found, Unplaceable)
    assert "64" in found.why
    with pytest.raises(UserError, match="nothing says how fast net__1B is"):
        Asking(grids=ReplayGrids(planner=PlannerGridSource()), shape=CLUSTER).asked(trained(1, gpu_count=4))
    with pytest.raises(UserError, match="neither a workload with steps nor a duration"):
        Asking(grids=grids(), shape=CLUSTER).asked(traced(1, duration_s=None))


def told(job: TraceJob, *, is_rigid: bool = False, lengths: Lengths | None = None) -> JobSpec:
    [found] = replay_jobs([asked(job)], Telling(is_rigid=is_rigid, lengths=lengths or Lengths()))
    return found.spec


def test_the_scheduler_is_told_lengths_right_wrong_or_not_at_all() -> None:
    job = trained(1, gpu_count=4)
    assert told(job).step_limit == 100
    assert told(job, lengths=Lengths(factor_by_job={JobId("j1"): 2.5})).step_limit == 250
    assert told(job, lengths=Lengths(factor_by_job={JobId("j1"): 1e-9})).step_limit == 1
    assert told(job, lengths=Lengths(is_told=False)).step_limit is None


@pytest.mark.parametrize(
    "lengths", [Lengths(), Lengths(is_told=False), Lengths(factor_by_job={JobId("j1"): 0.1, JobId("j2"): 9.0})]
)
def test_a_job_ends_by_its_own_length_whatever_is_told(lengths: Lengths) -> None:
    jobs = (trained(1, gpu_count=4, gpu_type="a100"), trained(2, gpu_count=4, gpu_type="v100"))
    result = Runner(scenario=scenario(*jobs, lengths=lengths, checks_all=True)).run(make_policy("fcfs"), label="fcfs")
    assert {one.job_id: one.completion_s for one in result.outcomes} == {"j1": 110.0, "j2": 210.0}
    assert {one.state for one in result.outcomes} == {JobState.SUCCEEDED}


def test_rigid_jobs_get_what_they_ask_for_and_others_what_the_policy_likes() -> None:
    job = trained(1, gpu_count=4, gpu_type="v100")
    rigid, free = told(job, is_rigid=True), told(job)
    assert (rigid.kind, rigid.gpus.count, rigid.gpus.types) == (JobKind.RIGID, 4, ("v100",))
    assert (free.kind, free.gpus.count, free.gpus.types) == (JobKind.MALLEABLE, None, ())


def test_a_job_that_its_user_killed_is_cancelled_at_its_time() -> None:
    job = traced(1, duration_s=50.0, outcome=TraceOutcome.CANCELLED)
    result = Runner(scenario=scenario(job)).run(make_policy("fcfs"), label="fcfs")
    assert [(one.state, one.completion_s) for one in result.outcomes] == [(JobState.CANCELLED, 60.0)]
    assert result.whole.cancelled_count == 1


@pytest.mark.parametrize("name", policy_names())
def test_the_same_scenario_has_the_same_digest_and_another_has_not(name: str) -> None:
    jobs = [trained(row, at_s=20.0 * row, gpu_count=4, steps=100 + row) for row in range(1, 9)]

    def digest(*some: TraceJob) -> str:
        made = scenario(*some, checks_all=True)
        return Runner(scenario=made).run(policy_for(name, made.jobs), label=name).digest

    assert digest(*jobs) == digest(*jobs)
    assert digest(*jobs) != digest(*jobs[:-1], replace(jobs[-1], step_count=500))


@pytest.mark.parametrize("name", policy_names())
def test_every_policy_ends_every_job_of_a_trace_of_durations(name: str) -> None:
    """Twelve GPUs, half again as much work as fits: queues, and with some policies changes."""
    jobs = [
        traced(row, at_s=15.0 * row, duration_s=50.0 + 37 * (row % 7), gpu_count=(1, 2, 4, 8)[row % 4])
        for row in range(2, 42)
    ]
    made = scenario(*jobs, checks_all=True)
    result = Runner(scenario=made).run(policy_for(name, made.jobs), label=name)
    assert {one.state for one in result.outcomes} == {JobState.SUCCEEDED}
    assert {one.job_id for one in result.outcomes} == {job.job_id for job in jobs}
    useful = sum(one.gpu_seconds - one.lost_gpu_seconds for one in result.outcomes)
    assert useful == pytest.approx(sum(one.alone_s * one.gpu_count for one in made.jobs))


def test_jobs_of_a_log_are_what_they_were() -> None:
    own = train_spec("own", stop={"steps": 7})
    job = traced(1, gpu_count=1, step_count=30)
    found = asked(job, shape(("cpu", 2, 1)), specs={job.job_id: own})
    assert (found.spec.train, found.step_count, found.spec.step_limit) == (own.train, 30, None)
    cluster = shape(("cpu", 2, 1))
    made = Scenario(jobs=(found,), shape=cluster, grids=grids(), costs=COSTS)
    result = Runner(scenario=made).run(make_policy("elastic"), label="elastic")
    assert [one.state for one in result.outcomes] == [JobState.SUCCEEDED]


def test_a_run_that_is_cut_counts_who_is_left() -> None:
    made = scenario(traced(1, duration_s=50.0), traced(2, duration_s=5000.0), until_s=1000.0)
    result = Runner(scenario=made).run(make_policy("fcfs"), label="fcfs")
    assert (result.whole.summary.job_count, result.whole.summary.unfinished_count) == (2, 1)


def test_a_policy_is_named_with_its_options() -> None:
    assert policy_named("elastic:wait_s_max=60") == make_policy("elastic", {"wait_s_max": 60.0})
    for text in ("nope", "fcfs:x=1", "elastic:wait_s_max=soon", "elastic:wait_s_max"):
        with pytest.raises(SpecError):
            policy_named(text)


class NoGrids:
    """A source whose grids hold nothing, so that no job can ever start."""

    version = "none"

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        return Grid(cells=(), infeasible=(), source="none")


def test_a_job_that_never_ends_fails_the_run() -> None:
    runner = Runner(scenario=scenario(traced(1), source=NoGrids()))
    with pytest.raises(InternalError, match="1 job never ended"):
        runner.run(make_policy("fcfs"), label="fcfs")
    assert runner.recorder.event_count > 0


def steps_of_two() -> list[Step]:
    """Two jobs of two nodes' GPUs, side by side."""
    steps: list[Step] = []
    made = scenario(traced(1, gpu_count=4), traced(2, at_s=1.0, gpu_count=4), cluster=shape(("a100", 4, 2)))
    replay = Replay(shape=made.shape, policy=make_policy("fcfs"), grids=made.grids, costs=COSTS)
    replay.run(list(replay_jobs(made.jobs, Telling(is_rigid=True, lengths=Lengths()))), watch=steps.append)
    return steps


def watched(steps: list[Step]) -> None:
    dog = Watchdog(devices=frozenset(all_devices(shape(("a100", 4, 2)))))
    for step in steps:
        dog.watch(step)
    dog.finish()


def with_allocation(steps: list[Step], job_id: str, change: Any) -> list[Step]:
    """The steps, with what a job was given replaced."""
    return [
        replace(
            step,
            attempts=tuple(
                replace(one, allocation=change(one.allocation)) if one.job_id == job_id else one
                for one in step.attempts
            ),
        )
        for step in steps
    ]


def test_the_watchdog_lets_a_sound_run_pass() -> None:
    watched(steps_of_two())


def test_the_watchdog_sees_a_device_that_is_given_twice() -> None:
    steps = steps_of_two()
    [first] = {one.allocation for step in steps for one in step.attempts if one.job_id == "j1"}
    with pytest.raises(ReplayFaultError, match="was given to job j2"):
        watched(with_allocation(steps, "j2", lambda _: first))


def test_the_watchdog_sees_a_gang_that_is_not_whole() -> None:
    def less(allocation: Allocation) -> Allocation:
        share = allocation.shares[0]
        return replace(allocation, shares=(replace(share, device_ids=share.device_ids[1:]),))

    with pytest.raises(ReplayFaultError, match="launched in part"):
        watched(with_allocation(steps_of_two(), "j1", less))


def test_the_watchdog_sees_a_job_that_is_lost() -> None:
    lost = [replace(step, jobs=tuple(job for job in step.jobs if job.job_id != "j2")) for step in steps_of_two()]
    with pytest.raises(ReplayFaultError, match="1 job never ended"):
        watched(lost)


def test_a_digest_does_not_hang_on_the_order_in_which_jobs_ended() -> None:
    result = Runner(scenario=scenario(traced(1), traced(2))).run(make_policy("fcfs"), label="fcfs")
    assert digest_of(result.outcomes) == digest_of(tuple(reversed(result.outcomes))) == result.digest
