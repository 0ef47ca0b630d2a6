"""The allocation problem: at most one column a job, rows that hold, the largest total value. Pure: no I/O, no clock.

Prices of the rows come first (``linear``): every job answers with its best column at them, and all but a few, as many
as there are rows, are settled. These few are settled by repair and exchange and, where that leaves a gap, by branch and
bound over the columns that could still be part of a better answer. Effort is counted in exchanges and nodes, never in
seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arena.policies.priced.columns import NONE, Columns, Floats, Ints, Priced, least_gains, priced_at
from arena.policies.priced.linear import WHOLE_COLUMNS_MAX, best_prices, branched

_SLACK = 1e-9
_SHORTLIST = 512
"""Columns looked at when a choice is repaired: those that cost their job least."""

_FILL_ROUNDS = 8
"""Times that what is free is looked at anew: a job that changes gives something back as well."""

_LOOKED_AT = 256
"""Columns that are looked at together for the next one that fits."""

_FAR = 0.05
"""Of the bound; a start that is worse by more than this is not improved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How hard to try.

    Args:
        gap: Relative distance to the bound that is good enough.
        exchanges: Exchanges between jobs at most.
        nodes: Nodes of branch and bound at most; 0 leaves it out.
        columns_max: More columns than this are not branched on.
        whole_columns_max: Problems with more columns are priced by cutting planes.
    """

    gap: float = 0.002
    exchanges: int = 64
    nodes: int = 64
    columns_max: int = 2_000
    whole_columns_max: int = WHOLE_COLUMNS_MAX


_ALL = 2**31 - 1
EXACT = Effort(gap=0.0, nodes=_ALL, columns_max=_ALL, whole_columns_max=_ALL)
"""The optimum, however long it takes: the linear program and branch and bound over all that could be part of it."""


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
    columns: Columns,
    supply: Floats,
    *,
    guess: Floats,
    incumbents: Sequence[Ints] = (),
    effort: Effort = Effort(),
    prices: Floats | None = None,
) -> Answer:
    """Return the best choice found, with its bound.

    Args:
        supply: What there is of each row; shape (rows,).
        guess: Prices to begin with, of the right order of size.
        incumbents: Choices that fit, to begin with; ties are decided for the first.
        prices: Prices to use as they are, as those of a problem that differs by little; None looks for the best.
    """
    if prices is None:
        start = incumbents[0] if incumbents else None
        priced = best_prices(columns, supply, guess, start=start, whole_columns_max=effort.whole_columns_max)
    else:
        priced = priced_at(columns, supply, prices)
    starts = [*incumbents, repaired(columns, supply, priced)]
    enough = max(map(columns.worth, starts)) - _FAR * priced.bound
    found = starts[0]
    for start in sorted((one for one in starts if columns.worth(one) >= enough), key=columns.worth, reverse=True):
        better = exchanged(columns, supply, priced, filled(columns, supply, priced, start), effort)
        if columns.worth(better) > columns.worth(found) * (1 + 1e-12):
            found = better
        if priced.bound - columns.worth(found) <= effort.gap * priced.bound:
            break
    if found is starts[0]:  # what little counts does not show in the worth of all
        found = filled(columns, supply, priced, found)
    answer = Answer(chosen=found, value=columns.worth(found), priced=priced)
    if answer.gap <= effort.gap or not effort.nodes:
        return answer
    branched = _branched(columns, supply, answer, effort)
    if branched is None or columns.worth(branched) <= answer.value:
        return answer
    branched = filled(columns, supply, priced, branched)
    return Answer(chosen=branched, value=columns.worth(branched), priced=priced)


def filled(columns: Columns, supply: Floats, priced: Priced, start: Ints) -> Ints:
    """Return a choice in which no job can have something worth more in what is free; the most profitable first.

    However near the bound is: what one job waits for is little beside the value of all of thousands.
    """
    chosen = start.copy()
    for _ in range(_FILL_ROUNDS):
        having = _having(columns, chosen)
        keep = _fitting(columns, having, supply - having.used, least_gains(chosen, priced.bound))
        if not len(keep):
            break
        _fill(columns, supply, priced, chosen, keep)
    return chosen


def _fitting(columns: Columns, having: _Having, free: Floats, least: Floats) -> Ints:
    """Return the columns that gain and fit, row by row: where a row is full hardly any are left to be looked at.

    Args:
        least: By how much more they must be worth; shape (jobs,).
    """
    keep = np.flatnonzero(columns.value - having.worth[columns.job] > least[columns.job])
    for row in np.argsort(free, kind="stable").tolist():
        more = columns.usage[keep, row] - having.taken[columns.job[keep], row]
        keep = keep[more <= free[row] + _SLACK]
    return keep


def _fill(columns: Columns, supply: Floats, priced: Priced, chosen: Ints, keep: Ints) -> None:
    """Choose columns out of some while they fit and gain, the most profitable first."""
    having = _having(columns, chosen)
    profit = priced.reduced[keep] - np.where(chosen >= 0, priced.reduced[chosen], 0.0)[columns.job[keep]]
    keep = keep[np.argsort(-profit, kind="stable")]
    job = columns.job[keep]
    need, gain = columns.usage[keep] - having.taken[job], columns.value[keep] - having.worth[job]
    least = least_gains(chosen, priced.bound)[job]
    room, begin = supply - having.used + _SLACK, 0
    while begin < len(keep):
        window = slice(begin, begin + _LOOKED_AT)
        open_ = (need[window] <= room).all(axis=1) & (gain[window] > least[window])
        first = int(np.argmax(open_))
        if not open_[first]:
            begin += _LOOKED_AT
            continue
        at = begin + first
        chosen[job[at]] = keep[at]
        room = room - need[at]
        own = job == job[at]
        need[own], gain[own] = need[own] - need[at], gain[own] - gain[at]
        least[own] = least_gains(chosen[job[at : at + 1]], priced.bound)
        begin = at + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Having:
    """What each job takes of every row and is worth, and what all of them take."""

    taken: Floats
    worth: Floats
    used: Floats


def _having(columns: Columns, chosen: Ints) -> _Having:
    has = chosen >= 0
    taken = np.where(has[:, None], columns.usage[chosen], 0.0)
    return _Having(taken=taken, worth=np.where(has, columns.value[chosen], 0.0), used=taken.sum(axis=0))


def repaired(columns: Columns, supply: Floats, priced: Priced) -> Ints:
    """Return the jobs' own answers, changed at the least loss until they fit."""
    chosen = priced.best.copy()
    loss = priced.profit[columns.job] - priced.reduced
    shortlist = _cheapest(loss, _SHORTLIST)
    used, taken = columns.used(chosen), _having(columns, chosen).taken
    kept = np.where(chosen >= 0, priced.reduced[chosen], 0.0)
    while (excess := np.maximum(used - supply, 0.0)).max() > _SLACK:
        change = _least_loss(columns, priced, (taken, kept), shortlist, (used, supply, excess))
        if change is None and len(shortlist) < len(loss):
            shortlist = np.arange(len(loss))
            continue
        job, column = change if change is not None else _heaviest(columns, chosen, excess)
        used = used - taken[job] + _of(columns.usage, column)
        taken[job], kept[job] = _of(columns.usage, column), _of(priced.reduced, column)
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
    columns: Columns,
    priced: Priced,
    having: tuple[Floats, Floats],
    shortlist: Ints,
    rows: tuple[Floats, Floats, Floats],
) -> tuple[int, int] | None:
    """Return the change (job, column) that loses least for what it takes off the excess.

    Args:
        having: What each job takes of every row, and what that is worth to it at the prices.
    """
    (taken, kept), (used, supply, excess) = having, rows
    is_over = taken @ (excess > 0.0) > 0.0  # nobody else has anything of what is short
    over, keep = np.flatnonzero(is_over), shortlist[is_over[columns.job[shortlist]]]
    jobs = columns.job[keep]
    after = used - taken[jobs] + columns.usage[keep]
    ratio = _ratio(kept[jobs] - priced.reduced[keep], excess.sum() - np.maximum(after - supply, 0.0).sum(axis=1))
    to_none = excess.sum() - np.maximum(used - taken[over] - supply, 0.0).sum(axis=1)
    none_ratio = _ratio(kept[over], to_none)
    least, none_least = ratio.min(initial=np.inf), none_ratio.min(initial=np.inf)
    if min(least, none_least) == np.inf:
        return None
    if least <= none_least:
        at = int(np.argmin(ratio))
        return int(jobs[at]), int(keep[at])
    return int(over[np.argmin(none_ratio)]), NONE


