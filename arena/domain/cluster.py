"""GPU types, nodes and the shape of a cluster as frozen values. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from arena.domain.launch import DeviceId, NodeId
from arena.domain.profile import Profile
from arena.errors import SpecError


class Generation(StrEnum):
    """Of a GPU's processors; what share of a peak programs reach goes by it."""

    HOST = "host"
    VOLTA = "volta"
    TURING = "turing"
    AMPERE = "ampere"
    ADA = "ada"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """A row of the hardware catalog.

    Args:
        name: Catalog key, e.g. ``a100-80``; ``cpu`` for virtual GPUs.
        memory_bytes: Device memory.
        peak_flops_per_s: Dense peak by precision (``fp32``, ``bf16``, ``fp16``).
        memory_bandwidth_bytes_per_s: Device memory bandwidth.
        link_bandwidth_bytes_per_s: Per-GPU bandwidth to the others of its node, one direction.
        link_latency_s: Latency of one message inside a node.
        network_bandwidth_bytes_per_s: Per-GPU share of the node's network, one direction.
        network_latency_s: Latency of one message between nodes.
        launch_latency_s: Fixed cost of starting one kernel.
        usd_per_hour: Price of one GPU hour.
        source: Where the figures come from.
        generation: Of its processors.
        processor_count: Streaming multiprocessors; None where nobody says.
        sustained_clock_share: The clock that its power limit lets it hold in matrix products, of the one that its peaks
            are stated at.
        profiles: What was measured on it.
    """

    name: str
    memory_bytes: int
    peak_flops_per_s: Mapping[str, float]
    memory_bandwidth_bytes_per_s: float
    link_bandwidth_bytes_per_s: float
    link_latency_s: float
    network_bandwidth_bytes_per_s: float
    network_latency_s: float
    launch_latency_s: float
    usd_per_hour: float
    source: str
    generation: Generation = Generation.AMPERE
    processor_count: int | None = None
    sustained_clock_share: float = 1.0
    profiles: tuple[Profile, ...] = ()

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            self._check(name, getattr(self, name), is_right=getattr(self, name) > 0, wanted="greater than 0")
        for name in _NOT_NEGATIVE:
            self._check(name, getattr(self, name), is_right=getattr(self, name) >= 0, wanted="at least 0")
        for precision, peak in self.peak_flops_per_s.items():
            self._check(f"peak_flops_per_s[{precision}]", peak, is_right=peak > 0, wanted="greater than 0")
        if "fp32" not in self.peak_flops_per_s:
            raise SpecError(
                f"GPU type {self.name} has no peak for fp32", why="it stands in for those that are not named"
            )

    def _check(self, field_name: str, value: float, *, is_right: bool, wanted: str) -> None:
        """Times divide by these: what is no number would spread to every plan."""
        if not (is_right and math.isfinite(value)):
            raise SpecError(f"{field_name} of GPU type {self.name} is {value:g}", fix=f"allowed: {wanted}, and finite")


_POSITIVE = (
    *("memory_bytes", "memory_bandwidth_bytes_per_s", "link_bandwidth_bytes_per_s", "network_bandwidth_bytes_per_s"),
    "sustained_clock_share",
)
_NOT_NEGATIVE = ("link_latency_s", "network_latency_s", "launch_latency_s", "usd_per_hour")


class NodeState(StrEnum):
    """States of a node (legal changes: ``arena.domain.transitions``)."""

    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    CLEANING = "cleaning"
    DEGRADED = "degraded"
    LOST = "lost"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU of a node.

    Args:
        device_id: UUID from the driver, or ``<node>/vgpu-<index>`` for a virtual GPU.
        index: Position on the node, the order in which ranks use devices.
        dirty: Why it may not be given away (a foreign or leftover process, a failed health check); None when clean.
    """

    device_id: DeviceId
    index: int
    dirty: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """What an agent says of its node when it registers.

    Args:
        incarnation: Made anew at each start of the agent process.
        address: Where other nodes reach this one's ranks (an IP, used verbatim).
        port_low, port_high: Range (inclusive) from which rendezvous ports are leased.
        visible_places: Checkpoint places this node proved it can write to and that it sees the shared marker of,
            by path, each with the marker's content: equal markers mean the same place.
        problem: Driver or hardware trouble; a node with one is degraded.
        clock_skew_s: Agent clock minus scheduler clock when it registered; shown, never used for liveness.
    """

    node_id: NodeId
    incarnation: str
    gpu_type: str
    devices: tuple[Device, ...]
    address: str
    port_low: int
    port_high: int
    zone: str = "default"
    region: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int = 0
    agent_version: str = ""
    visible_places: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    clock_skew_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class NodePool:
    """Nodes that are alike: so many nodes of so many GPUs of one type in one zone."""

    gpu_type: str
    zone: str
    gpus_per_node: int
    node_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    """What a grid depends on of a cluster: its pools, sorted. Nodes that are down for a while still count."""

    pools: tuple[NodePool, ...]

    @property
    def gpu_count(self) -> int:
        """All GPUs."""
        return sum(pool.gpus_per_node * pool.node_count for pool in self.pools)

    @property
    def gpu_count_by_type(self) -> dict[str, int]:
        """GPUs of each type."""
        counts: dict[str, int] = {}
        for pool in self.pools:
            counts[pool.gpu_type] = counts.get(pool.gpu_type, 0) + pool.gpus_per_node * pool.node_count
        return counts
