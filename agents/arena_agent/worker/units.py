"""A rank's parameters in runs of memory: units of layers, and in each the vectors that collectives work on.

A *unit* is a layer, or several small ones. Within it a *bucket* is what the same ranks share, one vector. By ZeRO
stage (Rajbhandari et al. 2020) a rank of n sharers owns of a bucket

* 0: all of it;
* 1: 1/n of the optimizer state;
* 2: also 1/n of the gradients;
* 3: also 1/n of the weights; the rest is there only while the unit is used.

In bf16 the owned part has a float32 master, and gradients add up in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from arena.domain.parameters import Place
from arena_agent.worker.groups import Groups
from arena_agent.worker.placement import Placement, Share

UNIT_BYTES = 25 * 1024**2
"""Layers are put together up to so many bytes of whole parameters; as torch's DDP does by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A share's place in its unit's memory, in elements."""

    share: Share
    start: int
    stop: int


@dataclass(slots=True, kw_only=True, eq=False)
class Bucket:
    """What the same ranks share within a unit.

    Args:
        unit: The unit it is part of.
        segments: Its shares, in order.
        group: The sharers; None for one rank alone.
        length: Elements of the vector, padded to a multiple of the sharers where they shard it.
        owned: Elements of the vector that this rank owns.
        is_contiguous: Whether the vector is one run of the unit's memory, padding included.
        master: The owned part in float32, where the modules' weights are not just that.
        gradient: The owned part of the gradients, where they are sharded.
        waiting: Parameters whose gradient of the current backward pass is still to come.
    """

    unit: Unit
    segments: tuple[Segment, ...]
    group: dist.ProcessGroup | None
    length: int
    owned: range
    is_contiguous: bool
    master: Tensor | None
    gradient: Tensor | None
    waiting: set[str] = field(default_factory=set)

    @property
    def names(self) -> set[str]:
        """Names of its parameters."""
        return {segment.share.parameter.name for segment in self.segments}

    def packed(self, memory: Tensor) -> Tensor:
        """Return the vector: a view of the unit's memory where possible, else a copy."""
        if self.is_contiguous:
            first = self.segments[0].start
            return memory[first : first + self.length]
        vector = memory.new_zeros(self.length)
        for part, segment in self.parts(vector):
            part.copy_(memory[segment.start : segment.stop])
        return vector

    def unpack(self, vector: Tensor, memory: Tensor) -> None:
        """Put a vector back into the unit's memory; nothing to do for a view of it."""
        if self.is_contiguous and vector.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr():
            return
        for part, segment in self.parts(vector):
            memory[segment.start : segment.stop].copy_(part)

    def parts(self, vector: Tensor) -> Iterator[tuple[Tensor, Segment]]:
        """Yield the vector's part of each segment."""
        offset = 0
        for segment in self.segments:
            size = segment.stop - segment.start
            yield vector[offset : offset + size], segment
            offset += size

    def owned_parts(self) -> Iterator[tuple[Segment, slice, slice]]:
        """Yield what is owned: its segment, where it is in the segment, and where in the owned vector."""
        offset = 0
        for segment in self.segments:
            size = segment.stop - segment.start
            first, last = max(self.owned.start, offset), min(self.owned.stop, offset + size)
            if first < last:
                own = slice(first - self.owned.start, last - self.owned.start)
                yield segment, slice(first - offset, last - offset), own
            offset += size


