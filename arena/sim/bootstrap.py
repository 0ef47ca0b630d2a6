"""How sure a comparison of policies is: paired bootstrap over seeds. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A policy's figure over that of the first policy.

    Args:
        value: Mean over the seeds of the one, over the mean of the other.
        low, high: Percentile interval of 95 %; None where there are fewer than two seeds.
    """

    value: float
    low: float | None
    high: float | None


def paired_ratio(values: Sequence[float], firsts: Sequence[float], *, seed: int) -> Ratio | None:
    """Return the ratio of means with its interval (Efron & Tibshirani 1993, ch. 13); None where there is none.

    Seeds are drawn with replacement, each with the values of both policies: what a seed makes easy or hard for both is
    no difference between them.

    Args:
        values: Of a policy, by seed.
        firsts: Of the first policy, by the same seeds.
        seed: Of the resampling.
    """
    pairs = np.array([values, firsts], dtype=np.float64)
    if pairs.shape[1] == 0 or not np.isfinite(pairs).all() or pairs[1].sum() <= 0:
        return None
    value = float(pairs[0].sum() / pairs[1].sum())
    count = pairs.shape[1]
    if count < 2:
        return Ratio(value=value, low=None, high=None)
    picks = np.random.Generator(np.random.PCG64(seed)).integers(0, count, size=(RESAMPLES, count))
    sums = pairs[:, picks].sum(axis=2)
    if not (sums[1] > 0).all():
        return Ratio(value=value, low=None, high=None)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(sums[0] / sums[1], [tail, 100 - tail])
    return Ratio(value=value, low=float(low), high=float(high))
