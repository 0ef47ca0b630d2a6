"""Plans as arrays, so that the cost model prices all of a group's plans at once. Pure: no I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from arena.domain.micro_batches import micro_batches
from arena.domain.parallel import ParallelPlan, Recompute, Schedule, Stage, even_split

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Number = TypeVar("Number", np.float64, np.int64, np.bool_)

RECOMPUTE_MODES = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
"""Recomputation settings by their number in ``Candidates.recompute``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """n plans of up to p stages and v chunks a stage, with layers split in c ways.

    ``[n, p or 1]`` arrays hold one column where a plan's stages are alike. Chunks are ranges of units (see
    ``ModelCost``), ``[c, p, v]``, empty beyond a plan's depth.

    Args:
        dp: Replicas of a stage.
        tp: Tensor-parallel degree of a stage; the smallest where its replicas differ, as that rank holds the most.
        gpu_count: GPUs of a stage.
        micro_batch_count: Micro-batches of a stage's busiest replica and step, padding included.
        virtual_stage_count: Model chunks per pipeline rank.
        recompute: Index into ``RECOMPUTE_MODES``.
        cut: Which way layers are split, ``[n]``.
        chunk_first, chunk_last: First unit of each chunk, and the one behind its last, for each way.
        group: Which of the places that are looked at together; None where there is one.
        gpu_type: Which of their GPU types; None where there is one.
        keys: Numbers that stand for several columns together, by the names of these.
    """

    dp: Ints
    tp: Ints
    gpu_count: Ints
    micro_batch_count: Ints
    pp: Ints
    micro_batch_size: Ints
    zero: Ints
    virtual_stage_count: Ints
    is_gpipe: Flags
    recompute: Ints
    is_sequence_parallel: Flags
    expert_parallel: Ints
    cut: Ints
    chunk_first: Ints
    chunk_last: Ints
    group: Ints | None = None
    gpu_type: Ints | None = None
    keys: Mapping[tuple[str, ...], Ints] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.pp)

    @property
    def depth(self) -> int:
        """Stages of the deepest plan."""
        return int(self.chunk_first.shape[1])

    @property
    def stage_mask(self) -> Flags:
        """Which stages exist, ``[n, p]``."""
        mask: Flags = np.arange(self.depth)[None, :] < self.pp[:, None]
        return mask

    @property
    def last_stages(self) -> Flags:
        """Where each plan's last stage is, ``[n, p]``."""
        mask: Flags = np.arange(self.depth)[None, :] == self.pp[:, None] - 1
        return mask

    @property
    def sequence_divisor(self) -> Ints:
        """What divides activations that only sequence parallelism divides, ``[n, p or 1]``."""
        return np.where(self.is_sequence_parallel[:, None], self.tp, 1)

    def sums(self, cumulative: Floats, rows: Ints | None = None) -> Floats:
        """Sum values of units over each stage's chunks, ``[n, p]``.

        Args:
            cumulative: ``[rows, units + 1]``.
            rows: Which row holds for a candidate (and stage), ``[n, p or 1]``; by default the only one.
        """
        if rows is not None and len(cumulative) * len(self.chunk_first) > len(self):
            first, last = self.by_cut(self.chunk_first), self.by_cut(self.chunk_last)
            each = cumulative[rows[..., None], last] - cumulative[rows[..., None], first]
            return _over_chunks(each)
        table = _over_chunks(cumulative[:, self.chunk_last] - cumulative[:, self.chunk_first])
        if rows is None:
            return self.by_cut(table[0])
        if rows.shape[1] == 1:
            total: Floats = table[rows[:, 0], self.cut]
            return total
        some: Floats = table[rows, self.cut[:, None], np.arange(table.shape[2])[None, :]]
        return some

    def by_cut(self, table: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Return for each candidate what holds for its way to split layers, ``[n, ...]``."""
        return table[self.cut]

    def take(self, rows: Ints, *, group: Ints | None = None) -> Candidates:
        """Return some of the candidates, on other groups where they are given."""
        columns = {name: getattr(self, name) for name in _COLUMNS}
        some = {name: column[rows] for name, column in columns.items() if column is not None}
        keys = {names: key[rows] for names, key in self.keys.items()}
        return replace(self, **(some if group is None else {**some, "group": group}), keys=keys)

    def distinct(self, names: Sequence[str]) -> tuple[Candidates, Ints]:
        """Return candidates that differ in some columns, and which of them stands for each of these, ``[n]``.

        What depends on these columns alone is computed once for those that are alike.
        """
        known = self.keys.get(without_place(names))
        told = [] if known is None else [known]
        asked = names if known is None else [name for name in names if name in _OF_PLACE]
        found = (column for name in asked if (column := getattr(self, name)) is not None)
        which, first = distinct_rows([*told, *(one for column in found for one in column.reshape(len(self), -1).T)])
        return self.take(first), which


_OF_PLACE = ("group", "gpu_type")
"""Columns that say where a candidate is, the others what it is."""

_COLUMNS = tuple(one.name for one in fields(Candidates) if one.name != "keys" and not one.name.startswith("chunk_"))
"""Fields with a row for each candidate."""


def _over_chunks(values: Floats) -> Floats:
    total: Floats = values[..., 0] if values.shape[-1] == 1 else values.sum(axis=-1)
    return total


def without_place(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of columns that say what a candidate is."""
    return tuple(name for name in names if name not in _OF_PLACE)


def distinct_rows(columns: Sequence[Ints | Flags]) -> tuple[Ints, Ints]:
    """Return the rank of each row among the distinct ones, and where each of these stands first; a column at least."""
    code, size = _ranks(columns[0])
    for column in columns[1:]:
        ranks, count = _ranks(column)
        code, size = code * count + ranks, size * count
        if size > 8 * len(code):
            code, size = _ranks(code)
    return distinct_values(code)


def distinct_values(values: Ints) -> tuple[Ints, Ints]:
    """Return the rank of each value among the distinct ones, and where each of these stands first."""
    which, count = _ranks(values)
    first = np.empty(count, dtype=np.int64)
    first[which[::-1]] = np.arange(len(values))[::-1]
    return which, first


def _ranks(values: Ints | Flags) -> tuple[Ints, int]:
    """Return the rank of each value among the distinct ones, and how many these are."""
    values = values.astype(np.int64, copy=False)
    largest = int(values.max())
    if largest > 16 * len(values):
        order = np.argsort(values, kind="stable")
        in_order = values[order]
        ranks = np.empty(len(values), dtype=np.int64)
        ranks[order] = np.concatenate(([0], np.cumsum(in_order[1:] != in_order[:-1])))
        return ranks, int(ranks[order[-1]]) + 1
    is_there = np.zeros(largest + 1, dtype=np.bool_)
    is_there[values] = True
    rank_of = np.cumsum(is_there) - 1
    return rank_of[values], int(rank_of[-1]) + 1


def micro_batch_count(global_batch: int, dp: int, micro_batch_size: int) -> int:
    """Return the micro-batches of the replica with the most samples in a plan whose stages are alike."""
    samples_max = -(-global_batch // dp)
    return -(-samples_max // micro_batch_size)


@lru_cache(maxsize=4096)
def chunk_units(stage_layers: tuple[int, ...], virtual_stage_count: int) -> tuple[Ints, Ints]:
    """Return the first unit of each chunk and the one behind its last, both ``[stages, chunks of a stage]``.

    Chunks go round the stages; the first holds the model's beginning, the last its ending.
    """
    splits = [even_split(count, virtual_stage_count) for count in stage_layers]
    counts = [split[turn] for turn in range(virtual_stage_count) for split in splits]
    last = np.array(list(accumulate(counts)), dtype=np.int64) + 1
    first = np.concatenate(([0], last[:-1]))
    last[-1] += 1
    shape = (virtual_stage_count, len(stage_layers))
    return first.reshape(shape).T, last.reshape(shape).T


def candidate_of(plan: ParallelPlan, global_batch: int) -> Candidates:
    """Return one plan of any form as arrays of length 1."""
    first, last = chunk_units(tuple(stage.layer_count for stage in plan.stages), plan.virtual_stage_count)
    batches = micro_batches(plan, global_batch)
    busiest = [max(Counter(batch.replicas[index] for batch in batches).values()) for index in range(plan.pp)]
    return Candidates(
        dp=_row([len(stage.replicas) for stage in plan.stages]),
        tp=_row([_least_tp(stage) for stage in plan.stages]),
        gpu_count=_row([stage.gpu_count for stage in plan.stages]),
        micro_batch_count=_row(busiest),
        pp=np.array([plan.pp], dtype=np.int64),
        micro_batch_size=np.array([plan.micro_batch_size], dtype=np.int64),
        zero=np.array([plan.zero], dtype=np.int64),
        virtual_stage_count=np.array([plan.virtual_stage_count], dtype=np.int64),
        is_gpipe=np.array([plan.schedule is Schedule.GPIPE], dtype=np.bool_),
        recompute=np.array([RECOMPUTE_MODES.index(plan.recompute)], dtype=np.int64),
        is_sequence_parallel=np.array([plan.sequence_parallel], dtype=np.bool_),
        expert_parallel=np.array([plan.expert_parallel], dtype=np.int64),
        cut=np.zeros(1, dtype=np.int64),
        chunk_first=first[None],
        chunk_last=last[None],
    )


def _least_tp(stage: Stage) -> int:
    return min(replica.tp for replica in stage.replicas)


def _row(values: Sequence[int]) -> Ints:
    return np.array([values], dtype=np.int64)
