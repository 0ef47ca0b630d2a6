"""Jobs with deadlines that were started too often of late rest until they must not. Pure: no I/O, no clock.

Blocks of others may take from such a job what it has, again and again, and each start costs it. So one that was
started again ``MOVES_MAX`` times within ``MOVES_S`` keeps what it has unless somebody must have that (``steadied``),
and where it waits it is not started, until the first of these starts is ``MOVES_S`` old. Where its own block has come,
or it was promised a deadline and finds no block any more, it is given what is in time. So of more starts within
``MOVES_S`` each is one that its own deadline needs, or one elsewhere because somebody must have the place where it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.base import Snapshot
from arena.policies.priced.changes import ChangeRules
from arena.policies.priced.columns import Floats
from arena.policies.priced.deadlines import Plan, broken_ones, urgent_ones
from arena.policies.priced.market import Market
from arena.policies.priced.moves import MOVES_MAX, MOVES_S, rested_among_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting:
    """Who rests.

    Args:
        until_s: By contender that waits.
    """

    until_s: dict[int, float] = field(default_factory=dict)

    def reason(self, snapshot: Snapshot, at: int) -> Reason | None:
        """Return why a contender that waits is not started, None where that is not for rest."""
        until_s = self.until_s.get(at)
        if until_s is None:
            return None
        return reason(ReasonCode.STARTED_OFTEN, count=MOVES_MAX, rest_s=until_s - snapshot.now_s)

    def values(self, market: Market, value: Floats) -> Floats:
        """Return the values of columns without those of who rests."""
        if not self.until_s:
            return value
        return np.where(np.isin(market.job, list(self.until_s)), -1.0, value)


def resting(snapshot: Snapshot, market: Market, plan: Plan | None, changes: ChangeRules) -> Resting:
    """Return who of those that wait rests."""
    facts, now_s = market.facts, snapshot.now_s
    is_often = (facts["due_s"] > now_s) & (now_s - facts["again_s"] < MOVES_S) & (market.keeping < 0)
    often = np.flatnonzero(is_often).tolist()
    if not often:
        return Resting()
    pressing = {*urgent_ones(snapshot, market, plan, changes), *(() if plan is None else broken_ones(market, plan))}
    instants = {at: rested_among_s([snapshot.jobs[market.contenders[at].job_id]], now_s) for at in often}
    return Resting(until_s={at: one for at, one in instants.items() if one is not None and at not in pressing})
