"""What jobs with deadlines need until then, and what there will be for them. Pure: no I/O, no clock.

All jobs are looked at together, as arrays over their columns: with deadlines for all there are tens of thousands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arena.domain.allocation import GpuGroup
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.records import JobState
from arena.policies.base import Holding, Snapshot
from arena.policies.length_beliefs import STEPS_MIN
from arena.policies.priced.columns import NONE, Floats, Ints, firsts
from arena.policies.priced.layouts import Need
from arena.policies.priced.market import Contender, Market
from arena.policies.priced.pace import remembered_paces
from arena.policies.priced.reservations import NodeTimes, node_times
from arena.policies.priced.roster import work_made
from arena.policies.priced.timetable import Timetable
from arena.policies.priced.work_left import holding_ends_at_s, runs_until_s, speed_there, steps_left

MARGIN = 1.1
"""Work of a block, as a multiple of what is estimated."""

STARTS_IN_BLOCK = 2.0
"""Starts that a block has time for: its own, and that of who has only just been started and cannot be stopped yet."""


LENGTH_MIN_S = 1e-3
"""Of a block."""


def due_at_s(snapshot: Snapshot, job_id: JobId) -> float | None:
    """Return the instant of a job's deadline, None where it has none or it has passed."""
    job = snapshot.jobs[job_id]
    if job.spec.deadline_s is None:
        return None
    due_s = job.submitted_at_s + job.spec.deadline_s
    return due_s if due_s > snapshot.now_s else None


