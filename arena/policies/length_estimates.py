"""Mean and spread of the logarithm of a job's length, learned from a history under a prior. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

import numpy as np

from arena.domain.history import LOG_UNIT, NO_MOMENTS, LengthHistory, Moments
from arena.policies.gittins import SIGMA_MIN, Floats, Ints


class BeliefSource(StrEnum):
    """Where a belief comes from."""

    DECLARED = "declared"
    WORKLOAD = "workload"
    USER = "user"
    CLUSTER = "cluster"
    ATTAINED = "attained"


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPrior:
    """What is believed of logarithms of lengths before any job has ended, and how soon the history outweighs it.

    Args:
        declared_sigma: Spread of actual about declared steps.
        slope_sigma: How far the slope of actual over declared steps, in logarithms, may be from 1; > 0.
        bias_sigma: How much the mean ratio differs among users, and among a user's kinds of work; > 0.
        length_sigma: Spread of the lengths of jobs that declare nothing.
        kind_sigma: How much their typical length differs among users, and among kinds of work; > 0.
        job_weight: Jobs that a spread believed from the level above is worth.
    """

    declared_sigma: float = 0.5
    slope_sigma: float = 0.3
    bias_sigma: float = 0.3
    length_sigma: float = 2.0
    kind_sigma: float = 1.5
    job_weight: float = 1.0


DEFAULT_PRIOR = LengthPrior()


JobKey = tuple[str, str]
"""User and workload of a job."""


@dataclass(frozen=True, slots=True, eq=False)
class JobKeys:
    """Users and workloads of jobs: many share one, and looking it up takes its time.

    Args:
        distinct: Each once.
        rows: Of each job, which of these it has.
    """

    distinct: Sequence[JobKey]
    rows: Ints

    @classmethod
    def of(cls, keys: Sequence[JobKey]) -> JobKeys:
        """Return those of jobs."""
        row_of: dict[JobKey, int] = {}
        rows = [row_of.setdefault(key, len(row_of)) for key in keys]
        return cls(list(row_of), np.array(rows, dtype=np.intp))

    def only(self, jobs: Ints) -> JobKeys:
        """Return those of some of the jobs."""
        return JobKeys(self.distinct, self.rows[jobs])


_UNITS = np.array([1.0, LOG_UNIT, LOG_UNIT**2, LOG_UNIT, LOG_UNIT**2, LOG_UNIT**2])
"""Of the fields of ``LogMoments``."""

_Estimate = tuple[Floats, Floats]
"""Mean and variance of logarithms, ``[jobs]``."""


def declared_ratios(
    history: LengthHistory, prior: LengthPrior, keys: JobKeys, declared: Floats
) -> tuple[Floats, Floats]:
    """Return mean and sigma of the logarithm of actual to declared steps, ``[jobs]``; NaN of what declares none.

    Where declarations scatter, those that are long are too long more often than others (regression to the mean). So
    ratios are taken about a line over the logarithm of what was declared, with one slope for all.
    """
    distinct, rows = keys.distinct, keys.rows
    levels = _levels(history.ratios, distinct)
    slope, center = _slope(levels[0][0], prior)
    found = np.zeros(len(distinct)), np.full(len(distinct), prior.declared_sigma**2)
    for moments in levels:
        found = _shrunk(found, _about_line(moments, slope, center), prior.bias_sigma, prior.job_weight)
    # Surer than this one step too many would refute it, and the pace between reports is not known so well.
    sigma = np.maximum(np.sqrt(found[1]), SIGMA_MIN if prior.declared_sigma else 0.0)
    return found[0][rows] + slope * (np.log(declared) - center), sigma[rows]


def _slope(everybody: Floats, prior: LengthPrior) -> tuple[float, float]:
    """Return the slope of log-ratios over logarithms of declared steps, shrunk to 0, and their mean."""
    count, total, square, declared, declared_square, product = everybody.tolist()
    if count < 2.0:
        return 0.0, 0.0
    center = declared / count
    spread = max(declared_square - declared * center, 0.0)
    variance = (prior.job_weight * prior.declared_sigma**2 + max(square - total * total / count, 0.0)) / count
    weight = spread + variance / prior.slope_sigma**2
    slope = (product - total * center) / weight if weight > 0.0 else 0.0
    return min(max(slope, -1.0), 0.5), center


def _about_line(moments: Floats, slope: float, center: float) -> Floats:
    """Return the moments of log-ratios as they are above a line through 0 at ``center``."""
    count, total, square, declared, declared_square, product = moments.T
    off, off_square = declared - count * center, declared_square - 2.0 * center * declared + count * center**2
    squares = square - 2.0 * slope * (product - center * total) + slope**2 * off_square
    return np.stack([count, total - slope * off, squares], axis=1)


def usual_lengths(
    history: LengthHistory, prior: LengthPrior, keys: JobKeys, gpu_s_per_step: Floats
) -> tuple[Floats, Floats]:
    """Return median and sigma of the steps of jobs that declare none, ``[jobs]``; a NaN median is unknown."""
    everybody = history.gpu_s.get((), NO_MOMENTS)
    if not everybody.job_count:
        return np.full(len(keys.rows), np.nan), np.zeros(len(keys.rows))
    distinct, rows = keys.distinct, keys.rows
    found = np.full(len(distinct), everybody.mean), np.full(len(distinct), prior.length_sigma**2)
    levels = [
        found := _shrunk(found, one, prior.kind_sigma, prior.job_weight) for one in _levels(history.gpu_s, distinct)
    ]
    steps = _of_keys(history.steps, distinct)
    # Where steps of the same work are known, they say more of it than its GPU-seconds.
    mean, variance = np.where(steps[:, 0] > 0, levels[1], levels[2])[:, rows]
    translated = mean - np.log(gpu_s_per_step), variance
    mean, variance = _shrunk(translated, steps[rows], prior.kind_sigma, prior.job_weight)
    return np.exp(mean), np.maximum(np.sqrt(variance), SIGMA_MIN)


def source_of_length(history: LengthHistory, key: JobKey) -> BeliefSource:
    """Return where the belief about a job that declares nothing comes from."""
    if key in history.gpu_s:
        return BeliefSource.WORKLOAD
    if key[:1] in history.gpu_s:
        return BeliefSource.USER
    return BeliefSource.CLUSTER if () in history.gpu_s else BeliefSource.ATTAINED


def _levels(moments: Moments, keys: Sequence[JobKey]) -> tuple[Floats, Floats, Floats]:
    """Return what was seen of everybody, of each job's user, and of its user and workload."""
    return _of_keys(moments, [()]), _of_keys(moments, [key[:1] for key in keys]), _of_keys(moments, keys)


