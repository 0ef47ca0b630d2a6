"""Nodes that are kept for a job that must start and cannot yet, and from when on it has them. Pure: no I/O, no clock.

Of each of the job's columns, the nodes are taken that will have what it needs first: what may be stopped counts as
free, what may not is there until it is believed to end, and what has only just been started until it runs. The column
that would end first decides. Others may start on these nodes only if they are gone, or could be stopped, by then
(backfilling). So while lengths are as believed nothing moves that instant back, and the nodes stay the first ones;
where others become free sooner, they are taken instead.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from arena.domain.launch import NodeId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.base import Snapshot
from arena.policies.capacity import Pool
from arena.policies.priced.columns import Floats, Ints, firsts
from arena.policies.priced.market import Market, Table
from arena.policies.priced.work_left import holding_ends_at_s, steps_left

NODES_NAMED_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Nodes for a contender.

    Args:
        column: What it is to have there.
        start_s: When it can have it.
        length_s: How long it is believed to be there, its start included; infinite where nobody knows.
        served_by: Columns that would do now as well, wherever they are.
    """

    at: int
    column: int
    nodes: tuple[NodeId, ...]
    start_s: float
    length_s: float
    served_by: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """When nodes will have so many GPUs, as far as this decision cannot have them sooner.

    Args:
        clean: GPUs of each usable node, by pool.
        busy: When GPUs come back that cannot be had now, by node: (instant, count), sorted.
    """

    now_s: float
    clean: Mapping[Pool, Sequence[tuple[NodeId, int]]]
    busy: Mapping[NodeId, Sequence[tuple[float, int]]]
    _first: dict[tuple[Pool, int], list[tuple[float, int, NodeId]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _idle: dict[tuple[Pool, int], int] = field(default_factory=dict, repr=False, compare=False)
    _ready: dict[tuple[tuple[Pool, int], ...], float] = field(default_factory=dict, repr=False, compare=False)

    def first(self, pool: Pool, count: int) -> list[tuple[float, int, NodeId]]:
        """Return the nodes of a pool that can have so many GPUs at all, with when, and how many are busy until then.

        The first one comes first; where nobody knows, that with the fewest that are busy.
        """
        key = (pool, count)
        if key not in self._first:
            self._first[key] = sorted(
                (self._ready_s(node_id, size, count), sum(held for _, held in self.busy.get(node_id, ())), node_id)
                for node_id, size in self.clean.get(pool, ())
                if size >= count
            )
        return self._first[key]

    def ready_s(self, table: Table) -> Floats:
        """Return when there are nodes for each entry of a table at the earliest; infinite where nobody knows."""
        found = []
        for entry in range(len(table.cells)):
            parts = parts_of(table, entry)
            if parts not in self._ready:
                self._ready[parts] = self._ready_for(parts)
            found.append(self._ready[parts])
        return np.array(found)

    def _ready_for(self, parts: Iterable[tuple[Pool, int]]) -> float:
        counts = dict[Pool, list[int]]()
        for pool, count in parts:
            counts.setdefault(pool, []).append(count)
        instants = [self.now_s]
        for pool, wanted in counts.items():
            for count in set(wanted):
                # As many nodes as there are parts of this size and larger ones: for nested choices that suffices.
                number = sum(one >= count for one in wanted)
                if number <= self._at_once(pool, count):
                    continue
                nodes = self.first(pool, count)
                instants.append(nodes[number - 1][0] if number <= len(nodes) else math.inf)
        return max(instants)

    def _at_once(self, pool: Pool, count: int) -> int:
        """Return how many nodes have so many GPUs and nothing on them that cannot be had."""
        key = (pool, count)
        if key not in self._idle:
            nodes = self.clean.get(pool, ())
            self._idle[key] = sum([size >= count and node_id not in self.busy for node_id, size in nodes])
        return self._idle[key]

    def _ready_s(self, node_id: NodeId, size: int, count: int) -> float:
        back = self.busy.get(node_id, ())
        there = size - sum(held for _, held in back)
        if there >= count:
            return self.now_s
        for ends_at_s, held in back:
            there += held
            if there >= count:
                return ends_at_s
        return math.inf


def node_times(snapshot: Snapshot, market: Market, *, is_limited: bool = True) -> NodeTimes:
    """Return when the nodes of a snapshot will be free.

    Args:
        is_limited: Whether jobs that were moved too often of late may not be moved, whoever needs what they have.
    """
    clean: dict[Pool, list[tuple[NodeId, int]]] = {}
    for node_id, room in snapshot.capacity.devices.items():
        clean.setdefault(room.pool, []).append((node_id, len(room.free)))
    competing = {contender.job_id for contender in market.contenders}
    busy: dict[NodeId, list[tuple[float, int]]] = {}
    for job_id, holding in snapshot.holding.items():
        if job_id in competing:
            continue
        ends_at_s = holding_ends_at_s(snapshot, job_id, holding, is_limited=is_limited)
        instant_s = math.inf if ends_at_s is None else max(ends_at_s, snapshot.now_s)
        for share in holding.allocation.shares:
            busy.setdefault(share.node_id, []).append((instant_s, len(share.device_ids)))
    return NodeTimes(snapshot.now_s, clean, {node_id: sorted(back) for node_id, back in busy.items()})


def reserved(
    market: Market, times: NodeTimes, columns: Ints, lengths_s: Floats, *, without: Collection[NodeId] = ()
) -> Reservation | None:
    """Return the nodes for one contender, None where it finds none in any column.

    Args:
        columns: Its columns, those that it should rather have first; shape (columns,).
        lengths_s: How long each would be there.
        without: Nodes that are kept for others.
    """
    best: Reservation | None = None
    all_ = frozenset(columns.tolist())
    for column, length_s in zip(columns.tolist(), lengths_s.tolist(), strict=True):
        found = nodes_for(_parts(market, column), times, without)
        if found is None:
            continue
        start_s, nodes = found
        end_s, best_end_s = start_s + length_s, math.inf if best is None else best.start_s + best.length_s
        if best is None or (end_s, start_s) < (best_end_s, best.start_s):
            at = int(market.job[int(column)])
            best = Reservation(
                at=at, column=int(column), nodes=nodes, start_s=start_s, length_s=length_s, served_by=all_
            )
    return best


def nodes_for(
    parts: Sequence[tuple[Pool, int]], times: NodeTimes, without: Collection[NodeId]
) -> tuple[float, tuple[NodeId, ...]] | None:
    """Return when so many GPUs on each of some nodes can be had, and on which; see ``parts_of``."""
    chosen: list[NodeId] = []
    start_s = times.now_s
    for pool, count in parts:
        ready = (one for one in times.first(pool, count) if one[2] not in chosen and one[2] not in without)
        first = next(ready, None)
        if first is None:
            return None
        start_s = max(start_s, first[0])
        chosen.append(first[2])
    return start_s, tuple(chosen)


def _parts(market: Market, column: int) -> tuple[tuple[Pool, int], ...]:
    """Return pool and GPUs of each node of a column that is not to keep what is there."""
    return parts_of(market.contenders[int(market.job[column])].table, int(market.entry[column]))


def parts_of(table: Table, entry: int) -> tuple[tuple[Pool, int], ...]:
    """Return pool and GPUs of each node of an entry of a table, the largest of a part first."""
    parts = zip(table.cells[entry].group.parts, table.zones[entry], strict=True)
    return tuple([((part.gpu_type, zone), count) for part, zone in parts for count in part.node_counts])


def needs_whole_nodes(parts: Iterable[tuple[Pool, int]], times: NodeTimes) -> bool:
    """Tell whether some node would give more than half of its GPUs, so that what lies around can be in the way."""
    return any(2 * count > max((size for _, size in times.clean.get(pool, ())), default=0) for pool, count in parts)


def lengths_of(snapshot: Snapshot, market: Market, columns: Ints) -> Floats:
    """Return how long a contender would be on its columns, its start included; infinite where nobody knows."""
    at = int(market.job[columns[0]])
    speed, count = market.speed[columns], market.gpu_count[columns]
    steps = steps_left(snapshot, market.contenders[at].job_id, float((count / speed).min()))
    run_s: Floats = np.full(len(columns), np.inf) if steps is None else steps / speed
    return run_s + snapshot.restart_s


def kept_out(snapshot: Snapshot, market: Market, until_s: float) -> NDArray[np.bool_]:
    """Return the columns that would not be gone from their GPUs by an instant, and could not be stopped by then.

    Args:
        until_s: Infinite where nobody knows: then all that can never be stopped are kept out.
    """
    late = (market.entry >= 0) & (snapshot.now_s + snapshot.restart_s > until_s)
    for own in unstoppable(snapshot, market):
        late[own] = not until_s < math.inf or snapshot.now_s + lengths_of(snapshot, market, own) > until_s
    return late


def unstoppable(snapshot: Snapshot, market: Market) -> Iterator[Ints]:
    """Yield the columns of each waiting contender that may never be stopped."""
    bounds = [*firsts(market.job).tolist(), len(market.job)]
    for at, contender in enumerate(market.contenders):
        if contender.holding is None and not snapshot.jobs[contender.job_id].spec.preemptible:
            yield np.arange(bounds[at], bounds[at + 1])


def reservation_reason(snapshot: Snapshot, market: Market, found: Reservation) -> Reason:
    """Return what is kept for a job, and from when on it can have it."""
    named = ", ".join(found.nodes[:NODES_NAMED_MAX])
    more = f" and {len(found.nodes) - NODES_NAMED_MAX} more" if len(found.nodes) > NODES_NAMED_MAX else ""
    group = str(market.group(found.column))
    if not found.start_s < math.inf:
        return reason(ReasonCode.RESERVED_OPEN, group=group, nodes=named + more)
    return reason(ReasonCode.RESERVED, group=group, nodes=named + more, start_s=found.start_s - snapshot.now_s)
