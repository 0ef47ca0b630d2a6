"""Who can be given nothing, whatever others give up, and what is in their way. Pure: no I/O, no clock.

Of such a job no price tells anything: nobody bids for what it needs, or who has it may not be asked. What is said
instead is the same for all jobs of one grid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

import numpy as np
from numpy.typing import NDArray

from arena.domain.cluster import NodeState
from arena.domain.grid import Cell, Grid
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import NodeRecord
from arena.policies.base import Snapshot
from arena.policies.capacity import Pool
from arena.policies.placement import Wanted, place, refused
from arena.policies.priced.columns import Floats, Ints, firsts
from arena.policies.priced.market import Market, Row
from arena.policies.priced.moves import MOVES_MAX, MOVES_S, left_alone_until_s
from arena.units import format_count

LEFT_ALONE_NAMED_MAX = 3
NAMED_MAX = 5
_SLACK = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortages:
    """What there is too little of, for those that compete.

    Args:
        fits: Columns that could be had if all gave way that may be asked to.
        is_short: Contenders without such a column.
    """

    snapshot: Snapshot
    market: Market
    fits: NDArray[np.bool_]
    is_short: NDArray[np.bool_]
    _told: dict[int, tuple[Reason, ...]] = field(default_factory=dict, repr=False, compare=False)
    _of_types: dict[frozenset[str], tuple[Reason, ...]] = field(default_factory=dict, repr=False, compare=False)

    def reasons(self, at: int) -> tuple[Reason, ...]:
        """Return what a contender that waits lacks and who has it; nothing where it could be given something."""
        if not self.is_short[at]:
            return ()
        table = self.market.contenders[at].table
        told = self._told.get(id(table))
        if told is None:
            same_zone = self.snapshot.jobs[self.market.contenders[at].job_id].spec.gpus.same_zone
            told = self._told[id(table)] = self._lacking(table.cells, same_zone=same_zone)
        return told

    def tops(self, reduced: Floats, top: Ints) -> Ints:
        """Return the best column of each contender among those that it could have, where there is one.

        Args:
            reduced: By column, the value beyond the price.
            top: The best of all columns.
        """
        if self.fits[top].all():
            return top
        among = np.where(self.fits, reduced, -np.inf)
        hits = np.flatnonzero(among == np.maximum.reduceat(among, firsts(self.market.job))[self.market.job])
        return np.where(self.is_short, top, hits[firsts(self.market.job[hits])])

    def _lacking(self, cells: Sequence[Cell], *, same_zone: bool) -> tuple[Reason, ...]:
        """Return why the smallest cell cannot be placed now, and what is in its way; nothing where it can be."""
        least = min(cells, key=lambda cell: cell.group.gpu_count)
        wanted = Wanted(plan=least.best.plan, same_zone=same_zone, shape=self.snapshot.shape)
        found = place(self.snapshot.capacity, least.group, wanted)
        if not isinstance(found, Reason):
            return ()
        return (found, *self._in_the_way_of(cells))

    def in_the_way(self, at: int) -> tuple[Reason, ...]:
        """Return where GPUs are that a contender could use and that may not be given to anybody at present."""
        return self._in_the_way_of(self.market.contenders[at].table.cells)

    def _in_the_way_of(self, cells: Sequence[Cell]) -> tuple[Reason, ...]:
        types = frozenset(part.gpu_type for cell in cells for part in cell.group.parts)
        if types not in self._of_types:
            self._of_types[types] = _in_the_way(self.snapshot, self.market, types)
        return self._of_types[types]


def shortages(snapshot: Snapshot, market: Market, *, asking: int | None = None) -> Shortages:
    """Return what there is too little of.

    Args:
        market: With the rows of shares, where there are any.
        asking: A contender that is asked about: what it has itself is not in its own way.
    """
    alone = _left_alone(snapshot, market, asking)
    limit = market.supply - market.usage[market.keeping[alone]].sum(axis=0) + _SLACK
    types = {pool.gpu_type for pool in snapshot.shape.pools}
    of_gpus = np.array([_is_of_gpus(row, types) for row in market.rows], dtype=bool)
    fits = _fitting(market, np.where(of_gpus, limit, np.inf), _holes(snapshot, market, (of_gpus, limit), alone))
    is_short = np.zeros(len(market.contenders), dtype=bool)
    if not fits.all():
        is_short = ~np.logical_or.reduceat(fits, firsts(market.job))
    return Shortages(snapshot=snapshot, market=market, fits=fits, is_short=is_short)


def _is_of_gpus(row: Row, types: set[str]) -> bool:
    """Tell whether a row is of what there is, not of what shares or deadlines leave of it."""
    return row.pool[0] in types and not row.kept_for and not row.is_lasting


def _left_alone(snapshot: Snapshot, market: Market, asking: int | None) -> list[int]:
    """Return the contenders that give way to claims only, having been moved too often."""
    recent = np.flatnonzero((snapshot.now_s - market.facts["again_s"] < MOVES_S) & (market.keeping >= 0)).tolist()
    return [at for at in recent if market.contenders[at].recent_moves >= MOVES_MAX and at != asking]


def _holes(
    snapshot: Snapshot, market: Market, supply: tuple[NDArray[np.bool_], Floats], alone: Sequence[int]
) -> dict[Pool, int]:
    """Return how many GPUs one node of each pool could give at most if all gave way that may be asked to.

    Nodes are looked at one by one only where none of a pool's largest could be had whole.

    Args:
        supply: Which rows are of what there is, and how much of each row could be had.
        alone: Contenders that may not be asked.
    """
    of_gpus, limit = supply
    top = {row.pool: (row.chunk, at) for at, row in enumerate(market.rows) if of_gpus[at]}  # the largest comes last
    holes = {pool: chunk for pool, (chunk, at) in top.items() if limit[at] >= chunk}
    if len(holes) == len(top):
        return holes
    devices, rooms, held = snapshot.capacity.devices, snapshot.capacity.rooms, Counter[NodeId]()
    for at in sorted(set(np.flatnonzero(market.keeping >= 0).tolist()).difference(alone)):
        holding = market.contenders[at].holding
        for share in () if holding is None else holding.allocation.shares:
            held[share.node_id] += len(share.device_ids)
    found = dict.fromkeys(top, 0)
    for node_id, room in devices.items():
        if room.pool in found and room.pool not in holes:
            free = len(rooms[node_id].free) if node_id in rooms else 0
            found[room.pool] = max(found[room.pool], min(free + held[node_id], len(room.free)))
    return found | holes


def _fitting(market: Market, limit: Floats, holes: Mapping[Pool, int]) -> NDArray[np.bool_]:
    """Return the columns that take no more than there is, and no more on one node than any could give.

    What a job has fits. All jobs of one grid have the same columns besides, so each grid is looked at once.
    """
    _, first, own = np.unique(market.facts["table"], return_index=True, return_inverse=True)
    tables = [market.contenders[at].table for at in first.tolist()]
    hole = np.array([holes.get(row.pool, np.inf) for row in market.rows])
    count = tables[0].usage.shape[1]  # rows of shares and of deadlines come behind those of tables
    within = np.concatenate([one.usage for one in tables]) <= limit[:count]
    within &= np.concatenate([one.widest for one in tables]) <= hole[:count]
    if within.all():
        return np.ones(len(market.job), dtype=bool)
    fit, sizes = np.asarray(within.all(axis=1)), np.array([len(one.cells) for one in tables])
    place = (np.cumsum(sizes) - sizes)[own][market.job] + market.entry
    return np.where(market.entry >= 0, fit[np.maximum(place, 0)], True)


def _in_the_way(snapshot: Snapshot, market: Market, types: frozenset[str]) -> tuple[Reason, ...]:
    """Return where GPUs of some types are that may not be given to anybody at present."""
    out = [one for kind in sorted(types) if (one := _out_of_service(snapshot, kind)) is not None]
    asked = {one.job_id for one in market.contenders if one.recent_moves < MOVES_MAX}
    others = [
        job_id
        for job_id, held in snapshot.holding.items()
        if job_id not in asked and any(part.gpu_type in types for part in held.group.parts)
    ]
    until_s = {job_id: at_s for job_id in others if (at_s := _left_alone_until_s(snapshot, job_id)) is not None}
    soonest = nsmallest(LEFT_ALONE_NAMED_MAX, ((at_s, job_id) for job_id, at_s in until_s.items()))
    alone = [
        reason(ReasonCode.LEFT_ALONE, job=job_id, count=MOVES_MAX, rest_s=at_s - snapshot.now_s)
        for at_s, job_id in soonest
    ]
    fixed = [job_id for job_id in others if job_id not in until_s]
    unmovable = [reason(ReasonCode.UNMOVABLE, jobs=_named(fixed))] if fixed else []
    return (*out, *alone, *unmovable)


def _left_alone_until_s(snapshot: Snapshot, job_id: JobId) -> float | None:
    job = snapshot.jobs[job_id]
    may_move = snapshot.holding[job_id].movable and job.spec.preemptible
    return left_alone_until_s(job, snapshot.now_s) if may_move else None


def _named(names: Sequence[JobId] | Sequence[NodeId]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(nsmallest(NAMED_MAX, names)) + more


def _out_of_service(snapshot: Snapshot, gpu_type: str) -> Reason | None:
    """Return how many GPUs of a type may not be given away, on which nodes and why; None where all may be."""
    total = snapshot.shape.gpu_count_by_type.get(gpu_type, 0)
    out = total - sum(len(room.free) for room in snapshot.capacity.devices.values() if room.pool[0] == gpu_type)
    if out <= 0:
        return None
    nodes = sorted((node_id, node) for node_id, node in snapshot.nodes.items() if node.info.gpu_type == gpu_type)
    told = [why for _, node in nodes if (why := _trouble_of(node))]
    more = f"; and {len(told) - NAMED_MAX} more nodes" if len(told) > NAMED_MAX else ""
    where = "; ".join(told[:NAMED_MAX]) + more
    return reason(ReasonCode.OUT_OF_SERVICE, out=out, total=total, gpu_type=gpu_type, where=where or "just now")


def _trouble_of(node: NodeRecord) -> str:
    """Return why a node, or a part of it, takes no work; nothing where it does, or is not counted any more."""
    if node.state is NodeState.LOST:
        return ""
    if node.state is not NodeState.READY:
        return f"{node.node_id} is {node.state.value}" + (f", {node.state_cause}" if node.state_cause else "")
    if node.disconnected_at_s is not None:
        return f"{node.node_id} is out of reach"
    dirty = [device.dirty for device in node.info.devices if device.dirty]
    return f"{format_count(len(dirty), 'GPU')} of {node.node_id}: {dirty[0]}" if dirty else ""


def no_cell(snapshot: Snapshot, grid: Grid) -> tuple[Reason, ...]:
    """Return why a grid has nothing for this cluster: that may be over as soon as nodes come back."""
    if not snapshot.shape.pools:
        return (reason(ReasonCode.NO_NODES, nodes=len(snapshot.places)),)
    types = snapshot.shape.gpu_count_by_type.keys()
    gone = [cell for cell in (*grid.cells, *grid.mixed) if {part.gpu_type for part in cell.group.parts} - types]
    if gone:
        return (refused(snapshot.capacity, gone[0].group, Wanted(shape=snapshot.shape)),)
    elsewhere = reason(ReasonCode.NO_FEASIBLE_PLAN, detail="its grid has no cell of the GPU types that are here")
    return tuple(item.reason for item in grid.infeasible[:1]) or (elsewhere,)
