"""What comes before the values: deadlines, budgets, and waiting that has a bound. Pure: no I/O, no clock.

Without any of these a decision is that of the values alone. Where they meet, the bound on waiting comes first, then
what was promised by when, then the other deadlines, the earliest first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from arena.domain.launch import NodeId
from arena.domain.reason import Reason
from arena.policies.base import Snapshot
from arena.policies.priced.budgets import offered
from arena.policies.priced.changes import ChangeRules
from arena.policies.priced.columns import Floats, Ints, firsts
from arena.policies.priced.deadlines import (
    LOOK_AGAIN_S,
    Plan,
    come_ones,
    deadline_reason,
    in_time,
    late_reason,
    next_urgency_s,
    planned,
    pressed,
    urgent_ones,
)
from arena.policies.priced.layouts import Need
from arena.policies.priced.market import Kept, Market, Row
from arena.policies.priced.reservations import (
    NodeTimes,
    Reservation,
    kept_out,
    lengths_of,
    needs_whole_nodes,
    node_times,
    nodes_for,
    parts_of,
    reservation_reason,
    reserved,
    unstoppable,
)
from arena.policies.priced.resting import Resting, resting
from arena.policies.priced.shares import steadied
from arena.policies.priced.timetable import Block
from arena.policies.priced.urgency import next_look_s, overdue, urged
from arena.policies.reach import avoided

RESERVATIONS_MAX = 64
"""Jobs that nodes are kept for at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """A market and the values of its columns with all claims in them.

    Args:
        value: By column.
        plan: Of the jobs with deadlines.
        overdue: The contender that has waited too long and comes first.
        reservations: By contender.
        unaffordable: Why budgets offer contenders nothing else than what they have.
        resting: Who is not started, having been started too often.
        finer: The values of the jobs as a share of all value, claims included: what a solver takes as near enough to
            the best must be nearer by this, or it would be far from it for those that have no claim.
        next_look_s: When a claim changes even if nothing happens.
    """

    market: Market
    value: Floats
    plan: Plan | None
    overdue: int | None
    reservations: Mapping[int, Reservation]
    unaffordable: Mapping[int, Reason]
    resting: Resting
    finer: float
    next_look_s: float | None

    def is_barred(self, at: int) -> bool:
        """Tell whether a contender that waits can be given nothing, whatever the others have."""
        return at in self.resting.until_s or (at in self.unaffordable and self.market.keeping[at] < 0)

    def reasons(self, snapshot: Snapshot, at: int) -> tuple[Reason, ...]:
        """Return what is to be said of a contender's claims."""
        due = deadline_reason(snapshot, self.market, self.plan, at)
        kept = self.reservations.get(at)
        told = None if kept is None else reservation_reason(snapshot, self.market, kept)
        found = (self.unaffordable.get(at), self.resting.reason(snapshot, at), told, due)
        return tuple(one for one in found if one is not None)

    def explained(self, snapshot: Snapshot, at: int) -> tuple[Reason, ...]:
        """Return the same and more, for one job that is asked about."""
        found = late_reason(snapshot, self.market, self.plan, at)
        return (*self.reasons(snapshot, at), *(() if found is None else (found,)))

    def broken(self, snapshot: Snapshot) -> Mapping[int, Reason]:
        """Return why contenders cannot meet deadlines that they were promised; who is in time as it is can."""
        plan, found = self.plan, dict[int, Reason]()
        for at, need in plan.needs.items() if plan is not None else ():
            if plan is None or not need.is_promised or at in plan.blocks or at >= len(self.market.contenders):
                continue
            why = late_reason(snapshot, self.market, plan, at)
            if why is not None and self.market.keeping[at] not in in_time(snapshot, plan, at):
                found[at] = why
        return found


