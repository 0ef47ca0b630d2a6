"""Where the grids of a replay come from: a table for workloads, the planner for all else, each asked once.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from arena.domain.cluster import ClusterShape
from arena.domain.grid import Grid, GridSource
from arena.domain.job import JobSpec
from arena.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayGrids:
    """Grids of all jobs of a trace; jobs that are alike share one.

    Args:
        planner: For jobs that are described, and for commands.
        table: For workloads, None where there is none.
    """

    planner: GridSource
    table: GridSource | None = None
    _made: dict[tuple[object, ...], Grid] = field(default_factory=dict, repr=False)

    @property
    def version(self) -> str:
        """Of both sources."""
        return self.planner.version if self.table is None else f"{self.planner.version}, {self.table.version}"

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        """Return a job's grid.

        Raises:
            UserError: The job's workload is in no table.
        """
        key = (spec.workload, spec.train, spec.gpus, spec.parallel, shape)
        if key not in self._made:
            self._made[key] = self._source(spec).grid(spec, shape)
        return self._made[key]

    def _source(self, spec: JobSpec) -> GridSource:
        if spec.workload is None:
            return self.planner
        if self.table is None:
            raise UserError(
                f"nothing says how fast {spec.workload.name} is",
                why="a workload of a trace is a name, and no model that the planner could lay out",
                fix="give its measurements with --grids TABLE",
            )
        return self.table
