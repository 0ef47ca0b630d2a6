"""Alpha-beta times of collectives and sends over a node's links and the network. Pure: no I/O, no clock.

A collective of n ranks over B bytes moves (n - 1) / n x B per rank and direction for a gather or a scatter, twice that
for an all-reduce. Across nodes it is hierarchical: scatter inside the node, all-reduce of the shards across nodes,
gather inside. Every collective pays some link latencies whatever its ranks (measured: 45 us on 2 as on 8 A100s), and
then an all-reduce goes through trees (log2(n) latencies for each half), a gather or scatter round a ring (n - 1 hops).
Links reach a share of their nominal bandwidth, networks of many nodes a smaller one, see ``arena.planner.calibration``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import GpuType
from arena.planner.calibration import CALIBRATION, Calibration
from arena.planner.candidates import Candidates, Flags, Floats

_BUS_BYTES_PER_S = 32e9
"""Up to what bandwidth a link is taken for PCIe (4.0 x16), which GPUs share with others and their host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A link: bytes per second per GPU and direction, seconds per message."""

    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """From each stage to another: a ``Tier`` for every stage, ``[n, p]``."""

    bandwidth_bytes_per_s: Floats
    latency_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Ranks that do collectives together, by what they cost them: times are linear in bytes and messages.

    Args:
        gather_s_per_byte: Of a gather or reduce-scatter, by its bytes in all.
        exchange_s_per_byte: Of an all-to-all, by the bytes that each rank has.
        latency_s: Of one half of an all-reduce.
        ring_latency_s: Of a gather or a reduce-scatter.
    """

    gather_s_per_byte: Floats
    exchange_s_per_byte: Floats
    latency_s: Floats
    ring_latency_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Who talks over what, ``[n, p]`` or what broadcasts to it.

    Args:
        tensor: Tensor-parallel ranks.
        data: Replicas of a stage.
        shard: Replicas that ZeRO divides state over.
        expert: Replicas that spread experts among them.
        expert_data: Replicas that hold the same experts.
        on: Sends to the next stage.
        back: Sends to the stage before.
    """

    tensor: Ring
    data: Ring
    shard: Ring
    expert: Ring
    expert_data: Ring
    on: Hop
    back: Hop


def tiers_of(gpu_type: GpuType, calibration: Calibration = CALIBRATION) -> tuple[Tier, Tier]:
    """Return the links inside a node and between nodes, by what they reach."""
    is_bus = gpu_type.link_bandwidth_bytes_per_s <= _BUS_BYTES_PER_S and gpu_type.name != "cpu"
    inside = Tier(
        bandwidth_bytes_per_s=(calibration.bus_share if is_bus else calibration.link_share)
        * gpu_type.link_bandwidth_bytes_per_s,
        latency_s=gpu_type.link_latency_s,
    )
    across = Tier(
        bandwidth_bytes_per_s=calibration.network_share * gpu_type.network_bandwidth_bytes_per_s,
        latency_s=gpu_type.network_latency_s,
    )
    return inside, across


def links_of(
    gpu_type: GpuType,
    group: GpuGroup,
    candidates: Candidates,
    *,
    shard_ranks_max: int | None = None,
    calibration: Calibration = CALIBRATION,
) -> Links:
    """Return the links of a group whose ranks are laid over its nodes in order."""
    inside, across = tiers_of(gpu_type, calibration)

    def ring(ranks: Floats, nodes: Floats) -> Ring:
        return _ring(inside, across, ranks, nodes, calibration)

    nodes, crossing = _nodes_spanned(group, candidates)
    on = _hops(inside, across, group, candidates, crossing)
    dp, tp = candidates.dp.astype(np.float64), candidates.tp.astype(np.float64)
    data = shard = ring(dp, nodes)
    if shard_ranks_max is not None:
        sharers = np.minimum(dp, shard_ranks_max)
        shard = ring(sharers, np.ceil(nodes * sharers / dp))
    expert, expert_data = ring(np.ones_like(tp), np.ones_like(tp)), data
    if np.any(candidates.expert_parallel > 1):
        ep = np.broadcast_to(candidates.expert_parallel[:, None], dp.shape).astype(np.float64)
        expert = ring(ep, np.ceil(nodes * ep / dp))
        expert_data = ring(dp / ep, nodes)
    return Links(
        tensor=ring(tp, np.ones_like(tp)),
        data=data,
        shard=shard,
        expert=expert,
        expert_data=expert_data,
        on=on,
        back=Hop(
            bandwidth_bytes_per_s=np.roll(on.bandwidth_bytes_per_s, 1, axis=1),
            latency_s=np.roll(on.latency_s, 1, axis=1),
        ),
    )


def all_gather_s(ring: Ring, size_bytes: Floats, count: Floats | float = 1.0) -> Floats:
    """Seconds of ``count`` collectives that gather (or reduce-scatter) ``size_bytes`` in all."""
    seconds: Floats = size_bytes * ring.gather_s_per_byte + count * ring.ring_latency_s
    return seconds


def all_reduce_s(ring: Ring, size_bytes: Floats, count: Floats | float = 1.0) -> Floats:
    """Seconds of ``count`` collectives that sum ``size_bytes`` in all over the ranks."""
    seconds: Floats = 2.0 * (size_bytes * ring.gather_s_per_byte + count * ring.latency_s)
    return seconds


def all_to_all_s(ring: Ring, size_bytes: Floats, count: Floats | float = 1.0) -> Floats:
    """Seconds of ``count`` exchanges in which each rank has ``size_bytes`` in all and sends on all but its share."""
    seconds: Floats = size_bytes * ring.exchange_s_per_byte + count * ring.latency_s
    return seconds


def send_s(tier: Tier | Hop, size_bytes: Floats, count: Floats | float = 1.0) -> Floats:
    """Seconds of ``count`` messages with ``size_bytes`` in all."""
    seconds: Floats = size_bytes / tier.bandwidth_bytes_per_s + count * tier.latency_s
    return seconds


def _ring(inside: Tier, across: Tier, rank_count: Floats, node_count: Floats, calibration: Calibration) -> Ring:
    nodes = np.minimum(node_count, rank_count)
    local = np.ceil(rank_count / nodes)
    # Of an exchange, the share that goes to other nodes takes the network.
    local_share, node_share = (local - 1.0) / local, (nodes - 1.0) / nodes
    crowded = 1.0 + calibration.network_crowding * np.log2(nodes)
    start_s = calibration.collective_latencies * np.where(nodes > 1, across.latency_s, inside.latency_s)
    start_s = np.where(rank_count > 1, start_s, 0.0)
    hops_s = (local - 1.0) * inside.latency_s + (nodes - 1.0) * across.latency_s
    return Ring(
        gather_s_per_byte=local_share / inside.bandwidth_bytes_per_s
        + node_share * crowded / local / across.bandwidth_bytes_per_s,
        exchange_s_per_byte=local_share / nodes / inside.bandwidth_bytes_per_s
        + node_share * crowded / across.bandwidth_bytes_per_s,
        latency_s=0.5 * start_s
        + calibration.hop_latencies * (np.log2(local) * inside.latency_s + np.log2(nodes) * across.latency_s),
        ring_latency_s=start_s + calibration.hop_latencies * hops_s,
    )


def _hops(inside: Tier, across: Tier, group: GpuGroup, candidates: Candidates, crossing: Flags) -> Hop:
    """Return the links from each stage to the next; stages smaller than a node have more of its network each."""
    node_size = float(max(count for part in group.parts for count in part.node_counts))
    senders = np.minimum(candidates.gpu_count, node_size)
    network = np.broadcast_to(across.bandwidth_bytes_per_s * node_size / senders, crossing.shape)
    return Hop(
        bandwidth_bytes_per_s=np.where(crossing, network, inside.bandwidth_bytes_per_s),
        latency_s=np.where(crossing, across.latency_s, inside.latency_s),
    )


def _nodes_spanned(group: GpuGroup, candidates: Candidates) -> tuple[Floats, Flags]:
    """Return the nodes that the ranks of each stage lie on, and whether some lie apart from the next stage's.

    Both ``[n, p]`` (nodes ``[n, 1]`` where there is one). The last stage's next is the first, for interleaved chunks.
    """
    if group.node_count == 1:
        return np.ones((len(candidates), 1)), np.zeros((len(candidates), candidates.depth), dtype=np.bool_)
    counts = [count for part in group.parts for count in part.node_counts]
    boundaries = np.array(list(accumulate(counts))[:-1], dtype=np.int64)
    # Many candidates lie alike: those with the same stages.
    shapes = np.concatenate((candidates.gpu_count, candidates.pp[:, None]), axis=1)
    shapes, which = np.unique(shapes, axis=0, return_inverse=True)
    is_stage = np.arange(candidates.stage_mask.shape[1])[None, :] < shapes[:, -1:]
    size = np.where(is_stage, shapes[:, :-1], 0)
    ends = np.cumsum(size, axis=1)
    first = np.searchsorted(boundaries, ends - size, side="right")
    last = np.searchsorted(boundaries, ends, side="left")
    crossing = np.roll(last, -1, axis=1) != first
    crossing[:, -1] = True
    ends_here = np.arange(is_stage.shape[1])[None, :] == shapes[:, -1:] - 1
    which = which.reshape(-1)
    return (1.0 + np.where(is_stage, last - first, 0))[which], (crossing | ends_here)[which]
