"""Deadlines: who must have what from when on, and what can be promised to a newcomer. Pure: no I/O, no clock.

*Need.* A job with a deadline is given a block of time in what will be free of each row: the column with the fewest
GPU-seconds, weighted by type, that still ends in time, as late as possible; its start and a tenth of its work are added
for what estimates do not know. That is the minimum satisfactory share of ElasticFlow (Gu et al., ASPLOS 2023), laid out
from the deadline backwards instead of forwards (earliest deadline as late as possible, Chetto and Chetto 1989): what is
before the blocks is left to the order that the values give, which mostly serves such jobs long before they must be.

*Urgency.* From the start of its block on a job's columns that end in time are worth more than all others together. A
job whose deadline has passed, or for which there is no block, is one as any other, so it starves nobody.

*Promises.* Blocks of jobs that were promised their deadlines come first, the latest deadline first: put as late as
they can be, these leave room before them. Where one finds none it moves to the front, and all are laid out again. The
others get what is left, the earliest deadline first. A newcomer is promised its deadline if it and all that were
promised before find blocks; else it is told the earliest end that could be promised. Promises hold as far as nothing
turns out worse than it was said to be by more than the tenth, and the bound on waiting (``urgency``) comes before them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from arena.domain.job import JobId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.base import Admission, Snapshot
from arena.policies.priced.changes import ChangeRules
from arena.policies.priced.columns import Floats, Ints, firsts
from arena.policies.priced.market import Market
from arena.policies.priced.timetable import Block, Timetable
from arena.policies.priced.work_left import holding_ends_at_s, steps_left

MARGIN = 1.1
"""Work of a block, as a multiple of what is estimated."""

ORDERS_MAX = 4
"""Times that promised jobs are laid out anew, one that found no block moved to the front each time."""

_TOLERANCE_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a job with a deadline has to do until then.

    Args:
        due_s: The instant of the deadline.
        columns: Its columns, the fewest GPU-seconds first.
        lengths_s: How long each of them takes, start and margin included.
        is_promised: Whether its deadline was promised when it was submitted.
    """

    at: int
    due_s: float
    columns: Ints
    lengths_s: Floats
    is_promised: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Blocks by contender, and what is left beside them.

    Args:
        needs: Of the jobs that have a deadline that has not passed.
        room: What is free beside all blocks.
    """

    room: Timetable
    blocks: Mapping[int, Block] = field(default_factory=dict)
    needs: Mapping[int, Need] = field(default_factory=dict)


def planned(snapshot: Snapshot, market: Market, power: Floats, offered: NDArray[np.bool_]) -> Plan | None:
    """Lay out the blocks of all jobs with deadlines; None where there is none.

    Args:
        power: What a GPU of each row does (see ``policy``); shape (rows,).
        offered: Columns that may be had at all.
    """
    bound = [at for at in range(len(market.contenders)) if _due_s(snapshot, market, at) is not None]
    if not bound:
        return None
    needs = _needs(snapshot, market, power, offered, bound)
    return _laid_out(market, needs, room_of(snapshot, market))


def room_of(snapshot: Snapshot, market: Market) -> Timetable:
    """Return what there will be of each row: all that may be taken away, and the rest when it ends."""
    room, back = Timetable(snapshot.now_s, market.supply), dict[float, Floats]()
    competing = {contender.job_id for contender in market.contenders}
    for job_id, holding in snapshot.holding.items():
        if job_id in competing:
            continue
        ends_at_s = holding_ends_at_s(snapshot, job_id, holding)
        if ends_at_s is None:
            continue
        held = np.zeros(len(market.rows))
        for share in holding.allocation.shares:
            known = snapshot.capacity.devices.get(share.node_id)
            if known is not None:
                count = len(share.device_ids)
                held += [row.taken(count) if row.pool == known.pool else 0.0 for row in market.rows]
        ends_at_s = max(ends_at_s, snapshot.now_s)
        back[ends_at_s] = back.get(ends_at_s, 0.0) + held
    for ends_at_s in sorted(back):
        room.give(back[ends_at_s], ends_at_s)
    return room


def _due_s(snapshot: Snapshot, market: Market, at: int) -> float | None:
    """Return the instant of a contender's deadline, None where it has none or it has passed."""
    job = snapshot.jobs[market.contenders[at].job_id]
    if job.spec.deadline_s is None:
        return None
    due_s = job.submitted_at_s + job.spec.deadline_s
    return due_s if due_s > snapshot.now_s else None


