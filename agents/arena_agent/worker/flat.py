"""A rank's parameters in runs of memory, their gradients summed and sharded over the ranks that share them.

Parameters lie in *units* (a layer, or several small ones), and within a unit in *buckets*: what the same ranks share.
A bucket is one vector that collectives work on. By ZeRO stage (Rajbhandari et al. 2020) a rank of n sharers owns

* 0: all of it, gradients all-reduced;
* 1: 1/n of the optimizer state, gradients reduce-scattered once a step, weights gathered after the update;
* 2: also 1/n of the gradients, reduce-scattered after each micro-batch;
* 3: also 1/n of the weights, gathered for each use of a unit and dropped after it, the next unit's while one computes.

In bf16 the owned part has a float32 master and gradients add up in float32. Collectives of backward passes start as
soon as a bucket's gradients are there, always in one order, so that ranks agree on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from arena_agent.worker.groups import Groups
from arena_agent.worker.models.chunk import Chunk
from arena_agent.worker.placement import Placement, Share

UNIT_BYTES = 25 * 1024**2
"""Layers are put together up to so many bytes of whole parameters; as torch's DDP does by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Neighbouring elements of a parameter that this rank owns; what the optimizer updates.

    Args:
        share: The rows they are in.
        start, stop: Elements of the whole parameter, in row-major order.
        value: Float32 values, one-dimensional.
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
        size, index: How many they are, and which this rank is.
        length: Elements, padded to a multiple of ``size``.
        owned: Elements of the vector that this rank owns.
        is_contiguous: Whether the vector is one run of the unit's memory, padding included.
        master: The owned part in float32, where the modules' weights are not just that.
        gradient: The owned part of the gradients, where they are sharded.
        waiting: Parameters whose gradient of the current backward pass is still to come.
    """

    unit: Unit
    segments: tuple[Segment, ...]
    group: dist.ProcessGroup | None
    size: int
    index: int
    length: int
    owned: range
    is_contiguous: bool
    master: Tensor | None = None
    gradient: Tensor | None = None
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
        """Put a vector back into the unit's memory; nothing to do for a view."""
        if self.is_contiguous and vector.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr():
            return
        for part, segment in self.parts(vector):
            memory[segment.start : segment.stop].copy_(part)

    def own_vector(self, memory: Tensor) -> Tensor:
        """Return the owned part of a vector in the unit's memory."""
        return self.packed(memory)[self.owned.start : self.owned.stop]

    def parts(self, vector: Tensor) -> Iterator[tuple[Tensor, Segment]]:
        """Yield the vector's part of each segment."""
        offset = 0
        for segment in self.segments:
            size = segment.stop - segment.start
            yield vector[offset : offset + size], segment
            offset += size

    def owned_parts(self) -> Iterator[tuple[Segment, int, int, int]]:
        """Yield what is owned: segment, first and last element in the segment, first element in the owned vector."""
        offset = 0
        for segment in self.segments:
            size = segment.stop - segment.start
            first, last = max(self.owned.start, offset), min(self.owned.stop, offset + size)
            if first < last:
                yield segment, first - offset, last - offset, first - self.owned.start
            offset += size


@dataclass(slots=True, kw_only=True, eq=False)
class Unit:
    """Parameters of one chunk that lie in one run of memory.

    Args:
        chunk: Which chunk of the pipeline they belong to.
        places: Layers and ends of the model.
        parameters: The module's parameters, views of ``weights``.
        weights: Their memory, in the working precision.
        gradients: Gradient memory in float32, kept where gradients are not sharded.
        size: Elements of the memory.
        is_whole: Whether all of the weights are there, or on their way.
        handles: Gathers that were started: bucket, its vector, and what to wait for.
    """

    chunk: int
    places: tuple[Any, ...]
    parameters: dict[str, nn.Parameter]
    weights: Tensor
    gradients: Tensor | None
    size: int
    buckets: list[Bucket] = field(default_factory=list)
    is_whole: bool = True
    handles: list[tuple[Bucket, Tensor, Any]] = field(default_factory=list)


