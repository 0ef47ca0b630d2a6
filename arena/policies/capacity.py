"""Free devices as a persistent value with an index by node and hole size. Pure: no I/O, no clock.

``take`` and ``give`` return a new value and share what did not change, so a snapshot costs nothing and a what-if
costs only what it touches. ``restore`` answers "what if this job gave its devices back": it knows every clean device
of the usable nodes, also those in use, so a device of a draining node or a dirty one never comes back by it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from immutables import Map

from arena.domain.allocation import Allocation
from arena.domain.launch import DeviceId, NodeId
from arena.domain.replacing import replace
from arena.errors import InternalError

Pool = tuple[str, str]
"""GPU type and zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """What one node has to give.

    Args:
        pool: GPU type and zone.
        free: Free devices, ordered by index on the node.
    """

    pool: Pool
    free: tuple[tuple[int, DeviceId], ...]


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

    def pools(self) -> tuple[Pool, ...]:
        """Return the pools with at least one free device, sorted."""
        return tuple(sorted({pool for pool, size in self.holes if size}))

    def free_count(self, gpu_type: str | None = None, zone: str | None = None) -> int:
        """Return the number of free devices, of one type or zone if given."""
        return sum(
            size * len(nodes)
            for (pool, size), nodes in self.holes.items()
            if (gpu_type is None or pool[0] == gpu_type) and (zone is None or pool[1] == zone)
        )

    def largest_hole(self, gpu_type: str, zone: str | None = None) -> int:
        """Return the most free devices on one node of a type."""
        return max(
            (size for pool, size in self.holes if pool[0] == gpu_type and (zone is None or pool[1] == zone)), default=0
        )

    def nodes_by_fit(self, pool: Pool, size: int) -> Iterator[tuple[NodeId, int]]:
        """Yield nodes that can give ``size`` devices with their free count, tightest fit first, then by id."""
        sizes = sorted(have for have_pool, have in self.holes if have_pool == pool and have >= size)
        for have in sizes:
            for node_id in self.holes[pool, have]:
                yield node_id, have

    def free_on(self, node_id: NodeId) -> tuple[DeviceId, ...]:
        """Return a node's free devices in index order."""
        room = self.rooms.get(node_id)
        return tuple(device for _, device in room.free) if room else ()

    def with_node(self, node_id: NodeId, pool: Pool, free: tuple[tuple[int, DeviceId], ...]) -> Capacity:
        """Return the value with a node's free devices replaced (a node with none is forgotten)."""
        base = self._without_hole(node_id)
        if not free:
            return replace(base, rooms=base.rooms.delete(node_id)) if node_id in base.rooms else base
        room = NodeRoom(pool=pool, free=tuple(sorted(free)))
        key = (pool, len(free))
        nodes = base.holes.get(key, ())
        position = bisect_left(nodes, node_id)
        return replace(
            base,
            rooms=base.rooms.set(node_id, room),
            holes=base.holes.set(key, (*nodes[:position], node_id, *nodes[position:])),
        )

    def with_devices(self, node_id: NodeId, pool: Pool, devices: tuple[tuple[int, DeviceId], ...]) -> Capacity:
        """Return the value knowing all clean devices of a usable node, free or not (none: the node is unusable)."""
        known = self.devices.get(node_id)
        if not devices:
            return self if known is None else replace(self, devices=self.devices.delete(node_id))
        room = NodeRoom(pool=pool, free=tuple(sorted(devices)))
        return self if known == room else replace(self, devices=self.devices.set(node_id, room))

    def restore(self, allocation: Allocation) -> Capacity:
        """Return the value as it would be if an allocation were given up; what may not be reused stays away."""
        after = self
        for share in allocation.shares:
            known = after.devices.get(share.node_id)
            if known is None:
                continue
            back = frozenset(share.device_ids) - set(after.free_on(share.node_id))
            devices = tuple(item for item in known.free if item[1] in back)
            after = after.give(share.node_id, known.pool, devices) if devices else after
        return after

    def take_all(self, allocation: Allocation) -> Capacity:
        """Return the value without an allocation's devices.

        Raises:
            InternalError: One of them is not free.
        """
        after = self
        for share in allocation.shares:
            after = after.take(share.node_id, frozenset(share.device_ids))
        return after

    def take(self, node_id: NodeId, device_ids: frozenset[DeviceId]) -> Capacity:
        """Return the value without some of a node's free devices.

        Raises:
            InternalError: One of them is not free.
        """
        room = self.rooms.get(node_id)
        have = {device for _, device in room.free} if room else set()
        if room is None or not device_ids <= have:
            raise InternalError(f"devices {sorted(device_ids - have)} of node {node_id} are not free")
        return self.with_node(node_id, room.pool, tuple(item for item in room.free if item[1] not in device_ids))

    def give(self, node_id: NodeId, pool: Pool, devices: tuple[tuple[int, DeviceId], ...]) -> Capacity:
        """Return the value with devices (index, id) of a node added to its free ones.

        Raises:
            InternalError: One of them is free already.
        """
        room = self.rooms.get(node_id)
        free = room.free if room else ()
        if {device for _, device in free} & {device for _, device in devices}:
            raise InternalError(f"devices {devices} of node {node_id} are free already")
        return self.with_node(node_id, pool, (*free, *devices))

    def _without_hole(self, node_id: NodeId) -> Capacity:
        room = self.rooms.get(node_id)
        if room is None:
            return self
        key = (room.pool, len(room.free))
        nodes = self.holes[key]
        position = bisect_left(nodes, node_id)
        rest = (*nodes[:position], *nodes[position + 1 :])
        return replace(self, holes=self.holes.set(key, rest) if rest else self.holes.delete(key))