def room_of(snapshot: Snapshot, market: Market) -> Timetable:
    """Return what there will be of each row: all that may be taken away, and the rest when it ends.

    Of a row of whole nodes there is more when so many GPUs of one node are there together.
    """
    room, back = Timetable(snapshot.now_s, market.supply, _by_pool(market)), dict[float, Floats]()
    for node_id, ends in ends_by_node(snapshot, market).items():
        known = snapshot.capacity.devices[node_id]
        chunks = [row.chunk if row.pool == known.pool else 0 for row in market.rows]
        there = len(known.free) - sum(count for _, count in ends)
        for ends_at_s, count in sorted(ends):
            if ends_at_s < math.inf:
                gained = [((there + count) // chunk - there // chunk) * chunk if chunk else 0 for chunk in chunks]
                back[ends_at_s] = back.get(ends_at_s, 0.0) + np.array(gained, dtype=np.float64)
                there += count
    for ends_at_s in sorted(back):
        room.give(back[ends_at_s], ends_at_s)
    return room


def _by_pool(market: Market) -> list[Ints]:
    pools = [row.pool for row in market.rows]
    return [np.array([at for at, own in enumerate(pools) if own == pool]) for pool in sorted(set(pools))]


def ends_by_node(snapshot: Snapshot, market: Market) -> dict[NodeId, list[tuple[float, int]]]:
    """Return when GPUs come back that cannot be had now, by usable node: (instant, count)."""
    competing = {contender.job_id for contender in market.contenders}
    outside = {contender.job_id for contender in market.outside}
    found: dict[NodeId, list[tuple[float, int]]] = {}
    for job_id, holding in snapshot.holding.items():
        if job_id in competing:
            continue
        ends_at_s = _kept_until_s(snapshot, job_id, holding, has_need=job_id in outside)
        instant_s = math.inf if ends_at_s is None else max(ends_at_s, snapshot.now_s)
        for share in holding.allocation.shares:
            if share.node_id in snapshot.capacity.devices:
                found.setdefault(share.node_id, []).append((instant_s, len(share.device_ids)))
    return found


def _kept_until_s(snapshot: Snapshot, job_id: JobId, holding: Holding, *, has_need: bool) -> float | None:
    """Return when what a job has that may not be touched now can be had.

    Args:
        has_need: Whether it is given a block of its own; else who is in time there needs it to its end.
    """
    ends_at_s = None if has_need else _in_time_there(snapshot, job_id, holding)
    return holding_ends_at_s(snapshot, job_id, holding, is_limited=False) if ends_at_s is None else ends_at_s


def _in_time_there(snapshot: Snapshot, job_id: JobId, holding: Holding) -> float | None:
    """Return when a job ends at the latest where it is, None where that is not in time for a deadline."""
    due_s = due_at_s(snapshot, job_id)
    ends_at_s = None if due_s is None else runs_until_s(snapshot, job_id, holding, margin=MARGIN)
    return None if ends_at_s is None or due_s is None or ends_at_s > due_s else ends_at_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Offer:
    """What some jobs with deadlines could have, beside each other.

    Args:
        ats: Their contenders, ascending.
        ids: Their ids.
        job: Position among these of who each column is offered to, ascending; shape (columns,).
        columns: Numbers in the market, -1 for those of a job outside; shape (columns,). That of what a job has may be
            there twice (``_with_own_starts``).
        entry: Position in the job's table, -1 for what it has; shape (columns,).
        ready_s: When there are nodes for it at the earliest, and of what it has when it is its own again; shape
            (columns,).
        start_s: What it takes before it runs, beyond the steps; of what a job outside has until then, less than
            nothing; shape (columns,).
    """

    ats: Sequence[int]
    ids: Sequence[JobId]
    job: Ints
    columns: Ints
    entry: Ints
    usage: Floats
    speed: Floats
    gpu_count: Floats
    ready_s: Floats
    start_s: Floats


def needs_of(snapshot: Snapshot, market: Market, power: Floats, offered: NDArray[np.bool_]) -> list[Need]:
    """Return what the jobs with deadlines need, as far as their lengths are known, by contender.

    Args:
        power: What a GPU of each row does (see ``policy``); shape (rows,).
        offered: Columns that may be had at all.
    """
    is_due = market.facts["due_s"] > snapshot.now_s
    outside = [(at, one) for at, one in enumerate(market.outside, len(market.contenders)) if one.table.cells]
    found = list[Need]()
    if is_due.any():
        times = node_times(snapshot, market, is_limited=False)
        inside = _inside(market, times, snapshot.restart_s, np.flatnonzero(offered & is_due[market.job]))
        found += _needs(snapshot, inside, _steps_left(snapshot, market, inside), power)
    if outside:
        offer = _offer_outside(snapshot, market, outside)
        least = _least_costs(offer)
        found += _needs(
            snapshot, offer, [steps_left(snapshot, *one) for one in zip(offer.ids, least, strict=True)], power
        )
    return found


def _inside(market: Market, times: NodeTimes, restart_s: float, columns: Ints) -> _Offer:
    """Return what is offered to contenders.

    Args:
        columns: All of it.
    """
    columns, entry = _with_own_starts(market, columns)
    ats, job = np.unique(market.job[columns], return_inverse=True)
    contenders = [market.contenders[at] for at in ats.tolist()]
    return _Offer(
        ats=ats.tolist(),
        ids=[one.job_id for one in contenders],
        job=job,
        columns=columns,
        entry=entry,
        usage=_usage(market, contenders, job, columns, entry),
        speed=market.speed[columns],
        gpu_count=market.gpu_count[columns],
        ready_s=_ready_s(times, contenders, job, entry),
        start_s=np.where(entry < 0, 0.0, restart_s),
    )


def _with_own_starts(market: Market, columns: Ints) -> tuple[Ints, Ints]:
    """Return columns and their entries; what a job has that is offered nothing else is there twice.

    Once to go on, and once as it would be if it were stopped until then and started again.
    """
    known, again, entries = dict[tuple[int, GpuGroup], int](), list[int](), list[int]()
    for column in columns[market.entry[columns] < 0].tolist():
        one = market.contenders[int(market.job[column])]
        if one.is_shapeable or one.holding is None:
            continue
        key = (id(one.table), one.holding.group)
        if key not in known:
            known[key] = next((at for at, cell in enumerate(one.table.cells) if cell.group == key[1]), NONE)
        if known[key] >= 0:
            again.append(column)
            entries.append(known[key])
    together = np.r_[columns, np.array(again, dtype=columns.dtype)]
    order = np.argsort(market.job[together], kind="stable")
    return together[order], np.r_[market.entry[columns], np.array(entries, dtype=columns.dtype)][order]


def _usage(market: Market, contenders: Sequence[Contender], job: Ints, columns: Ints, entry: Ints) -> Floats:
    """Return what each column takes of each row: who starts again takes no part of the nodes that it broke before."""
    usage = market.usage[columns]
    for place in np.flatnonzero((entry >= 0) & (market.entry[columns] < 0)).tolist():
        usage[place] = contenders[job[place]].table.usage[entry[place]]
    return usage


def _ready_s(times: NodeTimes, contenders: Sequence[Contender], job: Ints, entry: Ints) -> Floats:
    """Return when there are nodes for each column, for what a job has at once."""
    start, known, ready = np.empty(len(contenders), dtype=np.intp), dict[int, int](), [np.array([times.now_s])]
    for place, one in enumerate(contenders):
        begins = known.get(id(one.table))
        if begins is None:
            begins = known[id(one.table)] = sum(len(part) for part in ready)
            ready.append(times.ready_s(one.table))
        start[place] = begins
    return np.concatenate(ready)[np.where(entry < 0, 0, start[job] + entry)]


def _offer_outside(snapshot: Snapshot, market: Market, outside: Sequence[tuple[int, Contender]]) -> _Offer:
    """Return what jobs could have that may not be touched now: what they could be given, then what they have."""
    parts = [_offer_of(snapshot, market, contender) for _, contender in outside]
    sizes = [len(part[0]) for part in parts]
    entry, usage, speed, gpu_count, ready_s, start_s = (np.concatenate(one) for one in zip(*parts, strict=True))
    return _Offer(
        ats=[at for at, _ in outside],
        ids=[one.job_id for _, one in outside],
        job=np.repeat(np.arange(len(sizes)), sizes),
        columns=np.full(sum(sizes), NONE),
        entry=entry,
        usage=usage,
        speed=speed,
        gpu_count=gpu_count,
        ready_s=ready_s,
        start_s=start_s,
    )


def _offer_of(snapshot: Snapshot, market: Market, contender: Contender) -> tuple[NDArray[Any], ...]:
    """Return the fields of an offer to one job outside."""
    table, holding, job_id = contender.table, contender.holding, contender.job_id
    there = None if holding is None else _kept_offer(snapshot, market, job_id, holding)
    own_usage, own_speed, own_count = ([], [], []) if there is None else there
    entry = np.append(np.arange(len(table.speed)), [NONE] * len(own_speed))
    kept = entry < 0
    is_running = snapshot.jobs[job_id].state is JobState.RUNNING
    return (
        entry,
        np.concatenate([table.usage, np.array(own_usage).reshape(-1, len(market.rows))]),
        np.append(table.speed * remembered_paces(snapshot, job_id, [one.group for one in table.cells]), own_speed),
        np.append(table.gpu_count, own_count),
        snapshot.now_s + np.where(kept, snapshot.restart_s, 0.0),
        np.where(kept, -snapshot.restart_s if is_running else 0.0, snapshot.restart_s),
    )


def _kept_offer(
    snapshot: Snapshot, market: Market, job_id: JobId, holding: Holding
) -> tuple[list[list[int]], list[float], list[int]] | None:
    """Return what a job has as a column of its own; None where it cannot go on there, or nobody knows how fast."""
    devices, shares = snapshot.capacity.devices, holding.allocation.shares
    # One that only starts there has a measured pace from where it was before.
    is_running = snapshot.jobs[job_id].state is JobState.RUNNING
    speed = speed_there(snapshot, job_id, holding, is_measured=is_running)
    if speed is None or any(share.node_id not in devices for share in shares):
        return None
    counts = [(devices[share.node_id].pool, len(share.device_ids)) for share in shares]
    usage = [sum(row.taken(count) for pool, count in counts if pool == row.pool) for row in market.rows]
    return [usage], [speed], [holding.group.gpu_count]


def _least_costs(offer: _Offer) -> list[float]:
    """Return the least GPU-seconds that a step of each job costs."""
    least: list[float] = np.minimum.reduceat(offer.gpu_count / offer.speed, firsts(offer.job)).tolist()
    return least


def _steps_left(snapshot: Snapshot, market: Market, offer: _Offer) -> list[float | None]:
    """Return the steps that contenders are taken to have left, as ``work_left.steps_left`` does."""
    facts = market.facts[offer.ats]
    left = np.maximum(facts["declared_steps"] - work_made(facts, snapshot.now_s), STEPS_MIN)
    is_plain = ~np.isnan(facts["declared_steps"]) & np.isinf(facts["time_limit_s"])
    costs = [0.0] * len(left) if is_plain.all() else _least_costs(offer)
    known = zip(is_plain.tolist(), left.tolist(), offer.ids, costs, strict=True)
    return [steps if plain else steps_left(snapshot, job_id, cost) for plain, steps, job_id, cost in known]


def _needs(snapshot: Snapshot, offer: _Offer, steps: Sequence[float | None], power: Floats) -> Iterator[Need]:
    """Yield what jobs need, nothing for those of whose length nobody knows.

    Args:
        steps: That each has left.
    """
    run_s = np.array([math.nan if one is None else one for one in steps])[offer.job] / offer.speed
    starts = np.where(offer.entry < 0, 1.0, STARTS_IN_BLOCK)
    order = np.lexsort((np.arange(len(run_s)), (offer.usage * power).sum(axis=1) * run_s, offer.job))
    lengths_s = np.maximum(starts * offer.start_s + MARGIN * run_s, LENGTH_MIN_S)[order]
    least_s = np.maximum(offer.start_s + run_s, LENGTH_MIN_S)[order]
    columns, entry, usage, ready_s = offer.columns[order], offer.entry[order], offer.usage[order], offer.ready_s[order]
    begins = firsts(offer.job)
    kept = np.full(len(steps), NONE)
    places = np.flatnonzero(offer.entry[order] < 0)
    kept[offer.job[places]] = places - begins[offer.job[places]]
    bounds, kept_at = [*begins.tolist(), len(order)], kept.tolist()
    for place, (at, job_id) in enumerate(zip(offer.ats, offer.ids, strict=True)):
        if steps[place] is None:
            continue
        job, own = snapshot.jobs[job_id], slice(bounds[place], bounds[place + 1])
        yield Need(
            at=at,
            due_s=job.submitted_at_s + (job.spec.deadline_s or 0.0),
            columns=columns[own],
            entry=entry[own],
            usage=usage[own],
            ready_s=ready_s[own],
            lengths_s=lengths_s[own],
            least_s=least_s[own],
            is_promised=job.is_deadline_promised,
            kept=kept_at[place],
            yields_s=snapshot.restart_s + float(ready_s[own][kept_at[place]]) if kept_at[place] >= 0 else -math.inf,
        )