def _places_in_units(placement: Placement, rank: int, *, is_single: bool) -> list[tuple[int, tuple[Any, ...]]]:
    """Return (chunk, places) of each unit, by sizes that do not depend on the layout, so that sharers agree."""
    chunk_of = dict(_chunk_by_place(placement, rank))
    sizes: dict[Any, int] = {}
    for held in placement.held_by(rank):
        sizes[held.parameter.place] = sizes.get(held.parameter.place, 0) + 4 * held.parameter.element_count
    units: list[tuple[int, tuple[Any, ...]]] = []
    size = 0
    for place, place_bytes in sorted(sizes.items(), key=lambda item: (chunk_of[item[0]], _order(item[0]))):
        chunk = chunk_of[place]
        if units and units[-1][0] == chunk and size + place_bytes <= UNIT_BYTES and not is_single:
            units[-1] = (chunk, (*units[-1][1], place))
            size += place_bytes
        else:
            units.append((chunk, (place,)))
            size = place_bytes
    return units


def _chunk_by_place(placement: Placement, rank: int) -> Iterator[tuple[Any, int]]:
    stage, last = placement.ranks[rank].stage, len(placement.chunks) - 1
    yield "first", 0 if stage == 0 else last
    yield "last", last
    for chunk in placement.chunks:
        for layer in chunk.layers:
            yield layer, chunk.index


def _order(place: Any) -> tuple[int, int]:
    return {"first": (0, 0), "last": (2, 0)}.get(place, (1, place if isinstance(place, int) else 0))


def _shares_by_sharers(shares: Sequence[Share]) -> list[list[Share]]:
    """Group a unit's shares by parameter, those with the same sharers next to each other."""
    by_name = {name: list(group) for name, group in groupby(shares, key=lambda share: share.parameter.name)}
    return sorted(by_name.values(), key=lambda group: [share.ranks for share in group])


