"""Sums gradients over the ranks that share parameters, as soon as a bucket's gradients are there.

Unsharded gradients add up in their unit's memory and are summed in the last backward pass of a step; sharded ones are
summed in every backward pass and only the owned part is kept. Sums start in one order that all ranks agree on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from arena_agent.worker.collectives import Started, start_part_sum
from arena_agent.worker.units import Bucket, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """A sum under way; ``operand`` is only kept alive."""

    bucket: Bucket
    result: Tensor
    operand: Tensor
    work: Started

    def finish(self) -> None:
        """Wait for it and keep the result."""
        self.work.wait()
        _keep(self.bucket, self.result)


@dataclass(slots=True, kw_only=True)
class GradientSums:
    """The gradients of a rank.

    Args:
        units: Its parameters.
        released: Called when a unit's gradients of a backward pass are all taken, so that its weights can go.
    """

    units: Sequence[Unit]
    released: Callable[[Unit], None]
    _is_last: bool = False
    _order: list[Bucket] = field(default_factory=list)
    _sharded: list[Unit] = field(default_factory=list)
    _ready: set[int] = field(default_factory=set)
    _sums: list[_Sum] = field(default_factory=list)

    def attach(self) -> None:
        """Follow the gradients of all parameters with which something is done before the backward pass ends."""
        for unit in self.units:
            if _stays_here(unit):
                continue
            for name, parameter in unit.parameters.items():
                parameter.register_post_accumulate_grad_hook(partial(self._arrived, unit, name))  # type: ignore[no-untyped-call]

    def start_step(self) -> None:
        """Forget the gradients of the step before."""
        for unit in self.units:
            if unit.gradients is not None:
                unit.gradients.zero_()
            for bucket in unit.buckets:
                if bucket.gradient is not None:
                    bucket.gradient.zero_()

    def start_backward(self, chunk: int, *, is_last: bool) -> None:
        """Begin a micro-batch's backward pass through a chunk; ``is_last`` of the step's."""
        self._is_last = is_last
        self._ready.clear()
        self._order = [
            bucket
            for unit in reversed(self.units)
            if unit.chunk == chunk and self._is_summed(unit)
            for bucket in unit.buckets
        ]
        self._sharded = [unit for unit in self.units if unit.chunk == chunk and unit.gradients is None]
        for bucket in self._order:
            bucket.waiting = bucket.names

    def end_backward(self) -> None:
        """End it; parameters that took no part count as zero."""
        self._ready.update(id(bucket) for bucket in self._order)
        self._start_ready()
        self._finish_scattered_sums()
        for unit in self._sharded:
            for parameter in unit.parameters.values():
                parameter.grad = None

    def finish_step(self) -> None:
        """Wait for all sums."""
        for item in self._sums:
            item.finish()
        self._sums.clear()

    def _is_summed(self, unit: Unit) -> bool:
        return self._is_last or unit.gradients is None

    def _arrived(self, unit: Unit, name: str, parameter: Tensor) -> None:
        if unit.gradients is not None and parameter.dtype != torch.float32:
            _add_up(unit, name, parameter)
        if not self._is_summed(unit):
            return
        for bucket in unit.buckets:
            bucket.waiting.discard(name)
            if not bucket.waiting:
                self._ready.add(id(bucket))
        self._start_ready()

    @torch.no_grad()
    def _start_ready(self) -> None:
        while self._order and id(self._order[0]) in self._ready:
            bucket = self._order.pop(0)
            if bucket.gradient is None:
                self._start_sum(bucket)
            else:
                self._start_scattered_sum(bucket)
            if not any(other.unit is bucket.unit for other in self._order):
                self.released(bucket.unit)

    def _start_sum(self, bucket: Bucket) -> None:
        """Sum a step's gradients of a bucket, each rank keeping what it owns."""
        memory = bucket.unit.gradients
        assert memory is not None
        for segment in bucket.segments:
            if segment.share.gradient_weight != 1.0:
                memory[segment.start : segment.stop].mul_(segment.share.gradient_weight)
        if bucket.group is None:
            return
        vector = bucket.packed(memory)
        if bucket.unit.zero == 0:
            work = dist.all_reduce(vector, group=bucket.group, async_op=True)
            self._sums.append(_Sum(bucket=bucket, result=vector, operand=vector, work=work))
        else:
            self._scatter(bucket, vector)

    def _start_scattered_sum(self, bucket: Bucket) -> None:
        """Sum one micro-batch's gradients of a bucket into the owned part."""
        # One at a time: the vector is memory that sharding is there to save.
        self._finish_scattered_sums()
        vector = _collected(bucket)
        if bucket.group is None:
            _keep(bucket, vector)
        else:
            self._scatter(bucket, vector)

    def _scatter(self, bucket: Bucket, vector: Tensor) -> None:
        assert bucket.group is not None
        work = start_part_sum(vector, bucket.group)
        own = vector[bucket.owned.start : bucket.owned.stop]
        self._sums.append(_Sum(bucket=bucket, result=own, operand=vector, work=work))

    def _finish_scattered_sums(self) -> None:
        """Wait for the sums of this backward pass; those of the step may need other stages to go on first."""
        under_way, self._sums = self._sums, []
        for item in under_way:
            if item.bucket.gradient is None:
                self._sums.append(item)
            else:
                item.finish()


def _stays_here(unit: Unit) -> bool:
    """Whether autograd adds a unit's gradients up where they belong and nobody else waits for them."""
    is_added_up = unit.gradients is not None and unit.weights.dtype == torch.float32
    return is_added_up and all(bucket.group is None for bucket in unit.buckets)


def _keep(bucket: Bucket, result: Tensor) -> None:
    """Put the result of a sum where the optimizer finds it."""
    if bucket.gradient is not None:
        bucket.gradient += result
        return
    memory = bucket.unit.gradients
    assert memory is not None
    if bucket.unit.zero == 0:
        bucket.unpack(result, memory)
        return
    if bucket.is_contiguous:
        # Summed where it is.
        return
    for segment, part, own in bucket.owned_parts():
        memory[segment.start + part.start : segment.start + part.stop].copy_(result[own])


def _add_up(unit: Unit, name: str, parameter: Tensor) -> None:
    """Add a half-precision gradient to the float32 sum; its own memory is freed."""
    assert unit.gradients is not None
    assert parameter.grad is not None
    start = unit.offset_of(name)
    unit.gradients[start : start + parameter.numel()].add_(parameter.grad.flatten())
    parameter.grad = None


def _collected(bucket: Bucket) -> Tensor:
    """Take a bucket's gradients of one micro-batch as a vector."""
    assert bucket.gradient is not None
    vector = torch.zeros(bucket.length, dtype=torch.float32, device=bucket.gradient.device)
    for part, segment in bucket.parts(vector):
        name = segment.share.parameter.name
        parameter = bucket.unit.parameters[name]
        if parameter.grad is not None:
            first = segment.start - bucket.unit.offset_of(name)
            part.copy_(parameter.grad.flatten()[first : first + part.numel()])
            part.mul_(segment.share.gradient_weight)
            if part.numel() == parameter.numel():
                parameter.grad = None
    return vector
