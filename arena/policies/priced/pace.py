"""How fast jobs run against their estimates, from those that run to those that do not yet. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arena.policies.priced.columns import Floats, Ints

PACE_TOLERANCE = 0.05
PACE_MAX = 10.0
"""Measured step times count where they are off by more than the first and by less than the second factor."""

TRUST_RESTARTS = 10.0
TRUST_S_MIN = 60.0
"""A measurement over so many restarts, a minute at least, counts as much as what was expected before it."""


def paces(facts: NDArray[Any], now_s: float, restart_s: float) -> Floats:
    """Return by which factor each job is faster than its grid says, on all its groups.

    Estimates are wrong alike for like jobs. A job that is not measured is taken to be off by as much as those with its
    grid, else as all that run: were it believed instead, whoever runs would look worse than whoever waits, and equal
    jobs would displace each other for ever. A measurement starts from the same expectation and is trusted with time:
    the first steps are slow.

    Args:
        facts: Of the contenders, see ``roster``.
    """
    measured = np.flatnonzero(~np.isnan(facts["log_pace"]))
    if not len(measured):
        return np.ones(len(facts))
    own = np.clip(facts["log_pace"][measured], -math.log(PACE_MAX), math.log(PACE_MAX))
    grid, (grids, middle) = facts["table"], _medians(facts["table"][measured], own)
    expected = np.full(int(grid.max()) + 1, float(np.median(own)))
    expected[grids] = middle
    log_paces = expected[grid]
    ran_s = np.maximum(now_s - facts["since_s"][measured] - restart_s, 0.0)
    trust = ran_s / (ran_s + max(TRUST_RESTARTS * restart_s, TRUST_S_MIN))
    log_paces[measured] += trust * (own - log_paces[measured])
    return _factors(log_paces)


def _medians(group: Ints, values: Floats) -> tuple[Ints, Floats]:
    """Return the groups that there are, and the median of the values of each."""
    order = np.lexsort((values, group))
    found, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
    ordered = values[order]
    return found, (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) / 2.0


def _factors(log_paces: Floats) -> Floats:
    """Return factors from their logarithms, 1 where they are small."""
    factors = np.ones(len(log_paces))
    counts = np.flatnonzero(np.abs(log_paces) >= math.log1p(PACE_TOLERANCE))
    factors[counts] = [math.exp(one) for one in log_paces[counts].tolist()]
    return factors
