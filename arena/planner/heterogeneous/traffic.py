"""What mixed plans send, between stages and between replicas, and its price. Pure: no I/O, no clock.

* A micro-batch's sends take the slower of two neighbours' networks, and what lies between their zones; inside a node,
  its link, where the whole plan is on one node.
* A stage synchronises over the nodes of all its replicas. Each kind's ring has as many replicas on every node as it has
  itself, and the slowest network among the stage's; the slowest kind counts.
* Between zones a stage's gradients go round a ring of zones once in each half of the all-reduce.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations_with_replacement, pairwise

import numpy as np

from arena.domain.job import TrainSpec
from arena.domain.micro_batches import MicroBatch
from arena.domain.parallel import ParallelPlan
from arena.planner.candidates import Floats
from arena.planner.communication import Tier
from arena.planner.heterogeneous.offer import Offer, PartKey, ZoneLinks
from arena.planner.heterogeneous.placed import PlacedKind, PlacedStage
from arena.planner.heterogeneous.stages import (
    after_stages_s,
    boundary_bytes,
    boundary_s,
    own_tier,
    slower,
    stage_gradient_bytes,
)
from arena.planner.heterogeneous.sync import network_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ring:
    """Who synchronises: GPUs of each node, replicas, and parts of the offer."""

    node_counts: tuple[int, ...]
    replica_count: int
    keys: tuple[PartKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Times and prices of one job's messages on one offer; what it worked out it keeps."""

    train: TrainSpec
    offer: Offer
    links: ZoneLinks
    _after: dict[tuple[object, ...], float] = field(default_factory=dict)
    _boundaries: dict[tuple[object, ...], Floats] = field(default_factory=dict)

    def sends_s(self, plan: ParallelPlan, placed: Sequence[PlacedStage], batches: Sequence[MicroBatch]) -> list[Floats]:
        """Return the longest sends of a micro-batch of each replica: forward behind it and backward in front."""
        is_one_node = len({node for stage in placed for node in stage.nodes}) == 1
        found = [np.zeros((2, len(stage.nodes))) for stage in placed]
        for stage, layer in enumerate(_cuts(plan)):
            one, other = placed[stage], placed[stage + 1]
            for mine, yours in {(batch.replicas[stage], batch.replicas[stage + 1]) for batch in batches}:
                keys = one.kinds[mine][0], other.kinds[yours][0]
                seconds = self._send_s(keys, plan.micro_batch_size, layer, is_one_node=is_one_node)
                found[stage][0, mine] = max(found[stage][0, mine], seconds)
                found[stage + 1][1, yours] = max(found[stage + 1][1, yours], seconds)
        return [each.sum(axis=0) for each in found]

    def _send_s(self, keys: tuple[PartKey, PartKey], size: int, layer: int, *, is_one_node: bool) -> float:
        known = (keys, size, is_one_node)
        if known not in self._boundaries:
            tier = self._tier(*keys, is_one_node=is_one_node)
            self._boundaries[known] = boundary_s(self.train, self.offer[keys[0]].gpu_type, tier, size)
        return float(self._boundaries[known][layer])

    def _tier(self, one: PartKey, other: PartKey, *, is_one_node: bool) -> Tier:
        tier = slower(
            own_tier(self.offer[one].gpu_type, is_one_node=is_one_node),
            own_tier(self.offer[other].gpu_type, is_one_node=is_one_node),
        )
        return tier if one[1] == other[1] else slower(tier, self.links.tier(one[1], other[1]))

    def after_s(self, placed: Sequence[PlacedStage]) -> Floats:
        """Return synchronisation and update of each stage, ``[p]``."""
        return np.array([self._stage_after_s(placed, stage) for stage in placed])

    def _stage_after_s(self, placed: Sequence[PlacedStage], stage: PlacedStage) -> float:
        kinds = sorted(set(stage.kinds))
        if len(kinds) == 1:
            by_node = Counter(stage.nodes)
            counts = tuple(sorted((count * kinds[0][1] for count in by_node.values()), reverse=True))
            ring = _Ring(node_counts=counts, replica_count=len(stage.nodes), keys=stage.keys)
            return self._ring_s(placed, stage, kinds[0], ring)
        total = len(set(stage.nodes))
        own: Counter[PlacedKind] = Counter(stage.kinds)
        spread = Counter(kind for kind, _ in set(zip(stage.kinds, stage.nodes, strict=True)))
        seconds = []
        for kind in kinds:
            local = -(-own[kind] // spread[kind])
            ring = _Ring(node_counts=(local * kind[1],) * total, replica_count=local * total, keys=stage.keys)
            seconds.append(self._ring_s(placed, stage, kind, ring))
        return max(seconds)

    def _ring_s(self, placed: Sequence[PlacedStage], stage: PlacedStage, kind: PlacedKind, ring: _Ring) -> float:
        if (kind, stage.units, stage.left, ring) not in self._after:
            tier = own_tier(self.offer[kind[0]].gpu_type, is_one_node=False)
            for pair in combinations_with_replacement(ring.keys, 2):
                tier = slower(tier, self._tier(*pair, is_one_node=False))
            seconds = after_stages_s(
                self.train,
                network_of(self.offer[kind[0]].gpu_type, tier),
                [(one.units, one.left) for one in placed],
                node_counts=ring.node_counts,
                tp=kind[1],
                dp=ring.replica_count,
            )
            # Stages are mostly alike: what one call costs is worth all of them.
            for one, own in zip(placed, seconds.tolist(), strict=True):
                self._after[kind, one.units, one.left, ring] = own
        return self._after[kind, stage.units, stage.left, ring]

    def usd(self, plan: ParallelPlan, placed: Sequence[PlacedStage], batches: Sequence[MicroBatch]) -> float:
        """Return the price of what crosses zones in a step."""
        if len({zone for _, zone in self.offer}) == 1:
            return 0.0
        usd = 0.0
        for stage, layer in enumerate(_cuts(plan)):
            one, other = placed[stage], placed[stage + 1]
            routes = Counter((batch.replicas[stage], batch.replicas[stage + 1]) for batch in batches)
            for (mine, yours), count in sorted(routes.items()):
                keys = one.kinds[mine][0], other.kinds[yours][0]
                if keys[0][1] != keys[1][1]:
                    size = boundary_bytes(self.train, self.offer[keys[0]].gpu_type, plan.micro_batch_size)[layer]
                    usd += 2.0 * count * float(size) * self.links.price(keys[0][1], keys[1][1])
        return usd + sum(self._ring_usd(stage) for stage in placed)

    def _ring_usd(self, stage: PlacedStage) -> float:
        zones = sorted({zone for _, zone in stage.keys})
        if len(zones) == 1:
            return 0.0
        size = stage_gradient_bytes(self.train, self.offer[stage.keys[0]].gpu_type, stage.units)
        share = 2.0 * (len(zones) - 1) / len(zones)
        return share * size * sum(self.links.price(one, other) for one, other in pairwise([*zones, zones[0]]))


def _cuts(plan: ParallelPlan) -> list[int]:
    """Return the first layer of each stage but the first."""
    return list(accumulate(stage.layer_count for stage in plan.stages))[:-1]
