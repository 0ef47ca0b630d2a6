"""The GPU group that a plan over several types takes. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from arena.domain.allocation import GpuGroup, GroupPart
from arena.domain.cluster import ClusterShape
from arena.domain.parallel import ParallelPlan
from arena.planner.heterogeneous.offer import Offer, PartKey
from arena.planner.heterogeneous.placed import place


def group_of(plan: ParallelPlan, offer: Offer) -> GpuGroup:
    """Return the group that a plan fills in rank order, types and zones one after the other.

    Counts of a part go from large to small; where replicas of unequal degrees leave a node less full than the next
    one, a further part of the same type begins.
    """
    counts: dict[PartKey, dict[int, int]] = {}
    for stage in place(plan, offer):
        for (key, tp), (_, node) in zip(stage.kinds, stage.nodes, strict=True):
            on_node = counts.setdefault(key, {})
            on_node[node] = on_node.get(node, 0) + tp
    return GpuGroup(
        parts=tuple(
            GroupPart(gpu_type=key[0], zone=key[1], node_counts=falling)
            for key, on_node in sorted(counts.items())
            for falling in _falling(list(on_node.values()))
        )
    )


def anywhere(group: GpuGroup) -> GpuGroup:
    """Return a group that may stand in whichever zone has all of it."""
    return GpuGroup(parts=tuple(replace(part, zone=None) for part in group.parts))


def plan_anywhere(plan: ParallelPlan) -> ParallelPlan:
    """Return a plan that names GPU types, and no zone."""
    stages = tuple(
        replace(stage, replicas=tuple(replace(replica, zone=None) for replica in stage.replicas))
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


def is_held(group: GpuGroup, shape: ClusterShape) -> bool:
    """Tell whether an empty cluster has nodes for a group, each part in the zone that it names."""
    counts: dict[PartKey, list[int]] = {}
    for part in group.parts:
        counts.setdefault((part.gpu_type, part.zone or ""), []).extend(part.node_counts)
    return all(
        len(wanted) <= len(sizes := _node_sizes(shape, key))
        and all(count <= size for count, size in zip(sorted(wanted, reverse=True), sizes, strict=False))
        for key, wanted in counts.items()
    )


def _node_sizes(shape: ClusterShape, key: PartKey) -> list[int]:
    """Return the GPUs of the nodes of a type in a zone, largest first."""
    sizes = [
        size
        for pool in shape.pools
        if (pool.gpu_type, pool.zone) == key
        for size in [pool.gpus_per_node] * pool.node_count
    ]
    return sorted(sizes, reverse=True)


def _falling(counts: list[int]) -> Iterator[tuple[int, ...]]:
    """Cut counts where they rise."""
    run: list[int] = []
    for count in counts:
        if run and count > run[-1]:
            yield tuple(run)
            run = []
        run.append(count)
    yield tuple(run)
