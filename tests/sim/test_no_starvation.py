"""A job that wants the whole cluster, or half of it, starts within the bound of ``arena`` among a flood of others."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.job import JobId, JobSpec, WorkloadSpec
from arena.domain.reason import ReasonCode
from arena.planner.tables import TableGrids
from arena.policies.priced.policy import PricedPolicy
from arena.policies.priced.urgency import QUANTUM_SHARE
from arena.policies.registry import make_policy
from arena.sim.costs import ConstantRestart, SimCosts
from arena.sim.ledger import JobOutcome
from arena.sim.replay import REPLAY_CONFIG, Replay, ReplayJob
from arena.sim.world import Fate
from tests.builders import (
    allocation_on,
    cell,
    command_spec,
    grid_of,
    holding_of,
    node_info,
    shape,
    snapshot_of,
    train_spec,
)

RESTART_S = 10.0
WAIT_MAX_S = 1_800.0
SMALL_STEPS = 300
LARGE = WorkloadSpec(name="large__1B", global_batch=8)
SMALL = WorkloadSpec(name="small__1B", global_batch=8)
GRIDS = TableGrids(
    name="hand",
    iter_time_s={LARGE: {GpuGroup.of("cpu", [4] * 4): 1.0}, SMALL: {GpuGroup.of("cpu", [1]): 1.0}},
)


def submitted(name: str, at_s: float, workload: WorkloadSpec, steps: int, *, preemptible: bool = True) -> ReplayJob:
    spec = JobSpec.model_validate(
        {
            "name": name,
            "kind": "malleable",
            "workload": workload,
            "stop": {"steps": steps},
            "preemptible": preemptible,
        }
    )
    return ReplayJob(job_id=JobId(name), submitted_at_s=at_s, spec=spec, fate=Fate(step_count=steps))


def outcomes(*, preemptible: bool, until_s: float) -> dict[str, JobOutcome]:
    """Run a flood that fills 16 GPUs 1.25 times over, one arrival each 15 s, and the large job 600 s later."""
    restart = ConstantRestart(first_s=RESTART_S, again_s=RESTART_S)
    replay = Replay(
        shape=shape(("cpu", 4, 4)),
        policy=make_policy("arena", {"wait_max_s": WAIT_MAX_S}),
        grids=GRIDS,
        costs=SimCosts(start_s=0.0, restart=restart, save_s=0.0, exit_s=0.0),
        config=replace(REPLAY_CONFIG, decide_after_s=0.0),
    )
    flood = [
        submitted(f"s{at:05}", 15.0 * at, SMALL, SMALL_STEPS, preemptible=preemptible)
        for at in range(int(until_s // 15))
    ]
    jobs = sorted([*flood, submitted("large", 600.0, LARGE, 60)], key=lambda job: job.submitted_at_s)
    return {one.job_id: one for one in replay.run(jobs).outcomes}


@pytest.mark.parametrize("preemptible", [True, False])
def test_a_large_job_starts_within_its_bound(preemptible: bool) -> None:
    found = outcomes(preemptible=preemptible, until_s=WAIT_MAX_S + 2_000.0)
    large = found["large"]
    assert large.first_started_at_s is not None
    left_s = 0.0 if preemptible else SMALL_STEPS + RESTART_S
    own_s = 60.0
    assert large.first_started_at_s - large.submitted_at_s <= WAIT_MAX_S + own_s + left_s + RESTART_S
    assert large.first_started_at_s - large.submitted_at_s > 0.9 * WAIT_MAX_S  # else the flood is none
    assert all(one.ended_at_s is not None for one in found.values())


@pytest.mark.parametrize("seed", [0, 1])
def test_those_that_have_waited_as_long_and_only_just_started_are_left_a_quantum(seed: int) -> None:
    """A backlog of jobs shorter than a quantum, as old as the large one: they keep what they got before it was late."""
    wait_max_s, wide_steps = 600.0, 20
    replay = Replay(
        shape=shape(("cpu", 4, 1)),
        policy=make_policy("arena", {"wait_max_s": wait_max_s}),
        grids=TableGrids(
            name="hand",
            iter_time_s={LARGE: {GpuGroup.of("cpu", [4]): 1.0}, SMALL: {GpuGroup.of("cpu", [1]): 1.0}},
        ),
        costs=SimCosts(
            start_s=0.0, restart=ConstantRestart(first_s=RESTART_S, again_s=RESTART_S), save_s=0.0, exit_s=0.0
        ),
        config=replace(REPLAY_CONFIG, decide_after_s=0.0, restart_s=RESTART_S),
    )
    rng = random.Random(seed)
    backlog = [submitted(f"s{at:03}", 0.0, SMALL, rng.randint(30, 70)) for at in range(60)]
    found = {one.job_id: one for one in replay.run([*backlog, submitted("large", 0.0, LARGE, wide_steps)]).outcomes}
    waited_s = found["large"].first_started_at_s
    assert waited_s is not None
    limit_s = wait_max_s + wide_steps
    assert limit_s + RESTART_S < waited_s <= limit_s + QUANTUM_SHARE * wait_max_s + RESTART_S


WIDE_WAIT_MAX_S, LONGEST_S, WIDE_STEPS = 600.0, 300, 60
WIDE = WorkloadSpec(name="wide__1B", global_batch=8)


def wide_among_many(node_count: int) -> dict[str, JobOutcome]:
    """Run a job of whole nodes on eight of eight GPUs, among small ones of 30 to 300 s that may not be stopped."""
    grids = TableGrids(
        name="hand",
        iter_time_s={WIDE: {GpuGroup.of("cpu", [8] * node_count): 1.0}, SMALL: {GpuGroup.of("cpu", [1]): 1.0}},
    )
    restart = ConstantRestart(first_s=RESTART_S, again_s=RESTART_S)
    replay = Replay(
        shape=shape(("cpu", 8, 8)),
        policy=make_policy("arena", {"wait_max_s": WIDE_WAIT_MAX_S}),
        grids=grids,
        costs=SimCosts(start_s=0.0, restart=restart, save_s=0.0, exit_s=0.0),
        config=replace(REPLAY_CONFIG, decide_after_s=0.0, restart_s=RESTART_S),
    )
    rng = random.Random(0)
    flood = [
        submitted(f"s{at:05}", 2.5 * at, SMALL, rng.randint(30, LONGEST_S), preemptible=False)
        for at in range(int((WIDE_WAIT_MAX_S + 500.0) // 2.5))
    ]
    jobs = sorted([*flood, submitted("wide", 100.0, WIDE, WIDE_STEPS)], key=lambda job: job.submitted_at_s)
    return {one.job_id: one for one in replay.run(jobs).outcomes}


@pytest.mark.parametrize("node_count", [8, 4])
def test_a_job_of_64_gpus_starts_within_its_bound_among_many_that_may_not_be_stopped(node_count: int) -> None:
    """Others are backfilled until then: where they are gone in time, and beside its nodes as ever."""
    found = wide_among_many(node_count)
    wide = found["wide"]
    assert wide.first_started_at_s is not None
    waited_s = wide.first_started_at_s - wide.submitted_at_s
    limit_s = WIDE_WAIT_MAX_S + WIDE_STEPS
    assert 0.95 * WIDE_WAIT_MAX_S < waited_s <= limit_s + LONGEST_S + 2 * RESTART_S
    reserved_at_s = wide.submitted_at_s + limit_s
    between = [
        one
        for name, one in found.items()
        if name != "wide"
        and one.first_started_at_s is not None
        and reserved_at_s < one.first_started_at_s < wide.first_started_at_s
    ]
    assert len(between) >= 10
    if node_count == 8:
        assert all(one.ended_at_s <= wide.first_started_at_s for one in between)


def test_who_waited_too_long_for_what_has_no_known_end_does_not_hold_up_the_next_one() -> None:
    nodes = [node_info(f"n{at}", gpus=4, gpu_type="a") for at in range(2)]
    endless = (command_spec("endless", count=4, preemptible=False), grid_of(cell("a", (4,), 1.0)))
    stuck = (train_spec("stuck", kind="rigid", gpus={"count": 8}), grid_of(cell("a", (4, 4), 1.0)))
    next_one = (
        train_spec("next", kind="rigid", gpus={"count": 4}, stop={"steps": 10**6}),
        grid_of(cell("a", (4,), 1.0)),
    )
    small = (train_spec("s", kind="rigid", gpus={"count": 1}, stop={"steps": 200}), grid_of(cell("a", (1,), 1.0)))
    jobs = {"endless": endless, "stuck": stuck, "next": next_one, **{f"s{at}": small for at in range(8)}}
    running = {"endless": holding_of(endless[1], allocation_on(("n0", (0, 1, 2, 3))))}
    snapshot = snapshot_of(nodes, jobs, running=running, now_s=1e7)
    came_s = {"endless": 0.0, "stuck": 0.0, "next": 100.0, **{f"s{at}": 1e7 - 60.0 for at in range(8)}}
    records = {JobId(name): replace(snapshot.jobs[JobId(name)], submitted_at_s=at_s) for name, at_s in came_s.items()}
    decision = PricedPolicy().decide(replace(snapshot, jobs={**snapshot.jobs, **records}))
    assert {name for name, choice in decision.choices.items() if choice} == {"next"}
    assert ReasonCode.RESERVED_OPEN in {one.code for one in decision.reasons[JobId("stuck")]}
