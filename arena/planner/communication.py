"""Alpha-beta times of collectives and sends over a node's links and the network. Pure: no I/O, no clock.

A collective of n ranks over B bytes moves (n - 1) / n x B per rank and direction for a gather or a scatter, twice that
for an all-reduce, and pays log2(n) latencies for each of its halves. Across nodes it is hierarchical: scatter inside
the node, all-reduce of the shards across nodes, gather inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import GpuType
from arena.planner.candidates import Candidates, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A link: bytes per second per GPU and direction, seconds per message."""

    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Ranks that do collectives together.

    Args:
        local_count: Ranks of it on one node.
        node_count: Nodes it spans.
    """

    inside: Tier
    across: Tier
    local_count: Floats
    node_count: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Who talks over what: rings of tensor and data parallelism ``[n, 1]``, and the sends between stages."""

    tensor: Ring
    data: Ring
    pipeline: Tier


def links_of(gpu_type: GpuType, group: GpuGroup, candidates: Candidates) -> Links:
    """Return the links of a group whose ranks are laid over its nodes in order."""
    inside = Tier(
        bandwidth_bytes_per_s=gpu_type.link_bandwidth_bytes_per_s,
        latency_s=gpu_type.link_latency_s,
    )
    across = Tier(
        bandwidth_bytes_per_s=gpu_type.network_bandwidth_bytes_per_s,
        latency_s=gpu_type.network_latency_s,
    )
    tp = candidates.tp[:, None].astype(np.float64)
    node_count = _nodes_spanned(group, candidates)
    local_count = np.ceil(candidates.dp[:, None] / node_count)
    return Links(
        tensor=Ring(inside=inside, across=across, local_count=tp, node_count=np.ones_like(tp)),
        data=Ring(inside=inside, across=across, local_count=local_count, node_count=node_count),
        pipeline=inside if group.node_count == 1 else across,
    )


def all_gather_s(ring: Ring, size_bytes: Floats) -> Floats:
    """Seconds to gather (or to reduce-scatter) ``size_bytes`` in all."""
    inside = _half_s(ring.inside, size_bytes, ring.local_count)
    return inside + _half_s(ring.across, size_bytes / ring.local_count, ring.node_count)


def all_reduce_s(ring: Ring, size_bytes: Floats) -> Floats:
    """Seconds to sum ``size_bytes`` over all ranks."""
    return 2.0 * all_gather_s(ring, size_bytes)


def send_s(tier: Tier, size_bytes: Floats) -> Floats:
    """Seconds of one message."""
    return size_bytes / tier.bandwidth_bytes_per_s + tier.latency_s


def _half_s(tier: Tier, size_bytes: Floats, rank_count: Floats) -> Floats:
    moved_bytes = (rank_count - 1.0) / rank_count * size_bytes
    seconds: Floats = moved_bytes / tier.bandwidth_bytes_per_s + np.log2(rank_count) * tier.latency_s
    return seconds


def _nodes_spanned(group: GpuGroup, candidates: Candidates) -> Floats:
    """Return the most nodes that the ranks of one stage lie on, ``[n, 1]``."""
    counts = [count for part in group.parts for count in part.node_counts]
    boundaries = np.array(list(accumulate(counts))[:-1], dtype=np.int64)
    size = (candidates.dp * candidates.tp)[:, None]
    starts = np.arange(candidates.stage_layers.shape[1])[None, :] * size
    inside = np.searchsorted(boundaries, starts + size, side="left") - np.searchsorted(boundaries, starts, side="right")
    spanned = np.where(candidates.stage_mask, inside, 0).max(axis=1, keepdims=True)
    node_count: Floats = 1.0 + spanned.astype(np.float64)
    return node_count
