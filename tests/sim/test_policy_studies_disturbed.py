"""Studies of policies whose beliefs are wrong or whose jobs permit less: the world keeps to the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape, NodePool
from arena.domain.job import JobId, JobKind, JobSpec, WorkloadSpec
from arena.domain.launch import AttemptId
from arena.domain.records import JobState
from arena.domain.trace import TraceJob, TraceOutcome
from arena.engine.ports import Step
from arena.planner.tables import TableGrids
from arena.policies.registry import make_policy
from arena.sim.asks import Telling, replay_jobs
from arena.sim.study import Runner
from experiments.policy.arrivals import Drawn
from experiments.policy.cases import Case, Setting, case_of
from experiments.policy.data_parallel import data_parallel_grids
from experiments.policy.disturbed import BelievedGrids
from experiments.policy.runs import Keeping, studied

FAST, SLOW = GpuGroup.of("fast", [2]), GpuGroup.of("slow", [2])
SPREAD = GpuGroup.of("fast", [1, 1])
WORKLOADS = tuple(WorkloadSpec(name=f"{family}__1B", global_batch=8) for family in ("bert", "moe"))
TIMES: Mapping[GpuGroup, float | None] = {GpuGroup.of("fast", [1]): 1.0, FAST: 0.5, SPREAD: 0.6, SLOW: 2.0}
GRIDS = TableGrids(name="small", iter_time_s=dict.fromkeys(WORKLOADS, TIMES))
SHAPE = ClusterShape(
    pools=tuple(
        NodePool(gpu_type=name, zone="default", gpus_per_node=2, node_count=count)
        for name, count in (("fast", 2), ("slow", 1))
    )
)


def drawn(count: int) -> Drawn:
    jobs = tuple(
        TraceJob(
            job_id=JobId(f"job-{row:02}"),
            row=row,
            submitted_at_s=10_000.0 * row,
            gpu_count=2,
            step_count=1000,
            workload=WORKLOADS[row % 2],
            gpu_type="fast",
        )
        for row in range(count)
    )
    return Drawn(jobs=jobs, sha256={}, notes=())


def case(setting: Setting, *, count: int = 2, seed: int = 0) -> Case:
    return case_of(drawn(count), GRIDS, SHAPE, setting=setting, seed=seed)


@pytest.mark.parametrize("sigma", [0.0, 1.5])
def test_jobs_run_at_the_true_pace_whatever_is_believed(sigma: float) -> None:
    # Each job is alone; srtf gives it the 2 fast GPUs that it asks for.
    study = studied([case(Setting(bias_sigma=sigma))], ["srtf"], keeping=Keeping(), process_count=1)
    assert study.mean("srtf", "whole", "avg_jct_s") == pytest.approx(60 + 1000 * 0.5)
    assert study.mean("srtf", "whole", "lost_share") == pytest.approx(60 / 560)


def test_what_is_believed_is_off_by_family_and_type_alike() -> None:
    believed = BelievedGrids(truth=GRIDS, sigma=0.5, link=0.7, seed=3)
    specs = [JobSpec(name="job", workload=one, kind=JobKind.MALLEABLE) for one in WORKLOADS]
    factors = {
        (spec.workload, cell.group): cell.best.estimate.iter_time_s / (TIMES[cell.group] or 0.0)
        for spec in specs
        for cell in believed.grid(spec, SHAPE).cells
    }
    bert, moe = WORKLOADS
    assert factors[bert, FAST] == pytest.approx(factors[bert, GpuGroup.of("fast", [1])])
    assert factors[bert, SPREAD] == pytest.approx(0.7 * factors[bert, FAST])
    assert len({round(factors[one], 9) for one in ((bert, FAST), (bert, SLOW), (moe, FAST), (moe, SLOW))}) == 4
    times_s = [
        cell.best.estimate.iter_time_s for cell in believed.grid(specs[0], SHAPE).cells if cell.group.gpu_count == 2
    ]
    assert times_s == sorted(times_s)


def test_a_share_is_killed_early_and_declares_its_full_length() -> None:
    one = case(Setting(killed_share=0.3), count=200)
    jobs = one.scenario.jobs
    killed = [job for job in jobs if job.job.outcome is TraceOutcome.CANCELLED]
    assert 40 <= len(killed) <= 80
    assert all(job.step_count < 1000 for job in killed)
    told = list(replay_jobs(jobs, Telling(is_rigid=False, lengths=one.scenario.lengths)))
    assert {job.spec.step_limit for job in told} == {1000}
    assert sum(job.fate.is_cancelled for job in told) == len(killed)


def test_jobs_that_permit_less_keep_their_type_and_shape() -> None:
    one = case(Setting(kind="moldable", keeps_type=True))
    spec = one.scenario.jobs[0].spec
    assert spec.kind is JobKind.MOLDABLE
    assert {cell.group.parts[0].gpu_type for cell in GRIDS.grid(spec, SHAPE).cells} == {"fast"}


def test_a_job_that_asks_for_no_type_keeps_one_that_is_drawn() -> None:
    jobs = tuple(replace(job, gpu_type=None) for job in drawn(40).jobs)
    kept = Setting(keeps_type=True)
    one = case_of(replace(drawn(40), jobs=jobs), GRIDS, SHAPE, setting=kept, seed=0)
    types = [asked.spec.gpus.types for asked in one.scenario.jobs]
    assert set(types) == {("fast",), ("slow",)}


def test_arrivals_stay_where_other_grids_are_put_in() -> None:
    slower = {group: None if time_s is None else 3 * time_s for group, time_s in TIMES.items()}
    other = TableGrids(name="slower", iter_time_s=dict.fromkeys(WORKLOADS, slower))
    same = case_of(drawn(5), other, SHAPE, setting=Setting(load=0.5), seed=0, reference=GRIDS)
    base = case(Setting(load=0.5), count=5)
    assert [one.job for one in same.scenario.jobs] == [one.job for one in base.scenario.jobs]
    assert same.scenario.jobs[0].step_s == pytest.approx(3 * base.scenario.jobs[0].step_s)


def test_data_parallelism_alone_is_slower_and_holds_less() -> None:
    bert, moe = WORKLOADS
    grids = data_parallel_grids(GRIDS, {bert: {FAST: 1.4}})
    assert grids.iter_time_s[bert] == {GpuGroup.of("fast", [1]): 1.0, FAST: pytest.approx(0.7)}
    times = {FAST: 0.5, SPREAD: 0.6, GpuGroup.of("fast", [2, 2]): 0.3, SLOW: None}
    large = TableGrids(name="large", iter_time_s={moe: times})
    # Nothing of it is data-parallel: the fewest GPUs that hold it.
    assert data_parallel_grids(large, {}).iter_time_s[moe] == {FAST: 0.5, SPREAD: 0.6}


def test_groups_that_do_not_fit_are_tried_once_and_no_more() -> None:
    one = case(Setting(no_fit_share=0.999), count=6)
    memory, specs = one.scenario.costs.memory, [asked.spec for asked in one.scenario.jobs]
    assert memory is not None
    full = {(spec.workload, group) for spec in specs for group in TIMES if memory.runs_out(spec, group)}
    assert len(full) == 2 * (len(TIMES) - 1), "one group of each family always fits"
    group_by_attempt: dict[AttemptId, tuple[JobId, GpuGroup]] = {}

    def watch(step: Step) -> None:
        group_by_attempt.update({each.attempt_id: (each.job_id, each.group) for each in step.attempts})

    found = Runner(scenario=one.scenario, watch=watch).run(make_policy("elastic"), label="elastic")
    assert [outcome.state for outcome in found.outcomes] == [JobState.SUCCEEDED] * 6
    assert sum(outcome.attempt_count for outcome in found.outcomes) > 6, "some did not fit where they were first"
    workloads = {asked.job.job_id: asked.spec.workload for asked in one.scenario.jobs}
    tried = [key for key in group_by_attempt.values() if (workloads[key[0]], key[1]) in full]
    assert tried
    assert len(set(tried)) == len(tried)
