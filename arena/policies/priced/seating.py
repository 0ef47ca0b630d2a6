"""From chosen columns to devices: what stays is not touched, what does not fit is cut. Pure: no I/O, no clock.

A group that finds enough GPUs but not enough of them together may have a node cleared for it: the jobs there go on
elsewhere in groups of the same shape, if all of them find room and their restarts cost less than the group is worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from arena.domain.allocation import Allocation, GpuGroup
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.reason import Reason, ReasonCode
from arena.policies.base import Snapshot
from arena.policies.capacity import Capacity
from arena.policies.choose import choose_cell
from arena.policies.priced.columns import Floats, Ints
from arena.policies.priced.market import Kept, Market

JOBS_CLEARED_MAX = 3
"""With more jobs than this cleared away and still no room, a group is given up."""

CLEARINGS_TRIED_MAX = 6
"""Nodes that are tried, those with the fewest GPUs to be cleared first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seats:
    """Devices of the jobs that change.

    Args:
        chosen: Column of each contender; that of jobs that were cleared away is their new one.
        allocations: By contender.
        cuts: Columns that found no devices, with why.
    """

    chosen: Ints
    allocations: Mapping[int, Allocation]
    cuts: Mapping[int, Reason]


def seated(snapshot: Snapshot, market: Market, chosen: Ints, value: Floats) -> Seats:
    """Find devices for all that change at once; large parts first, which leaves the fewest fragments."""
    seating = _Seating(snapshot, market, chosen, value)
    changed = np.flatnonzero((chosen != market.keeping) & (chosen >= 0))
    for at in sorted(changed.tolist(), key=lambda at: (at not in market.entitled, _size(market, int(chosen[at])))):
        seating.seat(at)
    return Seats(chosen=seating.chosen, allocations=seating.allocations, cuts=seating.cuts)


def _size(market: Market, column: int) -> tuple[int, int, JobId]:
    group = market.cell(column).group
    largest = max(part.node_counts[0] for part in group.parts)
    return -largest, -group.gpu_count, market.contenders[int(market.job[column])].job_id