def claimed(snapshot: Snapshot, market: Market, power: Floats, value: Floats, changes: ChangeRules) -> Claims:
    """Put all claims into a market and the values of its columns."""
    affordable = offered(snapshot, market)
    mask = affordable.mask(market)
    barred = affordable.reasons.keys()
    waited = _waited(snapshot, market, mask, overdue(snapshot, market, changes.wait_max_s, barred))
    first = next((at for at, one in waited.items() if one.start_s < math.inf), None)
    plan = planned(snapshot, market, power, mask, None if first is None else _block(market, waited[first]))
    raised = pressed(snapshot, market, plan, steadied(market, value), changes)
    rest = resting(snapshot, market, plan, changes)
    raised = rest.values(market, raised)
    raised = urged(snapshot, market, raised, changes.wait_max_s, first)
    raised = raised if affordable.columns is None else np.where(mask, raised, -1.0)
    reservations = _reservations(snapshot, market, plan, waited, changes)
    instants = (
        next_look_s(snapshot, market, changes.wait_max_s),
        next_urgency_s(snapshot, market, plan, changes),
        *rest.until_s.values(),
        # What runs longer than it is believed to is about to end again and again: it is not looked at each time.
        *(
            max(one.start_s, snapshot.now_s + LOOK_AGAIN_S)
            for one in reservations.values()
            if snapshot.now_s < one.start_s < math.inf
        ),
    )
    beside = _beside(snapshot, market, plan)
    if reservations:
        beside = _kept(snapshot, beside, reservations, _precedence(snapshot, market, plan, waited, changes))
    return Claims(
        market=beside,
        value=raised,
        plan=plan,
        overdue=first,
        reservations=reservations,
        unaffordable=affordable.reasons,
        resting=rest,
        finer=1.0 if raised is value else min(_best_sum(market, value) / max(_best_sum(market, raised), 1e-300), 1.0),
        next_look_s=min((at_s for at_s in instants if at_s is not None), default=None),
    )


def _waited(snapshot: Snapshot, market: Market, mask: NDArray[np.bool_], late: Sequence[int]) -> dict[int, Reservation]:
    """Return the nodes for who has waited longest of those that can start some time, then for who has of the others.

    Nobody knows when one of these others can start, so it keeps what the first one leaves of its nodes, and no more.

    Args:
        late: Contenders that have waited too long, the longest wait first.
    """
    if not late:
        return {}
    times, waits, known = node_times(snapshot, market), list[Reservation](), set[tuple[int, bytes]]()
    for at in late:
        own = np.flatnonzero((market.job == at) & mask)
        alike = (id(market.contenders[at].table), market.entry[own].tobytes())
        if alike in known:
            continue
        known.add(alike)
        off = _off(snapshot, market, at)
        found = reserved(market, times, own, lengths_of(snapshot, market, own), without=off) if len(own) else None
        if found is not None and found.start_s < math.inf:
            beside = [replace(one, nodes=tuple(sorted({*one.nodes} - {*found.nodes}))) for one in waits[:1]]
            return {one.at: one for one in (found, *beside)}
        waits += [] if found is None else [found]
    return {one.at: one for one in waits[:1]}


def _block(market: Market, overdue: Reservation) -> Block:
    return Block(
        column=overdue.column,
        entry=int(market.entry[overdue.column]),
        usage=market.usage[overdue.column],
        start_s=overdue.start_s,
        end_s=overdue.start_s + overdue.length_s,
    )


def _reservations(
    snapshot: Snapshot, market: Market, plan: Plan | None, waited: Mapping[int, Reservation], changes: ChangeRules
) -> dict[int, Reservation]:
    """Return the nodes that are kept: for who has waited too long, for those whose deadlines press, then for blocks.

    For blocks to come only jobs that can never be stopped are kept out, and only where a node is needed as a whole.
    """
    found = dict(waited)
    if plan is None or not plan.blocks:
        return found
    times, taken = node_times(snapshot, market), {node_id for one in waited.values() for node_id in one.nodes}
    urgent = urgent_ones(snapshot, market, plan, changes)
    later = sorted(plan.blocks.keys() - set(urgent), key=lambda at: (plan.blocks[at].start_s, at))
    has_lasting = next(unstoppable(snapshot, market), None) is not None
    for at in [*urgent, *(later if has_lasting else ())][:RESERVATIONS_MAX]:
        if at in found:
            continue
        if at in urgent:
            own = _pressing(snapshot, market, (plan, plan.needs[at]), times, taken | _off(snapshot, market, at))
        else:
            own = _later(market, at, plan.blocks[at], times, taken | _off(snapshot, market, at))
        if own is not None:
            found[at] = own
            taken |= set(own.nodes)
    return found


def _off(snapshot: Snapshot, market: Market, at: int) -> set[NodeId]:
    """Return the nodes that a contender's job keeps away from: kept for it, they would be of use to nobody."""
    contender = [*market.contenders, *market.outside][at]
    current = None if contender.holding is None else contender.holding.allocation
    return set(avoided(snapshot, snapshot.jobs[contender.job_id], current))


def _pressing(
    snapshot: Snapshot, market: Market, who: tuple[Plan, Need], times: NodeTimes, taken: Collection[NodeId]
) -> Reservation | None:
    """Return the nodes of a contender whose deadline presses, None where it has what it needs."""
    plan, need = who
    wanted = in_time(snapshot, plan, need.at)
    if not len(wanted) or market.keeping[need.at] in wanted:
        return None
    length_s = dict(zip(need.columns.tolist(), need.least_s.tolist(), strict=True))
    return reserved(market, times, wanted, np.array([length_s[column] for column in wanted.tolist()]), without=taken)


