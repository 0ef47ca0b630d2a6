"""A job's grid with speeds and prices, in the order of an objective. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import GpuType
from arena.domain.grid import Cell, Estimate, Grid, InfeasibleGroup, PlanEstimate
from arena.domain.job import ParallelLimits, TrainSpec
from arena.domain.reason import Reason
from arena.planner.layout_space import LayoutSpace
from arena.planner.memory import USABLE_SHARE
from arena.units import format_count

_MILLION = 1e6


class Goal(StrEnum):
    """What comes first."""

    THROUGHPUT = "throughput"
    COST = "cost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a step gets done: tokens, or images where a model has no tokens."""

    unit: str
    units_per_step: int

    @classmethod
    def of(cls, train: TrainSpec) -> Work:
        """Return the work of a training job's step."""
        if train.model.is_image_model:
            return cls(unit="image", units_per_step=train.global_batch)
        return cls(unit="token", units_per_step=train.tokens_per_step)

    def units_per_s(self, estimate: Estimate) -> float:
        """Return the throughput of an estimate."""
        return self.units_per_step / estimate.iter_time_s

    def usd_per_million_units(self, estimate: Estimate) -> float:
        """Return the price of a million tokens or images."""
        return estimate.usd_per_step / self.units_per_step * _MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedCell:
    """A feasible group with its best plan.

    Args:
        others: The plans that need less memory, or are as fast within the model's error.
        usable_memory_bytes: What a plan may fill of one GPU.
        is_on_front: Whether no other group is both faster and cheaper.
    """

    group: GpuGroup
    best: PlanEstimate
    others: tuple[PlanEstimate, ...]
    units_per_s: float
    usd_per_million_units: float
    usable_memory_bytes: int
    is_on_front: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutBounds:
    """Which tensor-parallel degrees a group allows, and what keeps others out."""

    group: GpuGroup
    tp: tuple[int, ...]
    bounds: tuple[str, ...]


def usable_bytes(gpu_type: GpuType) -> int:
    """Return what a plan may fill of a GPU's memory."""
    return int(USABLE_SHARE * gpu_type.memory_bytes)


def priced_cells(grid: Grid, work: Work, gpu_types: Mapping[str, GpuType], goal: Goal) -> tuple[PricedCell, ...]:
    """Return the cells of a grid, the best by an objective first, with the front marked."""
    rows = [_priced(cell, work, gpu_types[cell.group.parts[0].gpu_type]) for cell in grid.cells]
    best = set(front(rows))
    marked = (replace(row, is_on_front=index in best) for index, row in enumerate(rows))
    return tuple(sorted(marked, key=lambda row: _rank(row, goal)))


def _priced(cell: Cell, work: Work, gpu_type: GpuType) -> PricedCell:
    estimate = cell.best.estimate
    return PricedCell(
        group=cell.group,
        best=cell.best,
        others=cell.others,
        units_per_s=work.units_per_s(estimate),
        usd_per_million_units=work.usd_per_million_units(estimate),
        usable_memory_bytes=usable_bytes(gpu_type),
    )


def _rank(row: PricedCell, goal: Goal) -> tuple[float, float, GpuGroup]:
    speed, price = -row.units_per_s, row.usd_per_million_units
    return (price, speed, row.group) if goal is Goal.COST else (speed, price, row.group)


def front(rows: Iterable[PricedCell]) -> Iterator[int]:
    """Yield the indexes of the rows that no other beats on throughput and price, the fastest first.

    Of rows that are alike in both, the one with fewest GPUs and nodes stands.
    """
    order = sorted(
        enumerate(rows),
        key=lambda item: (
            -item[1].units_per_s,
            item[1].usd_per_million_units,
            item[1].group.gpu_count,
            item[1].group.node_count,
            item[1].group,
        ),
    )
    cheapest = float("inf")
    for index, row in order:
        if row.usd_per_million_units < cheapest:
            cheapest = row.usd_per_million_units
            yield index