def _ratio(loss: Floats, relief: Floats) -> Floats:
    helps = relief > _SLACK
    ratio: Floats = np.where(helps, np.maximum(loss, 0.0) / np.where(helps, relief, 1.0), np.inf)
    return ratio


def _heaviest(columns: Columns, chosen: Ints, excess: Floats) -> tuple[int, int]:
    """Return the job that takes most of what is short, to have nothing."""
    weight = np.where(chosen >= 0, columns.usage[chosen] @ (excess > _SLACK), -1.0)
    return int(np.argmax(weight)), NONE


def exchanged(columns: Columns, supply: Floats, priced: Priced, start: Ints, effort: Effort) -> Ints:
    """Return a choice improved by single changes and by exchanges between two jobs, steepest first.

    Only columns that could be part of a better choice are looked at: those that cost their job, at these prices, no
    more than what is missing to the bound; of too many of them the cheapest.
    """
    chosen = start.copy()
    aim, missing = effort.gap * priced.bound, priced.bound - columns.worth(start)
    if missing <= aim:
        return chosen
    loss = priced.profit[columns.job] - priced.reduced
    keep = _cheapest(loss, _EXCHANGED_MAX)
    offers = _offers(columns, priced, keep[loss[keep] <= missing])
    for _ in range(_step_count(columns, offers, effort)):
        if priced.bound - columns.worth(chosen) <= aim:
            break
        step = _best_step(columns, supply, priced, chosen, offers)
        if step is None:
            break
        for job, column in step:
            chosen[job] = column
    return chosen


