"""How much some may use of an amount so that what others claim of it is left. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from arena.policies.priced.columns import NONE, Floats, Ints
from arena.policies.priced.market import Row

SLACK = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Amounts of which tenants claim parts.

    Args:
        rows: What each is.
        supply: What there is of each; shape (amounts,).
        usage: What each column takes; shape (columns, amounts).
        claims: Shape (tenants, amounts).
    """

    rows: tuple[Row, ...]
    supply: Floats
    usage: Floats
    claims: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """How much of an amount some may use together.

    Args:
        number, at: Of the amounts, and position among them.
        members: Tenants, and ``NONE`` for all others.
        left: What they may use.
        kept_for: Tenants whose claims they leave.
    """

    number: int
    at: int
    members: tuple[int, ...]
    left: float
    kept_for: tuple[int, ...]


def first_rows(amounts: Sequence[Amounts]) -> list[Ceiling]:
    """Return the row of all tenants that claim something, for each amount."""
    rows: list[Ceiling] = []
    for number, one in enumerate(amounts):
        for at in range(len(one.supply)):
            owners = np.flatnonzero(one.claims[:, at] > 0.0).tolist()
            if owners or one.rows[at].is_lasting:
                rows.append(_row_of(one, number, at, owners))
    return rows


def _row_of(amounts: Amounts, number: int, at: int, owners: Sequence[int]) -> Ceiling:
    """Return what all but some tenants may use."""
    return Ceiling(
        number=number,
        at=at,
        members=(NONE, *(one for one in range(len(amounts.claims)) if one not in owners)),
        left=float(amounts.supply[at] - amounts.claims[list(owners), at].sum()),
        kept_for=tuple(owners),
    )


def more_rows(tenant: Ints, amounts: Sequence[Amounts], chosen: Ints, *, is_late: bool) -> Iterator[Ceiling]:
    """Yield rows that a choice breaks: for each amount of which it leaves too little the one that says so most.

    Args:
        tenant: Of each column, ``NONE`` for those of others.
        is_late: Whether such rows were added before. There are as many as there are sets of tenants, and where tenants
            are alike one follows the other: so what is beyond the claims is parted among those that have it now.
    """
    picked = chosen[chosen >= 0]
    for number, one in enumerate(amounts):
        used = np.zeros((len(one.claims) + 1, len(one.supply)))
        np.add.at(used, tenant[picked], one.usage[picked])
        beyond = np.vstack([np.maximum(used[:-1] - one.claims, 0.0), used[-1:]])
        common = one.supply - one.claims.sum(axis=0)
        for at in np.flatnonzero(beyond.sum(axis=0) > common + SLACK).tolist():
            if is_late:
                yield from _parted(one, number, at, beyond[:, at], float(common[at]))
            else:
                short = used[:-1, at] < one.claims[:, at] - SLACK
                yield _row_of(one, number, at, np.flatnonzero(short).tolist())


def _parted(amounts: Amounts, number: int, at: int, beyond: Floats, common: float) -> Iterator[Ceiling]:
    """Yield a row for each tenant, and for all others together, that leaves it its part of what nobody claims."""
    parts = beyond * (max(common, 0.0) / beyond.sum())
    whole = np.floor(parts + SLACK)
    spare = int(max(common, 0.0) - whole.sum() + SLACK)
    whole[np.argsort(whole - parts, kind="stable")[:spare]] += 1.0
    claimants = np.flatnonzero(amounts.claims[:, at] > 0.0).tolist()
    for member in (*range(len(amounts.claims)), NONE):
        claim = float(amounts.claims[member, at]) if member != NONE else 0.0
        yield Ceiling(
            number=number,
            at=at,
            members=(member,),
            left=claim + float(whole[member]),
            kept_for=tuple(one for one in claimants if one != member),
        )


def ceilings(tenant: Ints, amounts: Sequence[Amounts], rows: Sequence[Ceiling]) -> tuple[Floats, Floats]:
    """Return what columns take of the rows, and what there is; shapes (columns, rows), (rows,)."""
    taken = [np.where(np.isin(tenant, row.members), amounts[row.number].usage[:, row.at], 0.0) for row in rows]
    return np.array(taken).reshape(len(rows), len(tenant)).T, np.array([row.left for row in rows])
