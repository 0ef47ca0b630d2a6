"""Under a flood of others' jobs no tenant is below its guaranteed share for longer than it takes to reclaim it."""

from __future__ import annotations

from dataclasses import replace

from arena.domain.allocation import GpuGroup
from arena.domain.job import JobId, JobSpec, WorkloadSpec
from arena.domain.tenants import ANY_TYPE, Guarantee
from arena.planner.tables import TableGrids
from arena.policies.registry import make_policy
from arena.sim.costs import ConstantRestart, SimCosts
from arena.sim.ledger import Ledger
from arena.sim.replay import REPLAY_CONFIG, Replay, ReplayJob
from arena.sim.tenants import TenantFigures, TenantLedger
from arena.sim.world import Fate
from tests.builders import shape

START_S, SAVE_S = 10.0, 5.0
RECLAIM_S = START_S + SAVE_S
"""A borrower that has only just been launched must run before it can be asked to save."""

UNTIL_S = 2_100.0
SMALL = WorkloadSpec(name="small__1B", global_batch=8)
ELASTIC = WorkloadSpec(name="elastic__1B", global_batch=8)
NODE = WorkloadSpec(name="node__1B", global_batch=8)
GRIDS = TableGrids(
    name="hand",
    iter_time_s={
        SMALL: {GpuGroup.of("cpu", [1]): 1.0},
        ELASTIC: {GpuGroup.of("cpu", [1]): 1.0, GpuGroup.of("cpu", [2]): 0.55, GpuGroup.of("cpu", [4]): 0.3},
        NODE: {GpuGroup.of("cpu", [4]): 1.0, GpuGroup.of("cpu", [4, 4]): 0.55},
    },
)
TENANTS = {
    "red": Guarantee(gpu_count_by_type={"cpu": 8}),
    "blue": Guarantee(gpu_count_by_type={ANY_TYPE: 3}),
}


def submitted(name: str, at_s: float, workload: WorkloadSpec, steps: int, project: str) -> ReplayJob:
    fields = {"name": name, "kind": "malleable", "workload": workload, "stop": {"steps": steps}, "project": project}
    spec = JobSpec.model_validate(fields)
    return ReplayJob(job_id=JobId(name), submitted_at_s=at_s, spec=spec, fate=Fate(step_count=steps))


def jobs() -> list[ReplayJob]:
    """Others' jobs for 30 GPUs of 16, and those of two tenants, who at times have none."""
    kinds = (SMALL, ELASTIC, SMALL)
    flood = [submitted(f"f{at:04}", 10.0 * at, kinds[at % 3], 300, "default") for at in range(int(UNTIL_S // 10))]
    red = [submitted(f"r{at:04}", 400.0 * at + 123.0, (NODE, ELASTIC)[at % 2], 250, "red") for at in range(5)]
    blue = [submitted(f"b{at:04}", 130.0 * at + 57.0, SMALL, 170 + 60 * (at % 4), "blue") for at in range(15)]
    return sorted([*flood, *red, *blue], key=lambda job: job.submitted_at_s)


def replayed(*, with_shares: bool) -> tuple[dict[str, TenantFigures], Ledger]:
    told = TenantLedger(tenants=TENANTS)
    replay = Replay(
        shape=shape(("cpu", 4, 4)),
        policy=make_policy("arena"),
        grids=GRIDS,
        costs=SimCosts(
            start_s=0.0, restart=ConstantRestart(first_s=START_S, again_s=START_S), save_s=SAVE_S, exit_s=0.0
        ),
        config=replace(REPLAY_CONFIG, decide_after_s=0.0, tenants=TENANTS if with_shares else {}),
    )
    ledger = replay.run(jobs(), watch=told.watch)
    return {one.project: one for one in told.figures()}, ledger


def test_no_tenant_is_below_its_share_for_longer_than_it_takes_to_reclaim_it() -> None:
    with_shares, ledger = replayed(with_shares=True)
    without, _ = replayed(with_shares=False)
    for name in TENANTS:
        assert with_shares[name].below_share_s_max <= RECLAIM_S + 1e-6
        assert with_shares[name].job_count == without[name].job_count > 0
    assert max(without[name].below_share_s_max for name in TENANTS) > 10 * RECLAIM_S, "the flood is none"
    assert len(ledger.outcomes) == len(jobs())
    assert with_shares[""].borrowed_gpu_hours > 0.9 * without[""].borrowed_gpu_hours, "what is idle is lent"
    assert all(one.attempt_count <= 8 for one in ledger.outcomes)


def test_tenants_whose_jobs_exceed_their_halves_do_not_displace_each_other_in_turn() -> None:
    wide = WorkloadSpec(name="wide__1B", global_batch=8)
    grids = TableGrids(name="hand", iter_time_s={wide: {GpuGroup.of("cpu", [6]): 1.0}})
    halves = {name: Guarantee(gpu_count_by_type={"cpu": 4}) for name in ("red", "blue")}
    told = TenantLedger(tenants=halves)
    replay = Replay(
        shape=shape(("cpu", 8, 1)),
        policy=make_policy("arena"),
        grids=grids,
        costs=SimCosts(
            start_s=0.0, restart=ConstantRestart(first_s=START_S, again_s=START_S), save_s=SAVE_S, exit_s=0.0
        ),
        config=replace(REPLAY_CONFIG, decide_after_s=0.0, tenants=halves),
    )
    arrivals = [submitted(f"j{at}", 20.0 * at, wide, 100, ("red", "blue")[at % 2]) for at in range(8)]
    ledger = replay.run(arrivals, watch=told.watch)
    assert len(ledger.outcomes) == len(arrivals)
    assert all(one.restart_count == 0 for one in ledger.outcomes)
    assert all(one.below_share_s == 0.0 for one in told.figures()), "no job of theirs fits a share"
