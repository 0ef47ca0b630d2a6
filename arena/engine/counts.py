"""Counts for people: GPUs by type and what they do. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arena.domain.cluster import Device, NodeState
from arena.domain.launch import AttemptId, DeviceId
from arena.domain.records import NodeRecord
from arena.engine.state import ClusterState


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCounts:
    """GPUs of one type: free + used + draining + dirty = total; ``down`` (on lost nodes) is outside the sum.

    Args:
        used: Held by a live attempt on a node that is not draining.
        draining: On a draining or drained node, clean.
        dirty: Unusable for now: a leftover process, a degraded, cleaning or quarantined node, a silent agent.
    """

    gpu_type: str
    total: int = 0
    free: int = 0
    used: int = 0
    draining: int = 0
    dirty: int = 0
    down: int = 0


def gpu_counts(state: ClusterState) -> tuple[GpuCounts, ...]:
    """Return the counts of each GPU type, sorted by type; every device is counted exactly once."""
    tally: dict[str, dict[str, int]] = {}
    for node in state.nodes.values():
        counts = tally.setdefault(node.info.gpu_type, {})
        for device in node.info.devices:
            kind = _kind_of(node, device, state.holders)
            counts[kind] = counts.get(kind, 0) + 1
    return tuple(
        GpuCounts(gpu_type=gpu_type, total=sum(counts.values()) - counts.get("down", 0), **counts)
        for gpu_type, counts in sorted(tally.items())
    )


def _kind_of(node: NodeRecord, device: Device, holders: Mapping[DeviceId, AttemptId]) -> str:
    if node.state is NodeState.LOST:
        return "down"
    if device.dirty is not None:
        return "dirty"
    if node.state in {NodeState.DRAINING, NodeState.DRAINED}:
        return "draining"
    if device.device_id in holders:
        return "used"
    return "free" if node.is_usable else "dirty"
