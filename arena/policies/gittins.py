"""How much work a job still costs, effectively, whose length is a distribution: the Gittins quantity. Pure.

A job of length S that has done t without ending has the effective remaining work

    G(t) = inf over d > 0 of  E[min(S - t, d) | S > t] / P(S - t <= d | S > t),

the least work spent per end that serving it on for some while can buy. Serving the least G first is optimal for the
mean flow time on one machine (Gittins 1979; Aalto, Ayesta and Righter, "On the Gittins index in the M/G/1 queue",
2009). Where the length is known it is what is left, and the rule is SRPT.

Here S is log-normal with a median and a sigma with probability 1 - ``DOUBT``, and otherwise the median says nothing
but that S is no smaller: P(S > s) = median / s beyond it (Pareto), whose effective remaining work is what has been done
so far. A log-normal length alone would, the surer its median, the more surely be about to end once it is past it, and
understating would pay; with the doubt such a job soon ranks by attained service.

All is scaled by the median, so that two numbers are left, sigma and done / median; G is tabled over both once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

DOUBT = 0.01
"""Share of declarations and predictions that are taken to be worth nothing."""

SIGMA_MIN = 0.01
SIGMA_MAX = 4.0
_SIGMA_COUNT = 48

_SCORE_MIN, _SCORE_MAX = -5.0, 8.0
"""Standard scores ln(t / median) / sigma that are tabled; below, hardly any job ends, and G is all but linear in t."""
_SCORES_PER_UNIT = 10
_EARLY_COUNT = 33

_ENDS_PER_UNIT = 50
_END_MIN, _END_MAX = -6.0, 8.5
"""Standard scores of t + d among which the least is sought."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GittinsTable:
    """G for a median of 1.

    Args:
        early: Of sigma and of t as a share of where ``late`` begins: G, ``[_SIGMA_COUNT, _EARLY_COUNT]``.
        late: Of sigma and of the standard score of t: ln(G / t).
    """

    early: Floats
    late: Floats

    def remaining(self, median: Floats, sigma: Floats, done: Floats) -> Floats:
        """Return G of jobs that have done so much of a length with such a median, in the unit of both.

        At a sigma of 0 it is what is left up to the median, and from there on what has been done; below ``SIGMA_MIN``
        it lies between that and the least that is tabled.
        """
        share = done / median
        tabled = np.clip(sigma, SIGMA_MIN, SIGMA_MAX)
        with np.errstate(divide="ignore"):  # nothing done is early
            score = np.log(share) / tabled
        value = np.where(score < _SCORE_MIN, self._early(tabled, share), self._late(tabled, share, score))
        exact = np.where(share < 1.0, 1.0 - share, share)
        weight = np.minimum(sigma / SIGMA_MIN, 1.0)
        return np.asarray((weight * value + (1.0 - weight) * exact) * median)

    def _early(self, sigma: Floats, share: Floats) -> Floats:
        position = share / np.exp(_SCORE_MIN * sigma) * (_EARLY_COUNT - 1)
        return _interpolated(self.early, _sigma_position(sigma), position)

    def _late(self, sigma: Floats, share: Floats, score: Floats) -> Floats:
        position = (np.minimum(score, _SCORE_MAX) - _SCORE_MIN) * _SCORES_PER_UNIT
        return np.exp(_interpolated(self.late, _sigma_position(sigma), position)) * share


@lru_cache(maxsize=4)
def gittins_table(doubt: float = DOUBT) -> GittinsTable:
    """Return the table; the one for a doubt of 0 is of the log-normal length alone."""
    sigmas = SIGMA_MIN * (SIGMA_MAX / SIGMA_MIN) ** (np.arange(_SIGMA_COUNT) / (_SIGMA_COUNT - 1))
    rows = [_Row.of(float(sigma), doubt) for sigma in sigmas]
    return GittinsTable(
        early=np.array([row.early() for row in rows]),
        late=np.array([row.late() for row in rows]),
    )


def upper_tail(scores: Floats) -> Floats:
    """Return P(Z > z) of a standard normal Z, exact to the last digits far out as well."""
    return np.array([0.5 * math.erfc(score / math.sqrt(2.0)) for score in scores.tolist()])


def _sigma_position(sigma: Floats) -> Floats:
    return np.asarray(np.log(sigma / SIGMA_MIN) * ((_SIGMA_COUNT - 1) / math.log(SIGMA_MAX / SIGMA_MIN)))


