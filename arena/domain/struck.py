"""Plans that ran out of memory, and what a job's grid is without them. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from arena.domain.allocation import GpuGroup
from arena.domain.grid import Cell, Grid, InfeasibleGroup, PlanEstimate
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.replacing import replace


@dataclass(frozen=True, slots=True, kw_only=True)
class StruckPlan:
    """A plan that a job is not given again on a group, because it ran out of memory there.

    Args:
        plan: None where the grid names no plans (measured tables); the group itself is struck out then.
        memory_bytes: What was expected of its fullest GPU; 0 where nothing was.
        error: What the worker said.
    """

    group: GpuGroup
    plan: ParallelPlan | None
    memory_bytes: int
    error: str
    at_s: float

    def covers(self, one: PlanEstimate) -> bool:
        """Tell whether a plan on the same group is struck out: this one, or one that is expected to need no less."""
        return one.plan == self.plan or 0 < self.memory_bytes <= one.estimate.memory_bytes

    @property
    def reason(self) -> Reason:
        """For people."""
        plan = f"{self.plan} on {self.group}" if self.plan is not None else str(self.group)
        return reason(ReasonCode.RAN_OUT_OF_MEMORY, plan=plan, error=self.error or "out of memory")


def without(grid: Grid, struck: Iterable[StruckPlan]) -> Grid:
    """Return a grid without what ran out of memory: the fastest other plan of a group takes its place.

    A group that is left without a plan is infeasible, and is named before those that always were.
    """
    for one in struck:
        cell = grid.cell(one.group)
        if cell is not None:
            grid = _without(grid, cell, one)
    return grid


def _without(grid: Grid, cell: Cell, struck: StruckPlan) -> Grid:
    plans = [one for one in (cell.best, *cell.others) if not struck.covers(one)]
    cells, mixed = ([one for one in some if one is not cell] for some in (grid.cells, grid.mixed))
    infeasible = grid.infeasible
    if plans:
        best = min(plans, key=lambda one: one.estimate.iter_time_s)
        kept = replace(cell, best=best, others=tuple(one for one in plans if one is not best))
        (cells if len(cells) < len(grid.cells) else mixed).append(kept)
    else:
        infeasible = (InfeasibleGroup(group=cell.group, reason=struck.reason), *infeasible)
    cells.sort(key=_order)
    mixed.sort(key=_order)
    return replace(grid, cells=tuple(cells), mixed=tuple(mixed), infeasible=infeasible)


def _order(cell: Cell) -> tuple[int, float]:
    return cell.group.gpu_count, cell.best.estimate.iter_time_s
