"""The planner as a source of grids. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape, GpuType
from arena.domain.grid import Cell, Estimate, Grid, InfeasibleGroup, PlanEstimate
from arena.domain.job import JobSpec
from arena.domain.limits import contradictions
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.specfile import did_you_mean
from arena.planner.groups import counts_between, groups_of, node_sizes
from arena.planner.hardware import catalog
from arena.planner.mixed import MixedCells
from arena.planner.search import Counts, Search

PLANNER_VERSION = "calibrated-3"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerGridSource:
    """Makes grids from the cost model.

    Args:
        version: Recorded with each grid.
        gpu_types: Hardware catalog.
        beyond_worker: Whether to offer what the worker does not run as well.
        mixed: Finds cells over several GPU types, which takes seconds; None leaves them out.
    """

    version: str = PLANNER_VERSION
    gpu_types: Mapping[str, GpuType] = field(default_factory=catalog)
    beyond_worker: bool = False
    mixed: MixedCells | None = None

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        """Return the job's grid on a cluster of this shape; pure and deterministic.

        Raises:
            SpecError: The job pins a plan that cannot be read.
        """
        grid = self.counted_grid(spec, shape)[0]
        return grid if self.mixed is None else self.mixed.widened(spec, shape, grid)

    def counted_grid(self, spec: JobSpec, shape: ClusterShape) -> tuple[Grid, Counts]:
        """Return the job's grid, and how many plans were looked at for it.

        Raises:
            SpecError: The job pins a plan that cannot be read.
        """
        contradiction = next(contradictions(spec), None)
        if contradiction is not None:
            return self._nowhere_for(spec, shape, contradiction.text), Counts()
        search = self._search(spec)
        groups = list(self._groups(spec, shape, search))
        found, counts = self._cells(search, groups)
        pairs = list(zip(groups, found, strict=True))
        cells = [cell for cell in found if isinstance(cell, Cell)]
        infeasible = [InfeasibleGroup(group=group, reason=one) for group, one in pairs if isinstance(one, Reason)]
        if not cells and not infeasible:
            infeasible.extend(_nowhere(spec, shape, _count_min(spec, search)))
        cells.sort(key=_cell_order)
        infeasible.sort(key=lambda item: (item.group.gpu_count, item.group))
        return Grid(cells=tuple(cells), infeasible=tuple(infeasible), source=self.version), counts

    def _nowhere_for(self, spec: JobSpec, shape: ClusterShape, detail: str) -> Grid:
        """Return a grid without a cell, for a reason that holds of every group."""
        told = reason(ReasonCode.UNSUPPORTED, detail=detail)
        groups = [GpuGroup.of(gpu_type, [spec.gpus.count_min]) for gpu_type in _types(spec, shape)]
        return Grid(
            cells=(),
            infeasible=tuple(InfeasibleGroup(group=group, reason=told) for group in groups),
            source=self.version,
        )

    def _search(self, spec: JobSpec) -> Search | None:
        if spec.train is None:
            return None
        return Search(train=spec.train, limits=spec.parallel, beyond_worker=self.beyond_worker)

    def _groups(self, spec: JobSpec, shape: ClusterShape, search: Search | None) -> Iterator[GpuGroup]:
        for gpu_type in _types(spec, shape):
            zones = node_sizes(shape, gpu_type)
            largest = max(sum(sizes) for sizes in zones)
            first = _count_min(spec, search)
            last = min(largest, _count_max(spec, search) or largest)
            counts = counts_between(first, last, zones[0][0]) if first <= last else []
            # A command is not told how its ranks are spread, so it is kept together.
            yield from groups_of(shape, gpu_type, counts, nodes_max=spec.gpus.nodes_max, spread=search is not None)

    def _cells(self, search: Search | None, groups: Sequence[GpuGroup]) -> tuple[list[Cell | Reason], Counts]:
        if search is None:
            alike = PlanEstimate(plan=None, estimate=Estimate(iter_time_s=1.0))
            return [Cell(group=group, best=alike) for group in groups], Counts()
        wanted = [(self.gpu_types[name], group) for group in groups if (name := _name(group)) in self.gpu_types]
        found, counts = search.cells(wanted)
        searched = iter(found)
        cells = [next(searched) if _name(group) in self.gpu_types else self._unknown(group) for group in groups]
        return cells, counts

    def _unknown(self, group: GpuGroup) -> Reason:
        known = ", ".join(sorted(self.gpu_types))
        return reason(ReasonCode.UNSUPPORTED, detail=f"GPU type {_name(group)} is not in the catalog ({known})")


def _name(group: GpuGroup) -> str:
    return group.parts[0].gpu_type


def _cell_order(cell: Cell) -> tuple[int, float, int, GpuGroup]:
    """Fewest GPUs, then fastest, then fewest nodes, then by name."""
    return cell.group.gpu_count, cell.best.estimate.iter_time_s, cell.group.node_count, cell.group


def _types(spec: JobSpec, shape: ClusterShape) -> list[str]:
    present = {pool.gpu_type for pool in shape.pools if pool.node_count and pool.gpus_per_node}
    return sorted(present & set(spec.gpus.types) if spec.gpus.types else present)


def _count_min(spec: JobSpec, search: Search | None) -> int:
    return search.pinned_plan().gpu_count if search and spec.parallel.plan else spec.gpus.count_min


def _count_max(spec: JobSpec, search: Search | None) -> int | None:
    return search.pinned_plan().gpu_count if search and spec.parallel.plan else spec.gpus.count_max


def _nowhere(spec: JobSpec, shape: ClusterShape, needed: int) -> Iterator[InfeasibleGroup]:
    """Say why there is no group at all: the type is absent, or the cluster is too small."""
    totals = shape.gpu_count_by_type
    for gpu_type in sorted(spec.gpus.types) or sorted(totals):
        zones = node_sizes(shape, gpu_type)
        largest = max((sum(sizes[: spec.gpus.nodes_max]) for sizes in zones), default=0)
        if largest:
            told = reason(ReasonCode.EXCEEDS_CLUSTER, needed=needed, largest=largest)
        else:
            have = ", ".join(sorted(totals)) or "no nodes"
            close = did_you_mean(gpu_type, sorted(totals))
            told = reason(ReasonCode.UNSUPPORTED, detail=f"no {gpu_type} GPUs in this cluster ({have}){close}")
        yield InfeasibleGroup(group=GpuGroup.of(gpu_type, [needed]), reason=told)
