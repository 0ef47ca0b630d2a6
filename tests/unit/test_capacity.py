"""Free devices as a value: taking, giving, what-ifs."""

from __future__ import annotations

import pytest

from arena.domain.launch import NodeId
from arena.errors import InternalError
from arena.policies.capacity import Capacity
from tests.builders import allocation_on, capacity_of, device_id, node_info

POOL = ("cpu", "default")
N1 = NodeId("n1")


def two_nodes() -> Capacity:
    return capacity_of([node_info("n1", gpus=4), node_info("n2", gpus=2)])


def test_holes_follow_what_is_taken():
    capacity = two_nodes().take(N1, frozenset({device_id("n1", 0)}))
    assert capacity.free_count("cpu") == 5
    assert capacity.free_and_hole("cpu") == (5, 3)
    assert list(capacity.nodes_by_fit(POOL, 2)) == [("n2", 2), ("n1", 3)]
    assert capacity.free_on(N1) == tuple(device_id("n1", index) for index in (1, 2, 3))


def test_a_what_if_leaves_the_original_as_it_was():
    capacity = two_nodes()
    capacity.take_all(allocation_on(("n1", [0, 1]), ("n2", [0])))
    assert capacity.free_count() == 6


def test_taking_what_is_not_free_is_a_fault():
    capacity = two_nodes().take(N1, frozenset({device_id("n1", 0)}))
    with pytest.raises(InternalError, match="not free"):
        capacity.take(N1, frozenset({device_id("n1", 0)}))


def test_restore_undoes_take_even_on_a_full_node():
    allocation = allocation_on(("n1", [0, 1, 2, 3]), ("n2", [1]))
    capacity = two_nodes()
    assert capacity.take_all(allocation).restore(allocation) == capacity


def test_restore_keeps_away_what_may_not_be_used_again():
    allocation = allocation_on(("n1", [0, 1]))
    taken = two_nodes().take_all(allocation)
    draining = taken.with_devices(N1, POOL, ()).with_node(N1, POOL, ())
    assert draining.restore(allocation).free_on(N1) == ()
    one_dirty = taken.with_devices(N1, POOL, tuple((index, device_id("n1", index)) for index in (1, 2, 3)))
    assert device_id("n1", 0) not in one_dirty.restore(allocation).free_on(N1)


def test_restore_of_what_is_free_changes_nothing():
    capacity = two_nodes()
    assert capacity.restore(allocation_on(("n1", [0]))) == capacity
