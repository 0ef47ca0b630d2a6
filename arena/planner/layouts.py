"""Which uniform layouts a model, a batch, a group and the user's bounds allow. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from arena.domain.allocation import GpuGroup
from arena.domain.job import ParallelLimits, TrainSpec
from arena.domain.parallel import ParallelPlan, Recompute, Schedule, even_split
from arena.planner.candidates import Candidates, micro_batch_count
from arena.planner.capability import Capability, divisors, format_set

_DEFAULT_ZERO = (0, 2, 3)


class Layout(NamedTuple):
    """A uniform plan before it is worth being one: thousands are priced, a few become ``ParallelPlan``."""

    dp: int
    tp: int
    pp: int
    micro_batch_size: int
    zero: int
    schedule: Schedule
    virtual_stage_count: int
    recompute: Recompute

    def plan(self, layer_count: int) -> ParallelPlan:
        """Return the plan."""
        return ParallelPlan.uniform(layer_count=layer_count, **self._asdict())


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSpace:
    """All layouts of a workload within the user's bounds and the worker's dimensions."""

    train: TrainSpec
    limits: ParallelLimits
    capability: Capability

    def layouts(self, group: GpuGroup) -> Iterator[Layout]:
        """Yield the layouts of a group, simplest first."""
        for tp, pp, dp in self._degrees(group):
            for micro_batch_size in self._micro_batch_sizes(dp, pp):
                for zero in self._zero_stages(dp):
                    for schedule, chunks in self._schedules(pp, dp, micro_batch_size):
                        for recompute in (Recompute.NONE, Recompute.FULL):
                            yield Layout(dp, tp, pp, micro_batch_size, zero, schedule, chunks, recompute)

    def bounds(self, group: GpuGroup) -> Iterator[str]:
        """Yield what keeps some dp x tp x pp = count out, each with the values that would do."""
        count, model, batch = group.gpu_count, self.train.model, self.train.global_batch
        for name, size in self.capability.tensor_parallel_dimensions(model).items():
            wrong = [str(tp) for tp in divisors(count) if size % tp]
            if wrong:
                verb = "does not divide" if len(wrong) == 1 else "do not divide"
                yield f"{name} = {size}: tp in {format_set(divisors(size))}; {', '.join(wrong)} {verb}"
        if group.node_count > 1:
            yield f"tp stays inside a node ({group})"
        if self.limits.tp_max is not None:
            yield f"tp at most {self.limits.tp_max}"
        yield f"global batch = {batch}: dp at most {min(batch, self.limits.dp_max or batch)}"
        pp_max = min(model.layers, self.limits.pp_max or model.layers)
        yield f"layers = {model.layers}: pp at most {pp_max}, with a micro-batch for each stage"

    def _degrees(self, group: GpuGroup) -> Iterator[tuple[int, int, int]]:
        count, layers, batch = group.gpu_count, self.train.model.layers, self.train.global_batch
        for tp in self._tensor_parallel_degrees(group):
            for pp in divisors(count // tp):
                dp = count // (tp * pp)
                if pp <= min(self.limits.pp_max or pp, layers) and dp <= min(self.limits.dp_max or dp, batch):
                    yield tp, pp, dp

    def _tensor_parallel_degrees(self, group: GpuGroup) -> list[int]:
        """Divisors of the count that divide the model's widths and never straddle two nodes."""
        edges = list(accumulate(count for part in group.parts for count in part.node_counts))
        sizes = self.capability.tensor_parallel_dimensions(self.train.model).values()
        return [
            tp
            for tp in divisors(group.gpu_count)
            if tp <= (self.limits.tp_max or tp)
            and all(edge % tp == 0 for edge in edges)
            and all(size % tp == 0 for size in sizes)
        ]

    def _micro_batch_sizes(self, dp: int, pp: int) -> list[int]:
        """Divisors of a replica's samples that leave at least one micro-batch for each stage."""
        samples = -(-self.train.global_batch // dp)
        largest = self.limits.micro_batch_max or samples
        return [size for size in divisors(samples) if size <= largest and samples // size >= pp]

    def _zero_stages(self, dp: int) -> tuple[int, ...]:
        allowed = tuple(sorted(set(self.limits.zero))) or _DEFAULT_ZERO
        return allowed if dp > 1 else allowed[:1]

    def _schedules(self, pp: int, dp: int, micro_batch_size: int) -> Iterator[tuple[Schedule, int]]:
        """Yield schedule and chunks per rank; without a pipeline they are all the same."""
        if pp == 1:
            yield Schedule.ONE_F_ONE_B, 1
            return
        layers, batch = self.train.model.layers, self.train.global_batch
        for name in sorted(set(self.limits.schedules)) or ["1f1b"]:
            if name != "interleaved":
                yield Schedule(name), 1
            elif layers % (2 * pp) == 0 and micro_batch_count(batch, dp, micro_batch_size) % pp == 0:
                yield Schedule.INTERLEAVED, 2


def candidates_of_layouts(layouts: Sequence[Layout], train: TrainSpec) -> Candidates:
    """Return layouts as arrays."""
    numbers = np.array([layout[:5] for layout in layouts], dtype=np.int64)
    dp, tp, pp, micro_batch_size, zero = numbers.T
    layers = np.zeros((int(pp.max()) + 1, int(pp.max())), dtype=np.int64)
    for depth in sorted(set(pp.tolist())):
        layers[depth, :depth] = even_split(train.model.layers, depth)
    samples = -(-train.global_batch // dp)
    return Candidates(
        dp=dp,
        tp=tp,
        pp=pp,
        micro_batch_size=micro_batch_size,
        micro_batch_count=-(-samples // micro_batch_size),
        zero=zero,
        virtual_stage_count=np.array([layout.virtual_stage_count for layout in layouts], dtype=np.int64),
        is_gpipe=np.array([layout.schedule is Schedule.GPIPE for layout in layouts], dtype=np.bool_),
        is_full_recompute=np.array([layout.recompute is Recompute.FULL for layout in layouts], dtype=np.bool_),
        stage_layers=layers[pp],
    )
