"""Tenants' guaranteed shares: lent while they lie idle, taken back when there is work for them. Pure: no I/O, no clock.

*What is claimed.* The best that all tenants together could do with their jobs if each had no more than its guarantee:
an allocation problem of its own, with the guarantees as rows. So a claim can be used, and never is more than a tenant's
work: what it has no job for, or none that fits, is lent to whoever pays most.

*Rows.* Nobody may use what others claim: for each row r of the market and each set U of tenants,
``sum over the jobs of all but U of what they take of r <= supply of r - sum over U of their claims``. For all sets this
says that what is taken beyond the claims fits beside the claims. Few of the sets matter, so they are added as they are
broken, the one with all tenants first. The claims themselves keep all rows, and a choice that keeps them stays one when
a tenant's jobs are replaced by those it claimed for: so at the optimum each tenant does at least as well as it would
alone with its share, and prices of these rows say what a share costs the others. Where tenants are alike one set would
follow the other; so after a first round what is left beside the claims is parted among those that would have it, and
the bound stays that of the sets.

*Whole nodes.* Where the GPUs of a claim are there but not together, jobs that have no claim are taken off the nodes on
which they are worth least. What is not there together even then is claimed no longer, and lent.

*Jobs that may not be stopped* could not give back what they borrow. One of them starts only within its tenant's share
(less what others of the tenant that may not be stopped have), or on GPUs that nobody is guaranteed, whether claimed now
or not. Those that run when a guarantee comes or grows keep what they have to their end.

*Reclaim time.* What a tenant is guaranteed and has work for, it is given in the next decision, the one its job's
arrival asks for (at once, or within ``decide_after_s``), and its GPUs are there when those who borrowed them have saved
and stopped: within their ``grace_s`` and the engine's ``stop_margin_s``, after which they are killed. A borrower that
starts or changes at that moment can only be stopped once it runs (within ``launch_deadline_s + ready_deadline_s``); the
decision after that takes it. So no tenant stays below its share for longer than

    decide_after_s + launch_deadline_s + ready_deadline_s + the longest grace_s of a borrower + stop_margin_s

while it has work that fits its share, but for GPUs that are not there (nodes that are lost or drained) and for jobs
that may not be stopped and were there before the guarantee. Limits on how often a job is moved do not protect
borrowers.

*Waiting too long* (``urgency``) gives way to shares: an overdue job comes first on all that is not claimed and within
its own tenant's share, so its bound holds for what the shares leave. While one waits, no job that may not be stopped
starts on what it could use, but for those within their tenant's share.

A guarantee of any type is claimed where the tenant's jobs run best: name the type where one is scarce.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from arena.domain.tenants import ANY_TYPE
from arena.policies.base import Snapshot
from arena.policies.priced.allocation import Answer, Effort, solve
from arena.policies.priced.borrowers import Shared, borrowers_in_the_way
from arena.policies.priced.ceilings import SLACK, Amounts, Ceiling, ceilings, first_rows, more_rows
from arena.policies.priced.columns import NONE, Columns, Floats, Ints, firsts
from arena.policies.priced.market import MOVES_MAX, Market, Row
from arena.policies.priced.seating import Seats

ROUNDS_MAX = 16
"""Times that a choice is made anew, with more rows or with borrowers taken off nodes."""

Settle = Callable[[Market, Columns, Floats | None], tuple[Answer, Seats]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """Who belongs to which tenant.

    Args:
        names: Tenants.
        tenant: Of each column, ``NONE`` for those of others; shape (columns,).
        kinds: GPU types, then ``ANY_TYPE``.
        by_kind: GPUs that each column takes; shape (columns, kinds).
        guaranteed: Shape (tenants, kinds); under ``ANY_TYPE`` all of a tenant's.
        limits: What of its guarantee each tenant may still be given, infinite where a kind does not limit it.
        lasting: What jobs that may not be stopped start on, None where none of them waits.
    """

    names: tuple[str, ...]
    tenant: Ints
    kinds: tuple[str, ...]
    by_kind: Floats
    guaranteed: Floats
    limits: Floats
    lasting: Amounts | None


def shared(
    snapshot: Snapshot,
    market: Market,
    columns: Columns,
    settle: Settle,
    *,
    effort: Effort,
    closed: Collection[str] = (),
) -> Shared:
    """Choose and seat so that every tenant gets its share.

    Args:
        columns: Without shares.
        settle: Chooses and seats within a market's rows, from prices of the first of them on if there are any known.
        closed: GPU types on which jobs that may not be stopped start only within their tenant's share.
    """
    tenancy = _tenancy_of(snapshot, market, closed)
    barred, dropped, rows, is_late, bound = set[int](), set[int](), list[Ceiling](), False, -math.inf
    claimed = amounts = prices = None
    for left in range(ROUNDS_MAX - 1, -1, -1):
        if claimed is None:
            claimed, amounts = _claimed(market, columns, tenancy, dropped, effort), None
        if amounts is None:
            amounts = (_claims(market, tenancy, claimed), *([tenancy.lasting] if tenancy.lasting else []))
            rows, is_late, bound = first_rows(amounts), False, -math.inf
        values = np.where(_flags(barred, len(columns.job)), -1.0, columns.value)
        own_claims = frozenset(claimed[claimed >= 0].tolist()) if left else frozenset()
        extended = replace(_extended(market, tenancy, amounts, rows), claims=own_claims)
        extended = replace(extended, entitled=market.entitled | frozenset(np.flatnonzero(claimed >= 0).tolist()))
        own = Columns(job=columns.job, value=values, usage=extended.usage)
        answer, seats = settle(extended, own, prices)
        prices = answer.priced.prices[: len(market.rows)]
        more = list(more_rows(tenancy.tenant, amounts, answer.chosen, is_late=is_late))
        bound = max(bound, answer.priced.bound) if is_late else answer.priced.bound
        answer = replace(answer, priced=replace(answer.priced, bound=bound))
        found = Shared(market=extended, columns=own, answer=answer, seats=seats)
        unserved = _unserved(market, tenancy, claimed, answer.chosen)
        unseated = sorted(own_claims & seats.cuts.keys())
        if not more and not unserved and not unseated:
            wider = _widened(market, columns, tenancy, (claimed, answer.chosen), dropped)
            if wider is None:
                break
            claimed, amounts = wider, None
            continue
        rows, is_late = [*rows, *more], is_late or bool(more)
        in_the_way = borrowers_in_the_way(snapshot, found, claimed, unserved)
        barred |= {int(market.keeping[at]) for at in in_the_way}
        given_up = [column for column in unseated if market.keeping[market.job[column]] >= 0 or not in_the_way]
        if not more and not in_the_way and not unseated:
            given_up = [int(claimed[at]) for at in unserved]
        if given_up:
            dropped |= _no_smaller(market, given_up)
            claimed = None
    return found


def steadied(market: Market, value: Floats) -> Floats:
    """Return values at which jobs that were moved too often stay, unless a share or a claim needs what they have."""
    often = np.array([one.holding is not None and one.recent_moves >= MOVES_MAX for one in market.contenders])
    if not often.any():
        return value
    bonus = 2.0 * float(np.maximum(np.maximum.reduceat(value, firsts(market.job)), 0.0).sum())
    return np.where(often[market.job] & (market.entry < 0), value + bonus, value)


def _flags(places: Collection[int], count: int) -> NDArray[np.bool_]:
    flags = np.zeros(count, dtype=bool)
    flags[list(places)] = True
    return flags


def _no_smaller(market: Market, columns: Sequence[int]) -> set[int]:
    """Return these columns with all of the same jobs that take as many GPUs or more, but for what jobs have."""
    found = set[int]()
    for column in columns:
        same = (market.job == market.job[column]) & (market.gpu_count >= market.gpu_count[column])
        found |= set(np.flatnonzero(same & (market.entry >= 0)).tolist())
    return found


# --- who may have what -----------------------------------------------------------------------------------------------


def _tenancy_of(snapshot: Snapshot, market: Market, closed: Collection[str]) -> Tenancy:
    names = tuple(sorted(snapshot.tenants))
    index = {name: at for at, name in enumerate(names)}
    project = [snapshot.jobs[one.job_id].spec.project for one in market.contenders]
    tenant = np.array([index.get(name, NONE) for name in project], dtype=np.intp)[market.job]
    kinds = (*sorted(snapshot.shape.gpu_count_by_type), ANY_TYPE)
    by_kind = _by_kind(market, kinds)
    guaranteed = _guaranteed(snapshot, names, kinds)
    held, lasting = _held(snapshot, market, index, kinds)
    limits = np.maximum(guaranteed - held[:-1], 0.0)
    for at, name in enumerate(names):
        is_any = snapshot.tenants[name].is_of_any_type
        limits[at, : -1 if is_any else None] = np.inf if is_any else limits[at]
        limits[at, -1] = limits[at, -1] if is_any else np.inf
    return Tenancy(
        names=names,
        tenant=tenant,
        kinds=kinds,
        by_kind=by_kind,
        guaranteed=guaranteed,
        limits=limits,
        lasting=_lasting(snapshot, market, (kinds, by_kind), (guaranteed, lasting), closed),
    )


def _by_kind(market: Market, kinds: Sequence[str]) -> Floats:
    """Return how many GPUs of each type every column takes, then how many in all; shape (columns, kinds)."""
    of_type = np.array([[row.chunk == 1 and row.pool[0] == kind for kind in kinds[:-1]] for row in market.rows])
    typed = market.usage @ of_type.astype(np.float64)
    return np.column_stack([typed, typed.sum(axis=1)])


def _guaranteed(snapshot: Snapshot, names: Sequence[str], kinds: Sequence[str]) -> Floats:
    """Return what each tenant is guaranteed of each type by name, and in all; shape (tenants, kinds)."""
    shares = [snapshot.tenants[name] for name in names]
    typed = [[0 if one.is_of_any_type else one.of(kind) for kind in kinds[:-1]] for one in shares]
    return np.array([[*counts, one.gpu_count] for counts, one in zip(typed, shares, strict=True)], dtype=np.float64)


def _held(snapshot: Snapshot, market: Market, index: Mapping[str, int], kinds: Sequence[str]) -> tuple[Floats, Floats]:
    """Return what jobs have that may not be touched now, and what of it those have that may never be stopped.

    Shape (tenants + 1, kinds); the last is of jobs of other projects.
    """
    held, lasting = np.zeros((len(index) + 1, len(kinds))), np.zeros((len(index) + 1, len(kinds)))
    place = {kind: at for at, kind in enumerate(kinds)}
    competing = {one.job_id for one in market.contenders}
    for job_id, holding in snapshot.holding.items():
        if job_id in competing:
            continue
        spec = snapshot.jobs[job_id].spec
        at = index.get(spec.project, NONE)
        counts = np.zeros(len(kinds))
        for part in holding.group.parts:
            if part.gpu_type in place:
                counts[place[part.gpu_type]] += part.gpu_count
        counts[-1] = counts[:-1].sum()
        held[at] += counts
        if not spec.preemptible:
            lasting[at] += counts
    return held, lasting


def _lasting(
    snapshot: Snapshot,
    market: Market,
    takes: tuple[Sequence[str], Floats],
    parts: tuple[Floats, Floats],
    closed: Collection[str],
) -> Amounts | None:
    """Return the amounts of GPUs for jobs that may not be stopped: what nobody is guaranteed, and each one's share."""
    (kinds, by_kind), (guaranteed, held) = takes, parts
    waits = [one.holding is None and not snapshot.jobs[one.job_id].spec.preemptible for one in market.contenders]
    if not any(waits):
        return None
    total = np.zeros(len(kinds))
    for room in snapshot.capacity.devices.values():
        if room.pool[0] in kinds:
            total[kinds.index(room.pool[0])] += len(room.free)
    total[-1] = total.sum()
    beyond = np.maximum(held[:-1] - guaranteed, 0.0).sum(axis=0) + held[-1]
    nobodys = np.maximum(total - guaranteed.sum(axis=0) - beyond, 0.0)
    nobodys[[at for at, kind in enumerate(kinds) if kind in closed]] = 0.0
    left = np.maximum(guaranteed - held[:-1], 0.0)
    return Amounts(
        rows=tuple(Row((kind, ""), 1, is_lasting=True) for kind in kinds),
        supply=nobodys + left.sum(axis=0),
        usage=np.where(np.array(waits)[market.job][:, None], by_kind, 0.0),
        claims=left,
    )


