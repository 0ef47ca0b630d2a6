"""Which uniform layouts a model, a batch, a group and the user's bounds allow. Pure: no I/O, no clock.

Left out, because something else in the list is at least as good on every count:

* sharding where a stage has one replica; schedules where there is one stage;
* selective recomputation of a Wide-ResNet, which frees nothing;
* fewer micro-batches than stages, unless a replica has fewer samples than that;
* interleaving where micro-batches do not come in whole rounds of the pipeline or ranks would have unequal chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, product
from math import gcd

import numpy as np

from arena.domain.allocation import GpuGroup
from arena.domain.capability import REFUSALS, Feature, tensor_parallel_dimensions
from arena.domain.divisors import divisors, format_set
from arena.domain.job import ModelFamily, ParallelLimits, TrainSpec
from arena.domain.parallel import ParallelPlan, Schedule, even_split
from arena.planner.candidates import RECOMPUTE_MODES, Candidates, Ints, chunk_units, micro_batch_count

_SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.GPIPE)
_COLUMNS = (
    *("dp", "tp", "pp", "micro_batch_size", "zero", "schedule", "virtual_stage_count", "recompute"),
    *("sequence_parallel", "expert_parallel"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Uniform plans before they are worth being one: thousands are priced, a few become ``ParallelPlan``.

    Args:
        numbers: One row per layout, ``[n, columns]``.
        train: The workload.
    """

    numbers: Ints
    train: TrainSpec

    def __len__(self) -> int:
        return len(self.numbers)

    def plan(self, index: int) -> ParallelPlan:
        """Return one of the plans."""
        row: Mapping[str, int] = dict(zip(_COLUMNS, self.numbers[index].tolist(), strict=True))
        return ParallelPlan.uniform(
            layer_count=self.train.model.layers,
            dp=row["dp"],
            tp=row["tp"],
            pp=row["pp"],
            micro_batch_size=row["micro_batch_size"],
            schedule=_SCHEDULES[row["schedule"]],
            virtual_stage_count=row["virtual_stage_count"],
            zero=row["zero"],
            recompute=RECOMPUTE_MODES[row["recompute"]],
            expert_parallel=row["expert_parallel"],
            sequence_parallel=bool(row["sequence_parallel"]),
        )

    def candidates(self) -> Candidates:
        """Return all of them as arrays."""
        column = dict(zip(_COLUMNS, self.numbers.T, strict=True))
        dp, tp, pp, chunks = (column[name] for name in ("dp", "tp", "pp", "virtual_stage_count"))
        samples = -(-self.train.global_batch // dp)
        cut, first, last = self._chunks(pp, chunks)
        return Candidates(
            dp=dp[:, None],
            tp=tp[:, None],
            gpu_count=(dp * tp)[:, None],
            micro_batch_count=-(-samples // column["micro_batch_size"])[:, None],
            pp=pp,
            micro_batch_size=column["micro_batch_size"],
            zero=column["zero"],
            virtual_stage_count=chunks,
            is_gpipe=column["schedule"] == _SCHEDULES.index(Schedule.GPIPE),
            recompute=column["recompute"],
            is_sequence_parallel=column["sequence_parallel"] > 0,
            expert_parallel=column["expert_parallel"],
            cut=cut,
            chunk_first=first,
            chunk_last=last,
        )

    def _chunks(self, pp: Ints, chunks: Ints) -> tuple[Ints, Ints, Ints]:
        """Return which way each layout splits the layers, and the units of each chunk of each way."""
        turns_max = int(chunks.max())
        codes, cut = np.unique(pp * (turns_max + 1) + chunks, return_inverse=True)
        table = np.zeros((2, len(codes), int(pp.max()), turns_max), dtype=np.int64)
        for index, code in enumerate(codes.tolist()):
            depth, turns = divmod(code, turns_max + 1)
            split = tuple(even_split(self.train.model.layers, depth))
            table[:, index, :depth, :turns] = chunk_units(split, turns)
        return cut.reshape(-1), table[0], table[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSpace:
    """All layouts of a workload within the user's bounds and what the worker runs."""

    train: TrainSpec
    limits: ParallelLimits

    def layouts(self, group: GpuGroup) -> Layouts:
        """Return the layouts of a group, shallow pipelines first."""
        degrees = sorted(self._degrees(group), key=lambda one: one[2])
        rows = [row for one in degrees for row in self._rows(*one)]
        numbers = np.array(rows, dtype=np.int64).reshape(-1, len(_COLUMNS))
        return Layouts(numbers=numbers, train=self.train)

    def bounds(self, group: GpuGroup) -> Iterator[str]:
        """Yield what keeps some dp x tp x pp = count out, each with the values that would do."""
        count, model, batch = group.gpu_count, self.train.model, self.train.global_batch
        for name, size in tensor_parallel_dimensions(model).items():
            wrong = [str(tp) for tp in divisors(count) if size % tp]
            if wrong:
                verb = "does not divide" if len(wrong) == 1 else "do not divide"
                yield f"{name} = {size}: tp in {format_set(divisors(size))}; {', '.join(wrong)} {verb}"
        if group.node_count > 1:
            yield f"tp stays inside a node ({group})"
        if self.limits.tp_max is not None:
            yield f"tp at most {self.limits.tp_max}"
        yield f"global batch = {batch}: dp at most {min(batch, self.limits.dp_max or batch)}"
        yield f"layers = {model.layers}: pp at most {min(model.layers, self.limits.pp_max or model.layers)}"

    def _degrees(self, group: GpuGroup) -> Iterator[tuple[int, int, int]]:
        count, layers, batch = group.gpu_count, self.train.model.layers, self.train.global_batch
        for tp in self._tensor_parallel_degrees(group):
            for pp in divisors(count // tp):
                dp = count // (tp * pp)
                if pp <= min(self.limits.pp_max or pp, layers) and dp <= min(self.limits.dp_max or dp, batch):
                    yield dp, tp, pp

    def _tensor_parallel_degrees(self, group: GpuGroup) -> list[int]:
        """Divisors of the count that divide the model's widths and never straddle two nodes."""
        edges = list(accumulate(count for part in group.parts for count in part.node_counts))
        sizes = tensor_parallel_dimensions(self.train.model).values()
        return [
            tp
            for tp in divisors(group.gpu_count)
            if tp <= (self.limits.tp_max or tp)
            and all(edge % tp == 0 for edge in edges)
            and all(size % tp == 0 for size in sizes)
        ]

    def _rows(self, dp: int, tp: int, pp: int) -> Iterator[tuple[int, ...]]:
        """Yield the layouts with some degrees: all combinations of the rest."""
        recompute = (0, 2) if self.train.model.family is ModelFamily.WIDE_RESNET else (0, 1, 2)
        for schedule, chunks, sizes in self._schedules(dp, pp):
            yield from product(
                *((dp,), (tp,), (pp,), sizes, self._zero_stages(dp), (_SCHEDULES.index(schedule),), (chunks,)),
                *(recompute, self._sequence_parallel(tp), self._expert_degrees(dp)),
            )

    def _schedules(self, dp: int, pp: int) -> Iterator[tuple[Schedule, int, list[int]]]:
        """Yield schedule, chunks per rank, and micro-batch sizes; without a pipeline schedules are all the same."""
        sizes = self._micro_batch_sizes(dp, pp)
        if pp == 1:
            yield Schedule.ONE_F_ONE_B, 1, sizes
            return
        layers, batch = self.train.model.layers, self.train.global_batch
        for name in sorted(set(self.limits.schedules)) or ["1f1b"]:
            if name != "interleaved":
                yield Schedule(name), 1, sizes
            elif layers % (2 * pp) == 0:
                whole = [size for size in sizes if micro_batch_count(batch, dp, size) % pp == 0]
                if whole:
                    yield Schedule.INTERLEAVED, 2, whole

    def _micro_batch_sizes(self, dp: int, pp: int) -> list[int]:
        """Divisors of a replica's samples that leave a micro-batch for each stage, or single samples."""
        samples = -(-self.train.global_batch // dp)
        largest = self.limits.micro_batch_max or samples
        return [size for size in divisors(samples) if size <= largest and (samples // size >= pp or size == 1)]

    def _zero_stages(self, dp: int) -> tuple[int, ...]:
        allowed = tuple(sorted(set(self.limits.zero))) or (0, 1, 2, 3)
        return allowed if dp > 1 else allowed[:1]

    def _sequence_parallel(self, tp: int) -> tuple[int, ...]:
        model = self.train.model
        is_offered = tp > 1 and Feature.SEQUENCE_PARALLEL not in REFUSALS[model.family]
        return (0, 1) if is_offered and model.sequence_length % tp == 0 else (0,)

    def _expert_degrees(self, dp: int) -> list[int]:
        model = self.train.model
        if Feature.EXPERT_PARALLEL in REFUSALS[model.family]:
            return [1]
        return divisors(gcd(dp, model.expert_count or 1))
