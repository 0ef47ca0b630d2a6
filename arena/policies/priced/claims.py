"""What comes before the values: deadlines, budgets, and waiting that has a bound. Pure: no I/O, no clock.

Without any of these a decision is that of the values alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arena.domain.reason import Reason
from arena.policies.base import Snapshot
from arena.policies.priced.changes import ChangeRules
from arena.policies.priced.columns import Floats, firsts
from arena.policies.priced.deadlines import Plan, deadline_reason, late_reason, next_urgency_s, planned, pressed
from arena.policies.priced.market import Market
from arena.policies.priced.urgency import next_look_s, urged


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The values of columns with all claims in them.

    Args:
        value: By column.
        plan: Of the jobs with deadlines.
        finer: The values of the jobs as a share of all value, claims included: what a solver takes as near enough to
            the best must be nearer by this, or it would be far from it for those that have no claim.
        next_look_s: When a claim changes even if nothing happens.
    """

    value: Floats
    plan: Plan | None
    finer: float
    next_look_s: float | None

    def reasons(self, snapshot: Snapshot, market: Market, at: int) -> tuple[Reason, ...]:
        """Return what is to be said of a contender's claims."""
        found = deadline_reason(snapshot, market, self.plan, at)
        return () if found is None else (found,)

    def explained(self, snapshot: Snapshot, market: Market, at: int) -> tuple[Reason, ...]:
        """Return the same and more, for one job that is asked about."""
        found = late_reason(snapshot, market, self.plan, at)
        return (*self.reasons(snapshot, market, at), *(() if found is None else (found,)))


def claimed(snapshot: Snapshot, market: Market, power: Floats, value: Floats, changes: ChangeRules) -> Claims:
    """Put all claims into the values of columns."""
    offered = offered_columns(snapshot, market)
    plan = planned(snapshot, market, power, offered)
    raised = pressed(snapshot, market, plan, value, changes)
    raised = urged(snapshot, market, raised, changes.wait_max_s)
    instants = (next_look_s(snapshot, market, changes.wait_max_s), next_urgency_s(snapshot, market, plan, changes))
    return Claims(
        value=raised,
        plan=plan,
        finer=1.0 if raised is value else _best_sum(market, value) / max(_best_sum(market, raised), 1e-300),
        next_look_s=min((at_s for at_s in instants if at_s is not None), default=None),
    )


def offered_columns(snapshot: Snapshot, market: Market) -> NDArray[np.bool_]:
    """Return which columns may be had at all."""
    return np.ones(len(market.job), dtype=bool)


def _best_sum(market: Market, value: Floats) -> float:
    """Return what all contenders would be worth on their best columns."""
    return float(np.maximum(np.maximum.reduceat(value, firsts(market.job)), 0.0).sum())
