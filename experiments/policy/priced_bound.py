"""A lower bound of the mean completion time that knows of contention. Pure: no I/O, no clock, no randomness.

Every GPU of a type has a price in every stretch of time. Each job, knowing all prices to come, finds the schedule of
which its completion time and its rent are least together. What all of them come to, less the rent of the whole cluster,
is no more than the completion times of any schedule that gives no GPU to two at once (Lagrangian duality; Geoffrion
1974, section 3). The bound holds whatever the prices; good ones are found by a subgradient method.

What a job may do is more than any scheduler can: it knows the future, changes its group at any instant at no cost and
without a fragment left over, and pays the start once, spread over its run. A schedule of several starts is not excluded
by that: a run of length L on a group does (L - start) / steps of the job, no more than L / (start + steps).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.policy.bounds import Work

Floats = NDArray[np.float64]

STRETCH_COUNTS = (64, 256)
"""Into so many stretches time is divided: coarsely first, where prices are found faster, from which the next begin."""

ROUNDS = 90
"""Times that prices are changed, for each division."""

WORK_PRICES = 48
"""Prices of a job's whole work that its least rent is looked for among; any of them gives a bound."""

FIRST_PRICE = 0.2
"""Of a GPU-second, in the unit of steps: from nothing the first step would be as large as the first excess."""

STEP = 0.12
"""The first step of a price whose stretch is overfull by as much as it holds, in the same unit."""

STEP_HALVED_AFTER = 40
"""Rounds."""

FOR_EVER_S = 1e9
"""After what is priced GPUs are free: a stretch that outlasts everything."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A job in arrays: ``counts[cell, type]`` GPUs, ``times_s[cell]`` and ``work_prices[...]`` in seconds."""

    at_s: float
    counts: Floats
    times_s: Floats
    work_prices_s: Floats


@dataclass(frozen=True, slots=True)
class _Answer:
    """What jobs do at some prices.

    Args:
        value_s: The bound of the sum of completion times.
        excess: GPU-seconds that they take above what there is, by type and stretch: the supergradient of the value.
    """

    value_s: float
    excess: Floats


def priced_mean_s(
    works: Sequence[Work], gpu_counts: Sequence[int], *, stretch_counts: Sequence[int] = STRETCH_COUNTS
) -> float:
    """Return a lower bound of the mean time from submission to end under any schedule, in seconds.

    Args:
        works: At least one job, with its cells.
        gpu_counts: GPUs of each type, in the order of the cells' counts.
        stretch_counts: Into how many stretches the time that is priced is divided, one after the other.
    """
    capacity = np.asarray(gpu_counts, dtype=np.float64)
    jobs = [_job(one) for one in works]
    edges_s = np.empty(0)
    prices: Floats = np.empty((len(capacity), 0))
    best_s = -np.inf
    for count in stretch_counts:
        before_s, edges_s = edges_s, _edges_s(works, capacity, count)
        prices = _carried(prices, before_s, edges_s, len(capacity))
        value_s, prices = _raised(jobs, capacity, edges_s, prices)
        best_s = max(best_s, value_s)
    return best_s / len(works)


def _job(work: Work) -> _Job:
    counts = np.array([cell.gpu_counts for cell in work.cells], dtype=np.float64)
    times_s = np.array([cell.time_s for cell in work.cells])
    scale = np.geomspace(1.0, 30.0, WORK_PRICES)
    return _Job(at_s=work.submitted_at_s, counts=counts, times_s=times_s, work_prices_s=work.alone_s * scale)


def _edges_s(works: Sequence[Work], capacity: Floats, count: int) -> Floats:
    """Return the ends of stretches: of the arrivals, of what follows them, and one for ever."""
    first_s, last_s = (pick(one.submitted_at_s for one in works) for pick in (min, max))
    tail_s = sum(one.gpu_seconds for one in works) / capacity.sum() + 2 * max(one.alone_s for one in works)
    during = round(count * 0.75) if last_s > first_s else 0
    after = np.linspace(last_s, last_s + tail_s, count - during + 1)
    arrivals = np.linspace(first_s, last_s, during + 1)[:-1] if during else np.empty(0)
    return np.concatenate([arrivals, after, [last_s + tail_s + FOR_EVER_S]])


