"""Random factors that depend on a seed, a row and a purpose alone. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from statistics import NormalDist

from arena_traces.mapping import uniform_number

_EDGE = 1e-12
"""Keeps a draw off the ends, where a normal number would be infinite."""


def log_normal(sigma: float, seed: int, row: int, *, purpose: str = "length") -> float:
    """Return a factor of median 1; the same in every order and on every machine."""
    number = min(max(uniform_number(seed, row, purpose=purpose), _EDGE), 1 - _EDGE)
    return math.exp(sigma * NormalDist().inv_cdf(number))
