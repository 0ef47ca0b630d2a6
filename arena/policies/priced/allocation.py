"""The allocation problem: at most one column a job, rows that hold, the largest total value. Pure: no I/O, no clock.

Its dual is a function of the prices of the rows alone: every job answers with its best column at these prices. It is
minimised by cutting planes within a box that grows and shrinks (column generation, seen from the dual side); the few
jobs that are undecided at the best prices are then settled by repair, exchange and, where that leaves a gap, by branch
and bound over the columns that could still be part of a better answer. Effort is counted in rounds and nodes, never in
seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

NONE = -1
"""Stands for no column."""

_SLACK = 1e-9
_SHORTLIST = 512
"""Columns looked at when a choice is repaired: those that cost their job least."""


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
        return np.flatnonzero(np.r_[True, self.job[1:] != self.job[:-1]])

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How hard to try.

    Args:
        gap: Relative distance to the bound that is good enough.
        rounds: Cutting planes at most.
        exchanges: Exchanges between jobs at most.
        nodes: Nodes of branch and bound at most; 0 leaves it out.
        columns_max: More columns than this are not branched on.
    """

    gap: float = 0.002
    rounds: int = 60
    exchanges: int = 64
    nodes: int = 64
    columns_max: int = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """The best answer of every job to some prices.

    Args:
        prices: Of each row.
        reduced: Value of each column less the price of what it takes.
        profit: The largest of these by job, at least 0.
        best: The column that has it, ``NONE`` where nothing pays.
        bound: No choice that fits is worth more.
    """

    prices: Floats
    reduced: Floats
    profit: Floats
    best: Ints
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A choice that fits, and how good it can be at most.

    Args:
        chosen: Column of each job, or ``NONE``.
        value: What it is worth.
        priced: The best prices found, with their bound.
    """

    chosen: Ints
    value: float
    priced: Priced

    @property
    def gap(self) -> float:
        """Relative distance to the bound."""
        bound = self.priced.bound
        return max(0.0, 1.0 - self.value / bound) if bound > 0 else 0.0


def solve(
    columns: Columns, supply: Floats, *, guess: Floats, incumbents: Sequence[Ints] = (), effort: Effort = Effort()
) -> Answer:
    """Return the best choice found, with its bound.

    Args:
        supply: What there is of each row; shape (rows,).
        guess: Prices to begin with, of the right order of size.
        incumbents: Choices that fit, to begin with; ties are decided for the first.
    """
    priced = best_prices(columns, supply, guess, effort)
    found: Ints | None = None
    for start in [*incumbents, repaired(columns, supply, priced)]:
        better = exchanged(columns, supply, priced, start, effort)
        if found is None or columns.worth(better) > columns.worth(found) * (1 + 1e-12):
            found = better
    assert found is not None
    answer = Answer(chosen=found, value=columns.worth(found), priced=priced)
    if answer.gap <= effort.gap or not effort.nodes:
        return answer
    branched = _branched(columns, supply, answer, effort)
    if branched is None or columns.worth(branched) <= answer.value:
        return answer
    return Answer(chosen=branched, value=columns.worth(branched), priced=priced)


def priced_at(columns: Columns, supply: Floats, prices: Floats) -> Priced:
    """Return every job's best column at some prices; of equal ones the first."""
    reduced = columns.value - columns.usage @ prices
    top = np.maximum.reduceat(reduced, columns.starts)
    hits = np.flatnonzero(reduced == top[columns.job])
    first = hits[np.r_[True, columns.job[hits][1:] != columns.job[hits][:-1]]]
    profit = np.maximum(top, 0.0)
    return Priced(
        prices=prices,
        reduced=reduced,
        profit=profit,
        best=np.where(top > 0.0, first, NONE),
        bound=float(supply @ prices + profit.sum()),
    )


def best_prices(columns: Columns, supply: Floats, guess: Floats, effort: Effort) -> Priced:
    """Return prices with a low bound: cutting planes in a box around the best so far."""
    rows = len(supply)
    unit = max(float(guess.max(initial=0.0)), float(columns.value.max()) / max(float(supply.sum()), 1.0) * 1e-3)
    best = priced_at(columns, supply, guess)
    radius = np.maximum(guess, 0.1 * unit) * 0.5
    master = _Master(rows, supply, unit)
    here = best
    for _ in range(effort.rounds):
        master.cut(here, columns.used(here.best))
        low, high = np.maximum(best.prices - radius, 0.0), best.prices + radius
        prices, floor = master.lowest(low, high)
        is_bounded = bool(((prices <= low) & (low > 0.0)).any() or (prices >= high).any())
        if best.bound - floor <= 0.25 * effort.gap * best.bound:
            if not is_bounded:
                break
            radius = radius * 2.0
        here = priced_at(columns, supply, prices)
        if here.bound < best.bound:
            best = here
        else:
            radius = radius * 0.7
    return best


