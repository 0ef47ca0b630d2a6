"""Tenants' guaranteed shares: lent while they lie idle, taken back when there is work for them. Pure: no I/O, no clock.

*What is claimed.* The best that all tenants together could do with their jobs if each had no more than its guarantee:
an allocation problem of its own, with the guarantees as rows. So a claim can be used, and never is more than a tenant's
work: what it has no job for, or none that fits, is lent to whoever pays most.

*Rows.* Nobody may use what others claim: for each row r of the market and each set U of tenants,
``sum over the jobs of all but U of what they take of r <= supply of r - sum over U of their claims``. For all sets this
says that what is taken beyond the claims fits beside the claims (``rooms``; all of the sets at once:
``lending_prices``). The claims themselves keep all rows, and a choice that keeps them stays one when a tenant's jobs
are replaced by those it claimed for: so at the optimum each tenant does at least as well as it would alone with its
share, and prices of these rows say what a share costs the others.

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

while it has work that fits its share, but for GPUs that are not there (nodes that are lost or drained) or not there
together beside what others claim, and for jobs that may not be stopped and were there before the guarantee. Where room
for one claim is made by moving the job of another, that one waits for as long once more. Limits on how often a job is
moved do not protect borrowers.

*Waiting too long* (``urgency``) gives way to shares: an overdue job comes first on all that is not claimed and within
its own tenant's share, so its bound holds for what the shares leave. While one waits, no job that may not be stopped
starts on what it could use, but for those within their tenant's share.

A guarantee of any type is claimed where the tenant's jobs run best: name the type where one is scarce.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from arena.policies.base import Snapshot
from arena.policies.priced.allocation import Answer, Effort, filled
from arena.policies.priced.borrowers import Shared, borrowers_in_the_way
from arena.policies.priced.columns import NONE, Columns, Floats, Ints, Priced, firsts
from arena.policies.priced.lending import Lending
from arena.policies.priced.lending_prices import LendingPrices, lending_prices
from arena.policies.priced.market import Market, Row
from arena.policies.priced.moves import MOVES_MAX
from arena.policies.priced.rooms import SLACK, Rooms, flags
from arena.policies.priced.settling import Choose, settled
from arena.policies.priced.tenancy import Tenancy, tenancy_of

ROUNDS_MAX = 16
"""Times that a choice is made anew, with other claims or with borrowers taken off nodes."""

CLAIMS_GAP = 0.005
"""Relative distance to the best that claims could be which is near enough."""


def shared(
    snapshot: Snapshot,
    market: Market,
    columns: Columns,
    *,
    guess: Floats,
    effort: Effort,
    closed: Collection[str] = (),
) -> Shared:
    """Choose and seat so that every tenant gets its share.

    Args:
        columns: Without shares.
        guess: Prices to begin with; shape (rows,).
        closed: GPU types on which jobs that may not be stopped start only within their tenant's share.
    """
    tenancy = tenancy_of(snapshot, market, closed)
    board = _board_of(market, columns, tenancy)
    barred, dropped = set[int](), set[int]()
    alone = _alone_of(market, board, tenancy, guess)
    claimed = alone.claimed(effort)
    rooms = board.rooms(claimed)
    priced = lending_prices(board.columns, rooms, np.pad(guess, (0, len(board.rows) - len(guess))))
    for left in range(ROUNDS_MAX - 1, -1, -1):
        rooms = board.rooms(claimed)
        found = _settled(snapshot, board, (claimed, priced, rooms), barred, effort)
        if not left:
            break
        unserved = _unserved(market, tenancy, claimed, found.answer.chosen)
        in_the_way = borrowers_in_the_way(snapshot, found, claimed, unserved) if unserved else set[int]()
        barred |= {int(market.keeping[at]) for at in in_the_way}
        cut = sorted(found.seats.cuts.keys() & set(claimed[claimed >= 0].tolist()))
        given_up = [column for column in cut if market.keeping[market.job[column]] >= 0 or not in_the_way]
        if not in_the_way:
            given_up += [int(claimed[at]) for at in unserved]
        if given_up:
            dropped |= _no_smaller(market, given_up)
            claimed = alone.reclaimed(claimed, dropped)
        elif not in_the_way:
            wider = _widened(market, board, tenancy, (claimed, found.answer.chosen), dropped)
            if wider is None:
                break
            claimed = wider
    return _told(tenancy, board, found, (priced, rooms))


def steadied(market: Market, value: Floats) -> Floats:
    """Return values at which jobs that were moved too often stay, unless a share or a claim needs what they have."""
    often = np.array([one.recent_moves >= MOVES_MAX for one in market.contenders])  # none of those that wait
    if not often.any():
        return value
    bonus = 2.0 * float(np.maximum(np.maximum.reduceat(value, firsts(market.job)), 0.0).sum())
    return np.where(often[market.job] & (market.entry < 0), value + bonus, value)


def _no_smaller(market: Market, columns: Sequence[int]) -> set[int]:
    """Return these columns with all of the same jobs that take as many GPUs or more, but for what jobs have."""
    found = set[int]()
    for column in columns:
        same = (market.job == market.job[column]) & (market.gpu_count >= market.gpu_count[column])
        found |= set(np.flatnonzero(same & (market.entry >= 0)).tolist())
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Board:
    """The market with all that is scarce where there are shares.

    Args:
        columns: With what they take of all rows.
        rows: Those of the market, then those for jobs that may not be stopped.
        lasting: What is only for such jobs of one tenant; shape (tenants, kinds), without kinds where none waits.
        lending: How choices are made.
    """

    market: Market
    columns: Columns
    rows: tuple[Row, ...]
    supply: Floats
    lasting: Floats
    lending: Lending

    def rooms(self, claimed: Ints) -> Rooms:
        """Return what there is beside what is claimed."""
        claims = np.zeros((len(self.lasting), len(self.market.rows)))
        picked = np.flatnonzero(claimed >= 0)
        np.add.at(claims, self.lending.owner[picked], self.market.usage[claimed[picked]])
        return Rooms(owner=self.lending.owner, supply=self.supply, claims=np.column_stack([claims, self.lasting]))


def _board_of(market: Market, columns: Columns, tenancy: Tenancy) -> _Board:
    lasting, count = tenancy.lasting, len(tenancy.names)
    owner = tenancy.tenant[columns.starts]
    rows = market.rows if lasting is None else (*market.rows, *lasting.rows)
    usage = columns.usage if lasting is None else np.column_stack([columns.usage, lasting.usage])
    own = Columns(job=columns.job, value=columns.value, usage=usage)
    chunks = np.array([float(row.chunk) for row in rows])
    return _Board(
        market=market,
        columns=own,
        rows=rows,
        supply=market.supply if lasting is None else np.r_[market.supply, lasting.supply],
        lasting=np.zeros((count, 0)) if lasting is None else lasting.claims,
        lending=Lending(columns=own, owner=np.where(owner >= 0, owner, count), chunks=chunks),
    )


def _settled(
    snapshot: Snapshot,
    board: _Board,
    within: tuple[Ints, LendingPrices, Rooms],
    barred: Collection[int],
    effort: Effort,
) -> Shared:
    """Choose and seat beside some claims.

    Args:
        within: What is claimed, prices, and what there is beside the claims.
        barred: Columns of borrowers that must go.
    """
    claimed, priced, rooms = within
    market = replace(
        board.market,
        claims=frozenset(claimed[claimed >= 0].tolist()),
        entitled=board.market.entitled | frozenset(np.flatnonzero(claimed >= 0).tolist()),
    )
    value = np.where(flags(barred, len(board.columns.job)), -1.0, board.columns.value)
    columns = replace(board.columns, value=value)
    keeping = np.where((market.keeping >= 0) & (value[market.keeping] >= 0.0), market.keeping, NONE)
    incumbents = (keeping,) if rooms.hold(columns, keeping) else ()
    choose = _beside_claims(board.lending, rooms, priced, effort)
    answer, seats = settled(snapshot, market, columns, choose, rooms=rooms, incumbents=incumbents, effort=effort)
    return Shared(market=market, columns=columns, answer=answer, seats=seats)


def _beside_claims(lending: Lending, rooms: Rooms, priced: LendingPrices, effort: Effort) -> Choose:
    """Return how a choice is made that leaves all claims."""
    known = priced.as_priced(rooms)

    def choose(columns: Columns, starts: Sequence[Ints], _: Priced | None) -> Answer:
        chosen = lending.chosen(columns.value, rooms, priced, starts, effort)
        return Answer(chosen=chosen, value=columns.worth(chosen), priced=known)

    return choose


def _told(tenancy: Tenancy, board: _Board, found: Shared, prices: tuple[LendingPrices, Rooms]) -> Shared:
    """Return what was found with rows that say what shares cost whom: of each row what all may use but some tenants."""
    priced, rooms = prices
    rows, count = list(board.market.rows), len(board.market.rows)
    least = priced.prices.min(axis=0)
    supply, usage, price = [board.supply[:count]], [board.columns.usage[:, :count]], [least[:count]]
    owner = rooms.owner[board.columns.job]
    for at, row in enumerate(board.rows):
        cheaper = priced.prices[:-1, at] < priced.prices[-1, at] * (1.0 - SLACK)
        kept_for = np.flatnonzero(cheaper & (rooms.claims[:, at] > 0.0)).tolist()
        if not kept_for and not row.is_lasting:
            continue
        claims = float(rooms.claims[kept_for, at].sum())
        names = tuple(tenancy.names[one] for one in kept_for)
        rows.append(replace(row, kept_for=names, kept_count=claims))
        supply.append(np.array([board.supply[at] - claims]))
        usage.append(np.where(np.isin(owner, kept_for), 0.0, board.columns.usage[:, at])[:, None])
        price.append(np.array([priced.prices[-1, at] - (0.0 if row.is_lasting else least[at])]))
    market = replace(found.market, rows=tuple(rows), supply=np.concatenate(supply), usage=np.column_stack(usage))
    answer = replace(found.answer, priced=replace(priced.as_priced(rooms), prices=np.concatenate(price)))
    columns = Columns(job=found.columns.job, value=found.columns.value, usage=market.usage)
    return Shared(market=market, columns=columns, answer=answer, seats=found.seats)


# --- what is claimed -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alone:
    """What tenants could have if they were alone with their shares: a problem of its own.

    Args:
        job_count: Jobs of the market.
        keep: Columns of the market that are in it; shape (columns,).
        jobs: Jobs of the market that are in it.
        columns: These, with rows for the shares behind those of the market.
        rooms: Without claims.
        lending: How choices are made.
        guess: Prices to begin with.
    """

    job_count: int
    keep: Ints
    jobs: Ints
    columns: Columns
    rooms: Rooms
    lending: Lending
    guess: Floats

    def claimed(self, effort: Effort) -> Ints:
        """Return what each contender has then, ``NONE`` for all others."""
        if not len(self.keep):
            return np.full(self.job_count, NONE, dtype=np.intp)
        priced = lending_prices(self.columns, self.rooms, self.guess)
        enough = replace(effort, gap=max(CLAIMS_GAP, effort.gap), nodes=0)
        chosen = self.lending.chosen(self.columns.value, self.rooms, priced, (), enough)
        return self._with_more(self.columns, chosen)

    def reclaimed(self, claimed: Ints, dropped: Collection[int]) -> Ints:
        """Return claims without some columns, and with what fits instead of them."""
        if not len(self.keep):
            return claimed
        gone = np.isin(self.keep, list(dropped))
        number = np.full(self.job_count, NONE, dtype=np.intp)
        number[self.jobs] = np.arange(len(self.jobs))
        place = np.searchsorted(self.keep, claimed[self.jobs])
        place = np.where(claimed[self.jobs] >= 0, place, NONE)
        start = np.where((place >= 0) & ~gone[place], place, NONE)
        value = np.where(gone, -1.0, self.columns.value)
        return self._with_more(replace(self.columns, value=value), start)

    def _with_more(self, columns: Columns, start: Ints) -> Ints:
        """Return claims with what still fits, in numbers of the market."""
        priced = Priced(prices=self.guess, reduced=columns.value, profit=columns.value, top=start, bound=0.0)
        found = filled(columns, self.rooms.supply, priced, start)
        chosen = np.full(self.job_count, NONE, dtype=np.intp)
        chosen[self.jobs] = np.where(found >= 0, self.keep[found], NONE)
        return chosen


def _alone_of(market: Market, board: _Board, tenancy: Tenancy, guess: Floats) -> _Alone:
    """Return what tenants could choose from if they were alone with their shares."""
    columns, limits = board.columns, np.where(tenancy.tenant[:, None] >= 0, tenancy.limits[tenancy.tenant], np.inf)
    is_open = (tenancy.tenant >= 0) & (columns.value > 0.0) & (tenancy.by_kind <= limits + SLACK).all(axis=1)
    keep = np.flatnonzero(is_open)
    jobs, number = np.unique(columns.job[keep], return_inverse=True)
    taken, share = _limit_rows(tenancy)
    lasting, room = _lasting_rows(tenancy)
    usage = np.column_stack([market.usage, taken, lasting])[keep]
    own = Columns(job=number.astype(np.intp), value=columns.value[keep], usage=usage)
    supply = np.r_[market.supply, share, room]
    owner, more = board.lending.owner[jobs], len(supply) - len(market.rows)
    chunks = np.r_[[float(row.chunk) for row in market.rows], np.ones(more)]
    return _Alone(
        job_count=len(market.contenders),
        keep=keep,
        jobs=jobs,
        columns=own,
        rooms=Rooms(owner=owner, supply=supply, claims=np.zeros((len(tenancy.names), len(supply)))),
        lending=Lending(columns=own, owner=owner, chunks=chunks),
        guess=np.r_[guess, np.full(more, 0.1 * float(guess.max(initial=0.0)))],
    )


def _limit_rows(tenancy: Tenancy) -> tuple[Floats, Floats]:
    """Return what columns take of each tenant's share, and how large that is; shapes (columns, shares), (shares,)."""
    at, kind = np.nonzero(np.isfinite(tenancy.limits))
    taken = np.where(tenancy.tenant[:, None] == at[None, :], tenancy.by_kind[:, kind], 0.0)
    return taken, tenancy.limits[at, kind]


