"""Finish-time fairness: the time of those who get least of their share counts for more. Pure: no I/O, no clock.

What a job is owed is Themis' rho (Mahajan et al., NSDI 2020): how long it stays, by what is believed of its length,
over how long it would stay on its own with 1/N of the cluster, N being the jobs that are there now. Here it is the rho
that a job will have if it is left out for as long as a change usually lasts, and has its share from then on: so those
come first whom that hurts most, which are short ones as well as those that have waited long. A weight of
``rho ** fairness`` makes their time dearer in the sum that the policy lowers; 0 leaves it as it is.

What it buys, on 120 jobs with log-normal lengths that overload 16 GPUs (three draws, lengths as declared): with 2 the
average JCT is 2 % higher, the 95th percentile of rho falls from 1.22 to 1.09; with 4 it is 7 % higher, and the largest
rho falls from 1.74 to 1.45. With 8 it rises again: then the short ones wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from arena.domain.replacing import replace
from arena.policies.base import Snapshot
from arena.policies.lengths import steps_done
from arena.policies.priced.changes import ChangeRules
from arena.policies.priced.columns import Floats, firsts
from arena.policies.priced.marginal_values import Worker
from arena.policies.priced.market import Market

RHO_MIN, RHO_MAX = 0.01, 1_000.0

WEIGHT_MIN, WEIGHT_MAX = 1e-30, 1e30
"""Bounds of the weights that come out: their products must not overflow."""


def fairer(
    snapshot: Snapshot, market: Market, workers: Sequence[Worker], shares: Floats, changes: ChangeRules
) -> list[Worker]:
    """Return workers with the weights that fairness gives them.

    Args:
        workers: Of each contender.
        shares: Of the machine that each column takes; shape (columns,).
    """
    left = np.array([worker.remaining_steps for worker in workers])
    rho = projected_rho(snapshot, market, left, shares, changes.lasting_s(snapshot.restart_s))
    before = np.array([worker.weight for worker in workers])
    weights = np.clip(before * np.clip(rho, RHO_MIN, RHO_MAX) ** changes.fairness, WEIGHT_MIN, WEIGHT_MAX)
    return [replace(one, weight=weight) for one, weight in zip(workers, weights.tolist(), strict=True)]


def projected_rho(snapshot: Snapshot, market: Market, left: Floats, shares: Floats, without_s: float) -> Floats:
    """Return each contender's finish-time ratio if it is left out for a while and then has its share.

    Args:
        left: Steps left; shape (contenders,).
        shares: Of the machine that each column takes; shape (columns,).
        without_s: How long it is left out.
    """
    share = 1.0 / max(len(snapshot.jobs), 1)
    fair_speed = np.array([_speed_at(share, *part) for part in _offers(market, shares)])
    done = np.array([steps_done(snapshot, one.job_id) for one in market.contenders])
    since_s = np.array([snapshot.now_s - snapshot.jobs[one.job_id].submitted_at_s for one in market.contenders])
    stay_s = since_s + without_s + snapshot.restart_s + left / fair_speed
    alone_s = snapshot.restart_s + (done + left) / fair_speed
    rho: Floats = stay_s / np.maximum(alone_s, 1e-9)
    return rho


def _offers(market: Market, shares: Floats) -> list[tuple[Floats, Floats]]:
    """Return share and speed of the columns of each contender."""
    bounds = [*firsts(market.job).tolist(), len(market.job)]
    return [(shares[begin:end], market.speed[begin:end]) for begin, end in pairwise(bounds)]


def _speed_at(share: float, shares: Floats, speeds: Floats) -> float:
    """Return the speed on a share of the machine, between those of the columns about it; a part of the least below."""
    order = np.lexsort((-speeds, shares))
    fastest = np.maximum.accumulate(speeds[order])
    return float(np.interp(share, np.r_[0.0, shares[order]], np.r_[0.0, fastest]))
