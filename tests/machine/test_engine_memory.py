"""A plan that ran out of memory is not tried again on that group; the job goes on with another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from arena.domain.allocation import GpuGroup, GroupPart
from arena.domain.cluster import ClusterShape
from arena.domain.events import JobSubmitted, NodeRegistered
from arena.domain.grid import Cell, Estimate, Grid, PlanEstimate
from arena.domain.job import JobId, JobSpec
from arena.domain.parallel import ParallelPlan
from arena.domain.records import EntryKind, JobState
from arena.engine.config import EngineConfig
from arena.engine.engine import Engine
from arena.policies.registry import make_policy, policy_names
from arena.sim.costs import SimCosts
from arena.sim.run import Simulation
from tests.builders import command_spec, node_info, train_spec
from tests.fakes.grids import PowerLawGrids
from tests.fakes.restarts import restored_from

A = JobId("a")
ONE, TWO, FOUR = (GpuGroup.of("cpu", counts) for counts in ([1], [2], [2, 2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """Groups that hold nobody."""

    groups: frozenset[GpuGroup]

    def runs_out(self, spec: JobSpec, group: GpuGroup) -> bool:
        return group in self.groups


def simulation(policy: str, *full: GpuGroup, grids: PowerLawGrids | None = None, **config: int) -> Simulation:
    sim = Simulation(
        policy=make_policy(policy),
        grids=grids or PowerLawGrids(),
        costs=SimCosts(memory=Full(groups=frozenset(full))),
        config=EngineConfig(checkpoint_root="/ckpt", shape_settle_s=0.0, **config),  # type: ignore[arg-type]
        check=True,
    )
    for name in ("n1", "n2"):
        sim.at(0.0, NodeRegistered(info=node_info(name)))
    return sim


def submit(sim: Simulation, spec: JobSpec) -> None:
    sim.at(1.0, JobSubmitted(job_id=A, spec=spec, user="ann", request_id="a"))


def launched(sim: Simulation) -> list[GpuGroup]:
    """Groups of the attempts of job a, in order."""
    found = {attempt.epoch: attempt.group for step in sim.steps for attempt in step.attempts if attempt.job_id == A}
    return [found[epoch] for epoch in sorted(found)]


@pytest.mark.parametrize("policy", policy_names())
def test_a_job_goes_on_where_it_fits(policy: str) -> None:
    sim = simulation(policy, FOUR, TWO)
    submit(sim, train_spec("a", retry={"restarts_max": 0}))
    sim.run()
    job = sim.ended[A]
    assert job.state is JobState.SUCCEEDED, job.error
    assert launched(sim)[-1] == ONE
    assert len(set(launched(sim))) == len(launched(sim)), "no group twice"
    assert {one.group for one in job.struck} == set(launched(sim)[:-1])
    assert (job.restart_count, job.restarts_since_progress) == (len(job.struck), 0)
    entries = [entry for step in sim.steps for entry in step.history if entry.kind is EntryKind.PLAN_STRUCK]
    assert [entry.data["group"] for entry in entries] == [str(one.group) for one in job.struck]


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPlans(PowerLawGrids):
    """Every group has a slower plan, which needs less memory."""

    def _cell(self, spec: JobSpec, gpu_type: str, shares: list[int]) -> Cell:
        group = GpuGroup.of(gpu_type, shares)
        plans = [
            PlanEstimate(
                plan=ParallelPlan.uniform(layer_count=4, dp=1, pp=group.gpu_count, micro_batch_size=size),
                estimate=Estimate(iter_time_s=2.0 / (group.gpu_count * size), memory_bytes_by_stage=(size * 2**30,)),
            )
            for size in (8, 4)
        ]
        return Cell(group=group, best=plans[0], others=tuple(plans[1:]))


def test_the_runner_up_of_a_group_is_tried() -> None:
    sim = simulation("fcfs", FOUR, grids=TwoPlans())
    submit(sim, train_spec("a"))
    sim.run()
    job = sim.ended[A]
    assert launched(sim)[:2] == [FOUR, FOUR]
    plans = [one.plan for one in job.struck if one.plan is not None]
    assert [plan.micro_batch_size for plan in plans] == [8, 4]
    assert [one.memory_bytes for one in job.struck] == [8 * 2**30, 4 * 2**30]


def test_what_has_no_other_plan_is_tried_as_often_as_its_budget_says() -> None:
    sim = simulation("fcfs", TWO)
    submit(sim, train_spec("a", kind="rigid", gpus={"count": 2}, retry={"restarts_max": 2}))
    sim.run()
    job = sim.ended[A]
    assert (job.state, job.epoch, job.struck) == (JobState.FAILED, 3, ())


def test_a_program_is_not_kept_from_its_only_layout() -> None:
    sim = simulation("fcfs", ONE)
    submit(sim, command_spec("a", retry={"restarts_max": 1}))
    sim.run()
    assert (sim.ended[A].state, sim.ended[A].epoch) == (JobState.FAILED, 2)


def test_so_many_plans_are_tried_and_then_the_budget_counts() -> None:
    sim = simulation("fcfs", ONE, TWO, FOUR, grids=TwoPlans(), plans_struck_max=2)
    submit(sim, train_spec("a", retry={"restarts_max": 1}))
    sim.run()
    job = sim.ended[A]
    assert (job.state, len(job.struck), job.epoch) == (JobState.FAILED, 2, 4)


def test_what_was_struck_out_outlives_a_restart_and_a_new_grid() -> None:
    sim = simulation("arena", FOUR)
    submit(sim, train_spec("a"))
    sim.run(until_s=30.0)
    before = sim.engine.state
    assert [one.group for one in before.jobs[A].struck] == [FOUR]
    again = Engine(make_policy("arena"), sim.config, restored_from(sim.steps))
    assert groups(again.state.grids) == groups(before.grids)
    assert FOUR not in groups(again.state.grids)
    sim.at(31.0, NodeRegistered(info=node_info("n3")))
    sim.run(until_s=40.0)
    assert FOUR not in groups(sim.engine.state.grids)
    assert GpuGroup.of("cpu", [2, 2, 2]) in groups(sim.engine.state.grids), "a grid of the larger cluster"


def groups(grids: Mapping[JobId, Grid]) -> set[GpuGroup]:
    return {cell.group for cell in grids[A].cells}


@pytest.mark.parametrize("policy", ["arena", "fcfs"])
def test_asked_why_the_scheduler_names_what_ran_out(policy: str) -> None:
    sim = simulation(policy, FOUR)
    submit(sim, train_spec("a"))
    sim.run(until_s=30.0)
    first, *_ = sim.engine.explain(sim.engine.state, A, 30.0)
    assert str(first) == "dp4 tp1 pp1 mb1 on cpu 2+2 is not tried again, it ran out of memory: out of memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedOnly(PowerLawGrids):
    """Nothing fits on GPUs of one type."""

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        mixed = tuple(
            replace(self._cell(spec, "cpu", [count]), group=both)
            for count, both in ((2, ONE_OF_BOTH), (4, TWO_OF_BOTH))
        )
        return Grid(cells=(), mixed=mixed, source=self.version)


ONE_OF_BOTH, TWO_OF_BOTH = (
    GpuGroup(parts=tuple(GroupPart(gpu_type=gpu_type, node_counts=(count,)) for gpu_type in ("cpu", "gpu")))
    for count in (1, 2)
)


def test_who_fits_over_several_types_alone_goes_on_with_other_gpus_of_them() -> None:
    sim = simulation("arena", TWO_OF_BOTH, grids=MixedOnly())
    sim.at(0.0, NodeRegistered(info=node_info("n3", gpu_type="gpu")))
    submit(sim, train_spec("a", retry={"restarts_max": 0}))
    sim.run()
    job = sim.ended[A]
    assert job.state is JobState.SUCCEEDED, job.error
    assert launched(sim) == [TWO_OF_BOTH, ONE_OF_BOTH]
    entries = [entry for step in sim.steps for entry in step.history if entry.kind is EntryKind.PLAN_STRUCK]
    assert [entry.data["cells_left"] for entry in entries] == [1]
