"""What plans of a pipeline could be worth where money counts, before any is made. Pure: no I/O, no clock.

For a time, the chains that do a micro-batch for the least say what GPUs have to cost at the least; with many times at
once this shows which times and pipelines are worth filling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from arena.planner.candidates import Floats
from arena.planner.heterogeneous.chains import Chains, Mix, Room, fill_cheaply
from arena.planner.heterogeneous.goal import Goal

_TIMES = 96
_LOOKS_OF_PIPELINE = 3
_TIMES_TRIED = 7


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Look:
    """Chains of a pipeline that could be worth filling, so that they are done by some of the times.

    Args:
        score: What they look like.
        serial: Decides between looks that are as good.
        times_s: From and until when to be done.
    """

    score: float
    serial: int
    times_s: tuple[float, float]
    chains: Chains = field(compare=False)

    def mixes(self, goal: Goal, room: Room) -> Iterator[Mix]:
        """Yield what the chains come to at some times."""
        for time_s in np.geomspace(*self.times_s, _TIMES_TRIED):
            mix = fill_cheaply(self.chains, room, float(time_s), goal.price)
            if mix is not None:
                yield mix


def times_between(first_s: float, last_s: float) -> Floats:
    """Return the times that are looked at, from and until, ``[t, 2]``."""
    ends = np.geomspace(first_s, max(first_s * (1 + 1e-9), last_s), _TIMES)
    return np.stack((np.concatenate((ends[:1], ends[:-1])), ends), axis=1)


def looks_of(chains: Chains, times_s: Floats, goal: Goal, room: Room, price: Floats, *, serial: int) -> list[Look]:
    """Return the best looks of some chains.

    Args:
        times_s: From and until when to be done, ``[t, 2]``.
        price: Of GPUs, all of the offer together at 1: whatever is dearer than its share of the work is not possible.
    """
    need = chains.table.need
    counts = np.stack([chains.counts(float(time_s)) for _, time_s in times_s])
    best = (counts / np.maximum(chains.gpus @ (goal.price + 1e-15), 1e-300)).argmax(axis=1)
    most = counts[np.arange(len(times_s)), best]
    gpus = need / np.maximum(most, 1)[:, None] * chains.gpus[best]
    is_possible = (counts >= chains.gpus @ price * need).any(axis=1) & (most > 0)
    # Plans that are not done at one time but at the next can be done any time in between.
    usd_per_s = np.maximum(gpus @ goal.usd_per_s, room.least_cost(goal.usd_per_s))
    cost = np.maximum(gpus @ goal.price, room.least_cost(goal.price))
    scores = np.where(is_possible, goal.looks(times_s[:, 0], usd_per_s, cost), np.inf)
    some = np.argsort(scores, kind="stable")[:_LOOKS_OF_PIPELINE]
    return [
        Look(
            score=float(scores[at]),
            serial=serial + order,
            times_s=(float(times_s[at, 0]), float(times_s[at, 1])),
            chains=chains,
        )
        for order, at in enumerate(some.tolist())
        if np.isfinite(scores[at])
    ]