def _later(market: Market, at: int, block: Block, times: NodeTimes, taken: Collection[NodeId]) -> Reservation | None:
    """Return the nodes of a block to come: those its job has, if it is to keep them."""
    contender, length_s = [*market.contenders, *market.outside][at], block.end_s - block.start_s
    if contender.holding is not None and block.entry < 0:
        if block.column < 0:
            return None  # nobody may take it now
        nodes = tuple(node_id for node_id in contender.holding.allocation.node_ids if node_id not in taken)
        return Reservation(at=at, column=block.column, nodes=nodes, start_s=block.start_s, length_s=length_s)
    parts = parts_of(contender.table, block.entry)
    if not needs_whole_nodes(parts, times):
        return None
    found = nodes_for(parts, times, taken)
    if found is None:
        return None
    start_s = max(found[0], block.start_s)
    return Reservation(at=at, column=block.column, nodes=found[1], start_s=start_s, length_s=length_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Precedence:
    """Which contenders that nodes are kept for come before which.

    Args:
        waited: They have waited too long.
        spared: Their deadlines press, but their blocks have not come.
        come: Contenders whose blocks have come, whether nodes are kept for them or not.
    """

    waited: Collection[int]
    spared: Collection[int]
    come: Sequence[int]


def _precedence(
    snapshot: Snapshot, market: Market, plan: Plan | None, waited: Collection[int], changes: ChangeRules
) -> _Precedence:
    urgent = urgent_ones(snapshot, market, plan, changes)
    come = come_ones(snapshot, plan, urgent)
    return _Precedence(waited=waited, spared=set(urgent) - set(come), come=come)


def _kept(
    snapshot: Snapshot, market: Market, reservations: Mapping[int, Reservation], precedence: _Precedence
) -> Market:
    """Return a market in which nodes are kept for some contenders, who find their devices first.

    Nodes of one whose block has not come are open to those whose blocks have: their values are above its own, so where
    they find nothing else, it would be they who are late for it.
    """
    first, kept = np.isin(market.job, precedence.come), list[Kept]()
    for at, one in reservations.items():
        keeps_out = kept_out(snapshot, market, one.start_s)
        keeps_out = keeps_out & ~first if at in precedence.spared else keeps_out
        is_due = at not in precedence.waited
        kept.append(Kept(at=at, nodes=one.nodes, served_by=one.served_by, keeps_out=keeps_out, is_due=is_due))
    return replace(market, kept=tuple(kept), entitled=market.entitled | reservations.keys())


def _beside(snapshot: Snapshot, market: Market, plan: Plan | None) -> Market:
    """Return a market with rows of what jobs that can never be stopped may take beside all blocks.

    Of each row that a block needs it is the least that is free until the last block ends; columns that end before the
    first block begins need not care.
    """
    blocks = list(plan.blocks.values()) if plan is not None else []
    if plan is None or not blocks:
        return market
    begins_s, ends_s = min(one.start_s for one in blocks), max(one.end_s for one in blocks)
    lasting = _lasting(snapshot, market, plan, begins_s)
    wanted = np.flatnonzero(np.array([one.usage for one in blocks]).any(axis=0))
    if not lasting.any():
        return market
    return replace(
        market,
        rows=(*market.rows, *_named_beside(market, wanted)),
        supply=np.r_[market.supply, np.maximum(plan.room.least(ends_s)[wanted], 0.0)],
        usage=np.column_stack([market.usage, np.where(lasting[:, None], market.usage[:, wanted], 0.0)]),
    )


def _named_beside(market: Market, rows: Ints) -> Iterator[Row]:
    for row in rows.tolist():
        gpu_type, zone = market.rows[row].pool
        yield Row((f"{gpu_type} beside deadlines", zone), market.rows[row].chunk)


def _lasting(snapshot: Snapshot, market: Market, plan: Plan, begins_s: float) -> NDArray[np.bool_]:
    """Return the columns without a block that can never be stopped and go on when the first block begins."""
    lasting = np.zeros(len(market.job), dtype=bool)
    for own in unstoppable(snapshot, market):
        if int(market.job[own[0]]) not in plan.blocks:
            lasting[own] = snapshot.now_s + lengths_of(snapshot, market, own) > begins_s
    return lasting


def _best_sum(market: Market, value: Floats) -> float:
    """Return what all contenders would be worth on their best columns."""
    return float(np.maximum(np.maximum.reduceat(value, firsts(market.job)), 0.0).sum())
