"""What it costs to change what a job has, as a share of what the change could bring. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from arena.errors import SpecError
from arena.policies.base import Snapshot
from arena.policies.priced.columns import Floats
from arena.policies.priced.market import Market

USUAL_RESTARTS = 50.0
USUAL_S = 600.0
"""How long a change usually lasts: so many restarts, but no longer than this.

A tenth of this for cheap restarts, as it once was, made a restart a tenth of any change, however short both were, and
kept jobs from following the optimum where following costs next to nothing.
"""

USUAL_RESTART_S = 60.0
"""Where restarts take longer, changes last longer, as the square root of what they take.

Whoever pays more for a change makes fewer: that is how the best interval grows with what is paid at each of its ends
(Young 1974, "A first order approximation to the optimum checkpoint interval").
"""

WEIGHT_MAX = 1e6
"""Bound of the weights: beyond it values no longer differ by anything else, and in the end they overflow."""

FAIRNESS_MAX = 8.0
"""With more the short jobs wait, and the largest rho rises again (see ``fairness``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRules:
    """How changes are weighed.

    A restart is a loss of a known length. It is set against a gain that lasts until the job ends or is changed again:
    ``horizon_s`` is how long that usually is. Room that one job gives up for another often comes free by itself before
    that, so shrinking and suspending are weighed heavier than growing.

    Args:
        horizon_s: Time that a change is expected to last; None means fifty restarts, ten minutes at most, or more where
            a restart takes more than a minute.
        grow: Weight of a restart of a job that gets more GPUs.
        shrink: The same of one that gets fewer.
        swap: Weight of a restart of a job that gets as many of another kind.
        suspend: Weight of the restart that a suspended job will need.
        again: By how much each move of the last hour adds to the weight of the next, as a share of it.
        outlook: What GPUs will be worth when all of today's jobs have ended, as a share of today's price, if it is
            certain that others will come (see ``outlook``).
        standby: What they usually are worth counts so much against taking more of them (see ``standby``).
        wait_max_s: After so long and its own run a waiting job comes before all others (see ``urgency``).
        fairness: How much more the time of those counts who get least of their share (see ``fairness``); 0 not at all.
    """

    horizon_s: float | None = None
    grow: float = 1.0
    shrink: float = 4.0
    swap: float = 2.0
    suspend: float = 2.0
    again: float = 0.5
    outlook: float = 0.3
    standby: float = 1.0
    wait_max_s: float = 86_400.0
    fairness: float = 0.0

    def lasting_s(self, restart_s: float) -> float:
        """Return how long a change lasts."""
        usual_s = min(USUAL_RESTARTS * restart_s, USUAL_S * math.sqrt(max(restart_s / USUAL_RESTART_S, 1.0)))
        return max(usual_s if self.horizon_s is None else self.horizon_s, 1e-9)

    def __post_init__(self) -> None:
        for name in ("grow", "shrink", "swap", "suspend", "again", "outlook", "standby", "fairness"):
            most = FAIRNESS_MAX if name == "fairness" else WEIGHT_MAX
            if not 0 <= getattr(self, name) <= most:
                raise SpecError(
                    f"policy option {name} must be at least 0 and at most {most:.0f}", why=f"got {getattr(self, name)}"
                )
        for name, value in (("wait_max_s", self.wait_max_s), ("horizon_s", self.horizon_s)):
            if value is not None and not 0 < value < math.inf:
                raise SpecError(f"policy option {name} must be greater than 0 and finite", why=f"got {value}")


def outlook(market: Market, rules: ChangeRules) -> float:
    """Return what GPUs will be worth when all of these jobs have ended, as a share of what they are worth now.

    Others will have come by then if they keep coming. Of n instants at which these came, n - 1 followed another: so
    surely others follow. Jobs that came all at once are a batch, and nothing says that there will be another.
    """
    return rules.outlook * _others_come(market)


def _others_come(market: Market) -> float:
    return 1.0 - 1.0 / len(np.unique(market.facts["submitted_at_s"]))


def standby(snapshot: Snapshot, market: Market, rules: ChangeRules) -> float:
    """Return what it counts against taking GPUs that others will want them, as a share of what they are worth now.

    That is what they are usually worth: as many jobs are here on average as there were since the first that the history
    knows of came (Little's law), each worth what one of these is. Who takes more GPUs because few want them at this
    moment has to give them back to those who come. Where that costs nothing, it counts nothing; where it costs as much
    as what a change lasts, and from there on, it counts in full. With ``fairness`` it counts nothing: prices then are
    not those of time alone, and who has least of its share would pay for the weight that it is given.
    """
    submitted_at_s, history = market.facts["submitted_at_s"], snapshot.history
    first_s = float(submitted_at_s.min()) if history.begun_at_s is None else history.begun_at_s
    seen_s = snapshot.now_s - first_s
    if seen_s <= 0.0 or rules.fairness > 0.0:
        return 0.0
    here_s = np.minimum(snapshot.now_s - submitted_at_s, seen_s)
    usual = (history.flow_s + float(np.cumsum(here_s)[-1])) / seen_s
    dear = min(rules.shrink * snapshot.restart_s / rules.lasting_s(snapshot.restart_s), 1.0)
    return rules.standby * dear * _others_come(market) * usual / len(submitted_at_s)


def useful_speeds(market: Market, remaining_steps: Floats, restart_s: float, rules: ChangeRules) -> Floats:
    """Return the steps per second that each column brings, its start or restart counted in.

    A job that has nothing starts once and goes on to its end: a job of seconds is as fast on one GPU as on many. One
    that has something would have gone on with it: what its change costs must come back while it lasts.

    Args:
        remaining_steps: Steps left by contender.
        restart_s: What a start or restart takes.
    """
    to_end_s = remaining_steps[market.job] / market.speed
    is_running = market.keeping[market.job] >= 0
    lasts_s = np.where(is_running, np.minimum(to_end_s, rules.lasting_s(restart_s)), to_end_s)
    useful: Floats = market.speed * lasts_s / (lasts_s + restart_s * _weights(market, rules))
    return useful


def column_values(
    market: Market, step_value: Floats, useful_speed: Floats, restart_s: float, rules: ChangeRules
) -> Floats:
    """Return the value of each column over having nothing, in seconds of flow time saved a second.

    Args:
        step_value: Value of a step by contender.
        useful_speed: By column, see ``useful_speeds``.
    """
    kept = np.where(market.keeping >= 0, market.speed[market.keeping], 0.0)
    resumption = rules.suspend * step_value * kept * min(restart_s / rules.lasting_s(restart_s), 1.0)
    values: Floats = step_value[market.job] * useful_speed + resumption[market.job]
    return values


def _weights(market: Market, rules: ChangeRules) -> Floats:
    """Return the weight of the restart that each column needs, 0 for those that keep what is there."""
    keeping = market.keeping[market.job]
    before = np.where(keeping >= 0, market.gpu_count[keeping], 0.0)
    fewer = np.where(market.gpu_count < before, rules.shrink, rules.swap)
    weights = np.where(market.gpu_count > before, rules.grow, fewer)
    recent = np.array([contender.recent_moves for contender in market.contenders], dtype=np.float64)
    weights = np.where(keeping >= 0, weights * (1.0 + rules.again * recent[market.job]), 1.0)
    weights[market.entry < 0] = 0.0
    return weights
