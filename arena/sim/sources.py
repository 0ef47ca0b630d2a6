"""Where the grids of a replay come from: a table for workloads, the planner for all else, each asked once.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from arena.domain.cluster import ClusterShape
from arena.domain.grid import Grid, GridSource
from arena.domain.job import JobSpec
from arena.errors import UserError
from arena.planner.named_workloads import described, known_names
from arena.planner.source import PlannerGridSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayGrids:
    """Grids of all jobs of a trace; jobs that are alike share one.

    Args:
        planner: For jobs that are described, and for commands.
        table: For workloads; None where there is none: what they name is then planned.
        named: Plans them.
    """

    planner: GridSource
    table: GridSource | None = None
    named: GridSource = field(default_factory=lambda: PlannerGridSource(beyond_worker=True))
    _made: dict[tuple[object, ...], Grid] = field(default_factory=dict, repr=False)

    @property
    def version(self) -> str:
        """Of both sources."""
        return f"{self.planner.version}, {(self.named if self.table is None else self.table).version}"

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        """Return a job's grid.

        Raises:
            UserError: The job's workload is in no table, and its name is no model that is known.
        """
        key = (spec.workload, spec.train, spec.gpus, spec.parallel, shape)
        if key not in self._made:
            self._made[key] = self._grid(spec, shape)
        return self._made[key]

    def knows_plans(self, spec: JobSpec) -> bool:
        """Tell whether the cells of a job have plans."""
        return spec.train is not None or (spec.workload is not None and self.table is None)

    def _grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        if spec.workload is None:
            return self.planner.grid(spec, shape)
        if self.table is not None:
            return self.table.grid(spec, shape)
        train = described(spec.workload)
        if train is None:
            raise UserError(
                f"nothing says how fast {spec.workload.name} is",
                why="its name is no model that the planner could lay out",
                fix=f"give its measurements with --grids TABLE; models known by name: {', '.join(known_names())}",
            )
        return self.named.grid(spec.model_copy(update={"workload": None, "train": train}), shape)