def _lasting_rows(tenancy: Tenancy) -> tuple[Floats, Floats]:
    """Return what tenants' jobs that may not be stopped take of what is nobody's, and how much that is.

    Those that have a share of a kind claim within it, which is less than their part of it.
    """
    lasting = tenancy.lasting
    if lasting is None:
        return np.zeros((len(tenancy.tenant), 0)), np.zeros(0)
    has_own = (lasting.claims > 0.0)[tenancy.tenant]
    return np.where(has_own, 0.0, lasting.usage), lasting.supply - lasting.claims.sum(axis=0)


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
    market: Market, board: _Board, tenancy: Tenancy, made: tuple[Ints, Ints], dropped: Collection[int]
) -> Ints | None:
    """Return claims with one more job that fits what a tenant, served otherwise than it claimed, has left of its share.

    Args:
        made: What is claimed, and what was chosen.
    """
    claimed, chosen = made
    columns, owner = board.columns, tenancy.tenant[board.columns.starts]
    has = chosen >= 0
    used = np.zeros((len(tenancy.names) + 1, len(tenancy.kinds)))
    np.add.at(used, owner[has], tenancy.by_kind[chosen[has]])
    left = np.where(tenancy.tenant[:, None] >= 0, (tenancy.limits - used[:-1])[tenancy.tenant], -1.0)
    waits = (chosen < 0) & (market.keeping < 0)
    fits = waits[market.job] & (tenancy.by_kind <= left + SLACK).all(axis=1) & (columns.value > 0.0)
    fits &= ~flags(dropped, len(columns.job))
    for one in np.unique(tenancy.tenant[fits]).tolist():
        wider = np.where(owner == one, chosen, claimed)
        room = board.supply - columns.used(wider)
        own = np.flatnonzero(fits & (tenancy.tenant == one))
        own = own[(columns.usage[own] <= room + SLACK).all(axis=1)]
        if len(own):
            column = own[np.lexsort((own, market.gpu_count[own]))[0]]
            wider[int(market.job[column])] = column
            return wider
    return None
