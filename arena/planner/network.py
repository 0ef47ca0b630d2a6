"""Which links the stages of plans talk over on groups of GPUs, ranks laid over their nodes in order.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import GpuType
from arena.planner.calibration import CALIBRATION, Calibration
from arena.planner.candidates import Candidates, Flags, Floats, Ints
from arena.planner.communication import Hop, Ring, Tier, ring_of, send_tiers_of, tiers_of


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The links of some places, with an entry for each place; candidates say by ``group`` on which they are.

    Args:
        gpu_types: The types of the places, each once, and which of them each place has.
        shapes: GPUs of the nodes, each combination once, and which of them each place has.
        inside, across: What collectives reach inside a node and between nodes.
        send_inside, send_across: What single sends reach.
    """

    gpu_types: tuple[GpuType, ...]
    type_of: Ints
    shapes: tuple[tuple[int, ...], ...]
    shape_of: Ints
    inside: Hop
    across: Hop
    send_inside: Hop
    send_across: Hop
    calibration: Calibration

    @classmethod
    def of(cls, places: Sequence[Place], calibration: Calibration = CALIBRATION) -> Network:
        """Return the network of some places."""
        gpu_types = tuple({place.gpu_type.name: place.gpu_type for place in places}.values())
        position = {gpu_type.name: index for index, gpu_type in enumerate(gpu_types)}
        type_of = np.array([position[place.gpu_type.name] for place in places])
        counts = [place.node_counts for place in places]
        shapes = {shape: index for index, shape in enumerate(dict.fromkeys(counts))}
        inside, across = _by_place(tiers_of, gpu_types, type_of, calibration)
        send_inside, send_across = _by_place(send_tiers_of, gpu_types, type_of, calibration)
        return cls(
            gpu_types=gpu_types,
            type_of=type_of,
            shapes=tuple(shapes),
            shape_of=np.array([shapes[shape] for shape in counts]),
            inside=inside,
            across=across,
            send_inside=send_inside,
            send_across=send_across,
            calibration=calibration,
        )

    def with_types(self, candidates: Candidates) -> Candidates:
        """Return candidates with their positions in ``gpu_types``, where there are several."""
        if len(self.gpu_types) == 1:
            return candidates
        return replace(candidates, gpu_type=self.type_of[candidates.group])

    def memory_bandwidth(self, candidates: Candidates) -> Floats:
        """Return the bytes per second of each candidate's GPUs, ``[n, 1]``."""
        by_type = np.array([gpu_type.memory_bandwidth_bytes_per_s for gpu_type in self.gpu_types])
        found: Floats = by_type[self.type_of][place_of(candidates)][:, None]
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
        place = place_of(candidates)
        sizes = np.array([float(max(shape)) for shape in self.shapes])
        node_size = sizes[self.shape_of[place]][:, None]
        senders = np.minimum(candidates.gpu_count, node_size)
        inside, across = _at(self.send_inside, place), _at(self.send_across, place)
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
        if all(len(shape) == 1 for shape in self.shapes):
            return np.ones((len(candidates), 1)), np.zeros((len(candidates), candidates.depth), dtype=np.bool_)
        # Many candidates lie alike: those with the same stages on nodes of the same sizes.
        on_shapes = replace(candidates, group=self.shape_of[place_of(candidates)])
        alike, which = on_shapes.distinct(("group", "pp", "gpu_count"))
        nodes, crossing = _spans(self.shapes, alike)
        return nodes[which], crossing[which]

    def _ring(self, candidates: Candidates, rank_count: Floats, node_count: Floats) -> Ring:
        place = place_of(candidates)
        return ring_of(_at(self.inside, place), _at(self.across, place), rank_count, node_count, self.calibration)


def _by_place(
    tiers: Callable[[GpuType, Calibration], tuple[Tier, Tier]],
    gpu_types: Sequence[GpuType],
    type_of: Ints,
    calibration: Calibration,
) -> tuple[Hop, Hop]:
    """Return the tiers of each place's type, ``[places]``."""
    pairs = [tiers(gpu_type, calibration) for gpu_type in gpu_types]
    figures = np.array([[(one.bandwidth_bytes_per_s, one.latency_s) for one in pair] for pair in pairs])[type_of]
    inside, across = (
        Hop(bandwidth_bytes_per_s=figures[:, index, 0], latency_s=figures[:, index, 1]) for index in (0, 1)
    )
    return inside, across


def _at(by_place: Hop, place: Ints) -> Hop:
    """Return links of places for candidates, ``[n, 1]``."""
    return Hop(
        bandwidth_bytes_per_s=by_place.bandwidth_bytes_per_s[place][:, None],
        latency_s=by_place.latency_s[place][:, None],
    )


def place_of(candidates: Candidates) -> Ints:
    """Return where each candidate is."""
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
    first, last = _nodes_at(shapes, place_of(candidates), ends - size, ends)
    crossing = np.roll(last, -1, axis=1) != first
    crossing[:, -1] = True
    is_spread = np.array([len(shape) > 1 for shape in shapes])
    is_apart = (crossing | candidates.last_stages) & is_spread[place_of(candidates)][:, None]
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
