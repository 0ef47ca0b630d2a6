"""A queue whose mean waiting time is known (Erlang 1917): Poisson arrivals, exponential lengths, c GPUs, fcfs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from arena.policies.registry import make_policy
from arena.sim.replay import Replay
from tests.builders import shape
from tests.sim.test_replay import FREE, job, table

pytestmark = pytest.mark.slow

GPUS = 4
MEAN_S = 1000.0
BATCH_COUNT = 20


def erlang_wait_s(arrivals_per_s: float) -> float:
    """Mean waiting time of M/M/c."""
    load = arrivals_per_s * MEAN_S
    tail = load**GPUS / math.factorial(GPUS) * GPUS / (GPUS - load)
    waits = tail / (sum(load**k / math.factorial(k) for k in range(GPUS)) + tail)
    return waits * MEAN_S / (GPUS - load)


@pytest.mark.parametrize("utilisation", [0.5, 0.7])
def test_the_mean_wait_is_erlangs(utilisation: float) -> None:
    """Batch means: the 99 % interval of 20 batches holds the closed form."""
    count, rng = 4000, np.random.default_rng(7)
    arrivals_per_s = utilisation * GPUS / MEAN_S
    at_s = np.cumsum(rng.exponential(1 / arrivals_per_s, count))
    steps = np.maximum(np.rint(rng.exponential(MEAN_S, count)), 1).astype(int)
    jobs = [job(f"j{index:05}", float(at_s[index]), int(steps[index])) for index in range(count)]
    replay = Replay(
        shape=shape(("cpu", 1, GPUS)), policy=make_policy("fcfs"), grids=table({("cpu", (1,)): 1.0}), costs=FREE
    )
    outcomes = sorted(replay.run(jobs).outcomes, key=lambda one: one.submitted_at_s)
    waits_s = np.array([one.waiting_s for one in outcomes])
    batches = waits_s[-(len(waits_s) // BATCH_COUNT) * BATCH_COUNT :].reshape(BATCH_COUNT, -1).mean(axis=1)
    half = stats.t.ppf(0.995, BATCH_COUNT - 1) * batches.std(ddof=1) / math.sqrt(BATCH_COUNT)
    assert abs(batches.mean() - erlang_wait_s(arrivals_per_s)) <= half
    assert half < 0.8 * erlang_wait_s(arrivals_per_s)
