"""Columns, rows and prices: the words of the allocation problem. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

NONE = -1
"""Stands for no column."""

_ROUNDING = 1e-9
"""Of the value of all; a smaller gain may be none."""


def firsts(job: Ints) -> Ints:
    """Return where each job's entries begin in an ascending array."""
    return np.flatnonzero(np.r_[True, job[1:] != job[:-1]])


@dataclass(frozen=True)  # no slots: it caches what it derives
class Columns:
    """What jobs could be given.

    Args:
        job: Job of each column, from 0, ascending, every job with at least one; shape (columns,).
        value: What each is worth, more than that of having nothing; shape (columns,).
        usage: What each takes of every row; shape (columns, rows).
    """

    job: Ints
    value: Floats
    usage: Floats

    @cached_property
    def starts(self) -> Ints:
        """First column of each job."""
        return firsts(self.job)

    @property
    def job_count(self) -> int:
        """Jobs."""
        return len(self.starts)

    def used(self, chosen: Ints) -> Floats:
        """Return what a choice takes of every row."""
        taken: Floats = self.usage[chosen[chosen >= 0]].sum(axis=0)
        return taken

    def worth(self, chosen: Ints) -> float:
        """Return the total value of a choice."""
        return float(self.value[chosen[chosen >= 0]].sum())


def least_gains(chosen: Ints, bound: float) -> Floats:
    """Return by how much more a column must be worth to each job than what it was to have; shape (jobs,).

    Of a job that was to have something, by more than rounding of the largest values. One that was to have nothing takes
    what nobody else can use however little it counts beside the others: a priority more is worth twice as much, and
    claims are worth more than all values together.

    Args:
        bound: No choice is worth more.
    """
    return np.where(chosen >= 0, _ROUNDING * max(bound, 0.0), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """The best answer of every job to some prices.

    Args:
        prices: Of each row.
        reduced: Value of each column less the price of what it takes.
        profit: The largest of these by job, at least 0.
        top: The column that has it, whether it pays or not.
        bound: No choice that fits is worth more.
    """

    prices: Floats
    reduced: Floats
    profit: Floats
    top: Ints
    bound: float

    @property
    def best(self) -> Ints:
        """Each job's best column, ``NONE`` where nothing pays."""
        return np.where(self.profit > 0.0, self.top, NONE)


def priced_at(columns: Columns, supply: Floats, prices: Floats) -> Priced:
    """Return every job's best column at some prices; of equal ones the first."""
    reduced = columns.value - columns.usage @ prices
    top = np.maximum.reduceat(reduced, columns.starts)
    hits = np.flatnonzero(reduced == top[columns.job])
    profit = np.maximum(top, 0.0)
    return Priced(
        prices=prices,
        reduced=reduced,
        profit=profit,
        top=hits[firsts(columns.job[hits])],
        bound=float(supply @ prices + profit.sum()),
    )
