"""All parameters of a rank: what its modules use, what its optimizer updates, and how the two are kept the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from arena_agent.worker.collectives import start_part_gather
from arena_agent.worker.gathers import WeightGathers
from arena_agent.worker.gradients import GradientSums
from arena_agent.worker.models.chunk import Chunk
from arena_agent.worker.units import Bucket, Run, Unit, UnitBuilder, runs_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Bank:
    """A rank's parameters.

    Args:
        units: In model order within each chunk.
        runs: What this rank owns.
        gradients: How gradients become sums.
        gathers: How sharded weights come and go.
    """

    units: tuple[Unit, ...]
    runs: tuple[Run, ...]
    gradients: GradientSums
    gathers: WeightGathers

    @classmethod
    def build(cls, builder: UnitBuilder) -> Bank:
        """Lay out a rank's parameters, with undefined values."""
        units = tuple(builder.units())
        gathers = WeightGathers(units=units)
        return cls(
            units=units,
            runs=tuple(run for unit in units for run in runs_of(unit, builder.rank)),
            gradients=GradientSums(units=units, released=gathers.drop),
            gathers=gathers,
        )

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The modules' parameters by name."""
        return {name: parameter for unit in self.units for name, parameter in unit.parameters.items()}

    def attach(self, chunks: Iterable[Chunk]) -> None:
        """Follow the passes through the chunks that use the parameters."""
        self.gradients.attach()
        for chunk in chunks:
            self.gathers.attach(chunk)

    @torch.no_grad()
    def publish(self) -> None:
        """Bring updated values into the modules' parameters on every rank; sharded weights are gathered when used."""
        for unit in self.units:
            if unit.zero == 3:
                self.gathers.drop(unit)
                continue
            for bucket in unit.buckets:
                _publish(unit, bucket)


def _publish(unit: Unit, bucket: Bucket) -> None:
    if unit.zero == 0 or bucket.group is None:
        if bucket.master is not None:
            bucket.unpack(bucket.master.to(unit.weights.dtype), unit.weights)
        return
    vector = bucket.packed(unit.weights)
    if bucket.master is not None:
        vector[bucket.owned.start : bucket.owned.stop].copy_(bucket.master)
    start_part_gather(vector, bucket.group).wait()
    bucket.unpack(vector, unit.weights)
