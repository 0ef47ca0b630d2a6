"""The clusters of Arena's artifact as the planner's hardware types.

A100 40 GB (four to a node), V100 32 GB (sixteen), A40 and A10 (two) by ``device_infos.json`` and ``NODE_CAPACITY`` of
the artifact. By its timings of collectives the first two have NVLink, the others PCIe 4.0, and a node's network carries
3.4 to 5 GB/s in all-reduces. What links reach is read from these timings, as the planner takes measurements where there
are some; the calibration's shares of nominal bandwidths are then one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import GpuType
from arena.planner.calibration import CALIBRATION, Calibration
from arena.planner.hardware import catalog
from experiments.arena_data.data import Collective, Hardware

CATALOG_NAMES = {"a100": "a100-40", "v100": "v100-32", "a40": "a40", "a10": "a10"}

FP32_TERAFLOPS = {"a100": 19.5, "v100": 15.7, "a40": 19.2, "a10": 15.6}
"""Peaks as ``device_infos.json`` counts them (A10: by the same rule, 72 processors at 1.695 GHz): of the two paths of a
GA10x processor one is shared with integers, and convolutions do not reach it."""

MEMORY_SHARE = 0.8
"""Of the memory, what XLA takes for tensors (``XLA_PYTHON_CLIENT_MEM_FRACTION`` in ``runtime_profiler.py``); context
and communication buffers lie in the rest."""

LARGE_BYTES = 64 * 2**20
"""From this size on, a collective tells bandwidth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What timed all-reduces say of a GPU type's links, bytes per second and direction.

    Args:
        inside: Of one GPU to the others, by how many of a node take part.
        node_network: Of a whole node; None where nodes were not timed together.
    """

    inside: Mapping[int, float]
    node_network: float | None


def calibration() -> Calibration:
    """Return the calibration in use, with links as they were measured."""
    return replace(CALIBRATION, link_share=1.0, bus_share=1.0, network_share=1.0, network_crowding=0.0)


def links_by_type(collectives: Sequence[Collective]) -> Mapping[str, Links]:
    """Return what links reach in large all-reduces, by GPU type."""
    large = [one for one in collectives if one.kind == "all-reduce" and one.size_bytes >= LARGE_BYTES]
    names = sorted({one.hardware.gpu_type for one in large})
    return {name: _links([one for one in large if one.hardware.gpu_type == name]) for name in names}


def _links(collectives: Sequence[Collective]) -> Links:
    rings: dict[int, list[float]] = {}
    for one in collectives:
        if one.node_count == 1:
            rings.setdefault(len(one.ranks), []).append(_ring_bytes_per_s(one))
    inside = {count: median(found) for count, found in sorted(rings.items())}
    networks = [_node_bytes_per_s(one, inside) for one in collectives if one.node_count > 1]
    return Links(inside=inside, node_network=median(networks) if networks else None)


def _ring_bytes_per_s(one: Collective) -> float:
    """Return the bandwidth of a ring, as in ``arena.planner.communication``: 2 (n - 1) / n of the bytes."""
    ranks = len(one.ranks)
    return 2.0 * (ranks - 1) / ranks * one.size_bytes / one.time_s


def _node_bytes_per_s(one: Collective, inside: Mapping[int, float]) -> float:
    """Return a node's network in a hierarchical all-reduce; groups of ranks that do one at once share it."""
    nodes = one.node_count
    local = len(one.ranks) // nodes
    inside_s = 2.0 * (local - 1) / local * one.size_bytes / inside[local] if local > 1 else 0.0
    own_bytes = 2.0 * (nodes - 1) / nodes * one.size_bytes / local
    return own_bytes * one.hardware.gpus_per_node / (one.time_s - inside_s)


def gpu_type_of(hardware: Hardware, links: Mapping[str, Links]) -> GpuType:
    """Return the planner's type for some GPUs, with the links that were measured."""
    found = catalog()[CATALOG_NAMES[hardware.gpu_type]]
    own = links[hardware.gpu_type]
    inside = own.inside.get(hardware.gpus_per_node, max(own.inside.values()))
    across = found.network_bandwidth_bytes_per_s * CALIBRATION.network_share
    if own.node_network is not None:
        across = own.node_network / hardware.gpus_per_node
    return replace(
        found,
        peak_flops_per_s={**found.peak_flops_per_s, "fp32": 1e12 * FP32_TERAFLOPS[hardware.gpu_type]},
        link_bandwidth_bytes_per_s=inside,
        network_bandwidth_bytes_per_s=across,
    )


def group_of(hardware: Hardware, gpu_type: GpuType) -> GpuGroup:
    """Return the GPU group."""
    return GpuGroup.of(gpu_type.name, [hardware.gpus_per_node] * hardware.node_count)


def memory_limit_bytes(gpu_type: GpuType) -> float:
    """Return what tensors may fill."""
    return MEMORY_SHARE * gpu_type.memory_bytes
