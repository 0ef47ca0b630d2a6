"""How fast traces are replayed on one core: 100,000 jobs on 10,000 GPUs, and the published greedy at Philly's size."""

from __future__ import annotations

import gc
import random
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import process_time

import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape
from arena.domain.grid import Cell, Estimate, Grid, PlanEstimate
from arena.domain.job import GpuLimits, JobId, JobSpec, WorkloadSpec
from arena.planner.tables import TableGrids
from arena.policies.arena_greedy import ArenaGreedy
from arena.policies.base import Policy
from arena.policies.registry import make_policy
from arena.sim.costs import ConstantRestart, SimCosts
from arena.sim.ledger import Ledger
from arena.sim.metrics import Summary, summarise
from arena.sim.replay import REPLAY_CONFIG, Replay, ReplayJob
from arena.sim.world import Fate
from tests.builders import command_spec, shape

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

LARGE = shape(("cpu", 8, 1_250))
COUNTS = (1, 1, 1, 2, 4, 8, 8, 16, 32)
LOAD = 0.95

PHILLY = shape(("a100", 4, 80), ("v100", 16, 20), ("a40", 2, 160), ("a10", 2, 160))
SPEED_BY_TYPE = {"a100": 1.0, "v100": 0.45, "a40": 0.5, "a10": 0.35}


@pytest.fixture(autouse=True)
def collecting_like_the_command_line() -> Iterator[None]:
    """Collect garbage as ``arena.cli.main`` does, not all of pytest's objects again and again."""
    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


@dataclass(slots=True)
class AsAsked:
    """Grids of one cell: what the job asks for, a second a step."""

    version: str = "as asked"
    _made: dict[int, Grid] = field(default_factory=dict)

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        """Return the cell of the wished count on as few nodes as can be."""
        count = spec.gpus.count or 1
        if count not in self._made:
            group = GpuGroup.of("cpu", [count] if count <= 8 else [8] * (count // 8))
            best = PlanEstimate(plan=None, estimate=Estimate(iter_time_s=1.0))
            self._made[count] = Grid(cells=(Cell(group=group, best=best),), source=self.version)
        return self._made[count]


def scripts(count: int) -> list[ReplayJob]:
    """Scripts of 200 to 1,000 s on up to 32 GPUs that come at random and offer the cluster ``LOAD`` of its GPUs."""
    rng = random.Random(1)
    gap_s = sum(COUNTS) / len(COUNTS) * 600.0 / (LARGE.gpu_count * LOAD)
    specs = {gpus: command_spec(f"on-{gpus}", count=gpus) for gpus in COUNTS}
    jobs, at_s = [], 0.0
    for index in range(count):
        at_s += rng.expovariate(1.0 / gap_s)
        fate = Fate(step_count=rng.randint(200, 1_000))
        spec = specs[rng.choice(COUNTS)]
        jobs.append(ReplayJob(job_id=JobId(f"j{index:06}"), submitted_at_s=at_s, spec=spec, fate=fate))
    return jobs


def timed(replay: Replay, jobs: Sequence[ReplayJob]) -> tuple[Ledger, Summary, float]:
    """Replay on one core, the figures included, and return the seconds of processor time that it took."""
    began_s = process_time()
    ledger = replay.run(jobs)
    summary = summarise(ledger, submitted_count=len(jobs), gpu_count=replay.shape.gpu_count)
    return ledger, summary, process_time() - began_s


def large(policy: Policy) -> Replay:
    """A cluster of 10,000 GPUs; what happens at one instant is decided together, as ``arena replay`` does."""
    config = replace(REPLAY_CONFIG, decide_after_s=0.0)
    return Replay(shape=LARGE, policy=policy, grids=AsAsked(), costs=SimCosts(), config=config)


def test_100_000_jobs_on_10_000_gpus_first_come_first_served(capsys: pytest.CaptureFixture[str]) -> None:
    timed(large(make_policy("fcfs")), scripts(1_000))
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    jobs = scripts(100_000)
    _, summary, took_s = timed(large(make_policy("fcfs")), jobs)
    after_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    with capsys.disabled():
        print(f"\n{len(jobs):,} jobs on {LARGE.gpu_count:,} GPUs, fcfs: {took_s:.1f} s")
        print(f"  {after_mb:.0f} MB at most, {1e3 * (after_mb - before_mb) / len(jobs):.2f} KB a job")
        print(f"  utilisation {summary.utilisation:.2f}, queueing {summary.queue_s:.0f} s")
    assert summary.unfinished_count == 0
    assert after_mb < 2_000
    assert took_s < 60.0


def layouts() -> TableGrids:
    """Measurements of six models on four GPU types: larger models need more GPUs, and scale further."""
    times: dict[WorkloadSpec, dict[GpuGroup, float | None]] = {}
    for size in range(6):
        rows = times[WorkloadSpec(name=f"net-{size}", global_batch=128)] = {}
        for pool in PHILLY.pools:
            for count in (1, 2, 4, 8, 16)[max(0, size - 2) :]:
                nodes = max(1, count // pool.gpus_per_node)
                spread = 0.9 ** (nodes.bit_length() - 1)
                speed = SPEED_BY_TYPE[pool.gpu_type] * count ** (0.6 + 0.05 * size) * spread
                rows[GpuGroup.of(pool.gpu_type, [count // nodes] * nodes)] = 2.0**size / speed
    return TableGrids(name="made up", iter_time_s=times)


def trainings(count: int, table: TableGrids) -> tuple[list[ReplayJob], dict[JobId, tuple[str, int]]]:
    """Training jobs that come over five days, and what each asks for; half as long again as the cluster is wide."""
    rng = random.Random(2)
    workloads, jobs, asks = list(table.iter_time_s), [], {}
    at_s = 0.0
    for index in range(count):
        at_s += rng.expovariate(count / (5 * 86_400.0))
        workload = rng.choice(workloads)
        group, step_s = rng.choice(list(table.iter_time_s[workload].items()))
        assert step_s is not None
        steps = max(1, int(rng.lognormvariate(9.6, 1.2) / step_s))
        spec = JobSpec.model_validate(
            {
                "name": f"t{index}",
                "kind": "malleable",
                "workload": workload,
                "stop": {"steps": steps},
                "gpus": GpuLimits(),
            }
        )
        job_id = JobId(f"t{index:05}")
        jobs.append(ReplayJob(job_id=job_id, submitted_at_s=at_s, spec=spec, fate=Fate(step_count=steps)))
        asks[job_id] = (group.parts[0].gpu_type, group.gpu_count)
    return jobs, asks


def test_the_published_greedy_on_a_trace_of_phillys_size(capsys: pytest.CaptureFixture[str]) -> None:
    table = layouts()
    jobs, asks = trainings(1_900, table)
    replay = Replay(
        shape=PHILLY,
        policy=ArenaGreedy(asks=asks),
        grids=table,
        costs=SimCosts(start_s=0.0, restart=ConstantRestart(first_s=60.0, again_s=60.0), save_s=0.0, exit_s=0.0),
        config=replace(REPLAY_CONFIG, decide_after_s=0.0),
    )
    ledger, summary, took_s = timed(replay, jobs)
    with capsys.disabled():
        print(f"\n{len(jobs):,} jobs on {PHILLY.gpu_count:,} GPUs, arena-greedy: {took_s:.1f} s")
        print(f"  {ledger.decision_count:,} decisions, {1e3 * took_s / ledger.decision_count:.1f} ms for each, in all")
        print(f"  utilisation {summary.utilisation:.2f}, queueing {summary.queue_s:.0f} s")
    assert summary.unfinished_count == 0
    assert took_s < 60.0