def _needs(
    snapshot: Snapshot, market: Market, power: Floats, offered: NDArray[np.bool_], bound: Sequence[int]
) -> list[Need]:
    """Return what the jobs with deadlines need, as far as their lengths are known."""
    bounds, needs = [*firsts(market.job).tolist(), len(market.job)], []
    for at in bound:
        own = np.arange(bounds[at], bounds[at + 1])[offered[bounds[at] : bounds[at + 1]]]
        due_s = _due_s(snapshot, market, at)
        if due_s is None or not len(own):
            continue
        job_id = market.contenders[at].job_id
        steps = steps_left(snapshot, job_id, float((market.gpu_count[own] / market.speed[own]).min()))
        if steps is None:
            continue
        run_s = steps / market.speed[own]
        starts_s = np.where(own == market.keeping[at], 0.0, snapshot.restart_s)
        order = np.lexsort((own, (market.usage[own] @ power) * run_s))
        needs.append(
            Need(
                at=at,
                due_s=due_s,
                columns=own[order],
                lengths_s=(starts_s + MARGIN * run_s)[order],
                is_promised=snapshot.jobs[job_id].is_deadline_promised,
            )
        )
    return needs


def _laid_out(market: Market, needs: Sequence[Need], room: Timetable) -> Plan:
    promised, blocks = _promised([need for need in needs if need.is_promised], market, room)
    rest = sorted((need for need in needs if need.at not in blocks), key=lambda need: (need.due_s, need.at))
    for need in rest:
        block = _block(market, need, promised)
        if block is not None:
            _take(market, promised, block)
            blocks[need.at] = block
    return Plan(room=promised, blocks=blocks, needs={need.at: need for need in needs})


def _promised(needs: Sequence[Need], market: Market, room: Timetable) -> tuple[Timetable, dict[int, Block]]:
    """Lay out the blocks of promised jobs; where some find none, the order that leaves the fewest of them without."""
    order = sorted(needs, key=lambda need: (-need.due_s, need.at))
    best: tuple[Timetable, dict[int, Block]] | None = None
    for _ in range(ORDERS_MAX):
        found, blocks, missed = _in_order(market, order, room)
        if best is None or len(blocks) > len(best[1]):
            best = found, blocks
        if not missed:
            break
        order = [*missed, *(need for need in order if need.at in blocks)]
    assert best is not None
    return best


def _in_order(market: Market, order: Sequence[Need], room: Timetable) -> tuple[Timetable, dict[int, Block], list[Need]]:
    found, blocks, missed = room.copy(), dict[int, Block](), list[Need]()
    for need in order:
        block = _block(market, need, found)
        if block is None:
            missed.append(need)
            continue
        _take(market, found, block)
        blocks[need.at] = block
    return found, blocks, missed


def _block(market: Market, need: Need, room: Timetable) -> Block | None:
    """Return the latest block of the first column that has one."""
    for column, length_s in zip(need.columns.tolist(), need.lengths_s.tolist(), strict=True):
        start_s = room.latest(market.usage[column], length_s, need.due_s)
        if start_s is not None:
            return Block(column=column, start_s=start_s, end_s=start_s + length_s)
    return None


def _take(market: Market, room: Timetable, block: Block) -> None:
    room.take(market.usage[block.column], block.start_s, block.end_s)


def pressed(snapshot: Snapshot, market: Market, plan: Plan | None, value: Floats, changes: ChangeRules) -> Floats:
    """Return the values of columns where jobs that must have their share now come first."""
    urgent = _urgent(snapshot, market, plan, changes)
    if plan is None or not urgent:
        return value
    bonus = 2.0 * float(np.maximum(np.maximum.reduceat(value, firsts(market.job)), 0.0).sum())
    raised = value.copy()
    for at in urgent:
        need = plan.needs[at]
        raised[need.columns[need.lengths_s <= need.due_s - snapshot.now_s + _TOLERANCE_S]] += bonus
    return raised


def _urgent(snapshot: Snapshot, market: Market, plan: Plan | None, changes: ChangeRules) -> list[int]:
    """Return the contenders whose block has begun, or begins before one that was stopped could run again."""
    if plan is None:
        return []
    until_s = snapshot.now_s + _TOLERANCE_S
    return [at for at, block in plan.blocks.items() if _urgent_from_s(snapshot, market, at, block, changes) <= until_s]


