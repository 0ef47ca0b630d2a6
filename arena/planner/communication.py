"""Alpha-beta times of collectives and sends over a node's links and the network. Pure: no I/O, no clock.

A collective of n ranks over B bytes moves (n - 1) / n x B per rank and direction for a gather or a scatter, twice that
for an all-reduce. Across nodes it is hierarchical: scatter inside the node, all-reduce of the shards across nodes,
gather inside. Every collective pays some link latencies whatever its ranks (measured: 45 us on 2 as on 8 A100s), and
then an all-reduce goes through trees (log2(n) latencies for each half), a gather or scatter round a ring (n - 1 hops).
Links reach a share of their nominal bandwidth, networks of many nodes a smaller one, see ``arena.planner.calibration``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import GpuType
from arena.domain.profile import LinkKind, MessageKind
from arena.planner.calibration import CALIBRATION, Calibration
from arena.planner.candidates import Candidates, Flags, Floats, Ints
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rings:
    """Which ranks hold copies or parts of the same state, ``[n, p]`` or what broadcasts to it.

    Args:
        data: Replicas of a stage.
        shard: Replicas that ZeRO divides state over.
        expert_data: Replicas that hold the same experts.
    """

    data: Ring
    shard: Ring
    expert_data: Ring


@dataclass(frozen=True, slots=True, kw_only=True)
class Hops:
    """Sends to the next stage and to the one before."""

    on: Hop
    back: Hop


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A group of one GPU type."""

    gpu_type: GpuType
    group: GpuGroup

    @property
    def usd_per_s(self) -> float:
        """Price of all its GPUs."""
        return self.group.gpu_count * self.gpu_type.usd_per_hour / 3600.0

    @property
    def node_counts(self) -> tuple[int, ...]:
        """GPUs on each node."""
        return tuple(count for part in self.group.parts for count in part.node_counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The links of some places, over whose nodes ranks are laid in order; tiers by place.

    Args:
        tiers: What collectives reach inside a node and between nodes.
        sends: What single sends reach.
    """

    places: tuple[Place, ...]
    tiers: tuple[tuple[Tier, Tier], ...]
    sends: tuple[tuple[Tier, Tier], ...]
    calibration: Calibration

    @classmethod
    def of(cls, places: tuple[Place, ...], calibration: Calibration = CALIBRATION) -> Network:
        """Return the network of some places."""
        by_type = {place.gpu_type.name: tiers_of(place.gpu_type, calibration) for place in places}
        tiers = tuple(by_type[place.gpu_type.name] for place in places)
        sends_by_type = {place.gpu_type.name: send_tiers_of(place.gpu_type, calibration) for place in places}
        sends = tuple(sends_by_type[place.gpu_type.name] for place in places)
        return cls(places=places, tiers=tiers, sends=sends, calibration=calibration)

    def memory_bandwidth(self, candidates: Candidates) -> Floats:
        """Return the bytes per second of each candidate's GPUs, ``[n, 1]``."""
        by_place = np.array([place.gpu_type.memory_bandwidth_bytes_per_s for place in self.places])
        found: Floats = by_place[_place_of(candidates)][:, None]
        return found

    def tensor_ring(self, candidates: Candidates) -> Ring:
        """Return what tensor-parallel ranks talk over: they are on one node."""
        tp = candidates.tp.astype(np.float64)
        return self._ring(candidates, tp, np.ones_like(tp))

    def expert_ring(self, candidates: Candidates) -> Ring:
        """Return what replicas talk over that spread experts among them."""
        nodes, _ = self._spans(candidates)
        dp = candidates.dp.astype(np.float64)
        ep = np.broadcast_to(candidates.expert_parallel[:, None], dp.shape).astype(np.float64)
        return self._ring(candidates, ep, np.ceil(nodes * ep / dp))

    def rings(self, candidates: Candidates, shard_ranks_max: int | None = None) -> Rings:
        """Return what ranks with the same state talk over."""
        nodes, _ = self._spans(candidates)
        dp = candidates.dp.astype(np.float64)
        data = shard = expert_data = self._ring(candidates, dp, nodes)
        if shard_ranks_max is not None:
            sharers = np.minimum(dp, shard_ranks_max)
            shard = self._ring(candidates, sharers, np.ceil(nodes * sharers / dp))
        if np.any(candidates.expert_parallel > 1):
            expert_data = self._ring(candidates, dp / candidates.expert_parallel[:, None], nodes)
        return Rings(data=data, shard=shard, expert_data=expert_data)

    def hops(self, candidates: Candidates) -> Hops:
        """Return what neighbour stages talk over; those smaller than a node have more of its network each."""
        _, crossing = self._spans(candidates)
        sizes = np.array([float(max(place.node_counts)) for place in self.places])
        node_size = sizes[_place_of(candidates)][:, None]
        senders = np.minimum(candidates.gpu_count, node_size)
        inside, across = _columns(self.sends, candidates)
        network = np.broadcast_to(across.bandwidth_bytes_per_s * node_size / senders, crossing.shape)
        on = Hop(
            bandwidth_bytes_per_s=np.where(crossing, network, inside.bandwidth_bytes_per_s),
            latency_s=np.where(crossing, across.latency_s, inside.latency_s),
        )
        back = Hop(
            bandwidth_bytes_per_s=np.roll(on.bandwidth_bytes_per_s, 1, axis=1),
            latency_s=np.roll(on.latency_s, 1, axis=1),
        )
        return Hops(on=on, back=back)

    def _spans(self, candidates: Candidates) -> tuple[Floats, Flags]:
        """Return the nodes of each stage, and which stages have ranks apart from the next one's."""
        if all(place.group.node_count == 1 for place in self.places):
            return np.ones((len(candidates), 1)), np.zeros((len(candidates), candidates.depth), dtype=np.bool_)
        # Many candidates lie alike: those with the same stages on nodes of the same sizes.
        shapes = list(dict.fromkeys(place.node_counts for place in self.places))
        shape_of = np.array([shapes.index(place.node_counts) for place in self.places])
        alike, which = replace(candidates, group=shape_of[_place_of(candidates)]).distinct(("group", "pp", "gpu_count"))
        nodes, crossing = _spans(shapes, alike)
        return nodes[which], crossing[which]

    def _ring(self, candidates: Candidates, rank_count: Floats, node_count: Floats) -> Ring:
        inside, across = _columns(self.tiers, candidates)
        return _ring(inside, across, rank_count, node_count, self.calibration)


def node_ring(gpu_type: GpuType, rank_count: Floats, calibration: Calibration = CALIBRATION) -> Ring:
    """Return what so many ranks of one node talk over."""
    inside, across = tiers_of(gpu_type, calibration)
    return _ring(inside, across, rank_count, np.ones_like(rank_count), calibration)


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


def _ring(
    inside: Tier | Hop, across: Tier | Hop, rank_count: Floats, node_count: Floats, calibration: Calibration
) -> Ring:
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


def _columns(tiers: tuple[tuple[Tier, Tier], ...], candidates: Candidates) -> tuple[Hop, Hop]:
    """Return what GPUs reach inside their nodes and across, ``[n, 1]``."""
    place = _place_of(candidates)
    inside, across = zip(*tiers, strict=True)
    return _column(inside, place), _column(across, place)


def _column(tiers: Sequence[Tier], place: Ints) -> Hop:
    figures = np.array([(tier.bandwidth_bytes_per_s, tier.latency_s) for tier in tiers])[place]
    return Hop(bandwidth_bytes_per_s=figures[:, :1], latency_s=figures[:, 1:])


def _place_of(candidates: Candidates) -> Ints:
    return np.zeros(len(candidates), dtype=np.int64) if candidates.group is None else candidates.group


def _spans(shapes: Sequence[tuple[int, ...]], candidates: Candidates) -> tuple[Floats, Flags]:
    """Return the nodes that the ranks of each stage lie on, and whether some lie apart from the next stage's.

    Both ``[n, p]``. The last stage's next is the first, for interleaved chunks.

    Args:
        shapes: GPUs on each node; ``candidates.group`` is a position among them.
    """
    is_stage = candidates.stage_mask
    size = np.where(is_stage, candidates.gpu_count, 0)
    ends = np.cumsum(size, axis=1)
    first, last = _nodes_at(shapes, _place_of(candidates), ends - size, ends)
    crossing = np.roll(last, -1, axis=1) != first
    crossing[:, -1] = True
    is_spread = np.array([len(shape) > 1 for shape in shapes])
    is_apart = (crossing | candidates.last_stages) & is_spread[_place_of(candidates)][:, None]
    return 1.0 + np.where(is_stage, last - first, 0), is_apart


def _nodes_at(shapes: Sequence[tuple[int, ...]], shape_of: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the node of the rank at each start, and of the one before each end."""
    sizes = np.array([shape[0] for shape in shapes])[shape_of][:, None]
    first, last = starts // sizes, (ends - 1) // sizes
    for index, shape in enumerate(shapes):
        # Full nodes but for the last one are as good as full.
        if any(count != shape[0] for count in shape[:-1]):
            rows = np.flatnonzero(shape_of == index)
            boundaries = np.cumsum(shape)[:-1]
            first[rows] = np.searchsorted(boundaries, starts[rows], side="right")
            last[rows] = np.searchsorted(boundaries, ends[rows], side="left")
    return first, last
