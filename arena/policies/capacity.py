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


class PoolHoles(NamedTuple):
    """What a pool has free.

    Attributes:
        free_count: Devices in all.
        by_size: For each number of free devices, from 0 to the most that a node has, the nodes that have exactly so
            many, sorted by id; none has 0.
    """

    free_count: int
    by_size: tuple[tuple[NodeId, ...], ...]

    @property
    def largest(self) -> int:
        """The most free devices on one node."""
        return len(self.by_size) - 1


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Free devices of the usable nodes.

    Args:
        rooms: What each node has to give.
        pools: What each pool with a free device has, in the order of pools; worked out of the rooms.
        devices: All clean devices of the usable nodes, free or not; what ``restore`` may give back.
    """

    rooms: Map[NodeId, NodeRoom] = field(default_factory=Map)
    pools: Mapping[Pool, PoolHoles] = field(default_factory=dict, hash=False)
    devices: Map[NodeId, NodeRoom] = field(default_factory=Map)

    def holes(self) -> Iterator[tuple[Pool, int, tuple[NodeId, ...]]]:
        """Yield each pool and number of free devices with the nodes that have exactly so many, sorted by all three."""
        for pool, found in self.pools.items():
            for size, nodes in enumerate(found.by_size):
                if nodes:
                    yield pool, size, nodes

    def free_count(self, gpu_type: str | None = None, zone: str | None = None) -> int:
        """Return the number of free devices, of one type or zone if given."""
        count = 0
        for pool, found in self.pools.items():
            if (gpu_type is None or pool[0] == gpu_type) and (zone is None or pool[1] == zone):
                count += found.free_count
        return count

    def free_and_hole(self, gpu_type: str, zone: str | None = None) -> tuple[int, int]:
        """Return the number of free devices of a type, and the most of them on one node."""
        free = hole = 0
        for pool, found in self.pools.items():
            if pool[0] == gpu_type and (zone is None or pool[1] == zone):
                free += found.free_count
                hole = max(hole, found.largest)
        return free, hole

    def nodes_by_fit(self, pool: Pool, size: int) -> Iterator[tuple[NodeId, int]]:
        """Yield nodes that can give ``size`` devices with their free count, tightest fit first, then by id."""
        found = self.pools.get(pool)
        if found is not None:
            for have in range(size, found.largest + 1):
                for node_id in found.by_size[have]:
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
        rooms, opened = self.rooms, dict[Pool, list[tuple[NodeId, ...]]]()
        for node_id, pool, free in changes:
            before, count = rooms.get(node_id), len(free)
            if before is not None:
                sizes, had = self._opened(before.pool, opened), len(before.free)
                sizes[had] = _less(sizes[had], node_id)
            if count:
                rooms = rooms.set(node_id, NodeRoom(pool=pool, free=free))
                sizes = self._opened(pool, opened)
                while len(sizes) <= count:
                    sizes.append(())
                sizes[count] = _more(sizes[count], node_id)
            elif before is not None:
                rooms = rooms.delete(node_id)
        return Capacity(rooms=rooms, pools=self._pools_with(opened), devices=self.devices)

    def _opened(self, pool: Pool, opened: dict[Pool, list[tuple[NodeId, ...]]]) -> list[tuple[NodeId, ...]]:
        """Return the nodes of a pool by their free devices, to be changed."""
        sizes = opened.get(pool)
        if sizes is None:
            known = self.pools.get(pool)
            sizes = opened[pool] = list(known.by_size) if known is not None else []
        return sizes

    def _pools_with(self, changed: Mapping[Pool, list[tuple[NodeId, ...]]]) -> Mapping[Pool, PoolHoles]:
        """Return the pools once the nodes of some are as given."""
        pools, is_other = dict(self.pools), False
        for pool, sizes in changed.items():
            while sizes and not sizes[-1]:
                sizes.pop()
            if sizes:
                is_other = is_other or pool not in pools
                free_count = sum([size * len(nodes) for size, nodes in enumerate(sizes)])
                pools[pool] = PoolHoles(free_count, tuple(sizes))
            elif pool in pools:
                del pools[pool]
        return dict(sorted(pools.items())) if is_other else pools

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


def _less(nodes: tuple[NodeId, ...], gone: NodeId) -> tuple[NodeId, ...]:
    """Return sorted nodes without one of them."""
    position = bisect_left(nodes, gone)
    return nodes[:position] + nodes[position + 1 :]


def _more(nodes: tuple[NodeId, ...], come: NodeId) -> tuple[NodeId, ...]:
    """Return sorted nodes with one more."""
    position = bisect_left(nodes, come)
    return nodes[:position] + (come,) + nodes[position:]  # noqa: RUF005 - twice as fast as unpacking
