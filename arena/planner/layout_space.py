"""Which uniform layouts a model, a batch, a group and the user's bounds allow. Pure: no I/O, no clock.

Left out, because something else in the list is at least as good on every count:

* sharding where a stage has one replica; schedules where there is one stage;
* selective recomputation of a Wide-ResNet, which frees nothing;
* fewer micro-batches than stages, unless a replica has fewer samples than that;
* interleaving where micro-batches do not come in whole rounds of the pipeline or ranks would have unequal chunks;
* stages with a dp and tp of their own but for two stages on powers of two of GPUs, with layers in proportion;
* splits of layers other than the even one and the one whose heaviest stage is lightest (by operations).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from math import gcd
from typing import NamedTuple

import numpy as np

from arena.domain.allocation import GpuGroup
from arena.domain.capability import PARTS_MAX, REFUSALS, Feature, tensor_parallel_dimensions
from arena.domain.divisors import divisors, format_set
from arena.domain.job import ModelFamily, ParallelLimits, TrainSpec
from arena.domain.parallel import Schedule
from arena.planner.candidates import (
    Ints,
    micro_batch_count,
)
from arena.planner.layouts import BASE_COLUMNS, OPTION_COLUMNS, SCHEDULES, Layouts
from arena.planner.splits import BALANCED, EVEN, proportional, split_of

DEFAULT_SCHEDULES = ("1f1b", "interleaved")
"""What is searched unless the user says otherwise: GPipe takes as long as 1F1B and needs more memory."""
MIXED_SAMPLES_MAX = 8
"""Most samples of a micro-batch where two stages differ."""
CHUNKS_MAX = 8
"""Most chunks of a rank: more save little of a bubble that is an eighth already, and each sends more."""


class _TwoStages(NamedTuple):
    """The dp and tp of a first stage, and of the one behind it."""

    dp: int
    tp: int
    dp_behind: int
    tp_behind: int

    @property
    def is_mixed(self) -> bool:
        """Whether the stages differ."""
        return (self.dp, self.tp) != (self.dp_behind, self.tp_behind)


_Key = tuple[int, tuple[int, ...], tuple[_TwoStages, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTable:
    """Layouts of several groups; groups that allow the same ones share them.

    Args:
        layouts: Of all of them.
        ranges: First row and the one behind the last, for each group.
    """

    layouts: Layouts
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSpace:
    """All layouts of a workload within the user's bounds and what the worker runs."""

    train: TrainSpec
    limits: ParallelLimits

    def layouts(self, group: GpuGroup) -> Layouts:
        """Return the layouts of a group, shallow pipelines first."""
        return self.table([group]).layouts

    def table(self, groups: Sequence[GpuGroup]) -> LayoutTable:
        """Return the layouts of some groups, those of each with shallow pipelines first."""
        rows: list[tuple[int, ...]] = []
        kinds: list[int] = []
        options = _Options()
        of_degrees: dict[tuple[int, int], list[tuple[int, ...]]] = {}
        splits: dict[int, tuple[int, ...]] = {}
        spans: dict[_Key, tuple[int, int]] = {}
        keys = self._keys(groups)
        for key in keys:
            if key in spans:
                continue
            start = len(rows)
            for dp, tp, pp in sorted(self._degrees(*key[:2]), key=lambda one: one[2]):
                if (dp, pp) not in of_degrees:
                    splits[pp] = splits.get(pp) or self._splits(pp)
                    of_degrees[dp, pp] = list(self._schedules(dp, pp, splits[pp]))
                found = of_degrees[dp, pp]
                rows += [(dp, tp, pp, *rest, dp, tp) for rest in found]
                kinds += [options.kind(self._options(dp, tp))] * len(found)
            for two in key[2]:
                mixed = list(self._mixed(two))
                rows += mixed
                kinds += [options.kind(self._mixed_options(two))] * len(mixed)
            spans[key] = start, len(rows)
        layouts, starts = options.spread(
            self.train, np.array(rows, dtype=np.int64).reshape(-1, len(BASE_COLUMNS)), kinds
        )
        return LayoutTable(
            layouts=layouts,
            ranges=tuple((int(starts[spans[key][0]]), int(starts[spans[key][1]])) for key in keys),
        )

    def _keys(self, groups: Sequence[GpuGroup]) -> list[_Key]:
        """Return what tells which layouts a group allows, once for groups on nodes of the same sizes."""
        known: dict[tuple[int, ...], _Key] = {}
        shapes = [tuple(count for part in group.parts for count in part.node_counts) for group in groups]
        for group, shape in zip(groups, shapes, strict=True):
            if shape not in known:
                degrees = tuple(self._tensor_parallel_degrees(group))
                known[shape] = group.gpu_count, degrees, tuple(self._two_stages(shape))
        return [known[shape] for shape in shapes]

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
        least = self._least_dp(group)
        larger = (
            f"; with what else is allowed dp is at least {least}: a batch of {least} would do" if least > batch else ""
        )
        yield f"global batch = {batch}: dp at most {min(batch, self.limits.dp_max or batch)}{larger}"
        yield f"layers = {model.layers}: pp at most {min(model.layers, self.limits.pp_max or model.layers)}"

    def _least_dp(self, group: GpuGroup) -> int:
        """Return the least dp that fills a group with the largest tp and pp, 0 where none does."""
        count, pp_max = group.gpu_count, min(self.limits.pp_max or PARTS_MAX, self.train.model.layers)
        found = [
            count // (tp * pp)
            for tp in self._tensor_parallel_degrees(group)
            for pp in divisors(count // tp)
            if pp <= pp_max
        ]
        return min(found, default=0)

    def _degrees(self, count: int, tensor_degrees: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        layers, batch = self.train.model.layers, self.train.global_batch
        for tp in tensor_degrees:
            for pp in divisors(count // tp):
                dp = count // (tp * pp)
                if pp <= min(self.limits.pp_max or pp, layers) and dp <= min(self.limits.dp_max or dp, batch):
                    yield dp, tp, pp

    def _two_stages(self, node_counts: Sequence[int]) -> Iterator[_TwoStages]:
        """Yield the pipelines of two stages whose dp or tp differ, each stage on a power of two of GPUs."""
        model, limits, count = self.train.model, self.limits, sum(node_counts)
        refused = REFUSALS[model.family].keys() & {Feature.MIXED_DP, Feature.MIXED_TP, Feature.UNEVEN_LAYERS}
        if refused or min(model.layers, limits.pp_max or 2) < 2 or "1f1b" not in (limits.schedules or ("1f1b",)):
            return
        common = gcd(*tensor_parallel_dimensions(model).values())
        edges = list(accumulate(node_counts))
        for first in (2**power for power in range(count.bit_length()) if _is_power(count - 2**power)):
            behind = count - first
            for tp, tp_behind in product(divisors(gcd(first, common)), divisors(gcd(behind, common))):
                one = _TwoStages(first // tp, tp, behind // tp_behind, tp_behind)
                is_whole = all(edge % tp == 0 if edge <= first else (edge - first) % tp_behind == 0 for edge in edges)
                if is_whole and one.is_mixed and self._allows(one):
                    yield one

    def _allows(self, two: _TwoStages) -> bool:
        dp, tp = max(two.dp, two.dp_behind), max(two.tp, two.tp_behind)
        is_within = dp <= (self.limits.dp_max or dp) and tp <= (self.limits.tp_max or tp)
        return is_within and self.train.global_batch % dp == 0

    def _mixed(self, two: _TwoStages) -> Iterator[tuple[int, ...]]:
        """Yield the layouts of two stages: layers by the GPUs of each, all micro-batches whole."""
        samples = self.train.global_batch // max(two.dp, two.dp_behind)
        split = proportional(self.train.model, two.dp * two.tp, two.dp_behind * two.tp_behind)
        for size in divisors(samples):
            if size <= min(self.limits.micro_batch_max or MIXED_SAMPLES_MAX, MIXED_SAMPLES_MAX) and samples >= 2 * size:
                yield two.dp, two.tp, 2, 0, 1, split, size, two.dp_behind, two.tp_behind

    def _mixed_options(self, two: _TwoStages) -> tuple[tuple[int, ...], ...]:
        """Return the values of each of ``OPTION_COLUMNS`` for two stages that differ."""
        zero = [one for one in self._zero_stages(min(two.dp, two.dp_behind)) if one < 2] or [self._zero_stages(1)[0]]
        sequence = max(self._sequence_parallel(two.tp)[-1], self._sequence_parallel(two.tp_behind)[-1])
        return tuple(zero), (0, 2), (sequence,), (1,)

    def _tensor_parallel_degrees(self, group: GpuGroup) -> list[int]:
        """Divisors of the count that divide the model's widths and never straddle two nodes."""
        edges = list(accumulate(count for part in group.parts for count in part.node_counts))
        common = gcd(*edges, *tensor_parallel_dimensions(self.train.model).values())
        return [tp for tp in divisors(common) if tp <= (self.limits.tp_max or tp)]

    def _options(self, dp: int, tp: int) -> tuple[tuple[int, ...], ...]:
        """Return what can be combined with degrees and micro-batches: the values of each of ``OPTION_COLUMNS``."""
        recompute = (0, 2) if self.train.model.family is ModelFamily.WIDE_RESNET else (0, 1, 2)
        return self._zero_stages(dp), recompute, self._sequence_parallel(tp), self._expert_degrees(dp)

    def _schedules(self, dp: int, pp: int, splits: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
        """Yield schedule, chunks per rank, split and micro-batch size; without a pipeline schedules are alike."""
        sizes = self._micro_batch_sizes(dp, pp)
        if pp == 1:
            yield from ((0, 1, EVEN, size) for size in sizes)
            return
        for name in sorted(set(self.limits.schedules)) or DEFAULT_SCHEDULES:
            schedule = SCHEDULES.index(Schedule(name))
            if name != "interleaved":
                for split in splits:
                    yield from ((schedule, 1, split, size) for size in sizes)
            elif chunks := self._chunk_counts(pp):
                whole = [size for size in sizes if micro_batch_count(self.train.global_batch, dp, size) % pp == 0]
                yield from ((schedule, count, EVEN, size) for count in chunks for size in whole)

    def _splits(self, pp: int) -> tuple[int, ...]:
        model = self.train.model
        is_offered = Feature.UNEVEN_LAYERS not in REFUSALS[model.family]
        return (
            (EVEN, BALANCED) if is_offered and split_of(model, pp, BALANCED) != split_of(model, pp, EVEN) else (EVEN,)
        )

    def _chunk_counts(self, pp: int) -> list[int]:
        """Return how many chunks a rank can have so that all are alike."""
        each, rest = divmod(self.train.model.layers, pp)
        return [] if rest else [count for count in divisors(each) if 2 <= count <= CHUNKS_MAX]

    def _micro_batch_sizes(self, dp: int, pp: int) -> list[int]:
        """Return sizes that leave a micro-batch for each stage, or single samples.

        Divisors of a replica's samples, and powers of two: where there are few divisors, a last micro-batch that is not
        full costs less than micro-batches of an awkward size.
        """
        samples = -(-self.train.global_batch // dp)
        largest = self.limits.micro_batch_max or samples
        powers = {1 << exponent for exponent in range(samples.bit_length())}
        return [
            size
            for size in sorted(powers.union(divisors(samples)))
            if size <= largest and (micro_batch_count(self.train.global_batch, dp, size) >= pp or size == 1)
        ]

    def _zero_stages(self, dp: int) -> tuple[int, ...]:
        allowed = tuple(sorted(set(self.limits.zero))) or (0, 1, 2, 3)
        return allowed if dp > 1 else allowed[:1]

    def _sequence_parallel(self, tp: int) -> tuple[int, ...]:
        model = self.train.model
        is_offered = tp > 1 and Feature.SEQUENCE_PARALLEL not in REFUSALS[model.family]
        is_even = all(length % tp == 0 for length in (model.sequence_length, model.target_len or 0))
        return (0, 1) if is_offered and is_even else (0,)

    def _expert_degrees(self, dp: int) -> tuple[int, ...]:
        model = self.train.model
        if Feature.EXPERT_PARALLEL in REFUSALS[model.family]:
            return (1,)
        return tuple(divisors(gcd(dp, model.expert_count or 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """Distinct sets of options that rows of a table can be combined with."""

    kinds: dict[tuple[tuple[int, ...], ...], int] = field(default_factory=dict)

    def kind(self, values: tuple[tuple[int, ...], ...]) -> int:
        """Return the number of a set of options."""
        return self.kinds.setdefault(values, len(self.kinds))

    def spread(self, train: TrainSpec, rows: Ints, kinds: Sequence[int]) -> tuple[Layouts, Ints]:
        """Return each row with each of its options, and where those of each row begin (and the last ones end)."""
        tables = [list(product(*values)) for values in self.kinds]
        flat = np.array([one for table in tables for one in table], dtype=np.int64).reshape(-1, len(OPTION_COLUMNS))
        sizes = np.array([len(table) for table in tables], dtype=np.int64)
        offsets = np.cumsum(sizes) - sizes
        kind = np.array(kinds, dtype=np.int64)
        starts = np.concatenate(([0], np.cumsum(sizes[kind])))
        row = np.repeat(np.arange(len(rows)), sizes[kind])
        option = offsets[kind][row] + np.arange(len(row)) - starts[row]
        return Layouts(bases=rows, options=flat, base=row, option=option, train=train), starts


def _is_power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