class _Seating:
    def __init__(self, snapshot: Snapshot, market: Market, chosen: Ints, value: Floats) -> None:
        self._snapshot, self._market, self._value = snapshot, market, value
        self._capacity = snapshot.capacity
        for at in np.flatnonzero((chosen != market.keeping) & (market.keeping >= 0)).tolist():
            self._capacity = self._capacity.restore(self._held(at))
        self._entries: dict[tuple[int, GpuGroup], int | None] = {}
        self.chosen = chosen.copy()
        self.allocations: dict[int, Allocation] = {}
        self.cuts: dict[int, Reason] = {}

    def seat(self, at: int) -> None:
        """Find devices for a contender's column, clearing nodes for it where that pays."""
        column = int(self.chosen[at])
        found = self._found(at, column, self._capacity)
        if isinstance(found, Reason):
            if found.code is ReasonCode.FRAGMENTED and self._cleared(at, column):
                return
            self.cuts[column] = found
            return
        self._capacity = self._capacity.take_all(found)
        self.allocations[at] = found

    def _held(self, at: int) -> Allocation:
        holding = self._market.contenders[at].holding
        assert holding is not None
        return holding.allocation

    def _found(self, at: int, column: int, capacity: Capacity) -> Allocation | Reason:
        contender = self._market.contenders[at]
        held = None if contender.holding is None else contender.holding.allocation
        capacity = self._open_to(at, column, capacity)
        found = choose_cell(self._snapshot, contender.job_id, (self._market.cell(column),), capacity, held)
        return found if isinstance(found, Reason) else found[1]

    def _open_to(self, at: int, column: int, capacity: Capacity) -> Capacity:
        """Return what is free for a column, without nodes kept for others that have not found theirs yet."""
        kept_for = {kept.at for kept in self._market.kept}
        if not kept_for or (at in self._market.entitled and at not in kept_for):
            return capacity
        closed = {
            node_id
            for kept in self._market.kept
            if kept.at != at and kept.keeps_out[column] and not self._is_served(kept)
            for node_id in kept.nodes
            if node_id in capacity.rooms
        }
        return capacity.with_rooms([(node_id, capacity.rooms[node_id].pool, ()) for node_id in sorted(closed)])

    def _is_served(self, kept: Kept) -> bool:
        return kept.at in self.allocations and int(self.chosen[kept.at]) in kept.served_by

    def _cleared(self, at: int, column: int) -> bool:
        """Clear nodes until the column fits and all that were on them fit elsewhere; False leaves all as it was."""
        gain = self._gain(at, column)
        capacity, moved = self._capacity, list[tuple[int, int]]()
        for _, at_node in self._clearings(column)[:CLEARINGS_TRIED_MAX]:
            fresh = [pair for pair in at_node if pair not in moved]
            gain -= sum(self._loss(one, move) for one, move in fresh)
            if gain <= 0.0:
                return False
            for one, _ in fresh:
                capacity = capacity.restore(self._held(one))
            moved += fresh
            found = self._found(at, column, capacity)
            if not isinstance(found, Reason) and self._resettled(at, found, moved, capacity.take_all(found)):
                return True
            if len(moved) > JOBS_CLEARED_MAX:
                return False
        return False

    def _resettled(self, at: int, found: Allocation, moved: Sequence[tuple[int, int]], capacity: Capacity) -> bool:
        places: dict[int, Allocation] = {at: found}
        for one, move in sorted(moved, key=lambda pair: _size(self._market, pair[1])):
            place = self._found(one, move, capacity)
            if isinstance(place, Reason):
                return False
            capacity = capacity.take_all(place)
            places[one] = place
        self._capacity = capacity
        self.allocations |= places
        for one, move in moved:
            self.chosen[one] = move
        return True

    def _gain(self, at: int, column: int) -> float:
        keeping = int(self._market.keeping[at])
        return float(self._value[column] - (self._value[keeping] if keeping >= 0 else 0.0))

    def _loss(self, at: int, move: int) -> float:
        return float(self._value[self._market.keeping[at]] - self._value[move])

    def _clearings(self, column: int) -> list[tuple[tuple[int, NodeId], list[tuple[int, int]]]]:
        """Return nodes of the column's types with the jobs there that could go on elsewhere, fewest GPUs first."""
        types = {part.gpu_type for part in self._market.cell(column).group.parts}
        on_node: dict[NodeId, list[tuple[int, int]]] = {}
        counts: dict[NodeId, int] = {}
        for at in np.flatnonzero((self.chosen == self._market.keeping) & (self.chosen >= 0)).tolist():
            here = [share for share in self._held(at).shares if self._type_of(share.node_id) in types]
            move = self._alike(at) if here else None
            if move is None:
                continue
            for share in here:
                on_node.setdefault(share.node_id, []).append((at, move))
                counts[share.node_id] = counts.get(share.node_id, 0) + len(share.device_ids)
        return sorted(((counts[node_id], node_id), found) for node_id, found in on_node.items())

    def _alike(self, at: int) -> int | None:
        """Return the column by which a job goes on elsewhere as it is."""
        contender = self._market.contenders[at]
        if not contender.is_shapeable or contender.holding is None:
            return None
        table, group = contender.table, contender.holding.group
        key = (id(table), group)
        if key not in self._entries:
            self._entries[key] = next((entry for entry, cell in enumerate(table.cells) if cell.group == group), None)
        entry = self._entries[key]
        return None if entry is None else int(self._market.keeping[at]) - len(table.cells) + entry

    def _type_of(self, node_id: NodeId) -> str | None:
        room = self._snapshot.capacity.devices.get(node_id)
        return None if room is None else room.pool[0]
