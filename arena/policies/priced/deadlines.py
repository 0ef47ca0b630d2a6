"""Deadlines: who must have what from when on, and what can be promised to a newcomer. Pure: no I/O, no clock.

*Need.* A job with a deadline is given a block of time in what will be free of each row: the column with the fewest
GPU-seconds, weighted by type, that still ends in time, as late as possible. That is the minimum satisfactory share of
ElasticFlow (Gu et al., ASPLOS 2023), laid out from the deadline backwards instead of forwards (earliest deadline as
late as possible, Chetto and Chetto 1989): what is before the blocks is left to the order that the values give, which
mostly serves such jobs long before they must be. A block has a tenth more work than is estimated, its start, and as
much again: what has only just been started cannot be stopped before it runs. Where no such block is left, it is one
without this slack.

*Urgency.* From the start of its block on, a job's columns that end as early are worth more than all others together.
One that runs counts for more than those without deadlines somewhat before that, to spare it a start, but all such jobs
together count for less than one whose block has come, or that must start again before another in its place would run. A
job whose deadline has passed, or for which there is no block, is one as any other, so it starves nobody; but one whose
promise was broken comes right after those whose promises can be kept, until its deadline.

*Promises.* Blocks of jobs that were promised their deadlines come first, the latest deadline first: put as late as
they can be, these leave room before them. Where one finds none it moves to the front, and all are laid out again. The
others get what is left, the earliest deadline first. A newcomer is promised its deadline if it and all that were
promised before find blocks, laid out as hard as in decisions, and those of its tenant beside what others are
guaranteed (``promised_shares``); else it is told the earliest end that could be promised. Promises hold as far as
nothing turns out worse than it was said to be by more than the tenth, and the bound on waiting (``urgency``) and shares
come before them. What a job is promised holds for the length that it declared: one that runs longer is late by itself.

*What runs and what starts.* Until its block others may use what a running job has: the block has a start in it. Only
where no such block is left, what it has is its block, and goes on from now on. A job that starts or changes at present
has a block like all others, from when it can be touched again. A job whose block has come is started on nothing that
is too slow for it: until that runs it could not be moved. One that was started too often rests (``resting``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.base import Snapshot
from arena.policies.priced.changes import ChangeRules
from arena.policies.priced.columns import Floats, Ints, firsts
from arena.policies.priced.layouts import Need, laid_out
from arena.policies.priced.market import Market
from arena.policies.priced.needs import STARTS_IN_BLOCK, due_at_s, needs_of, room_of
from arena.policies.priced.timetable import Block, Timetable

LOOKS_SHARE = 0.1
"""Of a start: how late at most it is seen that the block of a running job has come."""

LOOK_AGAIN_S = 1.0
"""Not sooner after a decision than this, and than a start, another is made for who is not served when it must be."""

_TOLERANCE_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Blocks by contender, and what is left beside them.

    Args:
        needs: Of the jobs that have a deadline that has not passed.
        tight: Contenders whose blocks have no slack.
        room: What is free beside all blocks.
    """

    room: Timetable
    blocks: Mapping[int, Block] = field(default_factory=dict)
    needs: Mapping[int, Need] = field(default_factory=dict)
    tight: frozenset[int] = frozenset()


def planned(
    snapshot: Snapshot, market: Market, power: Floats, offered: NDArray[np.bool_], first: Block | None
) -> Plan | None:
    """Lay out the blocks of all jobs with deadlines; None where there is none.

    Args:
        power: What a GPU of each row does (see ``policy``); shape (rows,).
        offered: Columns that may be had at all.
        first: What comes before all deadlines.
    """
    needs = needs_of(snapshot, market, power, offered)
    if not needs and not (market.facts["due_s"] > snapshot.now_s).any():
        return None
    room = room_of(snapshot, market)
    if first is not None:
        room.take(first.usage, first.start_s, first.end_s)
        needs = [need for need in needs if need.at != market.job[first.column]]
    return _laid_out(needs, room)


def _laid_out(needs: Sequence[Need], room: Timetable) -> Plan:
    found = laid_out([need for need in needs if need.is_promised], room)
    rest = sorted((need for need in needs if need.at not in found.blocks), key=lambda need: (need.due_s, need.at))
    for need in rest:
        found.lay(need)
    return Plan(
        room=found.room,
        blocks=found.blocks,
        needs={need.at: need for need in needs},
        tight=frozenset(found.tight),
    )