def _of_keys(moments: Moments, keys: Sequence[tuple[str, ...]]) -> Floats:
    """Return the moments of each key, of the logarithms themselves, ``[keys, moments]``."""
    numbers = chain.from_iterable(moments.get(key, NO_MOMENTS) for key in keys)
    found = np.fromiter(numbers, dtype=np.float64, count=len(_UNITS) * len(keys))
    return np.asarray(found.reshape(len(keys), len(_UNITS)) / _UNITS)


def _shrunk(above: _Estimate, moments: Floats, spread_sigma: float, weight: float) -> _Estimate:
    """Return mean and variance of a level from those of the level above and what was seen at it.

    The mean is that of a normal one about the mean above with ``spread_sigma``; the variance is about this mean, with
    the variance above counted as ``weight`` more observations. Jobs of a level are among those of the level above, as
    in back-off smoothing: where all agree, each level says so again, and certainty comes within a few jobs.
    """
    mean, variance = above
    count, total, square_total = moments.T[:3]
    some = np.maximum(count, 1.0)
    seen = total / some
    squares = np.maximum(square_total - total * seen, 0.0)
    doubt = variance / spread_sigma**2
    new = np.where(count > 0, (doubt * mean + count * seen) / (doubt + some), mean)
    squares = squares + count * (seen - new) ** 2
    return new, (weight * variance + squares) / (weight + count)