def one_for_each_count(rows: Iterable[PricedCell]) -> tuple[PricedCell, ...]:
    """Return the first row of each GPU type and count: of its node shapes, the best."""
    kept: dict[tuple[str, int], PricedCell] = {}
    for row in rows:
        kept.setdefault((row.group.parts[0].gpu_type, row.group.gpu_count), row)
    return tuple(kept.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFit:
    """The fewest GPUs of a type, above some that do not do, that hold a job, and the least tensor parallelism there.

    Args:
        tp: Of the plans that are known; others may do with less.
    """

    gpu_count: int
    tp: int

    def __str__(self) -> str:
        return f"fits from {format_count(self.gpu_count, 'GPU')}" + (f" with tp{self.tp}" if self.tp > 1 else "")


def infeasible_counts(grid: Grid) -> tuple[tuple[InfeasibleGroup, FirstFit | None], ...]:
    """Return a group for each type and count that no node shape makes feasible, and from where on that type is."""
    tp_by_count: dict[str, dict[int, int]] = {}
    for cell in grid.cells:
        known, count = tp_by_count.setdefault(cell.group.parts[0].gpu_type, {}), cell.group.gpu_count
        known[count] = min(known.get(count, _tp_min(cell)), _tp_min(cell))
    kept: dict[tuple[str, int], InfeasibleGroup] = {}
    for item in sorted(grid.infeasible, key=_fewest_nodes):
        gpu_type, count = item.group.parts[0].gpu_type, item.group.gpu_count
        if count not in tp_by_count.get(gpu_type, {}):
            kept.setdefault((gpu_type, count), item)
    return tuple((item, _first_fit(tp_by_count.get(gpu_type, {}), fewest)) for (gpu_type, fewest), item in kept.items())


def _first_fit(tp_by_count: Mapping[int, int], above: int) -> FirstFit | None:
    count = min((count for count in tp_by_count if count > above), default=None)
    return None if count is None else FirstFit(gpu_count=count, tp=tp_by_count[count])


def _tp_min(cell: Cell) -> int:
    plans = [one.plan for one in (cell.best, *cell.others) if one.plan is not None]
    return min((max(replica.tp for stage in plan.stages for replica in stage.replicas) for plan in plans), default=1)


def _fewest_nodes(item: InfeasibleGroup) -> tuple[str, int, int, GpuGroup]:
    return item.group.parts[0].gpu_type, item.group.gpu_count, item.group.node_count, item.group


def merged(grids: Iterable[Grid]) -> Grid:
    """Return grids of different GPU types as one, in a grid's order."""
    parts = list(grids)
    cells = [cell for grid in parts for cell in grid.cells]
    cells.sort(
        key=lambda cell: (cell.group.gpu_count, cell.best.estimate.iter_time_s, cell.group.node_count, cell.group)
    )
    infeasible = [item for grid in parts for item in grid.infeasible]
    infeasible.sort(key=lambda item: (item.group.gpu_count, item.group))
    return Grid(cells=tuple(cells), infeasible=tuple(infeasible), source=parts[0].source if parts else "")


def layout_bounds(train: TrainSpec, limits: ParallelLimits, groups: Iterable[GpuGroup]) -> tuple[LayoutBounds, ...]:
    """Return what the layouts of groups are bounded by, once for groups of one shape."""
    space = LayoutSpace(train=train, limits=limits)
    by_shape: dict[tuple[int, ...], LayoutBounds] = {}
    for group in groups:
        shape = tuple(count for part in group.parts for count in part.node_counts)
        if shape not in by_shape:
            layouts = space.layouts(group)
            tp = np.unique(layouts.candidates().tp).tolist() if len(layouts) else []
            by_shape[shape] = LayoutBounds(group=group, tp=tuple(tp), bounds=tuple(space.bounds(group)))
    return tuple(by_shape.values())


def reason_text(reason: Reason, first: FirstFit | None) -> str:
    """Return why a group cannot hold a job, and which count of its type can."""
    return str(reason) if first is None else f"{reason}; {first}"
