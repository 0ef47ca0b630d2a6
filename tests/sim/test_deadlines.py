"""Jobs with deadlines under `arena`: those that were promised theirs end in time, whatever else comes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from arena.domain.allocation import GpuGroup
from arena.domain.job import JobId, JobSpec, WorkloadSpec
from arena.domain.records import JobRecord
from arena.engine.ports import Step
from arena.planner.tables import TableGrids
from arena.policies.registry import make_policy
from arena.sim.costs import ConstantRestart, SimCosts
from arena.sim.ledger import JobOutcome
from arena.sim.replay import REPLAY_CONFIG, Replay, ReplayJob
from arena.sim.world import Fate
from tests.builders import shape

RESTART_S = 10.0
WIDE = WorkloadSpec(name="wide__1B", global_batch=8)
SMALL = WorkloadSpec(name="small__1B", global_batch=8)
GRIDS = TableGrids(
    name="hand",
    iter_time_s={
        WIDE: {GpuGroup.of("cpu", [count]): 1.0 / count**0.8 for count in (1, 2, 4)},
        SMALL: {GpuGroup.of("cpu", [1]): 1.0},
    },
)


def submitted(name: str, at_s: float, workload: WorkloadSpec, steps: int, **fields: object) -> ReplayJob:
    spec = JobSpec.model_validate(
        {"name": name, "kind": "malleable", "workload": workload, "stop": {"steps": steps}, **fields}
    )
    return ReplayJob(job_id=JobId(name), submitted_at_s=at_s, spec=spec, fate=Fate(step_count=steps))


def replayed(jobs: list[ReplayJob]) -> tuple[dict[str, JobOutcome], set[str]]:
    """Run jobs on two nodes of four GPUs; return how they ended, and who was promised a deadline."""
    restart = ConstantRestart(first_s=RESTART_S, again_s=RESTART_S)
    replay = Replay(
        shape=shape(("cpu", 4, 2)),
        policy=make_policy("arena"),
        grids=GRIDS,
        costs=SimCosts(start_s=0.0, restart=restart, save_s=0.0, exit_s=0.0),
        config=replace(REPLAY_CONFIG, decide_after_s=0.0, restart_s=RESTART_S),
        check=True,
    )
    promised: set[str] = set()

    def watch(step: Step) -> None:
        promised.update(job.job_id for job in step.jobs if isinstance(job, JobRecord) and job.is_deadline_promised)

    ledger = replay.run(sorted(jobs, key=lambda job: job.submitted_at_s), watch=watch)
    return {one.job_id: one for one in ledger.outcomes}, promised


def flood(until_s: float, *, every_s: float = 25.0, **fields: object) -> list[ReplayJob]:
    """Short jobs that fill eight GPUs one and a half times over."""
    return [submitted(f"s{at:04}", every_s * at, SMALL, 300, **fields) for at in range(int(until_s / every_s))]


@pytest.mark.parametrize("deadline_s", [1_500.0, 3_000.0])
def test_a_long_job_that_shortest_first_would_starve_meets_its_deadline(deadline_s: float) -> None:
    jobs = flood(6_000.0)
    without, _ = replayed([*jobs, submitted("long", 100.0, WIDE, 1_000)])
    assert without["long"].completion_s > 1.5 * deadline_s
    found, promised = replayed([*jobs, submitted("long", 100.0, WIDE, 1_000, deadline_s=deadline_s)])
    assert "long" in promised
    assert found["long"].completion_s <= deadline_s
    assert found["long"].restart_count <= 6


def test_who_cannot_be_in_time_is_one_as_any_other() -> None:
    jobs = flood(3_000.0)
    found, promised = replayed([*jobs, submitted("long", 100.0, WIDE, 1_000, deadline_s=200.0)])
    without, _ = replayed([*jobs, submitted("long", 100.0, WIDE, 1_000)])
    assert "long" not in promised
    assert found == without
