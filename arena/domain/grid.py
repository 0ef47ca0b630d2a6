"""Estimates and performance grids: what a job would do on each group. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape
from arena.domain.job import JobSpec
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import Reason

PARETO_PLANS_MAX = 32
MIXED_CELLS_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What the cost model predicts for (model, group, plan).

    Args:
        iter_time_s: Seconds per optimizer step.
        memory_bytes_by_stage: Peak memory of one GPU of each stage.
        breakdown_s: Parts of ``iter_time_s`` by name (compute, tensor_parallel, pipeline, data_parallel, ...).
        relative_error: Expected relative error of ``iter_time_s`` (one standard deviation).
        usd_per_step: Price of one step.
    """

    iter_time_s: float
    memory_bytes_by_stage: tuple[int, ...] = ()
    breakdown_s: Mapping[str, float] = field(default_factory=dict)
    relative_error: float = 0.0
    usd_per_step: float = 0.0

    @property
    def memory_bytes(self) -> int:
        """Peak memory of the fullest GPU."""
        return max(self.memory_bytes_by_stage, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEstimate:
    """A plan with its estimate; ``plan`` is None for command jobs, whose layout is their own."""

    plan: ParallelPlan | None
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The best plan found for a group, and the Pareto set of others (time against memory), at most 32."""

    group: GpuGroup
    best: PlanEstimate
    others: tuple[PlanEstimate, ...] = ()

    @property
    def steps_per_s(self) -> float:
        """Optimizer steps per second under the best plan."""
        return 1.0 / self.best.estimate.iter_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class InfeasibleGroup:
    """A group that cannot hold the job, and why."""

    group: GpuGroup
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A job's performance grid: every feasible group of a cluster shape with its cell.

    Args:
        cells: Feasible groups, fewest GPUs first, then by iteration time.
        infeasible: The others, each with its reason.
        source: Which planner or table made it, with its version.
        mixed: Groups over several GPU types that beat what each type could do alone, at most ``MIXED_CELLS_MAX``, in
            the order of ``cells``. They stand apart: only a policy that weighs one type against another can use them.
    """

    cells: tuple[Cell, ...]
    infeasible: tuple[InfeasibleGroup, ...] = ()
    source: str = ""
    mixed: tuple[Cell, ...] = ()

    def cell(self, group: GpuGroup) -> Cell | None:
        """Return the cell of a group, None where it is infeasible or unknown."""
        return next((cell for some in (self.cells, self.mixed) for cell in some if cell.group == group), None)


class GridSource(Protocol):
    """Makes grids: the planner, or a table of measurements."""

    @property
    def version(self) -> str:
        """Name and version, recorded with each grid."""
        ...

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        """Return the job's grid on a cluster of this shape; pure and deterministic."""
        ...
