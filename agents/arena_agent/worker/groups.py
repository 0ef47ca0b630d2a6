"""Process groups of a layout: every rank makes all of them, in the same order, and finds its own by its members."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from arena_agent.worker.placement import Placement

_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """All groups this rank belongs to, apart by purpose: what one waits for never stands behind what another does.

    Args:
        sharers: By the ranks that share parameters; a single rank has no group.
        layer: By the ranks that compute a layer together, tensor-parallel or expert-parallel.
        downstream: All ranks, for activations.
        upstream: All ranks, for gradients of activations.
    """

    sharers: dict[tuple[int, ...], dist.ProcessGroup]
    layer: dict[tuple[int, ...], dist.ProcessGroup]
    downstream: dist.ProcessGroup
    upstream: dist.ProcessGroup


def make_groups(placement: Placement, rank: int) -> Groups:
    """Make the groups of a layout; a collective over all ranks."""
    together = {*placement.tensor_groups}
    if placement.plan.expert_parallel > 1:
        together.update(placement.expert_groups)
    everybody = tuple(range(len(placement.ranks)))
    return Groups(
        sharers=_new_groups(placement.sharer_sets, rank),
        layer=_new_groups(together, rank),
        downstream=_new_group(everybody),
        upstream=_new_group(everybody),
    )


def _new_groups(sets: Iterable[tuple[int, ...]], rank: int) -> dict[tuple[int, ...], dist.ProcessGroup]:
    groups = {members: _new_group(members) for members in sorted(sets) if len(members) > 1}
    return {members: group for members, group in groups.items() if rank in members}


def _new_group(members: tuple[int, ...]) -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(list(members), timeout=timedelta(seconds=_TIMEOUT_S))
    return group