@dataclass(slots=True, kw_only=True, eq=False)
class Unit:
    """Parameters of one chunk that lie in one run of memory.

    Args:
        chunk: Which chunk of the pipeline they belong to.
        zero: How far they are sharded.
        size: Elements of the memory.
        weights: The memory, in the working precision; where weights are sharded it is there while they are used.
        gradients: Gradient memory in float32, kept where gradients are not sharded.
        parameters: The modules' parameters, views of ``weights``.
        buckets: In an order that all sharers agree on.
    """

    chunk: int
    zero: int
    size: int
    weights: Tensor
    gradients: Tensor | None
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    buckets: list[Bucket] = field(default_factory=list)

    def offset_of(self, name: str) -> int:
        """Return where a parameter begins in the memory."""
        return int(self.parameters[name].storage_offset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Neighbouring elements of a parameter that this rank owns; what the optimizer updates.

    Args:
        share: The rows they are in.
        start, stop: Elements of the whole parameter, in row-major order.
        value: Float32 values, one-dimensional, with their gradient.
        is_counted: Whether this rank counts them in sums over the model, so that copies count once.
        is_written: Whether this rank writes them to checkpoints.
    """

    share: Share
    start: int
    stop: int
    value: nn.Parameter
    is_counted: bool
    is_written: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBuilder:
    """Lays out a rank's parameters, with undefined values.

    Args:
        placement: Who holds what.
        rank: This rank.
        groups: Process groups.
        dtype, device: Of the modules' weights.
    """

    placement: Placement
    rank: int
    groups: Groups
    dtype: torch.dtype
    device: torch.device

    def units(self) -> list[Unit]:
        """Return the rank's units in model order within each chunk."""
        return [self._unit(chunk, zero, shares) for chunk, zero, shares in self._by_unit()]

    def _by_unit(self) -> list[tuple[int, int, list[Share]]]:
        """Cut the rank's shares into units: (chunk, ZeRO stage, shares).

        Units end by sizes that do not depend on the layout, so that sharers agree on them.
        """
        units: list[tuple[int, int, list[Share]]] = []
        room_bytes = 0
        for (chunk, zero, _), group in groupby(sorted(self.placement.shares(self.rank), key=self._key), key=self._key):
            shares = list(group)
            size_bytes = 4 * sum(share.parameter.element_count for share in _first_cuts(shares))
            is_joined = bool(units) and units[-1][:2] == (chunk, zero) and size_bytes <= room_bytes and zero < 3
            if is_joined:
                units[-1][2].extend(shares)
            else:
                units.append((chunk, zero, shares))
                room_bytes = UNIT_BYTES
            room_bytes -= size_bytes
        return units

    def _key(self, share: Share) -> tuple[int, int, tuple[int, int]]:
        # Stages meet once a step only, so what they share is summed once a step and stays whole.
        zero = min(self.placement.plan.zero, 1) if share.spans_stages else self.placement.plan.zero
        return self.placement.chunk_of(share.parameter.place, self.rank), zero, _position(share.parameter.place)

    def _unit(self, chunk: int, zero: int, shares: Sequence[Share]) -> Unit:
        segments, size = _segments(shares, is_padded=zero > 0)
        unit = Unit(
            chunk=chunk,
            zero=zero,
            size=size,
            weights=torch.empty(size, dtype=self.dtype, device=self.device),
            gradients=torch.zeros(size, dtype=torch.float32, device=self.device) if zero <= 1 else None,
        )
        for name, group in groupby(segments, key=lambda segment: segment.share.parameter.name):
            unit.parameters[name] = _parameter(unit, list(group))
        by_sharers: dict[tuple[int, ...], list[Segment]] = {}
        for segment in segments:
            by_sharers.setdefault(segment.share.ranks, []).append(segment)
        ends = [*(segment.start for segment in segments), size]
        # One order for all ranks, or two that share several buckets would wait for each other; whoever is alone last.
        for ranks in sorted(by_sharers, key=lambda ranks: (len(ranks) == 1, ranks)):
            unit.buckets.append(self._bucket(unit, by_sharers[ranks], ranks, ends))
        if zero == 3:
            # All units' whole weights at once are what sharding is there to avoid, at the start as well.
            unit.weights.untyped_storage().resize_(0)
        return unit

    def _bucket(self, unit: Unit, segments: Sequence[Segment], ranks: tuple[int, ...], ends: Sequence[int]) -> Bucket:
        count, index = (len(ranks), ranks.index(self.rank)) if unit.zero else (1, 0)
        length = sum(segment.stop - segment.start for segment in segments)
        length += -length % count
        owned = range(length * index // count, length * (index + 1) // count)
        has_master = unit.zero == 3 or self.dtype != torch.float32
        return Bucket(
            unit=unit,
            segments=tuple(segments),
            group=self.groups.sharers.get(ranks),
            length=length,
            owned=owned,
            is_contiguous=_is_contiguous(segments, length, ends),
            master=self._zeros(len(owned)) if has_master else None,
            gradient=self._zeros(len(owned)) if unit.zero > 1 else None,
        )

    def _zeros(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.float32, device=self.device)


def runs_of(unit: Unit, rank: int) -> Iterator[Run]:
    """Yield what a rank owns of a unit, a run for each share."""
    for bucket in unit.buckets:
        for segment, part, own in bucket.owned_parts():
            share = segment.share
            first = share.start * prod(share.parameter.shape[1:])
            copies = [rank] if unit.zero else list(share.ranks)
            yield Run(
                share=share,
                start=first + part.start,
                stop=first + part.stop,
                value=_value(unit, bucket, slice(segment.start + part.start, segment.start + part.stop), own),
                is_counted=rank == copies[0],
                # Copies take turns, so that all ranks write.
                is_written=rank == copies[sum(share.parameter.name.encode()) % len(copies)],
            )


def _value(unit: Unit, bucket: Bucket, memory: slice, own: slice) -> nn.Parameter:
    value = unit.weights[memory] if bucket.master is None else bucket.master[own]
    parameter = nn.Parameter(value, requires_grad=False)
    if bucket.gradient is not None:
        parameter.grad = bucket.gradient[own]
    else:
        assert unit.gradients is not None
        parameter.grad = unit.gradients[memory]
    return parameter


def _first_cuts(shares: Sequence[Share]) -> list[Share]:
    """Return one share of each parameter."""
    return list({share.parameter.name: share for share in shares}.values())


def _position(place: Place) -> tuple[int, int]:
    if isinstance(place, int):
        return (1, place)
    return (0, 0) if place == "first" else (2, 0)


def _segments(shares: Sequence[Share], *, is_padded: bool) -> tuple[list[Segment], int]:
    """Give each share its place in a unit's memory.

    A parameter's shares stay together; parameters with the same sharers stand side by side, and where they shard them
    their run ends on a multiple of their number.
    """
    by_name = [list(group) for _, group in groupby(shares, key=lambda share: share.parameter.name)]
    segments: list[Segment] = []
    offset = 0
    for ranks, groups in groupby(
        sorted(by_name, key=lambda group: [share.ranks for share in group]),
        key=lambda group: [share.ranks for share in group],
    ):
        run_start = offset
        for share in (share for group in groups for share in group):
            size = (share.stop - share.start) * prod(share.parameter.shape[1:])
            segments.append(Segment(share=share, start=offset, stop=offset + size))
            offset += size
        if is_padded:
            offset += -(offset - run_start) % len(ranks[0])
    return segments, offset


def _parameter(unit: Unit, segments: Sequence[Segment]) -> nn.Parameter:
    """Return a parameter that lies in the unit's memory, with its gradient in the unit's where that is kept."""
    memory = slice(segments[0].start, segments[-1].stop)
    shape = (-1, *segments[0].share.parameter.shape[1:])
    parameter = nn.Parameter(torch.empty(0, dtype=unit.weights.dtype, device=unit.weights.device))
    # Assigned so, a parameter has a version counter of its own: gathering weights is no change to what autograd saved.
    parameter.data = unit.weights[memory].view(shape)
    if unit.gradients is not None and unit.weights.dtype == torch.float32:
        parameter.grad = unit.gradients[memory].view(shape)
    return parameter


def _is_contiguous(segments: Sequence[Segment], length: int, ends: Sequence[int]) -> bool:
    if any(before.stop != after.start for before, after in pairwise(segments)):
        return False
    room_ends = min(end for end in ends if end >= segments[-1].stop)
    return segments[0].start + length <= room_ends
