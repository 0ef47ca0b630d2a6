"""Which GPUs and nodes of an offer a plan's replicas get. Pure: no I/O, no clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from arena.domain.parallel import ParallelPlan, Replica
from arena.errors import SpecError
from arena.planner.candidates import chunk_units
from arena.planner.heterogeneous.offer import Offer, PartKey

PlacedKind = tuple[PartKey, int]
"""Part of the offer and tensor-parallel degree."""
Node = tuple[PartKey, int]
"""Part of the offer and number of the node in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStage:
    """A stage's replicas on an offer.

    Args:
        units: First unit of the stage, and the one behind its last.
        left: Stages from this one to the last.
        kinds: Of each replica.
        nodes: Of each replica.
    """

    units: tuple[int, int]
    left: int
    kinds: tuple[PlacedKind, ...]
    nodes: tuple[Node, ...]

    @property
    def keys(self) -> tuple[PartKey, ...]:
        """Parts of the offer that the stage is on, in order."""
        return tuple(sorted({key for key, _ in self.kinds}))

    @property
    def gpu_counts(self) -> Counter[PartKey]:
        """GPUs of each part."""
        counts: Counter[PartKey] = Counter()
        for (key, tp), count in Counter(self.kinds).items():
            counts[key] += tp * count
        return counts


def place(plan: ParallelPlan, offer: Offer) -> list[PlacedStage]:
    """Fill every part of an offer in rank order, no replica across nodes.

    Raises:
        SpecError: A replica names GPUs that are not offered, or that several parts of the offer are.
    """
    used: Counter[PartKey] = Counter()
    key_of = {one: part_of(one, offer) for stage in plan.stages for one in dict.fromkeys(stage.replicas)}
    first, last = chunk_units(tuple(one.layer_count for one in plan.stages), 1)
    placed: list[PlacedStage] = []
    for index, stage in enumerate(plan.stages):
        nodes: list[Node] = []
        for replica in stage.replicas:
            key = key_of[replica]
            size = offer[key].gpus_per_node
            room = size - used[key] % size
            used[key] += room if room < replica.tp else 0
            nodes.append((key, used[key] // size))
            used[key] += replica.tp
        placed.append(
            PlacedStage(
                units=(int(first[index, 0]), int(last[index, 0])),
                left=plan.pp - index,
                kinds=tuple((key_of[replica], replica.tp) for replica in stage.replicas),
                nodes=tuple(nodes),
            )
        )
    return placed


def part_of(replica: Replica, offer: Offer) -> PartKey:
    """Return the part of an offer that a replica is on.

    Raises:
        SpecError: There is none, or several are.
    """
    found = [key for key in sorted(offer) if replica.gpu_type in {None, key[0]} and replica.zone in {None, key[1]}]
    if len(found) != 1:
        asked = f"{replica.gpu_type or 'any type'} in {replica.zone or 'any zone'}"
        offered = ", ".join("/".join(key) for key in sorted(offer))
        raise SpecError(
            f"a replica wants {asked}",
            why=f"{len(found)} parts of the offer are that",
            fix=f"name the type and zone of one: {offered}",
        )
    return found[0]