# --- what is claimed -------------------------------------------------------------------------------------------------


def _claimed(market: Market, columns: Columns, tenancy: Tenancy, dropped: Collection[int], effort: Effort) -> Ints:
    """Return what each contender has when tenants are alone with their shares, ``NONE`` for all others."""
    chosen = np.full(len(market.contenders), NONE, dtype=np.intp)
    is_open = (tenancy.tenant >= 0) & (columns.value > 0.0) & ~_flags(dropped, len(columns.job))
    is_open &= (tenancy.by_kind <= np.where(is_open[:, None], tenancy.limits[tenancy.tenant], np.inf) + SLACK).all(
        axis=1
    )
    keep = np.flatnonzero(is_open)
    if not len(keep):
        return chosen
    jobs, number = np.unique(columns.job[keep], return_inverse=True)
    limits, supply = _limit_rows(tenancy)
    usage = np.column_stack([market.usage, limits])[keep]
    alone = Columns(job=number.astype(np.intp), value=columns.value[keep], usage=usage)
    supply = np.r_[market.supply, supply]
    inner = replace(tenancy, tenant=tenancy.tenant[keep])
    lasting = () if tenancy.lasting is None else (replace(tenancy.lasting, usage=tenancy.lasting.usage[keep]),)
    found = _within(alone, supply, inner, lasting, effort)
    chosen[jobs] = np.where(found >= 0, keep[found], NONE)
    return chosen