@dataclass(slots=True, kw_only=True)
class Bank:
    """All parameters of a rank.

    Args:
        zero: ZeRO stage.
        units: In model order within each chunk.
        runs: What this rank owns, in model order.
    """

    zero: int
    units: list[Unit]
    runs: tuple[Run, ...] = ()
    _is_last: bool = False
    _active: list[Bucket] = field(default_factory=list)
    _ready: set[int] = field(default_factory=set)
    _next: int = 0
    _works: list[tuple[Bucket, Tensor, Any]] = field(default_factory=list)

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The modules' parameters by name."""
        return {name: parameter for unit in self.units for name, parameter in unit.parameters.items()}

    def attach(self, chunks: Iterable[Chunk]) -> None:
        """Follow the chunks' backward passes, and their forward passes where weights are sharded."""
        for unit in self.units:
            for name, parameter in unit.parameters.items():
                parameter.register_post_accumulate_grad_hook(partial(self._accumulated, unit, name))
        if self.zero == 3:
            for chunk in chunks:
                self._follow(chunk)

    def start_step(self) -> None:
        """Forget the gradients of the step before."""
        for unit in self.units:
            if unit.gradients is not None:
                unit.gradients.zero_()
            for bucket in unit.buckets:
                if bucket.gradient is not None:
                    bucket.gradient.zero_()

    def start_backward(self, chunk: int, *, is_last: bool) -> None:
        """Begin a micro-batch's backward pass through a chunk; the last one of a step sums unsharded gradients."""
        self._is_last = is_last
        self._active = [
            bucket for unit in reversed(self.units) if unit.chunk == chunk for bucket in unit.buckets
        ]
        self._ready, self._next = set(), 0
        for bucket in self._active:
            bucket.waiting = bucket.names

    def end_backward(self) -> None:
        """End it; parameters that took no part count as zero."""
        if self.zero > 1 or self._is_last:
            for bucket in self._active:
                self._ready.add(id(bucket))
            self._launch_ready()
        if self.zero > 1:
            self._wait()
            for bucket in self._active:
                for parameter in bucket.unit.parameters.values():
                    parameter.grad = None

    def finish_gradients(self) -> None:
        """Wait for all sums of the step."""
        self._wait()

    @torch.no_grad()
    def publish(self) -> None:
        """Bring updated values into the modules' parameters on every rank."""
        for unit in self.units:
            if self.zero == 3:
                self._drop(unit)
                continue
            for bucket in unit.buckets:
                self._publish(unit, bucket)

    def _publish(self, unit: Unit, bucket: Bucket) -> None:
        is_sharded = self.zero > 0 and bucket.size > 1
        if not is_sharded:
            if bucket.master is not None:
                bucket.unpack(bucket.master.to(unit.weights.dtype), unit.weights)
            return
        own = bucket.own_vector(unit.weights).clone() if bucket.master is None else bucket.master.to(unit.weights.dtype)
        vector = bucket.packed(unit.weights) if bucket.is_contiguous else unit.weights.new_empty(bucket.length)
        dist.all_gather_single(vector, own, group=bucket.group)
        bucket.unpack(vector, unit.weights)

    # Gradients -------------------------------------------------------------------------------------------------

    def _accumulated(self, unit: Unit, name: str, parameter: Tensor) -> None:
        if unit.gradients is not None and parameter.grad is not None and parameter.dtype != torch.float32:
            self._add_up(unit, parameter)
        if self.zero <= 1 and not self._is_last:
            return
        for bucket in unit.buckets:
            if name in bucket.waiting:
                bucket.waiting.discard(name)
                if not bucket.waiting:
                    self._ready.add(id(bucket))
        self._launch_ready()

    def _add_up(self, unit: Unit, parameter: Tensor) -> None:
        """Add a half-precision gradient to the float32 sum; its own memory is freed."""
        assert unit.gradients is not None
        assert parameter.grad is not None
        start = parameter.storage_offset()
        unit.gradients[start : start + parameter.numel()].add_(parameter.grad.flatten())
        parameter.grad = None

    def _launch_ready(self) -> None:
        while self._next < len(self._active) and id(self._active[self._next]) in self._ready:
            bucket = self._active[self._next]
            self._next += 1
            with torch.no_grad():
                if self.zero > 1:
                    self._reduce_shard(bucket)
                else:
                    self._reduce(bucket)
            if self.zero == 3 and not any(other.unit is bucket.unit for other in self._active[self._next :]):
                self._drop(bucket.unit)

    def _reduce(self, bucket: Bucket) -> None:
        """Start the sum of a bucket over its sharers, whole or scattered."""
        memory = bucket.unit.gradients
        assert memory is not None
        for segment in bucket.segments:
            if segment.share.gradient_weight != 1.0:
                memory[segment.start : segment.stop].mul_(segment.share.gradient_weight)
        if bucket.group is None:
            return
        vector = bucket.packed(memory)
        if self.zero == 0:
            self._works.append((bucket, vector, dist.all_reduce(vector, group=bucket.group, async_op=True)))
        else:
            own = torch.empty(len(bucket.owned), dtype=vector.dtype, device=vector.device)
            work = dist.reduce_scatter_single(own, vector, group=bucket.group, async_op=True)
            self._works.append((bucket, own, work))

    def _reduce_shard(self, bucket: Bucket) -> None:
        """Start the scattered sum of one micro-batch's gradients, and free them."""
        self._wait()
        vector = self._collected(bucket)
        assert bucket.gradient is not None
        if bucket.group is None:
            bucket.gradient += vector
            return
        own = torch.empty_like(bucket.gradient)
        work = dist.reduce_scatter_single(own, vector, group=bucket.group, async_op=True)
        self._works.append((bucket, own, (work, vector)))

    def _collected(self, bucket: Bucket) -> Tensor:
        """Return a bucket's gradients of one micro-batch as a vector."""
        assert bucket.gradient is not None
        vector = torch.zeros(bucket.length, dtype=torch.float32, device=bucket.gradient.device)
        for part, segment in bucket.parts(vector):
            parameter = bucket.unit.parameters[segment.share.parameter.name]
            if parameter.grad is not None:
                first = segment.start - parameter.storage_offset()
                part.copy_(parameter.grad.flatten()[first : first + part.numel()])
                part.mul_(segment.share.gradient_weight)
        for name in bucket.names:
            parameter = bucket.unit.parameters[name]
            if not any(name in other.names for other in bucket.unit.buckets if other is not bucket):
                parameter.grad = None
        return vector

    def _wait(self) -> None:
        for bucket, result, work in self._works:
            (work[0] if isinstance(work, tuple) else work).wait()
            if self.zero > 1:
                assert bucket.gradient is not None
                bucket.gradient += result
            elif self.zero == 1:
                self._put_owned(bucket, result)
            else:
                assert bucket.unit.gradients is not None
                bucket.unpack(result, bucket.unit.gradients)
        self._works.clear()

    def _put_owned(self, bucket: Bucket, own: Tensor) -> None:
        memory = bucket.unit.gradients
        assert memory is not None
        for segment, first, last, offset in bucket.owned_parts():
            memory[segment.start + first : segment.start + last].copy_(own[offset : offset + last - first])

    # Sharded weights -------------------------------------------------------------------------------------------

    def _follow(self, chunk: Chunk) -> None:
        units = [unit for unit in self.units if unit.chunk == chunk.spec.index]
        modules = chunk.parts()
        used = [[unit for unit in units if _uses(module, unit)] for module in modules]
        for index, module in enumerate(modules):
            ahead = used[index + 1] if index + 1 < len(modules) else []
            behind = used[index - 1] if index else []
            module.register_forward_pre_hook(partial(self._before, used[index], ahead))
            module.register_forward_hook(partial(self._after, used[index], behind))

    def _before(self, units: list[Unit], ahead: list[Unit], *_: Any) -> None:
        self._gather(units)
        self._start_gather(ahead)

    def _after(self, units: list[Unit], behind: list[Unit], module: nn.Module, inputs: Any, output: Tensor) -> None:
        for unit in units:
            self._drop(unit)
        if output.requires_grad:
            output.register_hook(lambda _: self._before(units, behind))

    def _gather(self, units: list[Unit]) -> None:
        self._start_gather(units)
        for unit in units:
            for bucket, vector, work in unit.handles:
                if work is not None:
                    work.wait()
                bucket.unpack(vector, unit.weights)
            unit.handles.clear()

    @torch.no_grad()
    def _start_gather(self, units: list[Unit]) -> None:
        for unit in units:
            if unit.is_whole:
                continue
            unit.is_whole = True
            unit.weights.untyped_storage().resize_(unit.size * unit.weights.element_size())
            for bucket in unit.buckets:
                assert bucket.master is not None
                own = bucket.master.to(unit.weights.dtype)
                if bucket.group is None:
                    unit.handles.append((bucket, own, None))
                    continue
                vector = bucket.packed(unit.weights) if bucket.is_contiguous else unit.weights.new_empty(bucket.length)
                work = dist.all_gather_single(vector, own, group=bucket.group, async_op=True)
                unit.handles.append((bucket, vector, work))

    def _drop(self, unit: Unit) -> None:
        if unit.is_whole and not unit.handles:
            unit.is_whole = False
            unit.weights.untyped_storage().resize_(0)


