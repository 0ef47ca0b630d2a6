"""From a group to concrete devices: keep what runs in place, fill tight holes first. Pure: no I/O, no clock.

Feasibility is exact for a given choice of zones. Counts are served from large to small; the nodes that can give a
large count are a subset of those that can give a smaller one, so whichever of them a count takes, the later counts
find as many nodes as they would have found otherwise. The choice among them is therefore free, and is spent on
keeping devices and on leaving few fragments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product

from arena.domain.allocation import Allocation, GpuGroup, NodeShare, splits_tensor_parallel_group
from arena.domain.cluster import ClusterShape
from arena.domain.launch import DeviceId, NodeId
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.replacing import quickly_made
from arena.policies.capacity import Capacity, Pool

_Owned = Mapping[NodeId, frozenset[DeviceId]]
_Seats = list[tuple[int, NodeId]]
"""Position of a count within the group, and the node that serves it."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What ``place`` should look for beside the group.

    Args:
        plan: Layout, to see that no tensor-parallel group would span nodes.
        prefer: What the job has; its devices are kept where the new group allows it.
        allowed_nodes: Only these nodes (e.g. those that see the job's checkpoint place); None means any.
        same_zone: All parts of the group in one zone.
        shape: Cluster shape, for the totals in a refusal.
    """

    plan: ParallelPlan | None = None
    prefer: Allocation | None = None
    allowed_nodes: Set[NodeId] | None = None
    same_zone: bool = True
    shape: ClusterShape | None = None


ANYWHERE = Wanted()


def place(capacity: Capacity, group: GpuGroup, wanted: Wanted = ANYWHERE) -> Allocation | Reason:
    """Return concrete devices for a group, in rank order, or why it does not fit now.

    Within a part the largest node counts come first in rank order; parts keep their order. Deterministic: ties are
    broken by zone, then by node id.
    """
    counts = [count for part in group.parts for count in part.node_counts]
    if wanted.plan is not None and splits_tensor_parallel_group(wanted.plan, counts):
        return reason(ReasonCode.UNSUPPORTED, detail=f"{wanted.plan} on {group} splits a tensor-parallel group")
    if _lacks(capacity, group):
        return refused(capacity, group, wanted)
    owned = {share.node_id: frozenset(share.device_ids) for share in wanted.prefer.shares} if wanted.prefer else {}
    options = [
        (pools, seats)
        for pools in _pool_choices(capacity, group, wanted)
        if (seats := _seats(capacity, pools, owned, wanted.allowed_nodes)) is not None
    ]
    if not options:
        return refused(capacity, group, wanted)
    if len(options) > 1:
        options.sort(key=lambda option: (_cost(capacity, option[1], counts, owned), *option))
    return _allocation(capacity, options[0][1], counts, owned)


def fits(capacity: Capacity, group: GpuGroup) -> bool:
    """Tell quickly whether a group could fit: exact for one type and one zone, else a necessary condition only."""
    for part in group.parts:
        free, hole = capacity.free_and_hole(part.gpu_type, part.zone)
        if hole < part.node_counts[0] or free < sum(part.node_counts):
            return False
    return len(group.parts) == 1 or not _lacks(capacity, group)


def fits_when_empty(capacity: Capacity, group: GpuGroup) -> bool:
    """Tell whether the usable nodes could hold a group if nothing ran on them; each part is looked at by itself."""
    sizes: dict[Pool, list[int]] = {}
    for room in capacity.devices.values():
        sizes.setdefault(room.pool, []).append(len(room.free))
    ordered = {pool: sorted(found, reverse=True) for pool, found in sizes.items()}
    return all(
        any(
            pool[0] == part.gpu_type
            and part.zone in {None, pool[1]}
            and len(found) >= len(part.node_counts)
            and all(size >= count for size, count in zip(found, part.node_counts, strict=False))
            for pool, found in ordered.items()
        )
        for part in group.parts
    )


def _lacks(capacity: Capacity, group: GpuGroup) -> bool:
    """Tell whether fewer devices of a type are free than a group needs."""
    if len(group.parts) == 1:
        part = group.parts[0]
        return capacity.free_count(part.gpu_type, part.zone) < part.gpu_count
    return any(_free_of(capacity, group, gpu_type) < need for gpu_type, need in _needs(group).items())


def _needs(group: GpuGroup) -> dict[str, int]:
    needs: dict[str, int] = {}
    for part in group.parts:
        needs[part.gpu_type] = needs.get(part.gpu_type, 0) + part.gpu_count
    return needs


def _free_of(capacity: Capacity, group: GpuGroup, gpu_type: str) -> int:
    zones = {part.zone for part in group.parts if part.gpu_type == gpu_type}
    return capacity.free_count(gpu_type, zones.pop() if len(zones) == 1 else None)


def _pool_choices(
    capacity: Capacity, group: GpuGroup, wanted: Wanted
) -> Iterator[tuple[tuple[Pool, tuple[int, ...]], ...]]:
    """Yield, for every choice of zones, each part's pool with its node counts."""
    pools = tuple(capacity.pools)
    if len(group.parts) == 1:
        part = group.parts[0]
        for pool in pools:
            if pool[0] == part.gpu_type and part.zone in {None, pool[1]}:
                yield ((pool, part.node_counts),)
        return
    zones = [
        [zone for gpu_type, zone in pools if gpu_type == part.gpu_type and part.zone in {None, zone}]
        for part in group.parts
    ]
    for choice in product(*zones):
        if wanted.same_zone and len(set(choice)) > 1:
            continue
        yield tuple(((part.gpu_type, zone), part.node_counts) for part, zone in zip(group.parts, choice, strict=True))


def _seats(
    capacity: Capacity,
    pools: Sequence[tuple[Pool, tuple[int, ...]]],
    owned: _Owned,
    allowed: Set[NodeId] | None,
) -> _Seats | None:
    """Give every count a node of its own, large counts first; None where one finds no node."""
    if len(pools) == 1 and not owned:
        return _tightest(capacity, *pools[0], allowed)
    wishes: dict[Pool, list[tuple[int, int]]] = {}
    position = 0
    for pool, counts in pools:
        for count in counts:
            wishes.setdefault(pool, []).append((-count, position))
            position += 1
    seats: _Seats = []
    used: set[NodeId] = set()
    for pool, wish in sorted(wishes.items()):
        before = 0
        candidates: Iterator[NodeId] = iter(())
        for count, index in ((-negative, index) for negative, index in sorted(wish)):
            if count != before:
                candidates, before = _candidates(capacity, pool, count, owned), count
            node = next((one for one in candidates if one not in used and (allowed is None or one in allowed)), None)
            if node is None:
                return None
            used.add(node)
            seats.append((index, node))
    return sorted(seats)


def _tightest(capacity: Capacity, pool: Pool, counts: tuple[int, ...], allowed: Set[NodeId] | None) -> _Seats | None:
    """Do what ``_seats`` does for one pool where nothing is to be kept: counts go from large to small already."""
    seats: _Seats = []
    used: set[NodeId] = set()
    candidates: Iterator[tuple[NodeId, int]] = iter(())
    before = 0
    for index, count in enumerate(counts):
        if count != before:
            candidates, before = capacity.nodes_by_fit(pool, count), count
        for node_id, _ in candidates:
            if node_id not in used and (allowed is None or node_id in allowed):
                break
        else:
            return None
        used.add(node_id)
        seats.append((index, node_id))
    return seats


def _candidates(capacity: Capacity, pool: Pool, count: int, owned: _Owned) -> Iterator[NodeId]:
    """Yield nodes that can give ``count``: where most devices are kept first, then the tightest holes."""
    mine = []
    for node_id, devices in owned.items():
        room = capacity.rooms.get(node_id)
        if room is not None and room.pool == pool and len(room.free) >= count:
            kept = sum(device in devices for _, device in room.free)
            mine.append((-min(kept, count), len(room.free), node_id))
    for _, _, node_id in sorted(mine):
        yield node_id
    for node_id, _ in capacity.nodes_by_fit(pool, count):
        if node_id not in owned:
            yield node_id


def _cost(capacity: Capacity, seats: _Seats, counts: Sequence[int], owned: _Owned) -> tuple[int, int]:
    """Devices that are not kept, then devices left over on the nodes touched."""
    kept = left = 0
    for index, node_id in seats:
        free = capacity.free_on(node_id)
        mine = owned.get(node_id, frozenset())
        kept += min(counts[index], sum(device in mine for device in free))
        left += len(free) - counts[index]
    return -kept, left


def _allocation(capacity: Capacity, seats: _Seats, counts: Sequence[int], owned: _Owned) -> Allocation:
    shares = []
    for index, node_id in seats:
        mine, free = owned.get(node_id, frozenset()), capacity.free_on(node_id)
        if not mine:
            shares.append(NodeShare(node_id=node_id, device_ids=free[: counts[index]]))
            continue
        chosen = set(sorted(range(len(free)), key=lambda at: (free[at] not in mine, at))[: counts[index]])
        devices = tuple(device for at, device in enumerate(free) if at in chosen)
        shares.append(NodeShare(node_id=node_id, device_ids=devices))
    return Allocation(shares=tuple(shares))


def refused(capacity: Capacity, group: GpuGroup, wanted: Wanted = ANYWHERE) -> Reason:
    """Say why a group cannot be placed: which part is short, with the numbers of the nodes the job may use."""
    needs = _needs(group)
    rooms = {gpu_type: _room(capacity, gpu_type, wanted.allowed_nodes) for gpu_type in sorted(needs)}
    for gpu_type, (free, _) in rooms.items():
        if free < needs[gpu_type]:
            totals = wanted.shape.gpu_count_by_type if wanted.shape else {}
            total = max(totals.get(gpu_type, free), free)
            return reason(
                ReasonCode.INSUFFICIENT_GPUS, needed=needs[gpu_type], gpu_type=gpu_type, free=free, total=total
            )
    gpu_type = min(group.parts, key=lambda part: rooms[part.gpu_type][1] - part.node_counts[0]).gpu_type
    free, hole = rooms[gpu_type]
    return reason(ReasonCode.FRAGMENTED, group=str(group), gpu_type=gpu_type, free=free, hole=hole)


def _room(capacity: Capacity, gpu_type: str, allowed: Set[NodeId] | None) -> tuple[int, int]:
    """Return the free devices of a type and the most of them on one node, over the allowed nodes."""
    if allowed is None:
        return capacity.free_and_hole(gpu_type)
    rooms = (capacity.rooms.get(node_id) for node_id in allowed)
    sizes = [len(room.free) for room in rooms if room is not None and room.pool[0] == gpu_type]
    return sum(sizes), max(sizes, default=0)