def _interpolated(table: Floats, row: Floats, column: Floats) -> Floats:
    """Return a table between its nodes, linear in both directions; beyond its edges it is what it is there."""
    row = np.clip(row, 0.0, table.shape[0] - 1.0)
    column = np.clip(column, 0.0, table.shape[1] - 1.0)
    first = np.minimum(row.astype(np.intp), table.shape[0] - 2)
    left = np.minimum(column.astype(np.intp), table.shape[1] - 2)
    down, right = row - first, column - left
    above = table[first, left] * (1.0 - right) + table[first, left + 1] * right
    below = table[first + 1, left] * (1.0 - right) + table[first + 1, left + 1] * right
    return np.asarray(above * (1.0 - down) + below * down)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Row:
    """One sigma: the length's distribution at the ends among which the least is sought, for a median of 1.

    Args:
        score: Standard scores of the ends.
        ended: P(S <= end), exact where it is small; ``going`` is P(S > end), exact where that is small.
        spent: E[min(S, end)], exact where it is small.
        left: E[(S - end)+] of the log-normal part alone, exact where it is small; ``doubtful`` is E[min(S, end)] of
            the other part. Both carry their part's probability.
    """

    sigma: float
    doubt: float
    score: Floats
    ended: Floats
    going: Floats
    spent: Floats
    left: Floats
    doubtful: Floats

    @classmethod
    def of(cls, sigma: float, doubt: float) -> _Row:
        score = _END_MIN + np.arange(round((_END_MAX - _END_MIN) * _ENDS_PER_UNIT) + 1) / _ENDS_PER_UNIT
        end = np.exp(sigma * score)
        mean = math.exp(sigma * sigma / 2.0)
        sure = 1.0 - doubt
        doubtful = doubt * np.where(end < 1.0, end, 1.0 + np.log(end))
        tail = upper_tail(score)
        return cls(
            sigma=sigma,
            doubt=doubt,
            score=score,
            ended=sure * upper_tail(-score) + doubt * np.maximum(1.0 - 1.0 / end, 0.0),
            going=sure * tail + doubt * np.minimum(1.0, 1.0 / end),
            spent=sure * (end * tail + mean * upper_tail(sigma - score)) + doubtful,
            left=sure * (mean * upper_tail(score - sigma) - end * tail),
            doubtful=doubtful,
        )

    def early(self) -> Floats:
        """Return G where hardly any job has ended yet, so that all are still there."""
        done = math.exp(_SCORE_MIN * self.sigma) * np.arange(_EARLY_COUNT) / (_EARLY_COUNT - 1)
        work = self.spent[None, :] - done[:, None]
        return np.asarray(np.min(np.where(work > 0.0, work, np.inf) / self.ended[None, :], axis=1))

    def late(self) -> Floats:
        """Return ln(G / t) at the tabled scores, which are among the ends."""
        stride = _ENDS_PER_UNIT // _SCORES_PER_UNIT
        first = round((_SCORE_MIN - _END_MIN) * _ENDS_PER_UNIT)
        count = round((_SCORE_MAX - _SCORE_MIN) * _SCORES_PER_UNIT) + 1
        starts = first + stride * np.arange(count)
        done = np.exp(self.sigma * self.score[starts])
        return np.asarray(np.log(np.array([self._least(int(start)) for start in starts]) / done))

    def _least(self, start: int) -> float:
        """Return G at one of the ends: the least of those to later ends, and of that to the next instant."""
        later = slice(start + 1, None)
        if self.score[start] < 0.0:
            ends = self.ended[later] - self.ended[start]
            work = self.spent[later] - self.spent[start]
        else:
            ends = self.going[start] - self.going[later]
            work = self.left[start] - self.left[later] + self.doubtful[later] - self.doubtful[start]
        return min(float(np.min(work / ends)), self._at_once(start))

    def _at_once(self, start: int) -> float:
        """Return 1 / hazard."""
        score = float(self.score[start])
        done = math.exp(self.sigma * score)
        density = (1.0 - self.doubt) * math.exp(-score * score / 2.0) / math.sqrt(2.0 * math.pi) / (self.sigma * done)
        if score >= 0.0:
            density += self.doubt / (done * done)
        return float(self.going[start]) / density
