"""From chosen columns to devices: what stays is not touched, what does not fit is cut. Pure: no I/O, no clock.

A group that finds enough GPUs but not enough of them together may have a node cleared for it: the jobs there go on
elsewhere in groups of the same shape, if all of them find room and their restarts cost less than the group is worth.
What a cut leaves over is not left so: whoever gains most by it has it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

import numpy as np
from numpy.typing import NDArray

from arena.domain.allocation import Allocation, GpuGroup, NodeShare
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.reason import Reason, ReasonCode
from arena.policies.base import Snapshot
from arena.policies.capacity import Capacity
from arena.policies.choose import choose_cell
from arena.policies.priced.columns import NONE, Columns, Floats, Ints, Priced, least_gains
from arena.policies.priced.market import Kept, Market
from arena.policies.priced.rooms import SLACK, Rooms

JOBS_CLEARED_MAX = 3
"""With more jobs than this cleared away and still no room, a group is given up."""

CLEARINGS_TRIED_MAX = 6
"""Nodes that are tried, those with the fewest GPUs to be cleared first."""

FILL_ROUNDS = 4
"""Times that what is left over is looked at: a job that grows gives something back as well."""

_FOR_EVERYBODY = frozenset({ReasonCode.FRAGMENTED, ReasonCode.INSUFFICIENT_GPUS})
"""Of a job that has nothing; who finds no devices for one of these reasons finds none as any other job either."""

GROWTHS_TRIED_MAX = 64
"""Running jobs that are tried on what is left over, each with the devices it has."""


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
    seating.seat_all()
    return Seats(chosen=seating.chosen, allocations=seating.allocations, cuts=seating.cuts)


Offer = tuple[Columns, Priced, Rooms]
"""What there is to choose from, at which prices, and how much of each row."""


def seated_or_better(snapshot: Snapshot, market: Market, offer: Offer, chosen: Ints, *, is_full: bool) -> Seats:
    """Find devices for all that change; what finds none has the most profitable column that does, or nothing.

    So has everybody else who gains by what is left over then.

    Args:
        is_full: Whether the choice leaves nothing over, if all of it finds devices.
    """
    seating = _Seating(snapshot, market, chosen, offer[0].value)
    seating.seat_all()
    seating.chosen[[int(market.job[column]) for column in seating.cuts]] = NONE
    if seating.cuts or seating.has_suspended or not is_full:
        _fill(seating, offer)
    return Seats(chosen=seating.chosen, allocations=seating.allocations, cuts=seating.cuts)


def _fill(seating: _Seating, offer: Offer) -> None:
    """Give what is left over to whoever gains most by it."""
    columns, priced, rooms = offer
    growths = GROWTHS_TRIED_MAX
    for _ in range(FILL_ROUNDS):
        least = least_gains(seating.chosen, priced.bound)
        order = rooms.gaining(columns, priced.reduced, seating.chosen, least)
        is_growth = seating.stay(columns.job[order])
        beyond = np.cumsum(is_growth) > growths
        growths -= int(is_growth.sum())
        if not _given_out(seating, columns, rooms, order[~(is_growth & beyond)]):
            return


def _given_out(seating: _Seating, columns: Columns, rooms: Rooms, order: Ints) -> bool:
    """Give columns to their jobs one after the other while they find devices; tell whether any job gave some back."""
    chosen, has_grown = seating.chosen, False
    used = rooms.used(columns, chosen)
    free = rooms.free(used)
    worth = np.where(chosen >= 0, columns.value[chosen], 0.0)
    jobs, values = columns.job[order].tolist(), columns.value[order].tolist()
    for column, at, value in zip(order.tolist(), jobs, values, strict=True):
        if value <= worth[at] or seating.is_hopeless(at, column):
            continue
        before, owner = int(chosen[at]), int(rooms.owner[at])
        need = columns.usage[column] - (columns.usage[before] if before >= 0 else 0.0)
        if (need > free[owner] + SLACK).any() or not seating.change(at, column):
            continue
        used[owner] += need
        free, worth[at] = rooms.free(used), value
        has_grown = has_grown or before >= 0
    return has_grown


def _size(market: Market, column: int) -> tuple[int, int, JobId]:
    group = market.cell(column).group
    largest = max(part.node_counts[0] for part in group.parts)
    return -largest, -group.gpu_count, market.contenders[int(market.job[column])].job_id


class _Seating:
    def __init__(self, snapshot: Snapshot, market: Market, chosen: Ints, value: Floats) -> None:
        self._snapshot, self.market, self._value = snapshot, market, value
        self._capacity = snapshot.capacity
        for at in np.flatnonzero((chosen != market.keeping) & (market.keeping >= 0)).tolist():
            self._capacity = self._capacity.restore(self._held(at))
        self._entries: dict[tuple[int, GpuGroup], int | None] = {}
        self._hopeless: set[tuple[int, int]] = set()
        self._stayed: list[tuple[int, tuple[NodeShare, ...]]] | None = None
        self._stayers_by_type: dict[str, dict[NodeId, list[tuple[int, int, int]]]] = {}
        self.chosen = chosen.copy()
        self.allocations: dict[int, Allocation] = {}
        self.cuts: dict[int, Reason] = {}
        self.has_suspended = False

    def seat_all(self) -> None:
        """Find devices for all that change, those with a right to them first, then large parts."""
        market, chosen = self.market, self.chosen
        changed = np.flatnonzero((chosen != market.keeping) & (chosen >= 0)).tolist()
        for at in sorted(changed, key=lambda at: (at not in market.entitled, _size(market, int(chosen[at])))):
            self._seat(at)

    def _seat(self, at: int) -> None:
        """Find devices for a contender's column, clearing nodes for it where that pays."""
        column = int(self.chosen[at])
        found = self._found(at, column, self._capacity)
        if isinstance(found, Reason):
            if self._may_be_cleared(at, column, found) and self._cleared(at, column):
                return
            self.cuts[column] = found
            return
        self._capacity = self._capacity.take_all(found)
        self.allocations[at] = found

    def _may_be_cleared(self, at: int, column: int, why: Reason) -> bool:
        """Tell whether nodes are cleared for who found no devices: so many are free, but not together.

        To one whose deadline presses they need not look so many: those on nodes kept for other deadlines are not free
        to it, and what it was to have there others have on its own.
        """
        if why.code is ReasonCode.FRAGMENTED:
            return True
        is_due = any(kept.at == at and kept.is_due for kept in self.market.kept)
        return (
            why.code is ReasonCode.INSUFFICIENT_GPUS
            and is_due
            and bool(self._closed(at, column, for_deadlines_only=True))
        )

    def stays(self, at: int) -> bool:
        """Tell whether a contender keeps what it has, as far as has been chosen."""
        return bool(self.chosen[at] >= 0 and self.chosen[at] == self.market.keeping[at])

    def stay(self, contenders: Ints) -> NDArray[np.bool_]:
        """Tell the same of many."""
        chosen = self.chosen[contenders]
        return np.asarray((chosen >= 0) & (chosen == self.market.keeping[contenders]))

    def is_hopeless(self, at: int, column: int) -> bool:
        """Tell whether a contender that is to have nothing so far is known to find no devices for a column."""
        return self.chosen[at] < 0 and self._key(at, column) in self._hopeless

    def _key(self, at: int, column: int) -> tuple[int, int]:
        """Return what all have in common that want one cell."""
        return id(self.market.contenders[at].table), int(self.market.entry[column])

    def change(self, at: int, column: int) -> bool:
        """Give a contender another column instead of what it was to have; False where that finds no devices."""
        stays, given = self.stays(at), self.allocations.get(at)
        before = self._held(at) if stays else given
        if column == self.market.keeping[at]:
            return self._kept(at, column, given)
        capacity = self._capacity if before is None else self._capacity.restore(before)
        found = self._found(at, column, capacity)
        if isinstance(found, Reason):
            if before is None and found.code in _FOR_EVERYBODY and not self.market.kept:
                self._hopeless.add(self._key(at, column))
            return False
        if before is not None:
            self._hopeless.clear()  # it gives something back
        self._capacity = capacity.take_all(found)
        self.allocations[at], self.chosen[at] = found, column
        return True

    def _kept(self, at: int, column: int, given: Allocation | None) -> bool:
        """Leave a contender what it has, if nobody else was to have any of it."""
        capacity, held = self._capacity if given is None else self._capacity.restore(given), self._held(at)
        if any(not set(share.device_ids) <= set(capacity.free_on(share.node_id)) for share in held.shares):
            return False
        if given is not None:
            self._hopeless.clear()
            del self.allocations[at]
        self._capacity, self.chosen[at] = capacity.take_all(held), column
        return True

    def _held(self, at: int) -> Allocation:
        holding = self.market.contenders[at].holding
        assert holding is not None
        return holding.allocation

    def _found(self, at: int, column: int, capacity: Capacity) -> Allocation | Reason:
        contender = self.market.contenders[at]
        held = None if contender.holding is None else contender.holding.allocation
        capacity = self._open_to(at, column, capacity)
        found = choose_cell(self._snapshot, contender.job_id, (self.market.cell(column),), capacity, held)
        return found if isinstance(found, Reason) else found[1]

    def _open_to(self, at: int, column: int, capacity: Capacity) -> Capacity:
        """Return what is free for a column, without nodes kept for others that have not found theirs yet."""
        closed = sorted(node_id for node_id in self._closed(at, column) if node_id in capacity.rooms)
        if not closed:
            return capacity
        return capacity.with_rooms([(node_id, capacity.rooms[node_id].pool, ()) for node_id in closed])

    def _closed(self, at: int, column: int, *, for_deadlines_only: bool = False) -> set[NodeId]:
        """Return the nodes that are kept for others that have not found theirs yet.

        Args:
            for_deadlines_only: Whether those that are kept for one that has waited too long do not count.
        """
        kept_for = {kept.at for kept in self.market.kept}
        if not kept_for or (at in self.market.entitled and at not in kept_for):
            return set()
        return {
            node_id
            for kept in self.market.kept
            if kept.at != at
            and kept.keeps_out[column]
            and not self._is_served(kept)
            and (kept.is_due or not for_deadlines_only)
            for node_id in kept.nodes
        }

    def _is_served(self, kept: Kept) -> bool:
        return kept.at in self.allocations and int(self.chosen[kept.at]) in kept.served_by

    def _cleared(self, at: int, column: int) -> bool:
        """Clear nodes until the column fits and all that were on them fit elsewhere; False leaves all as it was.

        For who has a right to its devices others are suspended as well, if they are worth less.
        """
        gain, is_entitled = self._gain(at, column), at in self.market.entitled
        capacity, moved = self._capacity, list[tuple[int, int]]()
        for at_node in self._clearings(column, is_entitled, self._closed(at, column, for_deadlines_only=True)):
            fresh = [pair for pair in at_node if pair not in moved]
            gain -= sum(self._loss(one, move) for one, move in fresh)
            if gain <= 0.0:
                return False
            for one, _ in fresh:
                capacity = capacity.restore(self._held(one))
            moved += fresh
            found = self._found(at, column, capacity)
            spare = gain if is_entitled else 0.0
            if not isinstance(found, Reason) and self._resettled({at: found}, moved, capacity.take_all(found), spare):
                return True
            if len(moved) > JOBS_CLEARED_MAX:
                return False
        return False

    def _resettled(
        self, places: dict[int, Allocation], moved: Sequence[tuple[int, int]], capacity: Capacity, spare: float
    ) -> bool:
        """Find devices elsewhere for all that are moved; False where that takes more than it is worth.

        Args:
            places: Devices of who they are moved for.
            moved: Contenders with their new columns, ``NONE`` for those that are suspended.
            spare: What may be lost by suspending those that find none.
        """
        going = [one for one, move in moved if move < 0]
        for one, move in sorted((pair for pair in moved if pair[1] >= 0), key=lambda pair: _size(self.market, pair[1])):
            place = self._found(one, move, capacity)
            if isinstance(place, Reason):
                spare -= float(self._value[move])
                if spare <= 0.0:
                    return False
                going.append(one)
                continue
            capacity = capacity.take_all(place)
            places[one] = place
        self._capacity = capacity
        self.allocations |= places
        for one, move in moved:
            self.chosen[one] = NONE if one in going else move
        self.has_suspended |= bool(going)
        return True

    def _gain(self, at: int, column: int) -> float:
        keeping = int(self.market.keeping[at])
        return float(self._value[column] - (self._value[keeping] if keeping >= 0 else 0.0))

    def _loss(self, at: int, move: int) -> float:
        return float(self._value[self.market.keeping[at]] - (self._value[move] if move >= 0 else 0.0))

    def _clearings(self, column: int, may_suspend: bool, closed: Collection[NodeId]) -> list[list[tuple[int, int]]]:
        """Return the jobs of nodes of the column's types that could go on elsewhere, of the fewest GPUs first.

        Args:
            may_suspend: Whether those that could not count as well; then the nodes are first where least is lost.
            closed: Nodes that are not looked at: what is cleared there would not be open to the column.
        """
        found: list[tuple[float, NodeId, list[tuple[int, int]]]] = []
        for gpu_type in sorted({part.gpu_type for part in self.market.cell(column).group.parts}):
            on_node = self._stayers(gpu_type)
            weighed = (
                (self._weight(here, may_suspend), node_id)
                for node_id, here in on_node.items()
                if node_id not in closed and any(self.stays(at) and (move >= 0 or may_suspend) for at, move, _ in here)
            )
            for weight, node_id in nsmallest(CLEARINGS_TRIED_MAX, weighed):
                here = [(at, move) for at, move, _ in on_node[node_id] if self.stays(at) and (move >= 0 or may_suspend)]
                found.append((weight, node_id, here))
        return [here for _, _, here in sorted(found)[:CLEARINGS_TRIED_MAX]]

    def _weight(self, here: Sequence[tuple[int, int, int]], may_suspend: bool) -> float:
        """Return how much stands in the way on a node: GPUs, or what would be lost."""
        if may_suspend:
            return sum([self._loss(at, move) for at, move, _ in here if self.stays(at)])
        return float(sum([count for at, move, count in here if move >= 0 and self.stays(at)]))

    def _stayers(self, gpu_type: str) -> Mapping[NodeId, list[tuple[int, int, int]]]:
        """Who stays as chosen when this was first asked: by node, contender, column to go on elsewhere, GPUs there."""
        known = self._stayers_by_type.get(gpu_type)
        if known is not None:
            return known
        if self._stayed is None:
            stayed = np.flatnonzero((self.chosen == self.market.keeping) & (self.chosen >= 0)).tolist()
            self._stayed = [(at, self._held(at).shares) for at in stayed]
        found = self._stayers_by_type[gpu_type] = {}
        for at, shares in self._stayed:
            for share in shares:
                if self._type_of(share.node_id) != gpu_type:
                    continue
                move = self._alike(at)
                on_node = found.setdefault(share.node_id, [])
                on_node.append((at, NONE if move is None else move, len(share.device_ids)))
        return found

    def _alike(self, at: int) -> int | None:
        """Return the column by which a job goes on elsewhere as it is."""
        contender = self.market.contenders[at]
        if not contender.is_shapeable or contender.holding is None:
            return None
        table, group = contender.table, contender.holding.group
        key = (id(table), group)
        if key not in self._entries:
            self._entries[key] = next((entry for entry, cell in enumerate(table.cells) if cell.group == group), None)
        entry = self._entries[key]
        return None if entry is None else int(self.market.keeping[at]) - len(table.cells) + entry

    def _type_of(self, node_id: NodeId) -> str | None:
        room = self._snapshot.capacity.devices.get(node_id)
        return None if room is None else room.pool[0]
