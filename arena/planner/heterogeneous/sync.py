"""What follows the last backward pass of first and last stages at the least. Pure: no I/O, no clock.

A stage synchronises over its slowest network, so stages fall into classes by it: what may be in the stage, and what all
of it waits for at the least. Every stage is in one of the classes, so what holds for each of them holds for all plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.planner.calibration import CALIBRATION
from arena.planner.candidates import Floats
from arena.planner.communication import Tier
from arena.planner.heterogeneous.offer import Offer, Offered, PartKey, ZoneLinks, alike
from arena.planner.heterogeneous.stages import Rows, after_s, own_tier, slower

NODE_LEVELS = (0, 1, 2, 4, 8, 16, 32, 64)
"""Nodes a stage is known to span at least; at 0 it has one replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Class:
    """Stages whose slowest network is one: the parts that are as fast, and what they reach at most.

    Args:
        is_spread: Whether the stage is in several zones.
    """

    parts: tuple[int, ...]
    tier: Tier
    is_spread: bool


def network_of(gpu_type: GpuType, tier: Tier) -> GpuType:
    """Return a GPU type whose network reaches so much."""
    return replace(
        gpu_type,
        network_bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s / CALIBRATION.network_share,
        network_latency_s=tier.latency_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """Least synchronisation and update; infinite where a kind is in no stage of the class.

    Args:
        first: Of first stages of 0, 1, ... layers, ``[classes, levels, k, l + 1]``.
        last: Of last stages from each layer on, ``[classes, levels, k, l]``.
    """

    first: Floats
    last: Floats


def after_by_class(train: TrainSpec, offer: Offer, links: ZoneLinks, kinds: Sequence[tuple[int, int]]) -> After:
    """Return what follows stages, by class and by the nodes that they span.

    Args:
        kinds: Part of the offer, by position, and degree of each.
    """
    parts = [offer[key] for key in sorted(offer)]
    firsts = alike(offer)
    known: dict[tuple[int, Tier], dict[int, Floats]] = {}
    classes, layers = list(_classes(offer, links)), train.model.layers
    found = np.full((len(classes), len(NODE_LEVELS), len(kinds), 2 * layers), np.inf)
    for index, one in enumerate(classes):
        for at, (part, tp) in enumerate(kinds):
            if part not in one.parts:
                continue
            own = own_tier(parts[part].gpu_type, is_one_node=False)
            key = (firsts[part], slower(own, one.tier))
            if key not in known:
                degrees = sorted({tp for other, tp in kinds if firsts[other] == firsts[part]})
                known[key] = _after(train, parts[part], key[1], degrees)
            levels = known[key][tp]
            if one.is_spread:
                levels = np.concatenate((np.repeat(levels[2:3], 2, axis=0), levels[2:]))
            found[index, :, at] = levels
    start = np.where(np.isfinite(found[..., :1]), 0.0, np.inf)
    return After(first=np.concatenate((start, found[..., :layers]), axis=-1), last=found[..., layers:])


def _classes(offer: Offer, links: ZoneLinks) -> Iterator[_Class]:
    keys = sorted(offer)
    zones = sorted({zone for _, zone in keys})
    own = [own_tier(offer[key].gpu_type, is_one_node=False).bandwidth_bytes_per_s for key in keys]
    for zone in zones:
        inside = [index for index, key in enumerate(keys) if key[1] == zone]
        for least in sorted({own[index] for index in inside}):
            parts = tuple(index for index in inside if own[index] >= least)
            yield _Class(parts=parts, tier=Tier(bandwidth_bytes_per_s=least, latency_s=0.0), is_spread=False)
    if len(zones) > 1:
        yield from _spread_classes(keys, own, links)


def _spread_classes(keys: Sequence[PartKey], own: Sequence[float], links: ZoneLinks) -> Iterator[_Class]:
    zones = sorted({zone for _, zone in keys})
    between = {pair: links.tier(*pair) for pair in combinations(zones, 2)}
    latency_s = min(tier.latency_s for tier in between.values())
    widest = max(tier.bandwidth_bytes_per_s for tier in between.values())
    bounds = {tier.bandwidth_bytes_per_s for tier in between.values()} | {one for one in own if one < widest}
    for least in sorted(bounds):
        reached = {zone for pair, tier in between.items() if tier.bandwidth_bytes_per_s >= least for zone in pair}
        parts = tuple(index for index, key in enumerate(keys) if own[index] >= least and key[1] in reached)
        if len({keys[index][1] for index in parts}) > 1:
            yield _Class(parts=parts, tier=Tier(bandwidth_bytes_per_s=least, latency_s=latency_s), is_spread=True)


def _after(train: TrainSpec, part: Offered, tier: Tier, degrees: Sequence[int]) -> dict[int, Floats]:
    """Return what follows stages on a part's GPUs at the least, ``[levels, 2 l]`` by degree.

    First stages of 1, 2, ... layers, then last stages from layer 0, 1, ... on.
    """
    layers = train.model.layers
    gpu_type = network_of(part.gpu_type, tier)
    firsts = [(0, layers + 2 if end == layers else end + 1) for end in range(1, layers + 1)]
    lasts = [(start + 1 if start else 0, layers + 2) for start in range(layers)]
    left = [1 if end > layers else 2 for _, end in firsts] + [1] * layers
    rows = Rows.of([*firsts, *lasts], left, tp=1)

    def levels_s(node_size: int, spreads: list[tuple[int, int]]) -> Floats:
        nodes = [node_size] * (NODE_LEVELS[-1] + 1)
        found = after_s(train, gpu_type, nodes, rows.with_degrees(spreads))
        return found.reshape(-1, len(NODE_LEVELS), 2 * layers)

    size = part.gpus_per_node
    full = levels_s(size, [(tp, _replicas(level, size // tp)) for tp in degrees for level in NODE_LEVELS])
    # Where a node's links are hardly faster than its network, one replica on each node can be the fastest.
    if part.gpu_type.link_bandwidth_bytes_per_s < 2 * part.gpu_type.network_bandwidth_bytes_per_s:
        for index, tp in enumerate(degrees):
            thin = levels_s(tp, [(tp, max(level, 1)) for level in NODE_LEVELS])[0]
            full[index, 2:] = np.minimum(full[index, 2:], thin[2:])
    return {tp: full[index] for index, tp in enumerate(degrees)}


def _replicas(level: int, per_node: int) -> int:
    return level + 1 if level < 2 else level * per_node