def _carried(prices: Floats, before_s: Floats, edges_s: Floats, type_count: int) -> Floats:
    """Return prices of one division for another; zeros where there were none."""
    if not before_s.size:
        return np.zeros((type_count, len(edges_s) - 1))
    at = np.searchsorted(before_s, (edges_s[:-1] + edges_s[1:]) / 2, side="right") - 1
    return prices[:, at.clip(0, prices.shape[1] - 1)]


def _raised(jobs: Sequence[_Job], capacity: Floats, edges_s: Floats, prices: Floats) -> tuple[float, Floats]:
    """Return the best value that steps along the averaged excess find, in seconds, and its prices.

    A step is a share of what a GPU-second would cost if jobs paid with the least time that they take, and falls with
    the rounds; a stretch that is overfull by as much as it holds moves by a whole step.
    """
    scale = sum(job.times_s.min() for job in jobs) / sum((job.times_s * job.counts.sum(axis=1)).min() for job in jobs)
    supply = capacity[:, None] * np.diff(edges_s)
    best_s, best, mean_excess = _answered(jobs, capacity, edges_s, prices).value_s, prices, np.zeros_like(prices)
    if not prices.any():
        prices = np.full_like(prices, FIRST_PRICE * scale)
        prices[:, -1] = 0.0
    for turn in range(ROUNDS):
        found = _answered(jobs, capacity, edges_s, prices)
        if found.value_s > best_s:
            best_s, best = found.value_s, prices
        mean_excess = (mean_excess + found.excess / supply) / 2
        prices = np.maximum(0.0, prices + STEP * scale / (1 + turn / STEP_HALVED_AFTER) * mean_excess)
    return best_s, best


def _answered(jobs: Sequence[_Job], capacity: Floats, edges_s: Floats, prices: Floats) -> _Answer:
    lengths_s = np.diff(edges_s)
    rent_s = float(capacity @ prices @ lengths_s)
    excess = -capacity[:, None] * lengths_s
    total_s = -rent_s
    for job in jobs:
        total_s += _least(job, edges_s, prices, excess)
    excess[:, -1] = 0.0
    return _Answer(value_s=total_s, excess=excess)


def _least(job: _Job, edges_s: Floats, prices: Floats, used: Floats) -> float:
    """Return the least completion time and rent of one job; add the GPU time that it takes.

    With m the price of its whole work, a second in stretch i is worth h_i(m) = max over cells of (m / time - rent), or
    nothing. A job that ends at C pays at least m - (sum of h over its time), for any m; between two ends of stretches
    that and C together are least at one of them.
    """
    first = int(np.searchsorted(edges_s, job.at_s, side="right")) - 1
    begins_s = np.maximum(edges_s[first:-1], job.at_s)
    lengths_s = edges_s[first + 1 :] - begins_s
    rents = job.counts @ prices[:, first:]
    worth = job.work_prices_s[:, None, None] / job.times_s[None, :, None] - rents[None]
    cells = worth.argmax(axis=1)
    worth = np.maximum(np.take_along_axis(worth, cells[:, None], axis=1)[:, 0], 0.0)
    gains = worth * lengths_s
    before = np.cumsum(gains, axis=1) - gains
    values = (begins_s - job.at_s) + job.work_prices_s[:, None] - before + np.minimum(0.0, (1.0 - worth) * lengths_s)
    at_price = values.argmax(axis=0)
    values = values[at_price, np.arange(len(lengths_s))]
    last = int(values.argmin())
    row = int(at_price[last])
    end = last + (1 if worth[row, last] > 1.0 else 0)
    runs = worth[row, :end] > 0
    used[:, first : first + end] += job.counts[cells[row, :end]].T * (lengths_s[:end] * runs)
    return float(values[last])
