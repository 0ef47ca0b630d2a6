"""The option ``fairness`` of `arena`: who gets least of its share gets more, at a price in average JCT."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from arena.domain.allocation import GpuGroup
from arena.domain.job import JobId, JobSpec, WorkloadSpec
from arena.planner.tables import TableGrids
from arena.policies.registry import make_policy
from arena.sim.costs import ConstantRestart, SimCosts
from arena.sim.figures import Need, finish_time_fairness
from arena.sim.replay import REPLAY_CONFIG, Replay, ReplayJob
from arena.sim.world import Fate
from tests.builders import shape

WORK = WorkloadSpec(name="work__1B", global_batch=8)
GRIDS = TableGrids(
    name="hand",
    iter_time_s={WORK: {GpuGroup.of("cpu", [count]): 1.0 / count**0.8 for count in (1, 2, 4)}},
)
RESTART_S = 10.0


def rho_and_completion_s(fairness: float, seed: int) -> tuple[float, float]:
    """Return the largest rho and the average JCT of 60 jobs that overload 16 GPUs."""
    rng, at_s = random.Random(seed), 0.0
    jobs, needs = [], {}
    for index in range(60):
        at_s += rng.expovariate(1 / 60.0)
        steps = int(min(20_000, max(30, rng.lognormvariate(6.3, 1.3))))
        name = JobId(f"j{index:03}")
        spec = JobSpec.model_validate({"name": name, "workload": WORK, "stop": {"steps": steps}})
        jobs.append(ReplayJob(job_id=name, submitted_at_s=at_s, spec=spec, fate=Fate(step_count=steps)))
        needs[name] = Need(gpu_count=4, alone_s=RESTART_S + steps / 4**0.8)
    restart = ConstantRestart(first_s=RESTART_S, again_s=RESTART_S)
    replay = Replay(
        shape=shape(("cpu", 4, 4)),
        policy=make_policy("arena", {"fairness": fairness}),
        grids=GRIDS,
        costs=SimCosts(start_s=0.0, restart=restart, save_s=0.0, exit_s=0.0),
        config=replace(REPLAY_CONFIG, decide_after_s=0.0, restart_s=RESTART_S),
    )
    outcomes = replay.run(jobs).outcomes
    rho = finish_time_fairness(outcomes, needs, gpu_count=16)
    return max(rho.values()), float(np.mean([one.completion_s for one in outcomes]))


def test_the_worst_share_gets_better_on_average_at_a_price() -> None:
    """Not in every draw: of 60 or 120 jobs it is 7 % better over eight draws, and worse in two or three of them."""
    plain, fair = (np.mean([rho_and_completion_s(fairness, seed) for seed in range(6)], axis=0) for fairness in (0, 4))
    assert fair[0] < 0.97 * plain[0]
    assert plain[1] <= fair[1] <= 1.1 * plain[1]
