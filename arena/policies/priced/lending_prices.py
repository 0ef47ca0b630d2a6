"""Prices where tenants keep what they claim, and all pay the same for the rest. Pure: no I/O, no clock.

Of each row a tenant has what it claims to itself, and what it takes beyond that it takes from what nobody claims. As a
linear program with what each tenant borrows, ``b``, as variables:

    used of i <= claim of i + b of i,    sum of b + used of all others <= supply - sum of claims,    b >= 0

which is the same as a row for every set of tenants (all but those in the set leave what these claim), of which there
are too many. Its dual has a price for all others, and one for each tenant that claims something, at most as high. It is
minimised by cutting planes within a box that grows and shrinks, with cuts for each tenant by itself: profits of a
tenant's jobs depend on its prices alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import highspy
import numpy as np

from arena.policies.priced.columns import NONE, Columns, Floats, Ints, Priced, firsts
from arena.policies.priced.linear import quiet_solver
from arena.policies.priced.rooms import Rooms

CUTS_MAX = 60
TOLERANCE = 5e-4
"""Relative distance to the lowest bound at which cutting planes stop."""

PATIENCE = 7
"""Cuts that may together bring less than half of that before they stop as well, if the model's lowest point is near."""

_NEAR = 0.005


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LendingPrices:
    """Prices of the rows for each tenant and for all others.

    Args:
        prices: Shape (tenants + 1, rows); the last are the highest.
        reduced: Value of each column less the price of what it takes; shape (columns,).
        profit: The largest of these by job, at least 0; shape (jobs,).
        top: The column that has it; shape (jobs,).
        used: What each takes of every row at the optimum of the relaxation; shape (tenants + 1, rows).
    """

    prices: Floats
    reduced: Floats
    profit: Floats
    top: Ints
    used: Floats

    def bound(self, rooms: Rooms) -> float:
        """Return what no choice that leaves the claims is worth more than; holds for other claims as well."""
        paid = rooms.common @ self.prices[-1] + (rooms.claims * self.prices[:-1]).sum()
        return float(paid + self.profit.sum())

    def as_priced(self, rooms: Rooms) -> Priced:
        """Return the same as prices for all others, with the bound that some claims give."""
        return Priced(
            prices=self.prices[-1], reduced=self.reduced, profit=self.profit, top=self.top, bound=self.bound(rooms)
        )


def lending_prices(columns: Columns, rooms: Rooms, guess: Floats) -> LendingPrices:
    """Return prices with a low bound.

    Args:
        guess: Prices to begin with, of the right order of size; shape (rows,).
    """
    pricing, unit = _Pricing(columns, rooms), _unit(columns, rooms, guess)
    master = _Master(rooms, unit)
    best_point = master.point_of(guess)
    best = here = pricing.at(master.prices_of(best_point))
    radius = np.maximum(best_point, 0.1 * unit) * 0.5
    bounds = [best.bound(rooms)]
    for _ in range(CUTS_MAX):
        master.cut(here, pricing.profits(here))
        low, high = np.maximum(best_point - radius, 0.0), best_point + radius
        point, floor = master.lowest(low, high)
        at_edge = ((point <= low) & (low > 0.0)) | (point >= high)
        is_there = bounds[-1] - floor <= TOLERANCE * bounds[-1]
        if is_there and not at_edge.any():
            break
        here = pricing.at(master.prices_of(point))
        bound = here.bound(rooms)
        if bound < bounds[-1]:
            best, best_point = here, point
            radius = np.where(at_edge, radius * 2.0, radius)
        else:
            radius = np.where(at_edge & is_there, radius * 2.0, radius * 0.7)
        bounds.append(min(bound, bounds[-1]))
        if bounds[-1] - floor <= _NEAR * bounds[-1] and _has_stalled(bounds):
            break
    return replace(best, used=master.used())


def _unit(columns: Columns, rooms: Rooms, guess: Floats) -> float:
    """Return what prices are counted in: of the size of the largest that is guessed, if any is."""
    per_gpu = float(columns.value.max(initial=0.0)) / max(float(rooms.supply.sum()), 1.0)
    return max(float(guess.max(initial=0.0)), 1e-3 * per_gpu) or 1.0


def _has_stalled(bounds: Sequence[float]) -> bool:
    """Tell whether the last cuts have brought too little."""
    return len(bounds) > PATIENCE and bounds[-1 - PATIENCE] - bounds[-1] <= 0.5 * TOLERANCE * bounds[-1]