class _Master:
    """The cutting-plane model of the dual; prices in units of ``unit``."""

    def __init__(self, rows: int, supply: Floats, unit: float) -> None:
        self._rows, self._unit = rows, unit
        self._at = np.arange(rows + 1, dtype=np.int32)
        self._solver = _quiet_solver()
        self._solver.addVars(rows + 1, np.zeros(rows + 1), np.full(rows + 1, highspy.kHighsInf))
        self._solver.changeColsCost(rows + 1, self._at, np.r_[supply, 1.0])

    def cut(self, priced: Priced, used: Floats) -> None:
        """Add what is known at some prices: profits are convex in them, with the demand as slope."""
        constant = (float(priced.profit.sum()) + float(used @ priced.prices)) / self._unit
        self._solver.addRow(constant, highspy.kHighsInf, self._rows + 1, self._at, np.r_[used, 1.0])

    def lowest(self, low: Floats, high: Floats) -> tuple[Floats, float]:
        """Return the lowest point of the model within a box, with its height."""
        rows = self._rows
        self._solver.changeColsBounds(rows, self._at[:rows], low / self._unit, high / self._unit)
        self._solver.run()
        point = np.array(self._solver.getSolution().col_value)
        height = self._solver.getInfo().objective_function_value
        return np.clip(point[:rows] * self._unit, low, high), height * self._unit


def repaired(columns: Columns, supply: Floats, priced: Priced) -> Ints:
    """Return the jobs' own answers, changed at the least loss until they fit."""
    chosen = priced.best.copy()
    loss = priced.profit[columns.job] - priced.reduced
    shortlist = _cheapest(loss, _SHORTLIST)
    used = columns.used(chosen)
    while (excess := np.maximum(used - supply, 0.0)).max() > _SLACK:
        change = _least_loss(columns, priced, chosen, shortlist, (used, supply, excess))
        if change is None and len(shortlist) < len(loss):
            shortlist = np.arange(len(loss))
            continue
        job, column = change if change is not None else _heaviest(columns, chosen, excess)
        used = used - _of(columns.usage, chosen[job]) + _of(columns.usage, column)
        chosen[job] = column
    return chosen


def _cheapest(loss: Floats, count: int) -> Ints:
    if len(loss) <= count:
        return np.arange(len(loss))
    return np.sort(np.argpartition(loss, count)[:count])


def _of(array: Any, column: int) -> Any:
    """Return a column's entry, 0 for none."""
    return array[column] if column >= 0 else array[0] * 0.0


def _least_loss(
    columns: Columns, priced: Priced, chosen: Ints, shortlist: Ints, rows: tuple[Floats, Floats, Floats]
) -> tuple[int, int] | None:
    """Return the change (job, column) that loses least for what it takes off the excess."""
    used, supply, excess = rows
    has = chosen >= 0
    taken = np.where(has[:, None], columns.usage[chosen], 0.0)
    kept = np.where(has, priced.reduced[chosen], 0.0)
    jobs = columns.job[shortlist]
    after = used - taken[jobs] + columns.usage[shortlist]
    relief = excess.sum() - np.maximum(after - supply, 0.0).sum(axis=1)
    ratio = _ratio(kept[jobs] - priced.reduced[shortlist], relief)
    to_none = excess.sum() - np.maximum(used - taken - supply, 0.0).sum(axis=1)
    none_ratio = np.where(has, _ratio(kept, to_none), np.inf)
    at, job = int(np.argmin(ratio)), int(np.argmin(none_ratio))
    if min(ratio[at], none_ratio[job]) == np.inf:
        return None
    if ratio[at] <= none_ratio[job]:
        return int(jobs[at]), int(shortlist[at])
    return job, NONE


def _ratio(loss: Floats, relief: Floats) -> Floats:
    helps = relief > _SLACK
    ratio: Floats = np.where(helps, np.maximum(loss, 0.0) / np.where(helps, relief, 1.0), np.inf)
    return ratio


def _heaviest(columns: Columns, chosen: Ints, excess: Floats) -> tuple[int, int]:
    """Return the job that takes most of what is short, to have nothing."""
    weight = np.where(chosen >= 0, columns.usage[chosen] @ (excess > _SLACK), -1.0)
    return int(np.argmax(weight)), NONE


def exchanged(columns: Columns, supply: Floats, priced: Priced, start: Ints, effort: Effort) -> Ints:
    """Return a choice improved by single changes and by exchanges between two jobs, steepest first."""
    chosen = start.copy()
    aim = effort.gap * priced.bound
    for _ in range(effort.exchanges + columns.job_count):
        if priced.bound - columns.worth(chosen) <= aim:
            break
        step = _best_step(columns, supply, priced, chosen)
        if step is None:
            break
        for job, column in step:
            chosen[job] = column
    return chosen


_CANDIDATES = 24
"""Wishes that an exchange is looked for, those with the largest gain at the prices first."""