def pressed(snapshot: Snapshot, market: Market, plan: Plan | None, value: Floats, changes: ChangeRules) -> Floats:
    """Return the values of columns where jobs that must have their share now come first."""
    urgent = urgent_ones(snapshot, market, plan, changes)
    if plan is None or not (urgent or broken_ones(market, plan)):
        return value
    bonus = 2.0 * float(np.maximum(np.maximum.reduceat(value, firsts(market.job)), 0.0).sum())
    # Who is left in peace only to spare it a start must not keep one waiting whose block has come; and of blocks that
    # do not fit beside the shares of others, those that were promised are kept. Of those left in peace they are stopped
    # last who must start again before another in their place would run: they may find nothing in one piece by then.
    tiers: dict[tuple[bool, bool, bool], list[int]] = {}
    for at in urgent:
        is_sure, block = plan.needs[at].is_promised or not snapshot.tenants, plan.blocks[at]
        comes_soon = _comes_s(snapshot, block) <= snapshot.now_s + snapshot.restart_s
        tiers.setdefault((is_sure, _has_come(snapshot, block), comes_soon), []).append(at)
    raised, more = value.copy(), bonus
    for tier in sorted(tiers):
        for at in tiers[tier]:
            raised[in_time(snapshot, plan, at)] += more
            if tier[1]:
                raised[_too_slow(snapshot, market, plan, at)] = -1.0
        more *= 1.0 + len(tiers[tier])
    for at in broken_ones(market, plan):
        raised[in_time(snapshot, plan, at)] += bonus / 2.0
    return raised


def _too_slow(snapshot: Snapshot, market: Market, plan: Plan, at: int) -> Ints:
    """Return what a job whose block has come must not be started on: it could not have what is in time for a while."""
    need = plan.needs[at]
    found: Ints = need.columns[(need.entry >= 0) & ~np.isin(need.columns, in_time(snapshot, plan, at))]
    return found


def _own_blocks(market: Market, plan: Plan) -> list[tuple[int, Block]]:
    """Return the blocks of contenders."""
    return [(at, block) for at, block in plan.blocks.items() if at < len(market.contenders)]


def broken_ones(market: Market, plan: Plan) -> list[int]:
    """Return the contenders that were promised a deadline and find no block any more."""
    return [
        at
        for at, need in plan.needs.items()
        if need.is_promised and at not in plan.blocks and at < len(market.contenders)
    ]


def in_time(snapshot: Snapshot, plan: Plan, at: int) -> Ints:
    """Return the columns on which a job would end from now on as early as its block, the fewest GPU-seconds first.

    Ending later, though in time, it would be in the way of other blocks.
    """
    need, block = plan.needs[at], plan.blocks.get(at)
    until_s = need.due_s if block is None else block.end_s
    found: Ints = need.columns[need.least_s <= until_s - snapshot.now_s + _TOLERANCE_S]
    return found


def _goes_on(snapshot: Snapshot, plan: Plan, at: int) -> bool:
    """Tell whether a job with a block has something that is in time."""
    need = plan.needs[at]
    left_s = plan.blocks[at].end_s - snapshot.now_s + _TOLERANCE_S
    return need.kept >= 0 and bool(need.least_s[need.kept] <= left_s)


def urgent_ones(snapshot: Snapshot, market: Market, plan: Plan | None, changes: ChangeRules) -> list[int]:
    """Return the contenders that must have their share now, the earliest deadline first."""
    if plan is None:
        return []
    until_s, own = snapshot.now_s + _TOLERANCE_S, _own_blocks(market, plan)
    found = [at for at, one in own if _urgent_from_s(snapshot, market, at, one, changes) <= until_s]
    return sorted(found, key=lambda at: (plan.needs[at].due_s, at))


def come_ones(snapshot: Snapshot, plan: Plan | None, urgent: Sequence[int]) -> list[int]:
    """Return those of some urgent contenders whose blocks have come: the others are only left in peace."""
    return [at for at in urgent if plan is not None and _has_come(snapshot, plan.blocks[at])]


