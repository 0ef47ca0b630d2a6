"""Free devices as a persistent value with an index by node and hole size. Pure: no I/O, no clock.

``take`` and ``give`` return a new value and share what did not change, so a snapshot costs nothing and a what-if
costs only what it touches. ``restore`` answers "what if this job gave its devices back": it knows every clean device
of the usable nodes, also those in use, so a device of a draining node or a dirty one never comes back by it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from immutables import Map

from arena.domain.allocation import Allocation
from arena.domain.launch import DeviceId, NodeId
from arena.domain.replacing import quickly_made, replace
from arena.errors import InternalError

Pool = tuple[str, str]
"""GPU type and zone."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """What one node has to give.

    Args:
        pool: GPU type and zone.
        free: Free devices, ordered by index on the node.
    """

    pool: Pool
    free: tuple[tuple[int, DeviceId], ...]


class PoolTotal(NamedTuple):
    """What a pool has free: devices in all, and how many free devices its nodes have, each number once, sorted."""

    free_count: int
    sizes: tuple[int, ...]


_Totals = dict[Pool, PoolTotal]
_NOTHING = PoolTotal(0, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Free devices of the usable nodes.

    Args:
        rooms: What each node has to give.
        holes: For each pool and number of free devices, the nodes that have exactly so many, sorted by id.
        devices: All clean devices of the usable nodes, free or not; what ``restore`` may give back.
    """

    rooms: Map[NodeId, NodeRoom] = field(default_factory=Map)
    holes: Map[tuple[Pool, int], tuple[NodeId, ...]] = field(default_factory=Map)
    devices: Map[NodeId, NodeRoom] = field(default_factory=Map)
    # Worked out of the holes when it is first asked for, and kept beside those it was worked out of.
    _totals: tuple[object, _Totals] = field(default=(None, {}), init=False, repr=False, compare=False)

    def totals(self) -> _Totals:
        """Return what each pool with a free device has, in the order of pools."""
        if self._totals[0] is not self.holes:
            object.__setattr__(self, "_totals", (self.holes, _totals_of(self.holes)))
        return self._totals[1]

    def pools(self) -> tuple[Pool, ...]:
        """Return the pools with at least one free device, sorted."""
        return tuple(self.totals())

    def free_count(self, gpu_type: str | None = None, zone: str | None = None) -> int:
        """Return the number of free devices, of one type or zone if given."""
        count = 0
        for pool, total in self.totals().items():
            if (gpu_type is None or pool[0] == gpu_type) and (zone is None or pool[1] == zone):
                count += total.free_count
        return count

    def largest_hole(self, gpu_type: str, zone: str | None = None) -> int:
        """Return the most free devices on one node of a type."""
        return self.free_and_hole(gpu_type, zone)[1]

    def free_and_hole(self, gpu_type: str, zone: str | None = None) -> tuple[int, int]:
        """Return the number of free devices of a type, and the most of them on one node."""
        free = hole = 0
        for pool, (free_count, sizes) in self.totals().items():
            if pool[0] == gpu_type and (zone is None or pool[1] == zone):
                free += free_count
                hole = max(hole, sizes[-1])
        return free, hole

    def nodes_by_fit(self, pool: Pool, size: int) -> Iterator[tuple[NodeId, int]]:
        """Yield nodes that can give ``size`` devices with their free count, tightest fit first, then by id."""
        total = self.totals().get(pool)
        for have in total.sizes if total is not None else ():
            if have >= size:
                for node_id in self.holes[pool, have]:
                    yield node_id, have

    def free_items(self, node_id: NodeId) -> tuple[tuple[int, DeviceId], ...]:
        """Return a node's free devices with their indexes."""
        room = self.rooms.get(node_id)
        return room.free if room is not None else ()

    def free_on(self, node_id: NodeId) -> tuple[DeviceId, ...]:
        """Return a node's free devices in index order."""
        return tuple([device for _, device in self.free_items(node_id)])

    def with_node(self, node_id: NodeId, pool: Pool, free: tuple[tuple[int, DeviceId], ...]) -> Capacity:
        """Return the value with a node's free devices replaced (a node with none is forgotten)."""
        return self.with_rooms(((node_id, pool, tuple(sorted(free))),)) if free or node_id in self.rooms else self

    def with_rooms(self, changes: Iterable[tuple[NodeId, Pool, tuple[tuple[int, DeviceId], ...]]]) -> Capacity:
        """Return the value with the free devices of several nodes replaced, each in order, no node twice."""
        rooms, after = self.rooms, dict[tuple[Pool, int], tuple[NodeId, ...]]()
        for node_id, pool, free in changes:
            before = rooms.get(node_id)
            if before is not None:
                key = (before.pool, len(before.free))
                after[key] = _less(after[key] if key in after else self.holes[key], node_id)
            if free:
                rooms = rooms.set(node_id, NodeRoom(pool=pool, free=free))
                key = (pool, len(free))
                after[key] = _more(after[key] if key in after else self.holes.get(key, ()), node_id)
            elif before is not None:
                rooms = rooms.delete(node_id)
        holes, totals = self._holes_after(after)
        return replace(self, rooms=rooms, holes=holes, _totals=(holes, totals))

    def _holes_after(
        self, changed: Mapping[tuple[Pool, int], tuple[NodeId, ...]]
    ) -> tuple[Map[tuple[Pool, int], tuple[NodeId, ...]], _Totals]:
        """Return the holes once some are as given, and the totals of them."""
        holes, totals, is_other = self.holes, self.totals().copy(), False
        for key, nodes in changed.items():
            pool, size = key
            before = holes.get(key, ())
            free_count, sizes = totals.get(pool, _NOTHING)
            if not before and nodes:
                is_other = is_other or not sizes
                sizes = tuple(sorted((*sizes, size)))
            elif before and not nodes:
                sizes = tuple([have for have in sizes if have != size])
                is_other = is_other or not sizes
            if nodes:
                holes = holes.set(key, nodes)
            elif before:
                holes = holes.delete(key)
            totals[pool] = PoolTotal(free_count + size * (len(nodes) - len(before)), sizes)
        return holes, dict(sorted([item for item in totals.items() if item[1].sizes])) if is_other else totals

    def with_devices(self, node_id: NodeId, pool: Pool, devices: tuple[tuple[int, DeviceId], ...]) -> Capacity:
        """Return the value knowing all clean devices of a usable node, free or not (none: the node is unusable)."""
        known = self.devices.get(node_id)
        if not devices:
            return self if known is None else replace(self, devices=self.devices.delete(node_id))
        room = NodeRoom(pool=pool, free=tuple(sorted(devices)))
        return self if known == room else replace(self, devices=self.devices.set(node_id, room))

    def restore(self, allocation: Allocation) -> Capacity:
        """Return the value as it would be if an allocation were given up; what may not be reused stays away."""
        changes = []
        for share in allocation.shares:
            known = self.devices.get(share.node_id)
            if known is None:
                continue
            free, mine = self.free_items(share.node_id), share.device_ids
            back = tuple([item for item in known.free if item[1] in mine and item not in free])
            if back:
                changes.append((share.node_id, known.pool, tuple(sorted((*free, *back)))))
        return self.with_rooms(changes) if changes else self

    def take_all(self, allocation: Allocation) -> Capacity:
        """Return the value without an allocation's devices.

        Raises:
            InternalError: One of them is not free.
        """
        return self.with_rooms([self._taken(share.node_id, frozenset(share.device_ids)) for share in allocation.shares])

    def take(self, node_id: NodeId, device_ids: frozenset[DeviceId]) -> Capacity:
        """Return the value without some of a node's free devices.

        Raises:
            InternalError: One of them is not free.
        """
        return self.with_rooms((self._taken(node_id, device_ids),))

    def give(self, node_id: NodeId, pool: Pool, devices: tuple[tuple[int, DeviceId], ...]) -> Capacity:
        """Return the value with devices (index, id) of a node added to its free ones.

        Raises:
            InternalError: One of them is free already.
        """
        free = self.free_items(node_id)
        if {device for _, device in free} & {device for _, device in devices}:
            raise InternalError(f"devices {devices} of node {node_id} are free already")
        return self.with_node(node_id, pool, (*free, *devices))

    def _taken(
        self, node_id: NodeId, device_ids: frozenset[DeviceId]
    ) -> tuple[NodeId, Pool, tuple[tuple[int, DeviceId], ...]]:
        """Return what a node has left without some of its free devices."""
        room = self.rooms.get(node_id)
        free = room.free if room is not None else ()
        rest = tuple([item for item in free if item[1] not in device_ids])
        if room is None or len(free) - len(rest) != len(device_ids):
            missing = sorted(device_ids - {device for _, device in free})
            raise InternalError(f"devices {missing} of node {node_id} are not free")
        return node_id, room.pool, rest


def _totals_of(holes: Map[tuple[Pool, int], tuple[NodeId, ...]]) -> _Totals:
    found: _Totals = {}
    for (pool, size), nodes in sorted(holes.items()):
        before = found.get(pool, _NOTHING)
        found[pool] = PoolTotal(free_count=before.free_count + size * len(nodes), sizes=(*before.sizes, size))
    return found


def _less(nodes: tuple[NodeId, ...], gone: NodeId) -> tuple[NodeId, ...]:
    """Return sorted nodes without one of them."""
    position = bisect_left(nodes, gone)
    return nodes[:position] + nodes[position + 1 :]


def _more(nodes: tuple[NodeId, ...], come: NodeId) -> tuple[NodeId, ...]:
    """Return sorted nodes with one more."""
    position = bisect_left(nodes, come)
    return nodes[:position] + (come,) + nodes[position:]  # noqa: RUF005 - twice as fast as unpacking
