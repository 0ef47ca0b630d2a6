"""Process groups of a layout: every rank makes all of them, in the same order, and finds its own by its members."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from arena.domain.schedule import Pass
from arena_agent.worker.placement import Placement
from arena_agent.worker.rendezvous import COLLECTIVE_TIMEOUT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """All groups this rank belongs to, apart by purpose: what one waits for never stands behind what another does.

    Args:
        sharers: By the ranks that share parameters; a single rank has no group.
        layer: By the ranks that compute a layer together, tensor-parallel or expert-parallel.
        wires: All ranks, by what travels (activations forward, their gradients backward) and whether it goes to a
            higher rank. NCCL keeps all messages of two ranks in one queue, whichever way they go, so a receive that
            was posted ahead would hold up the send that its message depends on.
    """

    sharers: dict[tuple[int, ...], dist.ProcessGroup]
    layer: dict[tuple[int, ...], dist.ProcessGroup]
    wires: dict[tuple[Pass, bool], dist.ProcessGroup]


def make_groups(placement: Placement, rank: int) -> Groups:
    """Make the groups of a layout; a collective over all ranks."""
    together = {*placement.tensor_groups}
    if placement.plan.expert_parallel > 1:
        together.update(placement.expert_groups)
    everybody = tuple(range(len(placement.ranks)))
    return Groups(
        sharers=_new_groups(placement.sharer_sets, rank),
        layer=_new_groups(together, rank),
        wires={wire: _new_group(everybody) for wire in _wires(placement)},
    )


def connect(groups: Groups, messages: Iterable[tuple[Pass, int, int]], rank: int, device: torch.device) -> None:
    """Use every connection of a rank once, in one order for all ranks; a collective over all of them.

    NCCL connects ranks when they first use a group, and there the host waits for the others, also in what is to run
    in the background. Within a step that could be in a circle: the last stage begins the sum of tied embeddings
    before the gradients leave it without which the first stage never gets there.

    Args:
        groups: The rank's groups.
        messages: What it will send and receive: what travels, from which rank, to which.
        rank: This rank.
        device: Where its tensors are.
    """
    token = torch.zeros(1, device=device)
    for by_members in (groups.sharers, groups.layer):
        for _, group in sorted(by_members.items(), key=lambda item: item[0]):
            dist.all_reduce(token, group=group)
    for direction, source, destination in sorted(set(messages)):
        wire = groups.wires[direction, source < destination]
        if rank == source:
            dist.send(token, destination, group=wire)
        else:
            dist.recv(token, source, group=wire)


def _wires(placement: Placement) -> Iterator[tuple[Pass, bool]]:
    if placement.plan.pp == 1:
        return
    yield from ((Pass.FORWARD, True), (Pass.BACKWARD, False))
    if placement.plan.virtual_stage_count > 1 or placement.plan.names_gpus:
        # The last stage sends on to the first; where ranks go by GPU type, a stage may stand before those ahead of it.
        yield from ((Pass.FORWARD, False), (Pass.BACKWARD, True))


def _new_groups(sets: Iterable[tuple[int, ...]], rank: int) -> dict[tuple[int, ...], dist.ProcessGroup]:
    groups = {members: _new_group(members) for members in sorted(sets) if len(members) > 1}
    return {members: group for members, group in groups.items() if rank in members}


def _new_group(members: tuple[int, ...]) -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(list(members), timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S))
    return group