def _best_step(columns: Columns, supply: Floats, priced: Priced, chosen: Ints) -> tuple[tuple[int, int], ...] | None:
    """Return the change of one job, or of two, that gains most."""
    has = chosen >= 0
    taken = np.where(has[:, None], columns.usage[chosen], 0.0)
    worth = np.where(has, columns.value[chosen], 0.0)
    free = supply - taken.sum(axis=0)
    gain = columns.value - worth[columns.job]
    short = columns.usage - taken[columns.job] - free
    least = 1e-9 * max(priced.bound, 0.0)
    fits = (short <= _SLACK).all(axis=1) & (gain > least)
    best_gain = 0.0
    best: tuple[tuple[int, int], ...] | None = None
    if fits.any():
        at = int(np.argmax(np.where(fits, gain, -np.inf)))
        best_gain, best = float(gain[at]), ((int(columns.job[at]), at),)
    kept = np.where(has, priced.reduced[chosen], 0.0)
    wish = np.where((gain > max(best_gain, least)) & ~fits, priced.reduced - kept[columns.job], -np.inf)
    for at in _top(wish, _CANDIDATES):
        job, need = int(columns.job[at]), short[at]
        other, column, lost = _cheapest_release(columns, chosen, (taken, worth), need, job)
        if gain[at] - lost > max(best_gain, least):
            best_gain, best = float(gain[at] - lost), ((other, column), (job, at))
    return best


def _top(values: Floats, count: int) -> Ints:
    count = min(count, int(np.isfinite(values).sum()))
    if not count:
        return np.arange(0)
    top = np.argpartition(-values, count - 1)[:count]
    order: Ints = top[np.lexsort((top, -values[top]))]
    return order


def _cheapest_release(
    columns: Columns, chosen: Ints, having: tuple[Floats, Floats], need: Floats, job: int
) -> tuple[int, int, float]:
    """Return the other job, and the column it would fall back to, that makes room at the least loss."""
    taken, worth = having
    gives_all = (need <= taken + _SLACK).all(axis=1) & (chosen >= 0)
    gives_all[job] = False
    none_loss = np.where(gives_all, worth, np.inf)
    gives = (need <= taken[columns.job] - columns.usage + _SLACK).all(axis=1) & (columns.job != job)
    gives &= chosen[columns.job] >= 0
    loss = np.where(gives, worth[columns.job] - columns.value, np.inf)
    other, at = int(np.argmin(none_loss)), int(np.argmin(loss))
    if loss[at] <= none_loss[other]:
        return int(columns.job[at]), at, float(loss[at])
    return other, NONE, float(none_loss[other])


def _branched(columns: Columns, supply: Floats, answer: Answer, effort: Effort) -> Ints | None:
    """Return the best choice of the columns that could be part of a better answer, None where they are too many."""
    priced = answer.priced
    loss = priced.profit[columns.job] - priced.reduced
    keep = np.flatnonzero(loss <= priced.bound - answer.value)
    if not 0 < len(keep) <= effort.columns_max:
        return None
    jobs, inverse = np.unique(columns.job[keep], return_inverse=True)
    solver = _quiet_solver()
    solver.setOptionValue("mip_max_nodes", effort.nodes)
    solver.setOptionValue("mip_rel_gap", 0.5 * effort.gap)
    scale = 1.0 / float(columns.value.max())
    rows, count = len(supply), len(keep)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = count, rows + len(jobs)
    model.col_cost_ = -columns.value[keep] * scale
    model.col_lower_, model.col_upper_ = np.zeros(count), np.ones(count)
    model.row_lower_ = np.full(rows + len(jobs), -highspy.kHighsInf)
    model.row_upper_ = np.r_[supply, np.ones(len(jobs))]
    model.integrality_ = [highspy.HighsVarType.kInteger] * count
    _fill(model.a_matrix_, columns.usage[keep], inverse, rows)
    solver.passModel(model)
    start = highspy.HighsSolution()
    start.col_value = list(np.isin(keep, answer.chosen).astype(float))
    solver.setSolution(start)
    solver.run()
    values = np.array(solver.getSolution().col_value)
    if len(values) != count:
        return None
    chosen = np.full(columns.job_count, NONE)
    picked = keep[values > 0.5]
    chosen[columns.job[picked]] = picked
    return chosen if (columns.used(chosen) <= supply + 1e-6).all() else None


def _fill(matrix: Any, usage: Floats, job: Ints, rows: int) -> None:
    """Write rows of supply, then one row a job, column by column."""
    starts, index, value = [0], [], []
    for column in range(len(usage)):
        used = np.flatnonzero(usage[column])
        index += [*used.tolist(), rows + int(job[column])]
        value += [*usage[column][used].tolist(), 1.0]
        starts.append(len(index))
    matrix.format_ = highspy.MatrixFormat.kColwise
    matrix.start_, matrix.index_ = np.array(starts, dtype=np.int32), np.array(index, dtype=np.int32)
    matrix.value_ = np.array(value)


class _Solver(highspy.Highs):
    """HiGHS without its callbacks, which nobody here uses and whose set-up prints a banner."""

    def enableCallbacks(self) -> None:  # noqa: N802 - HiGHS' name
        """Leave them off."""


def _quiet_solver() -> Any:
    """Return HiGHS, silent and on one thread: the same input gives the same answer."""
    solver = _Solver()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("random_seed", 0)
    return solver