def _step_count(columns: Columns, offers: _Offers, effort: Effort) -> int:
    """Return how many changes are made at most: where each takes long, so many fewer."""
    if len(offers.column) <= _SHORTLIST:
        return effort.exchanges + columns.job_count
    return effort.exchanges * _SHORTLIST // len(offers.column)


_EXCHANGED_MAX = 2_048
"""Columns that exchanges look at."""

_CANDIDATES = 24
"""Wishes that an exchange is looked for, those with the largest gain at the prices first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offers:
    """Columns that exchanges look at, ascending; ``column`` is their number among all."""

    column: Ints
    job: Ints
    value: Floats
    usage: Floats
    reduced: Floats


def _offers(columns: Columns, priced: Priced, keep: Ints) -> _Offers:
    return _Offers(
        column=keep,
        job=columns.job[keep],
        value=columns.value[keep],
        usage=columns.usage[keep],
        reduced=priced.reduced[keep],
    )


def _best_step(
    columns: Columns, supply: Floats, priced: Priced, chosen: Ints, offers: _Offers
) -> tuple[tuple[int, int], ...] | None:
    """Return the change of one job, or of two, that gains most."""
    having = _having(columns, chosen)
    taken, worth, free = having.taken, having.worth, supply - having.used
    gain = offers.value - worth[offers.job]
    short = offers.usage - taken[offers.job] - free
    least = 1e-9 * max(priced.bound, 0.0)
    fits = (short <= _SLACK).all(axis=1) & (gain > least)
    best_gain = 0.0
    best: tuple[tuple[int, int], ...] | None = None
    if fits.any():
        at = int(np.argmax(np.where(fits, gain, -np.inf)))
        best_gain, best = float(gain[at]), ((int(offers.job[at]), int(offers.column[at])),)
    kept = np.where(chosen >= 0, priced.reduced[chosen], 0.0)
    wish = np.where((gain > max(best_gain, least)) & ~fits, offers.reduced - kept[offers.job], -np.inf)
    for at in _top(wish, _CANDIDATES):
        job, need = int(offers.job[at]), short[at]
        other, column, lost = _cheapest_release(offers, chosen, (taken, worth), need, job)
        if gain[at] - lost > max(best_gain, least):
            best_gain = float(gain[at] - lost)
            best = ((other, column), (job, int(offers.column[at])))
    return best


def _top(values: Floats, count: int) -> Ints:
    count = min(count, int(np.isfinite(values).sum()))
    if not count:
        return np.arange(0)
    top = np.argpartition(-values, count - 1)[:count]
    order: Ints = top[np.lexsort((top, -values[top]))]
    return order


def _cheapest_release(
    offers: _Offers, chosen: Ints, having: tuple[Floats, Floats], need: Floats, job: int
) -> tuple[int, int, float]:
    """Return the other job, and the column it would fall back to, that makes room at the least loss."""
    taken, worth = having
    gives_all = (need <= taken + _SLACK).all(axis=1) & (chosen >= 0)
    gives_all[job] = False
    none_loss = np.where(gives_all, worth, np.inf)
    gives = (need <= taken[offers.job] - offers.usage + _SLACK).all(axis=1) & (offers.job != job)
    gives &= chosen[offers.job] >= 0
    loss = np.where(gives, worth[offers.job] - offers.value, np.inf)
    other, at = int(np.argmin(none_loss)), int(np.argmin(loss))
    if loss[at] <= none_loss[other]:
        return int(offers.job[at]), int(offers.column[at]), float(loss[at])
    return other, NONE, float(none_loss[other])


def _branched(columns: Columns, supply: Floats, answer: Answer, effort: Effort) -> Ints | None:
    """Return the best choice of the columns that could be part of a better answer, None where they are too many."""
    priced = answer.priced
    loss = priced.profit[columns.job] - priced.reduced
    keep = np.flatnonzero(loss <= priced.bound - answer.value)
    if not 0 < len(keep) <= effort.columns_max:
        return None
    return branched(columns, supply, keep, answer.chosen, nodes=effort.nodes, gap=0.5 * effort.gap)