class _Pricing:
    """Answers of all jobs to prices."""

    def __init__(self, columns: Columns, rooms: Rooms) -> None:
        self._columns, self._rooms = columns, rooms
        self._usage = np.ascontiguousarray(columns.usage.T)  # one row after the other is looked at
        self._owner = rooms.owner[columns.job]

    def at(self, prices: Floats) -> LendingPrices:
        """Return the best column of every job; of equal ones the first."""
        columns, reduced = self._columns, self._columns.value.copy()
        for row, usage in enumerate(self._usage):
            if prices[:, row].any():
                reduced -= usage * prices[self._owner, row]
        best = np.maximum.reduceat(reduced, columns.starts)
        hits = np.flatnonzero(reduced == best[columns.job])
        top = hits[firsts(columns.job[hits])]
        used = self._rooms.used(columns, np.where(best > 0.0, top, NONE))
        return LendingPrices(prices=prices, reduced=reduced, profit=np.maximum(best, 0.0), top=top, used=used)

    def profits(self, priced: LendingPrices) -> Floats:
        """Return the profit of each tenant's jobs, and of all others; shape (tenants + 1,)."""
        owner = self._rooms.owner
        return np.bincount(owner, weights=priced.profit, minlength=self._rooms.owner_count).astype(np.float64)


class _Master:
    """The cutting-plane model of the dual; prices in units of ``unit``.

    Its variables are the prices for all others, those of each tenant for what it claims, then the profits of each.
    """

    def __init__(self, rooms: Rooms, unit: float) -> None:
        self._unit, self._owners = unit, rooms.owner_count
        row_count = len(rooms.supply)
        who, self._what = np.nonzero(rooms.claims > 0.0)
        self._count = row_count + len(who)
        self._place = np.tile(np.arange(row_count), (self._owners, 1))
        self._place[who, self._what] = row_count + np.arange(len(who))
        self._cuts: list[tuple[int, Floats]] = []
        self._solver = quiet_solver()
        total, costs = self._count + self._owners, (rooms.common, rooms.claims[who, self._what], np.ones(self._owners))
        self._solver.addVars(total, np.zeros(total), np.full(total, highspy.kHighsInf))
        self._solver.changeColsCost(total, np.arange(total, dtype=np.int32), np.concatenate(costs))
        for at, row in enumerate(self._what.tolist()):  # at most what all others pay
            pair = np.array([row, row_count + at], dtype=np.int32)
            self._solver.addRow(0.0, highspy.kHighsInf, 2, pair, np.array([1.0, -1.0]))

    def point_of(self, prices: Floats) -> Floats:
        """Return the variables at which all pay the same prices."""
        return np.concatenate([prices, prices[self._what]])

    def prices_of(self, point: Floats) -> Floats:
        """Return what each pays; shape (tenants + 1, rows)."""
        prices: Floats = point[self._place]
        return prices

    def cut(self, priced: LendingPrices, profits: Floats) -> None:
        """Add what is known at some prices: profits are convex in them, with the demand as slope."""
        for one, used in enumerate(priced.used):
            rows = np.flatnonzero(used)
            constant = (profits[one] + float(used @ priced.prices[one])) / self._unit
            index = np.r_[self._place[one][rows], self._count + one].astype(np.int32)
            self._solver.addRow(constant, highspy.kHighsInf, len(index), index, np.r_[used[rows], 1.0])
            self._cuts.append((one, used))

    def lowest(self, low: Floats, high: Floats) -> tuple[Floats, float]:
        """Return the lowest point of the model within a box, with its height."""
        at = np.arange(self._count, dtype=np.int32)
        self._solver.changeColsBounds(self._count, at, low / self._unit, high / self._unit)
        self._solver.run()
        point = np.array(self._solver.getSolution().col_value)[: self._count]
        height = self._solver.getInfo().objective_function_value
        return np.clip(point * self._unit, low, high), height * self._unit

    def used(self) -> Floats:
        """Return what each takes in the relaxation: the mean of its answers, weighted as the model does."""
        weights = np.array(self._solver.getSolution().row_dual)[len(self._what) :]
        used = np.zeros((self._owners, self._place.shape[1]))
        for (one, taken), weight in zip(self._cuts, weights.tolist(), strict=True):
            used[one] += weight * taken
        return used
