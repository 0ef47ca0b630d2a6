"""Concrete devices for a group: in place, tight, whole, or a reason with numbers."""

from __future__ import annotations

from arena.domain.allocation import Allocation, GpuGroup, GroupPart
from arena.domain.launch import NodeId
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import Reason, ReasonCode
from arena.policies.capacity import Capacity
from arena.policies.placement import Wanted, place
from tests.builders import allocation_on, capacity_of, device_id, node_info, shape


def placed(capacity: Capacity, group: GpuGroup, wanted: Wanted | None = None) -> Allocation:
    found = place(capacity, group, wanted or Wanted())
    assert isinstance(found, Allocation), str(found)
    return found


def refused(capacity: Capacity, group: GpuGroup, wanted: Wanted | None = None) -> Reason:
    found = place(capacity, group, wanted or Wanted())
    assert isinstance(found, Reason)
    return found


def nodes(*sizes: int, gpu_type: str = "cpu", zone: str = "default") -> Capacity:
    return capacity_of(
        [node_info(f"n{index}", gpus=size, gpu_type=gpu_type, zone=zone) for index, size in enumerate(sizes, 1)]
    )


def test_the_tightest_hole_is_filled_first():
    assert placed(nodes(8, 4, 2, 2), GpuGroup.of("cpu", [2])).node_ids == ("n3",)


def test_large_counts_come_first_in_rank_order_and_choose_first():
    """Two parts of 53 and 31 free, wanted 30 and 50: any order of asking finds the one assignment."""
    for _ in range(20):
        found = placed(nodes(53, 31), GpuGroup.of("cpu", [30, 50]))
        assert [(share.node_id, len(share.device_ids)) for share in found.shares] == [("n1", 50), ("n2", 30)]


def test_what_the_job_has_is_kept():
    has = allocation_on(("n2", [2, 3]))
    found = placed(nodes(4, 8, 4), GpuGroup.of("cpu", [4]), Wanted(prefer=has))
    assert found.node_ids == ("n2",)
    assert has.device_ids <= found.device_ids
    assert found.shares[0].device_ids == tuple(device_id("n2", index) for index in (0, 1, 2, 3))


def test_a_shrink_stays_on_the_jobs_own_devices():
    capacity = capacity_of([node_info("n1", gpus=4), node_info("n2", gpus=2)])
    found = placed(capacity, GpuGroup.of("cpu", [2]), Wanted(prefer=allocation_on(("n1", [1, 3]))))
    assert found == allocation_on(("n1", [1, 3]))


def test_every_count_gets_a_node_of_its_own():
    told = refused(nodes(8, 2), GpuGroup.of("cpu", [4, 4]))
    assert told.code is ReasonCode.FRAGMENTED
    assert told.numbers["free"] == 10
    assert told.numbers["hole"] == 8


def test_too_few_gpus_says_how_many():
    told = refused(nodes(2, 1), GpuGroup.of("cpu", [4]), Wanted(shape=shape(("cpu", 4, 2))))
    assert told.code is ReasonCode.INSUFFICIENT_GPUS
    assert str(told) == "needs 4 cpu GPUs, 3 of 8 free"


def test_a_hole_too_small_says_how_large_it_is():
    assert str(refused(nodes(2, 2, 2), GpuGroup.of("cpu", [4]))) == (
        "needs cpu 4, 6 cpu GPUs are free but at most 2 on one node"
    )


def test_a_tensor_parallel_group_is_never_split():
    plan = ParallelPlan.uniform(layer_count=4, tp=4)
    assert refused(nodes(2, 2), GpuGroup.of("cpu", [2, 2]), Wanted(plan=plan)).code is ReasonCode.UNSUPPORTED
    pairs = ParallelPlan.uniform(layer_count=4, dp=2, tp=2)
    assert placed(nodes(2, 2), GpuGroup.of("cpu", [2, 2]), Wanted(plan=pairs)).gpu_count == 4


def test_one_part_stays_in_one_zone():
    east = [node_info("e1", gpus=2, zone="east"), node_info("e2", gpus=2, zone="east")]
    west = [node_info("w1", gpus=2, zone="west")]
    capacity = capacity_of([*east, *west], [allocation_on(("e1", [0]))])
    assert placed(capacity, GpuGroup.of("cpu", [2, 1])).node_ids == ("e2", "e1")
    assert refused(capacity, GpuGroup.of("cpu", [2, 2])).code is ReasonCode.FRAGMENTED


def test_parts_share_a_zone_where_the_job_wants_it():
    capacity = capacity_of(
        [node_info("a1", gpus=2, gpu_type="a", zone="east"), node_info("b1", gpus=2, gpu_type="b", zone="west")]
    )
    both = GpuGroup(parts=(GroupPart(gpu_type="a", node_counts=(2,)), GroupPart(gpu_type="b", node_counts=(2,))))
    assert refused(capacity, both).code is ReasonCode.FRAGMENTED
    assert placed(capacity, both, Wanted(same_zone=False)).node_ids == ("a1", "b1")


def test_parts_keep_their_order_and_two_of_one_pool_do_not_collide():
    part = GroupPart(gpu_type="cpu", node_counts=(2,))
    larger = GroupPart(gpu_type="cpu", node_counts=(4,))
    found = placed(nodes(4, 2), GpuGroup(parts=(part, larger)))
    assert found.node_ids == ("n2", "n1")


def test_only_allowed_nodes_are_used():
    allowed = frozenset({NodeId("n1")})
    assert placed(nodes(4, 2), GpuGroup.of("cpu", [2]), Wanted(allowed_nodes=allowed)).node_ids == ("n1",)
    told = refused(nodes(4, 8), GpuGroup.of("cpu", [6]), Wanted(allowed_nodes=allowed))
    assert told.numbers["free"] == 4
