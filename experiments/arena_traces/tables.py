"""The published tables of Arena's artifact: iteration times by model and group, its cluster and its rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape, NodePool
from arena.domain.job import WorkloadSpec
from arena.errors import UserError
from arena.planner.table_files import parse_table
from arena.planner.tables import TableGrids

GPUS_PER_NODE = {"a100": 4, "v100": 16, "a40": 2, "a10": 2}
COUNTS = (1, 2, 4, 8, 16)

SIZES = {
    "wide_resnet": ("500M", "1B", "2B", "4B", "6.8B", "13B"),
    "bert": ("760M", "1.3B", "2.6B", "6.7B", "15B", "39B"),
    "moe": ("690M", "1.3B", "2.4B", "10B", "27B", "70B"),
}
"""Model sizes of each family, smallest first."""

LOCALITY_FACTOR = 0.9
"""Speed of a group spread over twice the nodes, where that was not measured (the artifact's rule)."""

SIZE_FACTOR = 1.8
"""Speed of the next smaller model of a family, where that was not measured (the artifact's rule)."""

Times = Mapping[GpuGroup, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What was measured, and what the artifact makes up beside it."""

    measured: Mapping[WorkloadSpec, Times]

    @classmethod
    def read(cls, folder: Path) -> Tables:
        """Read ``prof_database.json``."""
        path = folder / "prof_database.json"
        return cls(measured=parse_table(path.read_text(), source=str(path)).iter_time_s)

    def grids(self) -> TableGrids:
        """Return grids of the measured groups alone."""
        return TableGrids(name="arena prof_database", iter_time_s=self.measured)

    def filled_grids(self) -> TableGrids:
        """Return grids in which unmeasured groups have the speed that the artifact gives them."""
        filled = {workload: self._filled(workload) for workload in self.measured}
        return TableGrids(name="arena prof_database, filled", iter_time_s=filled)

    def nearest(self, workload: WorkloadSpec, gpu_type: str, count: int) -> tuple[str, int]:
        """Return what was measured nearest to an ask: fewer GPUs of its type before more, its type before others."""
        found = {
            (group.parts[0].gpu_type, group.gpu_count)
            for group, time_s in self.measured[workload].items()
            if time_s is not None
        }
        return min(found, key=lambda ask: (ask[0] != gpu_type, ask[1] > count, abs(ask[1] - count), ask))

    def _filled(self, workload: WorkloadSpec) -> Times:
        times = dict(self.measured[workload])
        for group in _all_groups():
            if group not in times:
                guess = self._guessed(workload, group)
                if guess is not None:
                    times[group] = guess
        return times

    def _guessed(self, workload: WorkloadSpec, group: GpuGroup) -> float | None:
        """Return the time of the same count on half the nodes, else that of the next larger model, both scaled."""
        own = self.measured[workload]
        [part] = group.parts
        denser = _spread(part.gpu_type, group.gpu_count, group.node_count // 2) if group.node_count > 1 else None
        if denser is not None and own.get(denser) is not None:
            return own[denser] / LOCALITY_FACTOR  # type: ignore[operator]
        for distance, larger in enumerate(_larger(workload), start=1):
            time_s = self.measured.get(larger, {}).get(group)
            if time_s is not None:
                return float(time_s / SIZE_FACTOR**distance)
        return None


def cluster(gpus_per_type: int | None = None) -> ClusterShape:
    """Return the artifact's cluster, 320 GPUs of each of the four types, or one with another number."""
    count = 320 if gpus_per_type is None else gpus_per_type
    largest = max(GPUS_PER_NODE.values())
    if count < largest or count % largest:
        raise UserError(
            f"{count} GPUs of each type do not fill whole nodes",
            why=f"a node has {', '.join(f'{size} {name}' for name, size in GPUS_PER_NODE.items())}",
            fix=f"take a multiple of {largest}",
        )
    return ClusterShape(
        pools=tuple(
            sorted(
                NodePool(gpu_type=gpu_type, zone="default", gpus_per_node=size, node_count=count // size)
                for gpu_type, size in GPUS_PER_NODE.items()
            )
        )
    )


def _larger(workload: WorkloadSpec) -> list[WorkloadSpec]:
    family, size = workload.name.split("__")
    sizes = SIZES[family]
    return [
        WorkloadSpec(name=f"{family}__{larger}", global_batch=workload.global_batch)
        for larger in sizes[sizes.index(size) + 1 :]
    ]


def _all_groups() -> list[GpuGroup]:
    """Return the groups the artifact asks for: powers of two, evenly over 1, 2, 4, ... nodes."""
    return [
        group
        for gpu_type in GPUS_PER_NODE
        for count in COUNTS
        for node_count in COUNTS
        if (group := _spread(gpu_type, count, node_count)) is not None
    ]


def _spread(gpu_type: str, count: int, node_count: int) -> GpuGroup | None:
    if node_count < 1 or count % node_count or count // node_count > GPUS_PER_NODE[gpu_type]:
        return None
    return GpuGroup.of(gpu_type, [count // node_count] * node_count)
