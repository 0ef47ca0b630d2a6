"""A grid source with speeds by a formula, for tests of everything above the planner."""

from __future__ import annotations

from dataclasses import dataclass

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape
from arena.domain.grid import Cell, Estimate, Grid, PlanEstimate
from arena.domain.job import JobSpec
from arena.domain.parallel import ParallelPlan
from arena.errors import InternalError


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLawGrids:
    """Every count that fills nodes evenly is feasible; speed grows as count ** power."""

    one_gpu_s: float = 1.0
    power: float = 0.8
    poison: str = "poison"

    @property
    def version(self) -> str:
        return f"power-law {self.power}"

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        if spec.name.startswith(self.poison):
            raise InternalError(f"no grid for {spec.name}")
        cells = []
        for pool in shape.pools:
            counts = [[size] for size in range(1, pool.gpus_per_node + 1)]
            counts += [[pool.gpus_per_node] * nodes for nodes in range(2, pool.node_count + 1)]
            cells += [self._cell(spec, pool.gpu_type, shares) for shares in counts if self._allowed(spec, shares)]
        unique = {cell.group: cell for cell in cells}
        ordered = sorted(unique.values(), key=lambda one: (one.group.gpu_count, one.group))
        return Grid(cells=tuple(ordered), source=self.version)

    def _allowed(self, spec: JobSpec, shares: list[int]) -> bool:
        count = sum(shares)
        high = spec.gpus.count_max or (spec.gpus.count_min if spec.command else count)
        return spec.gpus.count_min <= count <= high

    def _cell(self, spec: JobSpec, gpu_type: str, shares: list[int]) -> Cell:
        group = GpuGroup.of(gpu_type, shares)
        plan = None if spec.command else ParallelPlan.uniform(layer_count=4, dp=group.gpu_count)
        estimate = Estimate(iter_time_s=self.one_gpu_s / group.gpu_count**self.power)
        return Cell(group=group, best=PlanEstimate(plan=plan, estimate=estimate))
