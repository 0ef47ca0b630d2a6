"""Alpha-beta times of collectives and sends over a node's links and the network. Pure: no I/O, no clock.

A collective of n ranks over B bytes moves (n - 1) / n x B per rank and direction for a gather or a scatter, twice that
for an all-reduce. Across nodes it is hierarchical: scatter inside the node, all-reduce of the shards across nodes,
gather inside. Every collective pays some link latencies whatever its ranks (measured: 45 us on 2 as on 8 A100s), and
then an all-reduce goes through trees (log2(n) latencies for each half), a gather or scatter round a ring (n - 1 hops).
Links reach a share of their nominal bandwidth, networks of many nodes a smaller one, see ``arena.planner.calibration``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arena.domain.cluster import GpuType
from arena.domain.profile import LinkKind, MessageKind
from arena.planner.calibration import CALIBRATION, Calibration
from arena.planner.candidates import Floats
from arena.planner.profiles import link_of

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


def tiers_of(gpu_type: GpuType, calibration: Calibration = CALIBRATION) -> tuple[Tier, Tier]:
    """Return the links inside a node and between nodes, by what collectives reach: as measured, else as fitted."""
    is_bus = gpu_type.link_bandwidth_bytes_per_s <= _BUS_BYTES_PER_S and gpu_type.name != "cpu"
    share = calibration.bus_share if is_bus else calibration.link_share
    inside = link_of(gpu_type, MessageKind.ALL_REDUCE, LinkKind.NODE)
    across = link_of(gpu_type, MessageKind.ALL_REDUCE, LinkKind.NETWORK)
    inside_rate = 1.0 / inside.s_per_byte if inside else share * gpu_type.link_bandwidth_bytes_per_s
    across_rate = (
        1.0 / across.s_per_byte if across else calibration.network_share * gpu_type.network_bandwidth_bytes_per_s
    )
    return (
        Tier(bandwidth_bytes_per_s=inside_rate, latency_s=gpu_type.link_latency_s),
        Tier(bandwidth_bytes_per_s=across_rate, latency_s=gpu_type.network_latency_s),
    )


def send_tiers_of(gpu_type: GpuType, calibration: Calibration = CALIBRATION) -> tuple[Tier, Tier]:
    """Return the links inside a node and between nodes by what single sends reach: as measured, else as fitted."""
    inside, across = tiers_of(gpu_type, calibration)
    return (
        _measured_send(gpu_type, LinkKind.NODE) or _for_sends(inside, calibration),
        _measured_send(gpu_type, LinkKind.NETWORK) or _for_sends(across, calibration),
    )


def _for_sends(tier: Tier, calibration: Calibration) -> Tier:
    times = calibration.send_times
    return Tier(bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s / times, latency_s=tier.latency_s * times)


def _measured_send(gpu_type: GpuType, over: LinkKind) -> Tier | None:
    link = link_of(gpu_type, MessageKind.SEND, over)
    return None if link is None else Tier(bandwidth_bytes_per_s=1.0 / link.s_per_byte, latency_s=link.latency_s)


def node_ring(gpu_type: GpuType, rank_count: Floats, calibration: Calibration = CALIBRATION) -> Ring:
    """Return what so many ranks of one node talk over."""
    inside, across = tiers_of(gpu_type, calibration)
    return ring_of(inside, across, rank_count, np.ones_like(rank_count), calibration)


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


def ring_of(
    inside: Tier | Hop, across: Tier | Hop, rank_count: Floats, node_count: Floats, calibration: Calibration
) -> Ring:
    """Return what collectives cost ranks that are spread over nodes."""
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
