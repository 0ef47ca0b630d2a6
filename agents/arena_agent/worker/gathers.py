"""Gathers sharded weights for each use of a unit, the next unit's while one computes, and drops them after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from arena_agent.worker.collectives import Started, start_part_gather
from arena_agent.worker.models.chunk import Chunk
from arena_agent.worker.units import Bucket, Unit


@dataclass(slots=True, kw_only=True)
class WeightGathers:
    """The sharded weights of a rank.

    Args:
        units: Its parameters; those whose weights are not sharded are left alone.
    """

    units: Sequence[Unit]
    _whole: set[int] = field(default_factory=set)
    _under_way: dict[int, list[tuple[Bucket, Tensor, Started | None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.units = [unit for unit in self.units if unit.zero == 3]

    def attach(self, chunk: Chunk) -> None:
        """Follow the passes through a chunk."""
        units = [unit for unit in self.units if unit.chunk == chunk.spec.index]
        if not units:
            return
        modules = chunk.parts()
        used = [[], *([unit for unit in units if _uses(module, unit)] for module in modules), []]
        for module, before, own, after in zip(modules, used, used[1:], used[2:], strict=False):
            module.register_forward_pre_hook(partial(self._before_forward, own, after))
            module.register_forward_hook(partial(self._after_forward, own, before))

    def drop(self, unit: Unit) -> None:
        """Free a unit's weights, unless they are on their way for the next use."""
        if id(unit) in self._whole and id(unit) not in self._under_way:
            self._whole.discard(id(unit))
            unit.weights.untyped_storage().resize_(0)

    def _before_forward(self, own: list[Unit], after: list[Unit], *_: Any) -> None:
        self._use(own, after)

    def _after_forward(self, own: list[Unit], before: list[Unit], _module: Any, _inputs: Any, output: Tensor) -> None:
        for unit in own:
            self.drop(unit)
        if output.requires_grad:
            output.register_hook(lambda _: self._use(own, before))  # type: ignore[no-untyped-call]

    def _use(self, units: list[Unit], following: list[Unit]) -> None:
        """Have units whole, and start on those that come next."""
        for unit in units:
            self._start(unit)
            for bucket, vector, work in self._under_way.pop(id(unit), []):
                if work is not None:
                    work.wait()
                bucket.unpack(vector, unit.weights)
        for unit in following:
            self._start(unit)

    @torch.no_grad()
    def _start(self, unit: Unit) -> None:
        if id(unit) in self._whole:
            return
        self._whole.add(id(unit))
        unit.weights.untyped_storage().resize_(unit.size * unit.weights.element_size())
        self._under_way[id(unit)] = [_gather(unit, bucket) for bucket in unit.buckets]


def _gather(unit: Unit, bucket: Bucket) -> tuple[Bucket, Tensor, Started | None]:
    assert bucket.master is not None
    if bucket.group is None:
        return bucket, bucket.master.to(unit.weights.dtype), None
    vector = bucket.packed(unit.weights) if bucket.is_contiguous else unit.weights.new_empty(bucket.length)
    vector[bucket.owned.start : bucket.owned.stop].copy_(bucket.master)
    return bucket, vector, start_part_gather(vector, bucket.group)


def _uses(module: nn.Module, unit: Unit) -> bool:
    own = {id(parameter) for parameter in unit.parameters.values()}
    return any(id(parameter) in own for parameter in module.parameters())
