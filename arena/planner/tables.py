"""Grids from tables of measurements, for workloads of which nothing else is known. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape
from arena.domain.grid import Cell, Estimate, Grid, InfeasibleGroup, PlanEstimate
from arena.domain.job import GpuLimits, JobSpec, WorkloadSpec
from arena.domain.reason import ReasonCode, reason
from arena.errors import UserError
from arena.planner.groups import node_sizes

GRIDS_REMEMBERED = 10_000
"""Enough for the workloads and limits of a trace; a cluster whose nodes fail has ever new shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableGrids:
    """Cells are what was measured; a group without a measurement does not exist.

    Args:
        name: Where the table comes from, recorded with each grid.
        iter_time_s: Seconds per optimizer step by workload and group (without zones); None where the group failed.
    """

    name: str
    iter_time_s: Mapping[WorkloadSpec, Mapping[GpuGroup, float | None]]
    _made: dict[tuple[WorkloadSpec, GpuLimits, ClusterShape], Grid] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def version(self) -> str:
        """The table's name."""
        return self.name

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        """Return the measured groups that the cluster has and the job accepts.

        Raises:
            UserError: The job names no workload, or one that the table does not know.
        """
        workload = spec.workload
        if workload is None or workload not in self.iter_time_s:
            raise UserError(
                f"the table {self.name} has no measurements of job {spec.name!r}",
                why=f"it trains {workload.name}, batch {workload.global_batch}" if workload else "it names no workload",
                fix=f"known are {', '.join(sorted({one.name for one in self.iter_time_s}))}",
            )
        key = (workload, spec.gpus, shape)
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= GRIDS_REMEMBERED:
                self._made.clear()
            found = self._made[key] = self._grid(workload, spec.gpus, shape)
        return found

    def _grid(self, workload: WorkloadSpec, limits: GpuLimits, shape: ClusterShape) -> Grid:
        cells, infeasible = [], []
        for group, iter_time_s in self.iter_time_s[workload].items():
            if not (_is_accepted(group, limits) and _is_there(group, shape)):
                continue
            if iter_time_s is None:
                failed = reason(ReasonCode.NO_FEASIBLE_PLAN, detail=f"no plan ran when {self.name} was measured")
                infeasible.append(InfeasibleGroup(group=group, reason=failed))
            else:
                best = PlanEstimate(plan=None, estimate=Estimate(iter_time_s=iter_time_s))
                cells.append(Cell(group=group, best=best))
        cells.sort(key=lambda cell: (cell.group.gpu_count, cell.best.estimate.iter_time_s, cell.group))
        infeasible.sort(key=lambda item: (item.group.gpu_count, item.group))
        return Grid(cells=tuple(cells), infeasible=tuple(infeasible), source=self.name)


def _is_accepted(group: GpuGroup, limits: GpuLimits) -> bool:
    if limits.types and any(part.gpu_type not in limits.types for part in group.parts):
        return False
    if limits.nodes_max is not None and group.node_count > limits.nodes_max:
        return False
    return limits.count_min <= group.gpu_count <= (limits.count_max or group.gpu_count)


def _is_there(group: GpuGroup, shape: ClusterShape) -> bool:
    """Tell whether some zone has the nodes."""
    return all(
        any(
            len(part.node_counts) <= len(sizes)
            and all(count <= size for count, size in zip(part.node_counts, sizes, strict=False))
            for sizes in node_sizes(shape, part.gpu_type)
        )
        for part in group.parts
    )