def _urgent_from_s(snapshot: Snapshot, market: Market, at: int, block: Block, changes: ChangeRules) -> float:
    """Return from when on a job must have its share.

    One that runs is left in peace a little earlier: it would have to start again, and soon be stopped for it.
    """
    early_s = snapshot.restart_s
    if market.contenders[at].holding is not None:
        early_s += changes.lasting_s(snapshot.restart_s)
    return block.start_s - early_s


def next_urgency_s(snapshot: Snapshot, market: Market, plan: Plan | None, changes: ChangeRules) -> float | None:
    """Return when the next job becomes urgent, None where none will."""
    if plan is None:
        return None
    instants = (_urgent_from_s(snapshot, market, at, block, changes) for at, block in plan.blocks.items())
    return min((at_s for at_s in instants if at_s > snapshot.now_s + _TOLERANCE_S), default=None)


def deadline_reason(snapshot: Snapshot, market: Market, plan: Plan | None, at: int) -> Reason | None:
    """Return how it stands with a contender's deadline; None where it has none, or is late (see ``late_reason``)."""
    if snapshot.jobs[market.contenders[at].job_id].spec.deadline_s is None:
        return None
    due_s = _due_s(snapshot, market, at)
    if due_s is None:
        return reason(ReasonCode.DEADLINE_PASSED)
    left_s = due_s - snapshot.now_s
    if plan is None or at not in plan.needs:
        return reason(ReasonCode.DEADLINE_UNKNOWN, left_s=left_s)
    block = plan.blocks.get(at)
    if block is None:
        return None
    from_s = max(block.start_s - snapshot.now_s, 0.0)
    return reason(ReasonCode.DEADLINE_KEPT, left_s=left_s, group=str(market.group(block.column)), from_s=from_s)


def late_reason(snapshot: Snapshot, market: Market, plan: Plan | None, at: int) -> Reason | None:
    """Return by how much a job that finds no block will be late at least, None for all others; takes its time."""
    need = None if plan is None else plan.needs.get(at)
    if plan is None or need is None or at in plan.blocks:
        return None
    end_s = _earliest_end_s(market, need, plan.room)
    late_s = math.inf if end_s is None else max(end_s - need.due_s, 0.0)
    return reason(ReasonCode.DEADLINE_LATE, left_s=need.due_s - snapshot.now_s, late_s=late_s)


def _earliest_end_s(market: Market, need: Need, room: Timetable) -> float | None:
    """Return the first instant by which a job could be done beside all blocks."""
    ends = []
    for column, length_s in zip(need.columns.tolist(), need.lengths_s.tolist(), strict=True):
        start_s = room.earliest(market.usage[column], length_s)
        if start_s is not None:
            ends.append(start_s + length_s)
    return min(ends, default=None)


def admitted(
    snapshot: Snapshot, market: Market, power: Floats, offered: NDArray[np.bool_], job_id: JobId
) -> Admission | None:
    """Return whether a waiting job's deadline can be promised, and the earliest end that could be.

    Returns:
        None where nothing can be said: the job does not compete, has no deadline, or nobody knows its length.
    """
    at = next((at for at, contender in enumerate(market.contenders) if contender.job_id == job_id), None)
    if at is None or _due_s(snapshot, market, at) is None:
        return None
    bound = [one for one in range(len(market.contenders)) if _due_s(snapshot, market, one) is not None]
    found = {need.at: need for need in _needs(snapshot, market, power, offered, bound)}
    need = found.pop(at, None)
    if need is None:
        return None
    room = room_of(snapshot, market)
    before = [one for one in found.values() if one.is_promised]
    beside, blocks = _promised(before, market, room)

    def is_promisable(due_s: float) -> bool:
        together = _promised([*before, replace(need, due_s=due_s)], market, room)[1]
        return together.keys() >= {at, *blocks}

    if is_promisable(need.due_s):
        return Admission(is_promised=True, earliest_end_s=need.due_s)
    after_s = max([block.end_s for block in blocks.values()], default=snapshot.now_s) + float(need.lengths_s.min())
    ends_s = [end_s for end_s in (_earliest_end_s(market, need, beside), after_s) if end_s is not None]
    return Admission(
        is_promised=False, earliest_end_s=next((end_s for end_s in sorted(ends_s) if is_promisable(end_s)), None)
    )
