"""Where tensor-parallel, sequence-parallel and expert-parallel ranks meet in forward and backward passes.

Tensor parallelism after Shoeybi et al. 2019 (Megatron-LM, section 3), sequence parallelism after Korthikanti et al.
2022 (section 4.2.2): what stands between split layers is either a copy on every rank or a run of the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

_SEQUENCE_DIM = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """This rank among those that split a layer.

    Args:
        group: None when the rank is alone.
        size, index: Tensor-parallel degree and this rank's place in it.
        is_sequence_split: Whether ranks hold runs of the sequence (dimension 1) between split layers.
    """

    group: dist.ProcessGroup | None
    size: int
    index: int
    is_sequence_split: bool

    def enter(self, x: Tensor) -> Tensor:
        """Bring what every rank needs into a split layer; backward sums the ranks' gradients."""
        if self.group is None:
            return x
        return _applied(_Gather if self.is_sequence_split else _Spread, x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """Sum the ranks' parts of a split layer's output; backward gives each rank the whole gradient."""
        if self.group is None:
            return x
        return _applied(_Scatter if self.is_sequence_split else _Sum, x, self.group)

    def summed(self, x: Tensor) -> Tensor:
        """Sum over ranks whatever the layout in between; backward hands the gradient through."""
        return x if self.group is None else _applied(_Sum, x, self.group)

    def gathered_plain(self, x: Tensor) -> Tensor:
        """Return the whole sequence of something that has no gradient."""
        if self.group is None or not self.is_sequence_split:
            return x
        return _gather(x, self.group)

    def own_run(self, length: int) -> range:
        """Return the positions of the sequence that this rank holds between split layers."""
        if not self.is_sequence_split:
            return range(length)
        return range(length * self.index // self.size, length * (self.index + 1) // self.size)


def _applied(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _sum(gradients[0], ctx.group), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gather(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _scatter(gradients[0], ctx.group), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _scatter(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _gather(gradients[0], ctx.group), None


def exchanged(x: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup) -> Tensor:
    """Send runs of rows to the ranks of a group and return what they sent; backward sends the gradients back.

    Args:
        x: ``[sum(sent), ...]``, rows ordered by receiver.
        sent: Rows for each rank.
        received: Rows from each rank.
        group: The ranks.
    """
    return _applied(_Exchange, x, list(sent), list(received), group)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchange(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(gradients[0], ctx.received, ctx.sent, ctx.group), None, None, None


def _exchange(x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    result = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(result, x.contiguous(), received, sent, group=group)
    return result


def _sum(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    result = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, group=group)
    return result


def _gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim=_SEQUENCE_DIM)


def _scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    size = dist.get_world_size(group)
    parts = torch.stack(x.chunk(size, dim=_SEQUENCE_DIM))
    result = torch.empty_like(parts[0])
    dist.reduce_scatter_single(result, parts.flatten(0, 1), group=group)
    return result


class Started(Protocol):
    """A collective under way."""

    def wait(self) -> object:
        """Wait until its result is there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Messages:
    """Messages between all pairs of a group.

    Args:
        works: What to wait for.
        own: This rank's part, to which the received parts are added.
        received: The same part from each other rank.
    """

    works: tuple[dist.Work, ...]
    own: Tensor
    received: tuple[Tensor, ...] = ()

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        for part in self.received:
            self.own.add_(part)


def start_part_sum(vector: Tensor, group: dist.ProcessGroup) -> Started:
    """Start summing each rank's own part of a vector over the ranks, in place; the other parts are used up.

    Parts are equal runs, in rank order. Gloo's own reduce-scatter takes about twice as long as plain messages.
    """
    parts = vector.chunk(dist.get_world_size(group))
    own = parts[dist.get_rank(group)]
    if not _is_gloo(group):
        return _required(dist.reduce_scatter_single(own, vector, group=group, async_op=True))
    received = {rank: torch.empty_like(own) for rank in _others(group)}
    receives = [dist.irecv(part, group=group, group_src=rank) for rank, part in received.items()]
    sends = [dist.isend(parts[rank], group=group, group_dst=rank) for rank in received]
    works = tuple(_required(work) for work in (*receives, *sends))
    return _Messages(works=works, own=own, received=tuple(received.values()))


def start_part_gather(vector: Tensor, group: dist.ProcessGroup) -> Started:
    """Start bringing every rank's own part of a vector to all ranks, in place; parts as in ``start_part_sum``."""
    parts = vector.chunk(dist.get_world_size(group))
    own = parts[dist.get_rank(group)]
    if not _is_gloo(group):
        return _required(dist.all_gather_single(vector, own, group=group, async_op=True))
    receives = [dist.irecv(parts[rank], group=group, group_src=rank) for rank in _others(group)]
    sends = [dist.isend(own, group=group, group_dst=rank) for rank in _others(group)]
    return _Messages(works=tuple(_required(work) for work in (*receives, *sends)), own=own)


def _is_gloo(group: dist.ProcessGroup) -> bool:
    return dist.get_backend(group) == dist.Backend.GLOO


def _others(group: dist.ProcessGroup) -> list[int]:
    return [rank for rank in range(dist.get_world_size(group)) if rank != dist.get_rank(group)]


def _required(work: dist.Work | None) -> dist.Work:
    assert work is not None
    return work
