"""Placement against a brute force: feasible exactly when some assignment exists, and always a legal one."""

from __future__ import annotations

from itertools import permutations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.allocation import Allocation, GpuGroup, GroupPart
from arena.domain.cluster import NodeInfo
from arena.domain.launch import NodeId
from arena.policies.capacity import Capacity
from arena.policies.placement import Wanted, fits, place
from tests.builders import allocation_on, capacity_of, node_info

sized = settings(max_examples=150, deadline=None)
TYPES = ("a", "b")
ZONES = ("east", "west")


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[NodeInfo], Capacity]:
    nodes = [
        node_info(
            f"n{index}",
            gpus=draw(st.integers(1, 4)),
            gpu_type=draw(st.sampled_from(TYPES)),
            zone=draw(st.sampled_from(ZONES)),
        )
        for index in range(draw(st.integers(1, 5)))
    ]
    taken = []
    for node in nodes:
        used = draw(st.sets(st.integers(0, len(node.devices) - 1)))
        if used:
            taken.append(allocation_on((node.node_id, sorted(used))))
    return nodes, capacity_of(nodes, taken)


@st.composite
def groups(draw: st.DrawFn) -> GpuGroup:
    parts = tuple(
        GroupPart(
            gpu_type=draw(st.sampled_from(TYPES)),
            node_counts=tuple(sorted(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)), reverse=True)),
            zone=draw(st.sampled_from([None, None, *ZONES])),
        )
        for _ in range(draw(st.integers(1, 2)))
    )
    return GpuGroup(parts=parts)


@st.composite
def wishes(draw: st.DrawFn, nodes: list[NodeInfo]) -> Wanted:
    names = [node.node_id for node in nodes]
    node = draw(st.sampled_from(nodes))
    return Wanted(
        same_zone=draw(st.booleans()),
        allowed_nodes=draw(st.none() | st.frozensets(st.sampled_from(names))),
        prefer=draw(st.sampled_from([None, allocation_on((node.node_id, range(len(node.devices))))])),
    )


def can_place(nodes: list[NodeInfo], capacity: Capacity, group: GpuGroup, wanted: Wanted) -> bool:
    """Try every assignment of counts to distinct nodes."""
    usable = [node for node in nodes if wanted.allowed_nodes is None or node.node_id in wanted.allowed_nodes]
    counts = [(part, count) for part in group.parts for count in part.node_counts]
    for zones in product(ZONES, repeat=len(group.parts)):
        if wanted.same_zone and len(set(zones)) > 1:
            continue
        zone_of = dict(zip(range(len(group.parts)), zones, strict=True))
        if any(part.zone not in {None, zone_of[index]} for index, part in enumerate(group.parts)):
            continue
        wanted_pools = [
            (part.gpu_type, zone_of[index]) for index, part in enumerate(group.parts) for _ in part.node_counts
        ]
        for seats in permutations(usable, len(counts)):
            if all(
                (node.gpu_type, node.zone) == pool and len(capacity.free_on(node.node_id)) >= count
                for node, pool, (_, count) in zip(seats, wanted_pools, counts, strict=True)
            ):
                return True
    return False


@sized
@given(data=st.data())
def test_feasible_exactly_when_an_assignment_exists(data: st.DataObject):
    nodes, capacity = data.draw(clusters())
    group, wanted = data.draw(groups()), data.draw(wishes(nodes))
    found = place(capacity, group, wanted)
    assert isinstance(found, Allocation) == can_place(nodes, capacity, group, wanted), str(found)
    if isinstance(found, Allocation):
        assert fits(capacity, group)


@sized
@given(data=st.data())
def test_an_allocation_is_free_shaped_as_asked_and_the_same_each_time(data: st.DataObject):
    nodes, capacity = data.draw(clusters())
    group, wanted = data.draw(groups()), data.draw(wishes(nodes))
    found = place(capacity, group, wanted)
    assert found == place(capacity, group, wanted)
    if not isinstance(found, Allocation):
        return
    assert [len(share.device_ids) for share in found.shares] == [
        count for part in group.parts for count in part.node_counts
    ]
    assert len(set(found.node_ids)) == len(found.shares)
    assert len(found.device_ids) == group.gpu_count
    after = capacity.take_all(found)
    assert after.free_count() == capacity.free_count() - group.gpu_count
    assert after.restore(found) == capacity
    assert wanted.allowed_nodes is None or set(found.node_ids) <= wanted.allowed_nodes


@sized
@given(data=st.data())
def test_the_order_in_which_nodes_became_known_does_not_matter(data: st.DataObject):
    nodes, capacity = data.draw(clusters())
    group = data.draw(groups())
    other = Capacity()
    for node_id in data.draw(st.permutations(sorted(capacity.devices))):
        pool = capacity.devices[node_id].pool
        other = other.with_devices(node_id, pool, capacity.devices[node_id].free)
        free = capacity.rooms.get(NodeId(node_id))
        other = other.with_node(node_id, pool, free.free if free else ())
    assert place(other, group) == place(capacity, group)
    assert len(nodes) == len(capacity.devices)
