"""Budgets: columns on which a job is believed to cost more than it has left are not offered. Pure: no I/O, no clock.

What a column costs is the price of its GPUs for the work that the job is taken to have left (``work_left``) and for its
start. A job that runs may keep what it has where nothing is cheap enough: an estimate is no reason to give up what was
paid for, and the engine saves and holds it when nothing is left. A job that declares no end runs for as long as its
budget lasts: what others like it took is no reason to refuse it; it is offered nothing when nothing is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.base import Snapshot
from arena.policies.priced.columns import Floats, Ints, firsts
from arena.policies.priced.market import Market
from arena.policies.priced.work_left import steps_left


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """What budgets allow.

    Args:
        columns: Which columns may be had; None stands for all.
        reasons: Why contenders that wait are offered nothing.
    """

    columns: NDArray[np.bool_] | None = None
    reasons: Mapping[int, Reason] = field(default_factory=dict)

    def mask(self, market: Market) -> NDArray[np.bool_]:
        """Return which columns may be had."""
        return np.ones(len(market.job), dtype=bool) if self.columns is None else self.columns


def offered(snapshot: Snapshot, market: Market) -> Offered:
    """Return what budgets allow of a market; all of it where nobody has one."""
    bound = np.flatnonzero(market.facts["has_budget"]).tolist()
    if not bound or not snapshot.usd_per_hour:
        return Offered()
    allowed, reasons = np.ones(len(market.job), dtype=bool), dict[int, Reason]()
    bounds = [*firsts(market.job).tolist(), len(market.job)]
    price = _usd_per_s(snapshot, market)
    for at in bound:
        own = np.arange(bounds[at], bounds[at + 1])
        left, cost = _left_usd(snapshot, market, at), _cost_usd(snapshot, market, own, price)
        affordable = cost <= left
        if not affordable.any():
            affordable = own == market.keeping[at]  # to keep what it has
            cheapest = int(np.argmin(cost))
            told = {"left_usd": max(left, 0.0), "needed_usd": float(cost[cheapest])}
            reasons[at] = reason(ReasonCode.BUDGET_TOO_SMALL, group=str(market.group(int(own[cheapest]))), **told)
        allowed[own] = affordable
    return Offered(columns=allowed, reasons=reasons)


def _left_usd(snapshot: Snapshot, market: Market, at: int) -> float:
    """Return what is left of a budget."""
    job, holding = snapshot.jobs[market.contenders[at].job_id], market.contenders[at].holding
    budget = job.spec.budget_usd
    assert budget is not None
    if holding is None:
        return budget - job.spent_usd
    per_hour = sum(part.gpu_count * snapshot.usd_per_hour.get(part.gpu_type, 0.0) for part in holding.group.parts)
    return budget - job.spent_usd - (snapshot.now_s - holding.since_s) * per_hour / 3600.0


def _usd_per_s(snapshot: Snapshot, market: Market) -> Floats:
    """Return what a second of each row's GPUs costs; rows of whole nodes are the same GPUs again."""
    price = [snapshot.usd_per_hour.get(row.pool[0], 0.0) if row.chunk == 1 else 0.0 for row in market.rows]
    return np.array(price) / 3600.0


def _cost_usd(snapshot: Snapshot, market: Market, own: Ints, price: Floats) -> Floats:
    """Return what a contender is believed to cost on each of its columns from now on."""
    at = int(market.job[own[0]])
    job_id = market.contenders[at].job_id
    spec, least = snapshot.jobs[job_id].spec, float((market.gpu_count[own] / market.speed[own]).min())
    has_end = spec.step_limit is not None or spec.stop.time_limit_s is not None
    steps = steps_left(snapshot, job_id, least) if has_end else None
    start_s = np.where(own == market.keeping[at], 0.0, snapshot.restart_s)
    run_s = np.zeros(len(own)) if steps is None else steps / market.speed[own]
    per_s = market.usage[own] @ price
    kept = own == market.keeping[at]
    holding = market.contenders[at].holding
    if kept.any() and holding is not None:  # of a kept column the rows say what would be free without it
        hourly = [part.gpu_count * snapshot.usd_per_hour.get(part.gpu_type, 0.0) for part in holding.group.parts]
        per_s = np.where(kept, sum(hourly) / 3600.0, per_s)
    cost: Floats = np.maximum((start_s + run_s) * per_s, np.where(per_s > 0.0, 1e-12, 0.0))
    return cost