def _urgent_from_s(snapshot: Snapshot, market: Market, at: int, block: Block, changes: ChangeRules) -> float:
    """Return from when on a job comes before those that have no deadline.

    One that runs is left in peace a little earlier: it would have to start again, and soon be stopped for it.
    """
    spared_s = 0.0 if market.contenders[at].holding is None else changes.lasting_s(snapshot.restart_s)
    return _comes_s(snapshot, block) - spared_s


def _comes_s(snapshot: Snapshot, block: Block) -> float:
    """Return from when on a job must have its share: what was only just started cannot be stopped before it runs.

    If it goes on as it is its block has no start in it; what it has cannot be taken from it any more when it could
    not start again in time.
    """
    starts = 1.0 if block.entry >= 0 else 1.0 + STARTS_IN_BLOCK
    return block.start_s - starts * snapshot.restart_s


def _has_come(snapshot: Snapshot, block: Block) -> bool:
    return _comes_s(snapshot, block) <= snapshot.now_s + _TOLERANCE_S


def next_urgency_s(snapshot: Snapshot, market: Market, plan: Plan | None, changes: ChangeRules) -> float | None:
    """Return when the next job becomes urgent, None where none will."""
    if plan is None:
        return None
    soon_s = snapshot.now_s + LOOKS_SHARE * snapshot.restart_s
    again_s = snapshot.now_s + max(snapshot.restart_s, LOOK_AGAIN_S)
    instants = list[float]()
    for at, block in _own_blocks(market, plan):
        instants.append(_urgent_from_s(snapshot, market, at, block, changes))
        if not _goes_on(snapshot, plan, at):
            # One that runs too slowly comes nearer to its block in ever smaller steps, and one whose block has come and
            # that is not served yet must not wait until something happens.
            comes_s = _comes_s(snapshot, block)
            instants.append(again_s if comes_s <= snapshot.now_s + _TOLERANCE_S else max(comes_s, soon_s))
    return min((at_s for at_s in instants if at_s > snapshot.now_s + _TOLERANCE_S), default=None)


def deadline_reason(snapshot: Snapshot, market: Market, plan: Plan | None, at: int) -> Reason | None:
    """Return how it stands with a contender's deadline; None where it has none, or is late (see ``late_reason``)."""
    if snapshot.jobs[market.contenders[at].job_id].spec.deadline_s is None:
        return None
    due_s = due_at_s(snapshot, market.contenders[at].job_id)
    if due_s is None:
        return reason(ReasonCode.DEADLINE_PASSED)
    left_s = due_s - snapshot.now_s
    if plan is None or at not in plan.needs:
        return reason(ReasonCode.DEADLINE_UNKNOWN, left_s=left_s)
    block = plan.blocks.get(at)
    if block is None:
        return None
    from_s = max(block.start_s - snapshot.now_s, 0.0)
    code = ReasonCode.DEADLINE_KEPT if plan.needs[at].is_promised else ReasonCode.DEADLINE_MEANT
    return reason(code, left_s=left_s, group=str(market.group(block.column)), from_s=from_s)


def late_reason(snapshot: Snapshot, market: Market, plan: Plan | None, at: int) -> Reason | None:
    """Return by how much a job that finds no block will be late at least, None for all others; takes its time."""
    need = None if plan is None else plan.needs.get(at)
    if plan is None or need is None or at in plan.blocks:
        return None
    end_s = earliest_end_s(need, plan.room)
    left_s = need.due_s - snapshot.now_s
    if end_s is None:
        return reason(ReasonCode.DEADLINE_OPEN, left_s=left_s)
    return reason(ReasonCode.DEADLINE_LATE, left_s=left_s, late_s=max(end_s - need.due_s, 0.0))


def earliest_end_s(need: Need, room: Timetable) -> float | None:
    """Return the first instant by which a job could be done beside all blocks."""
    ends = []
    for usage, ready, length_s in zip(need.usage, need.ready_s.tolist(), need.lengths_s.tolist(), strict=True):
        start_s = room.earliest(usage, length_s)
        if start_s is not None and ready < math.inf:
            ends.append(max(start_s, ready) + length_s)
    return min(ends, default=None)