def _limit_rows(tenancy: Tenancy) -> tuple[Floats, Floats]:
    """Return what columns take of each tenant's share, and how large that is; shapes (columns, shares), (shares,)."""
    at, kind = np.nonzero(np.isfinite(tenancy.limits))
    taken = np.where(tenancy.tenant[:, None] == at[None, :], tenancy.by_kind[:, kind], 0.0)
    return taken, tenancy.limits[at, kind]


def _within(columns: Columns, supply: Floats, tenancy: Tenancy, amounts: Sequence[Amounts], effort: Effort) -> Ints:
    """Return a good choice that leaves what is claimed of some amounts."""
    rows = first_rows(amounts)
    for past in range(ROUNDS_MAX):
        taken, left = ceilings(tenancy.tenant, amounts, rows)
        whole = replace(columns, usage=np.column_stack([columns.usage, taken]))
        answer = solve(whole, np.r_[supply, left], guess=np.zeros(len(supply) + len(left)), effort=effort)
        more = list(more_rows(tenancy.tenant, amounts, answer.chosen, is_late=past > 0))
        if not more:
            return answer.chosen
        rows += more
    return np.full(columns.job_count, NONE, dtype=np.intp)


def _claims(market: Market, tenancy: Tenancy, claimed: Ints) -> Amounts:
    """Return the rows of the market with what each tenant claims of them."""
    claims = np.zeros((len(tenancy.names), len(market.rows)))
    picked = claimed[claimed >= 0]
    np.add.at(claims, tenancy.tenant[picked], market.usage[picked])
    return Amounts(rows=market.rows, supply=market.supply, usage=market.usage, claims=claims)


