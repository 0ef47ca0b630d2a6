"""Time and memory of all layouts of many groups at once. Pure: no I/O, no clock.

Layouts are priced in batches of pipelines of similar depth, as arrays are as deep as the deepest. Memory is the same on
GPU types whose operators keep the same, so it comes first and once for them; times are only asked for plans that fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.planner.candidates import Candidates, Floats, Ints
from arena.planner.cost import iter_times_s
from arena.planner.holdings import holdings
from arena.planner.layouts import Layouts
from arena.planner.memory import memory_by_stage, operators_of
from arena.planner.model import model_cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Layouts that are priced together.

    Args:
        rows: Which of all layouts, in rising order.
    """

    rows: Ints
    candidates: Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Plans that fit on their groups, ``[m]`` each: by group, then by layout.

    Args:
        group: Position among the groups.
        row: Which layout.
    """

    group: Ints
    row: Ints
    iter_time_s: Floats


def batches_of(layouts: Layouts) -> tuple[Batch, ...]:
    """Return all layouts in batches: depths up to 1, 2, 4, ... apart, interleaved ones for themselves."""
    if not len(layouts):
        return ()
    depth = np.ceil(np.log2(layouts.column("pp"))).astype(np.int64)
    kind = 2 * depth + (layouts.column("virtual_stage_count") > 1)
    found = []
    for value in np.flatnonzero(np.bincount(kind)).tolist():
        rows = np.flatnonzero(kind == value)
        found.append(Batch(rows=rows, candidates=layouts.take(rows).candidates()))
    return tuple(found)


def peaks_bytes(train: TrainSpec, gpu_type: GpuType, batches: Sequence[Batch]) -> Floats:
    """Return the memory of the fullest stage of each layout, by row."""
    model = model_cost(train.model, operators_of(gpu_type))
    peaks = np.zeros(sum(len(batch.rows) for batch in batches))
    for batch in batches:
        held = holdings(model, batch.candidates)
        memory = memory_by_stage(model, train, gpu_type, batch.candidates, held)
        peaks[batch.rows] = memory.total.max(axis=1)
    return peaks


def priced(
    train: TrainSpec,
    gpu_type: GpuType,
    groups: Sequence[tuple[GpuGroup, tuple[int, int]]],
    batches: Sequence[Batch],
    fits: np.ndarray,
) -> Priced:
    """Return the times of the plans that fit, on groups of one type with their ranges of layouts."""
    found: list[tuple[Ints, Ints, Floats]] = []
    for batch in batches:
        fitting = np.flatnonzero(fits[batch.rows])
        rows = batch.rows[fitting]
        spans = [np.arange(*np.searchsorted(rows, span)) for _, span in groups]
        at = np.concatenate(spans)
        if len(at):
            group = np.repeat(np.arange(len(groups)), [len(span) for span in spans])
            candidates = batch.candidates.take(fitting[at], group=group)
            seconds = iter_times_s(train, gpu_type, tuple(group for group, _ in groups), candidates)
            found.append((group, rows[at], seconds))
    if not found:
        return Priced(group=np.zeros(0, np.int64), row=np.zeros(0, np.int64), iter_time_s=np.zeros(0))
    group, row, seconds = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((row, group))
    return Priced(group=group[order], row=row[order], iter_time_s=seconds[order])
