"""What there is of each row, and what tenants claim of it: who could still take how much. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arena.policies.priced.columns import Columns, Floats, Ints

SLACK = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rooms:
    """What there is, and what tenants claim of it.

    Args:
        owner: Tenant of each job, the number after the last for those of others; shape (jobs,).
        supply: What there is of each row; shape (rows,).
        claims: What each tenant claims; shape (tenants, rows).
    """

    owner: Ints
    supply: Floats
    claims: Floats

    @classmethod
    def of_all(cls, job_count: int, supply: Floats) -> Rooms:
        """Return rooms of which nobody claims anything."""
        return cls(owner=np.zeros(job_count, dtype=np.intp), supply=supply, claims=np.zeros((0, len(supply))))

    @property
    def owner_count(self) -> int:
        """Tenants, and all others together."""
        return len(self.claims) + 1

    @property
    def common(self) -> Floats:
        """What nobody claims; shape (rows,)."""
        common: Floats = np.maximum(self.supply - self.claims.sum(axis=0), 0.0)
        return common

    def used(self, columns: Columns, chosen: Ints) -> Floats:
        """Return what each tenant takes, and all others together; shape (tenants + 1, rows)."""
        has = np.flatnonzero(chosen >= 0)
        owner, taken = self.owner[has], columns.usage[chosen[has]]
        return np.array([taken[owner == one].sum(axis=0) for one in range(self.owner_count)])

    def beyond(self, used: Floats) -> Floats:
        """Return what each takes beyond its claim, which it takes from all; shape (tenants + 1, rows)."""
        return np.vstack([np.maximum(used[:-1] - self.claims, 0.0), used[-1:]])

    def free(self, used: Floats) -> Floats:
        """Return what each could take more if nobody else did; shape (tenants + 1, rows)."""
        spare = self.common - self.beyond(used).sum(axis=0)
        own = np.vstack([np.maximum(self.claims - used[:-1], 0.0), np.zeros((1, len(self.supply)))])
        return np.asarray(own + spare)

    def hold(self, columns: Columns, chosen: Ints) -> bool:
        """Tell whether a choice leaves all claims."""
        return bool((self.beyond(self.used(columns, chosen)).sum(axis=0) <= self.common + SLACK).all())

    def gaining(self, columns: Columns, reduced: Floats, chosen: Ints, least: Floats) -> Ints:
        """Return the columns that would be worth more to their jobs and fit in what is free, most profitable first.

        Args:
            reduced: Value of each column less the price of what it takes; shape (columns,).
            least: By how much more at least; shape (jobs,).
        """
        has = chosen >= 0
        taken = np.where(has[:, None], columns.usage[chosen], 0.0)
        worth = np.where(has, columns.value[chosen], 0.0)
        free = self.free(self.used(columns, chosen))
        keep = np.flatnonzero(columns.value - worth[columns.job] > least[columns.job])
        for row in np.argsort(free.max(axis=0), kind="stable").tolist():
            job = columns.job[keep]
            more = columns.usage[keep, row] - taken[job, row]
            keep = keep[(more <= free[self.owner[job], row] + SLACK) | (more <= 0.0)]
        profit = reduced[keep] - np.where(has, reduced[chosen], 0.0)[columns.job[keep]]
        order: Ints = keep[np.argsort(-profit, kind="stable")]
        return order


def flags(places: Collection[int], count: int) -> NDArray[np.bool_]:
    """Return so many flags, those of some places up."""
    found = np.zeros(count, dtype=bool)
    found[list(places)] = True
    return found
