"""A choice in which tenants keep what they claim: each chooses in a part of its own. Pure: no I/O, no clock.

The relaxation (``lending_prices``) says how much each tenant, and all others together, take of every row. In whole
numbers these are parts in which each chooses by itself, at its own prices: many small problems instead of one with a
row for each tenant and row. What one leaves of its part the next one has; what is left in the end is given out when
devices are found (``seating``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from arena.policies.priced.allocation import Effort, solve
from arena.policies.priced.columns import NONE, Columns, Floats, Ints
from arena.policies.priced.lending_prices import LendingPrices
from arena.policies.priced.rooms import SLACK, Rooms


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """The jobs of a tenant, or all others.

    Args:
        owner: Number of the tenant.
        jobs: Its jobs, ascending.
        columns: Its columns, ascending.
    """

    owner: int
    jobs: Ints
    columns: Ints


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: it caches what it derives
class Lending:
    """A problem with claims.

    Args:
        chunks: What each row is counted in; shape (rows,).
    """

    columns: Columns
    owner: Ints
    chunks: Floats

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The tenants that have jobs, and all others last."""
        by_column, found = self.owner[self.columns.job], []
        for owner in np.unique(self.owner).tolist():
            jobs = np.flatnonzero(self.owner == owner)
            found.append(Part(owner=owner, jobs=jobs, columns=np.flatnonzero(by_column == owner)))
        return tuple(found)

    @cached_property
    def problems(self) -> tuple[tuple[Ints, Floats], ...]:
        """Job, from 0, and usage of the columns of each part."""
        number = np.zeros(len(self.owner), dtype=np.intp)
        for part in self.parts:
            number[part.jobs] = np.arange(len(part.jobs))
        job = self.columns.job
        return tuple((number[job[part.columns]], self.columns.usage[part.columns]) for part in self.parts)

    def chosen(
        self, value: Floats, rooms: Rooms, priced: LendingPrices, starts: Sequence[Ints], effort: Effort
    ) -> Ints:
        """Return a choice that leaves all claims.

        Args:
            value: Of each column, now; shape (columns,).
            starts: Choices to begin with, if they fit.
            effort: How hard to try; its gap is for all together.
        """
        missing = effort.gap * priced.bound(rooms) / len(self.parts)
        shares = whole_parts(rooms, priced.used, self.chunks)
        left = rooms.common - shares.sum(axis=0)
        found = np.full(len(self.owner), NONE, dtype=np.intp)
        for part, (job, usage) in zip(self.parts, self.problems, strict=True):
            claim = rooms.claims[part.owner] if part.owner < len(rooms.claims) else 0.0
            room = claim + shares[part.owner] + left
            own = Columns(job=job, value=value[part.columns], usage=usage)
            known = [_within(part, own, start, room) for start in starts]
            prices = priced.prices[part.owner]
            bound = float(room @ prices + priced.profit[part.jobs].sum())
            answer = solve(
                own,
                room,
                guess=prices,
                incumbents=[one for one in known if one is not None],
                effort=replace(effort, gap=min(missing / max(bound, 1e-300), 1.0)),
                prices=prices,
            )
            has = answer.chosen >= 0
            found[part.jobs[has]] = part.columns[answer.chosen[has]]
            left = left + shares[part.owner] - np.maximum(own.used(answer.chosen) - claim, 0.0)
        return found


def _within(part: Part, own: Columns, start: Ints, room: Floats) -> Ints | None:
    """Return a choice as one of a part, None where that does not fit."""
    columns = start[part.jobs]
    known = np.where(columns >= 0, np.searchsorted(part.columns, columns), NONE)
    known = np.where((known >= 0) & (own.value[known] < 0.0), NONE, known)
    return known if (own.used(known) <= room + SLACK).all() else None


def whole_parts(rooms: Rooms, used: Floats, chunks: Floats) -> Floats:
    """Return what each may have beyond its claim, in whole chunks; together no more than what nobody claims.

    Args:
        used: What each takes in a relaxation; shape (tenants + 1, rows).
        chunks: What each row is counted in; shape (rows,).
    """
    beyond, common = rooms.beyond(used), rooms.common
    total = beyond.sum(axis=0)
    parts = beyond * np.where(total > common, common / np.maximum(total, SLACK), 1.0) / chunks
    whole = np.floor(parts + SLACK)
    spare = np.floor(common / chunks + SLACK) - whole.sum(axis=0)
    rest = whole - parts
    for row in np.flatnonzero((rest < -SLACK).any(axis=0) & (spare >= 1.0)).tolist():
        order = np.argsort(rest[:, row], kind="stable")
        order = order[rest[order, row] < -SLACK][: int(spare[row])]
        whole[order, row] += 1.0
    return whole * chunks