def _uses(module: nn.Module, unit: Unit) -> bool:
    own = {id(parameter) for parameter in unit.parameters.values()}
    return any(id(parameter) in own for parameter in module.parameters())


def build_bank(  # noqa: PLR0917 - one call site
    placement: Placement, rank: int, groups: Groups, zero: int, dtype: torch.dtype, device: torch.device
) -> Bank:
    """Lay out a rank's parameters, with undefined values."""
    shares = placement.shares(rank)
    units: list[Unit] = []
    for chunk, places in _places_in_units(placement, rank, is_single=zero == 3):
        own = [share for share in shares if share.parameter.place in places]
        units.append(_unit(chunk, places, own, rank=rank, groups=groups, zero=zero, dtype=dtype, device=device))
    bank = Bank(zero=zero, units=units)
    bank.runs = tuple(run for unit in units for bucket in unit.buckets for run in _runs(bank, unit, bucket, rank))
    return bank


def _unit(
    chunk: int,
    places: tuple[Any, ...],
    shares: Sequence[Share],
    *,
    rank: int,
    groups: Groups,
    zero: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Unit:
    segments, size = _segments(_shares_by_sharers(shares), is_padded=zero > 0)
    weights = torch.empty(size, dtype=dtype, device=device)
    gradients = torch.zeros(size, dtype=torch.float32, device=device) if zero <= 1 else None
    unit = Unit(chunk=chunk, places=places, parameters={}, weights=weights, gradients=gradients, size=size)
    for name, group in groupby(segments, key=lambda segment: segment.share.parameter.name):
        unit.parameters[name] = _parameter(unit, list(group))
    by_sharers: dict[tuple[int, ...], list[Segment]] = {}
    for segment in segments:
        by_sharers.setdefault(segment.share.ranks, []).append(segment)
    starts = [*(segment.start for segment in segments), size]
    # One order for all ranks, or two that share several buckets would wait for each other.
    for ranks, own in sorted(by_sharers.items(), key=lambda item: (len(item[0]) == 1, item[0])):
        unit.buckets.append(_bucket(unit, own, ranks, starts, rank=rank, groups=groups, zero=zero))
    return unit


def _segments(groups: Sequence[Sequence[Share]], *, is_padded: bool) -> tuple[list[Segment], int]:
    """Give each share its place in a unit's memory; runs with the same sharers end on a multiple of their number."""
    segments: list[Segment] = []
    offset = run_start = 0
    for index, shares in enumerate(groups):
        for share in shares:
            size = (share.stop - share.start) * (share.parameter.element_count // share.parameter.shape[0])
            segments.append(Segment(share=share, start=offset, stop=offset + size))
            offset += size
        following = groups[index + 1][0].ranks if index + 1 < len(groups) else None
        if following != shares[-1].ranks:
            if is_padded:
                offset += -(offset - run_start) % len(shares[-1].ranks)
            run_start = offset
    return segments, offset


def _parameter(unit: Unit, segments: Sequence[Segment]) -> nn.Parameter:
    """Return a parameter that lies in the unit's memory, with its gradient in the unit's where that is kept."""
    start, stop = segments[0].start, segments[-1].stop
    shape = (-1, *segments[0].share.parameter.shape[1:])
    parameter = nn.Parameter(torch.empty(0, dtype=unit.weights.dtype, device=unit.weights.device))
    # Assigned so, a parameter has a version counter of its own: gathering weights is no change to what autograd saved.
    parameter.data = unit.weights[start:stop].view(shape)
    if unit.gradients is not None and unit.weights.dtype == torch.float32:
        parameter.grad = unit.gradients[start:stop].view(shape)
    return parameter


def _bucket(
    unit: Unit,
    segments: Sequence[Segment],
    ranks: tuple[int, ...],
    starts: Sequence[int],
    *,
    rank: int,
    groups: Groups,
    zero: int,
) -> Bucket:
    count = len(ranks)
    length = sum(segment.stop - segment.start for segment in segments)
    length += -length % count if zero else 0
    index = ranks.index(rank)
    owned = range(length * index // count, length * (index + 1) // count) if zero else range(length)
    bucket = Bucket(
        unit=unit,
        segments=tuple(segments),
        group=groups.sharers.get(ranks),
        size=count,
        index=index,
        length=length,
        owned=owned,
        is_contiguous=_is_contiguous(segments, length, starts),
    )
    device = unit.weights.device
    if zero == 3 or unit.weights.dtype != torch.float32:
        bucket.master = torch.zeros(len(owned), dtype=torch.float32, device=device)
    if zero > 1:
        bucket.gradient = torch.zeros(len(owned), dtype=torch.float32, device=device)
    return bucket


def _is_contiguous(segments: Sequence[Segment], length: int, starts: Sequence[int]) -> bool:
    pairs = pairwise(segments)
    if any(before.stop != after.start for before, after in pairs):
        return False
    room_ends = min(start for start in starts if start >= segments[-1].stop)
    return segments[0].start + length <= room_ends


def _runs(bank: Bank, unit: Unit, bucket: Bucket, rank: int) -> Iterator[Run]:
    """Return the owned elements of a bucket, one run for each share."""
    for segment, first, last, offset in bucket.owned_parts():
        share = segment.share
        memory = slice(segment.start + first, segment.start + last)
        own = slice(offset, offset + last - first)
        value = nn.Parameter(unit.weights[memory] if bucket.master is None else bucket.master[own], requires_grad=False)
        gradients = bucket.gradient[own] if bucket.gradient is not None else None
        if gradients is None:
            assert unit.gradients is not None
            gradients = unit.gradients[memory]
        value.grad = gradients
        row = share.parameter.element_count // share.parameter.shape[0]
        is_alone = bank.zero > 0
        writer = share.ranks[sum(share.parameter.name.encode()) % len(share.ranks)]
        yield Run(
            share=share,
            start=share.start * row + first,
            stop=share.start * row + last,
            value=value,
            is_counted=is_alone or rank == share.ranks[0],
            is_written=is_alone or rank == writer,
        )