# --- rows ------------------------------------------------------------------------------------------------------------


def _extended(market: Market, tenancy: Tenancy, amounts: Sequence[Amounts], rows: Sequence[Ceiling]) -> Market:
    """Return the market with the rows of shares."""
    taken, left = ceilings(tenancy.tenant, amounts, rows)
    named = tuple(
        replace(
            amounts[row.number].rows[row.at],
            kept_for=tuple(tenancy.names[owner] for owner in row.kept_for),
            kept_count=float(amounts[row.number].claims[list(row.kept_for), row.at].sum()),
        )
        for row in rows
    )
    return replace(
        market,
        rows=(*market.rows, *named),
        supply=np.r_[market.supply, left],
        usage=np.column_stack([market.usage, taken]),
    )


def _unserved(market: Market, tenancy: Tenancy, claimed: Ints, chosen: Ints) -> list[int]:
    """Return who waits and claims something and has nothing, though it would fit what is left of the share."""
    picked = chosen[chosen >= 0]
    used = np.zeros((len(tenancy.names) + 1, len(tenancy.kinds)))
    np.add.at(used, tenancy.tenant[picked], tenancy.by_kind[picked])
    found = []
    for at in np.flatnonzero((claimed >= 0) & (chosen < 0) & (market.keeping < 0)).tolist():
        column = int(claimed[at])
        owner = int(tenancy.tenant[column])
        if (used[owner] + tenancy.by_kind[column] <= tenancy.limits[owner] + SLACK).all():
            used[owner] += tenancy.by_kind[column]
            found.append(at)
    return found


def _widened(
    market: Market, columns: Columns, tenancy: Tenancy, made: tuple[Ints, Ints], dropped: Collection[int]
) -> Ints | None:
    """Return claims with one more job that fits what a tenant, served otherwise than it claimed, has left of its share.

    Args:
        made: What is claimed, and what was chosen.
    """
    claimed, chosen = made
    owner = tenancy.tenant[firsts(market.job)]
    has = chosen >= 0
    used = np.zeros((len(tenancy.names) + 1, len(tenancy.kinds)))
    np.add.at(used, owner[has], tenancy.by_kind[chosen[has]])
    left = np.where(tenancy.tenant[:, None] >= 0, (tenancy.limits - used[:-1])[tenancy.tenant], -1.0)
    waits = (chosen < 0) & (market.keeping < 0)
    fits = waits[market.job] & (tenancy.by_kind <= left + SLACK).all(axis=1) & (columns.value > 0.0)
    fits &= ~_flags(dropped, len(columns.job))
    for column in sorted(np.flatnonzero(fits).tolist(), key=lambda column: (market.gpu_count[column], column)):
        wider = np.where(owner == tenancy.tenant[column], chosen, claimed)
        wider[int(market.job[column])] = column
        picked = wider[wider >= 0]
        if (market.usage[picked].sum(axis=0) <= market.supply + SLACK).all():
            return wider
    return None
