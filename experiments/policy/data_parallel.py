"""Grids of schedulers that know data parallelism alone, from what Arena's artifact estimates of single plans.

A measured group keeps its cell if its pure data-parallel plan was estimated, with its time longer by as much as that
plan is estimated slower than the best one there; a group of one GPU stays as it is. A model that data parallelism
cannot hold runs as its user laid it out: on the fewest GPUs of each type that hold it, as measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from arena.domain.allocation import GpuGroup
from arena.domain.job import WorkloadSpec
from arena.planner.tables import TableGrids

PlanTimes = Mapping[WorkloadSpec, Mapping[GpuGroup, float]]
"""By workload and group, the estimated time of the data-parallel plan over that of the best plan."""

FILE = "data/arena/estimate_all_grid_merged.json"
Times = dict[GpuGroup, float | None]


def read_estimates(folder: Path) -> PlanTimes:
    """Read what data parallelism costs where it can run."""
    document = json.loads((folder / FILE).read_text(encoding="utf-8"))
    found: dict[WorkloadSpec, dict[GpuGroup, float]] = {}
    for name, by_group in document.items():
        family, size, batch = name.rsplit("_", 2)
        slowdowns = found.setdefault(WorkloadSpec(name=f"{family}__{size}", global_batch=int(batch)), {})
        for text, plans in by_group.items():
            nodes, gpu_type, _, _, per_node, _ = text.split("_")
            counts = [int(per_node)] * int(nodes)
            # A group that was not estimated has -1 for plans, and one that does not fit takes for ever.
            known = (plan for plan in plans if isinstance(plan, list) and math.isfinite(plan[4]))
            time_s = {tuple(plan[0]): plan[4] for plan in known}
            if (1, sum(counts), 1) in time_s:
                slowdowns[GpuGroup.of(gpu_type, counts)] = time_s[1, sum(counts), 1] / min(time_s.values())
    return found


def data_parallel_grids(measured: TableGrids, slowdowns: PlanTimes) -> TableGrids:
    """Return grids of data parallelism alone."""
    times = {workload: _times(rows, slowdowns.get(workload, {})) for workload, rows in measured.iter_time_s.items()}
    return TableGrids(name=f"{measured.name}, data-parallel only", iter_time_s=times)


def _times(rows: Mapping[GpuGroup, float | None], slowdowns: Mapping[GpuGroup, float]) -> Times:
    known = {group: time_s for group, time_s in rows.items() if time_s is not None}
    pure: Times = {
        group: time_s * slowdowns.get(group, 1.0)
        for group, time_s in known.items()
        if group in slowdowns or group.gpu_count == 1
    }
    return pure or _fewest(known)


def _fewest(known: Mapping[GpuGroup, float]) -> Times:
    least: dict[str, int] = {}
    for group in known:
        gpu_type = group.parts[0].gpu_type
        least[gpu_type] = min(group.gpu_count, least.get(gpu_type, group.gpu_count))
    return {group: time_s for group, time_s in known.items() if group.gpu_count == least[group.parts[0].gpu_type]}
