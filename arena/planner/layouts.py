"""Uniform layouts as arrays of numbers: thousands are priced, a few become plans. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from arena.domain.job import TrainSpec
from arena.domain.parallel import ParallelPlan, Replica, Schedule, Stage
from arena.planner.candidates import (
    RECOMPUTE_MODES,
    Candidates,
    Flags,
    Ints,
    chunk_units,
    distinct_rows,
    distinct_values,
    without_place,
)
from arena.planner.splits import split_of

SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.GPIPE)
"""Schedules by their number in a layout."""
BASE_COLUMNS = (
    *("dp", "tp", "pp", "schedule", "virtual_stage_count", "split", "micro_batch_size"),
    *("dp_behind", "tp_behind"),
)
"""What a layout is made of; ``_behind``: of all stages but the first."""
OPTION_COLUMNS = ("zero", "recompute", "sequence_parallel", "expert_parallel")
"""What is combined freely with that."""
_SOURCES: Mapping[str, tuple[str, ...]] = {
    "cut": ("pp", "virtual_stage_count", "split"),
    "pp": ("pp",),
    "dp": ("dp", "dp_behind"),
    "tp": ("tp", "tp_behind"),
    "gpu_count": ("dp", "tp", "dp_behind", "tp_behind"),
    "micro_batch_size": ("micro_batch_size",),
    "micro_batch_count": ("dp", "dp_behind", "micro_batch_size"),
    "virtual_stage_count": ("virtual_stage_count",),
    "is_gpipe": ("schedule",),
    "zero": ("zero",),
    "recompute": ("recompute",),
    "is_sequence_parallel": ("sequence_parallel",),
    "expert_parallel": ("expert_parallel",),
}
"""What the columns of ``Candidates`` follow from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Uniform plans before they are worth being one: thousands are priced, a few become ``ParallelPlan``.

    Args:
        bases, options: Distinct combinations of columns, ``[b, columns]`` and ``[o, columns]``.
        base, option: Which of them a layout has, ``[n]``.
        train: The workload.
    """

    bases: Ints
    options: Ints
    base: Ints
    option: Ints
    train: TrainSpec

    def __len__(self) -> int:
        return len(self.base)

    def column(self, name: str) -> Ints:
        """Return a number of each plan."""
        if name in BASE_COLUMNS:
            return self.bases[:, BASE_COLUMNS.index(name)][self.base]
        return self.options[:, OPTION_COLUMNS.index(name)][self.option]

    def take(self, rows: Ints) -> Layouts:
        """Return some of the layouts."""
        return replace(self, base=self.base[rows], option=self.option[rows])

    def keys(self, wanted: Iterable[Sequence[str]]) -> dict[tuple[str, ...], Ints]:
        """Return for some columns of ``Candidates`` together which layouts differ in them, ``[n]`` each."""
        found: dict[tuple[str, ...], Ints] = {}
        for names in dict.fromkeys(without_place(some) for some in wanted):
            columns = list(dict.fromkeys(one for name in names for one in _SOURCES[name]))
            by_base, _ = distinct_rows(
                [self.bases[:, BASE_COLUMNS.index(one)] for one in columns if one in BASE_COLUMNS]
            )
            chosen = [self.options[:, OPTION_COLUMNS.index(one)] for one in columns if one in OPTION_COLUMNS]
            by_option = distinct_rows(chosen)[0] if chosen else np.zeros(len(self.options), dtype=np.int64)
            found[names] = by_base[self.base] * (int(by_option.max()) + 1) + by_option[self.option]
        return found

    def plan(self, index: int) -> ParallelPlan:
        """Return one of the plans."""
        numbers = (*self.bases[self.base[index]].tolist(), *self.options[self.option[index]].tolist())
        row: Mapping[str, int] = dict(zip((*BASE_COLUMNS, *OPTION_COLUMNS), numbers, strict=True))
        return ParallelPlan(
            stages=_stages(
                split_of(self.train.model, row["pp"], row["split"]),
                (row["dp"], row["tp"]),
                (row["dp_behind"], row["tp_behind"]),
            ),
            micro_batch_size=row["micro_batch_size"],
            schedule=SCHEDULES[row["schedule"]],
            virtual_stage_count=row["virtual_stage_count"],
            zero=row["zero"],
            recompute=RECOMPUTE_MODES[row["recompute"]],
            expert_parallel=row["expert_parallel"],
            sequence_parallel=bool(row["sequence_parallel"]),
        )

    def candidates(self) -> Candidates:
        """Return all of them as arrays."""
        column = {name: self.column(name) for name in (*BASE_COLUMNS, *OPTION_COLUMNS)}
        pp, chunks = column["pp"], column["virtual_stage_count"]
        dp, tp = (_by_stage(column[name], column[f"{name}_behind"], int(pp.max())) for name in ("dp", "tp"))
        samples = -(-self.train.global_batch // dp)
        cut, first, last = self._chunks(pp, chunks, column["split"])
        return Candidates(
            dp=dp,
            tp=tp,
            gpu_count=np.broadcast_to(dp * tp, np.broadcast_shapes(dp.shape, tp.shape)),
            micro_batch_count=-(-samples // column["micro_batch_size"][:, None]),
            pp=pp,
            micro_batch_size=column["micro_batch_size"],
            zero=column["zero"],
            virtual_stage_count=chunks,
            is_gpipe=column["schedule"] == SCHEDULES.index(Schedule.GPIPE),
            recompute=column["recompute"],
            is_sequence_parallel=column["sequence_parallel"] > 0,
            expert_parallel=column["expert_parallel"],
            cut=cut,
            chunk_first=first,
            chunk_last=last,
        )

    @property
    def is_mixed(self) -> Flags:
        """Whether the first stage has a dp and tp of its own, ``[n]``."""
        is_other = self.column("dp") != self.column("dp_behind")
        mixed: Flags = is_other | (self.column("tp") != self.column("tp_behind"))
        return mixed

    def _chunks(self, pp: Ints, chunks: Ints, split: Ints) -> tuple[Ints, Ints, Ints]:
        """Return which way each layout splits the layers, and the units of each chunk of each way."""
        turns_max, depth_max, ways = int(chunks.max()), int(pp.max()), int(split.max()) + 1
        cut, first = distinct_values((chunks * (depth_max + 1) + pp) * ways + split)
        table = np.zeros((2, len(first), depth_max, turns_max), dtype=np.int64)
        for index, row in enumerate(first.tolist()):
            depth, turns = int(pp[row]), int(chunks[row])
            layers = split_of(self.train.model, depth, int(split[row]))
            table[:, index, :depth, :turns] = chunk_units(layers, turns)
        return cut, table[0], table[1]


def _by_stage(first: Ints, behind: Ints, depth: int) -> Ints:
    """Return values of stages, ``[n, depth]``, or ``[n, 1]`` where all stages are alike."""
    if np.array_equal(first, behind):
        return first[:, None]
    return np.where(np.arange(depth)[None, :] == 0, first[:, None], behind[:, None])


@lru_cache(maxsize=4096)
def _stages(layer_counts: tuple[int, ...], first: tuple[int, int], behind: tuple[int, int]) -> tuple[Stage, ...]:
    """Return stages, the first with some dp and tp, the others with their own."""
    replicas = [(Replica(tp=tp),) * dp for dp, tp in (first, behind)]
    return tuple(Stage(layer_count=count, replicas=replicas[min(index, 1)]) for index, count in enumerate(layer_counts))
