"""GPU groups (what a job could be given) and allocations (what it was given). Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from arena.domain.launch import DeviceId, NodeId
from arena.domain.parallel import ParallelPlan
from arena.domain.replacing import quickly_made
from arena.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class GroupPart:
    """GPUs of one type (and zone) of a group.

    Args:
        gpu_type: Catalog name.
        node_counts: GPUs on each node, largest first; ``(4, 4)`` is two nodes with four each.
        zone: None where any one zone will do.
    """

    gpu_type: str
    node_counts: tuple[int, ...]
    zone: str | None = None

    def __post_init__(self) -> None:
        if not self.node_counts or min(self.node_counts) < 1:
            raise SpecError("a GPU group needs at least one GPU on each of its nodes", why=str(self.node_counts))
        if list(self.node_counts) != sorted(self.node_counts, reverse=True):
            raise SpecError("node counts of a GPU group go from large to small", why=str(self.node_counts))

    @property
    def gpu_count(self) -> int:
        """GPUs of this part."""
        return sum(self.node_counts)

    def __str__(self) -> str:
        zone = f"/{self.zone}" if self.zone else ""
        return f"{self.gpu_type}{zone} {'+'.join(map(str, self.node_counts))}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class GpuGroup:
    """What a job could be given before concrete devices: type x count x node shape, e.g. ``a100 4+4``."""

    parts: tuple[GroupPart, ...]

    @classmethod
    def of(cls, gpu_type: str, node_counts: Sequence[int], zone: str | None = None) -> GpuGroup:
        """Return a group of one type: ``GpuGroup.of("a100", [4, 4])``."""
        counts = tuple(sorted(node_counts, reverse=True))
        return cls(parts=(GroupPart(gpu_type=gpu_type, node_counts=counts, zone=zone),))

    @property
    def gpu_count(self) -> int:
        """GPUs over all parts."""
        if len(self.parts) == 1:
            return sum(self.parts[0].node_counts)
        return sum([part.gpu_count for part in self.parts])

    @property
    def node_count(self) -> int:
        """Nodes over all parts."""
        return sum(len(part.node_counts) for part in self.parts)

    def __str__(self) -> str:
        return ", ".join([str(part) for part in self.parts]) if len(self.parts) != 1 else str(self.parts[0])


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShare:
    """The devices of one node in an allocation, in local-rank order."""

    node_id: NodeId
    device_ids: tuple[DeviceId, ...]


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Concrete devices, in rank order: the first share holds ranks 0, 1, ..., the next goes on from there."""

    shares: tuple[NodeShare, ...]

    @property
    def gpu_count(self) -> int:
        """Devices over all nodes."""
        return sum([len(share.device_ids) for share in self.shares])

    @property
    def node_ids(self) -> tuple[NodeId, ...]:
        """Nodes in rank order; the first holds rank 0."""
        return tuple([share.node_id for share in self.shares])

    @property
    def device_ids(self) -> frozenset[DeviceId]:
        """All devices."""
        return frozenset([device for share in self.shares for device in share.device_ids])


def splits_tensor_parallel_group(plan: ParallelPlan, node_counts: Sequence[int]) -> bool:
    """Tell whether a plan laid over nodes in rank order would split a tensor-parallel group across nodes."""
    boundaries = {sum(node_counts[: index + 1]) for index in range(len(node_counts) - 1)}
    rank = 0
    for size in plan.tensor_parallel_sizes:
        if any(rank < boundary < rank + size for boundary in boundaries):
            return True
        rank += size
    return False
