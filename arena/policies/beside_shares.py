"""Which jobs can never start beside what other projects are guaranteed. Pure: no I/O, no clock."""

from __future__ import annotations

from collections import Counter

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape
from arena.domain.grid import Grid
from arena.domain.job import JobSpec
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.tenants import Guarantee, Guarantees

_NOTHING = Guarantee(gpu_count_by_type={})


def never_beside_shares(spec: JobSpec, grid: Grid, tenants: Guarantees, shape: ClusterShape) -> Reason | None:
    """Return that what is not guaranteed to others is too little for a job that may not be stopped; None where not.

    One that may be stopped borrows. Of a job without any cell nothing is said: shares are not what keeps it away.

    Args:
        grid: The job's.
        tenants: Guaranteed GPUs by project.
        shape: The nodes that there are.
    """
    cells = (*grid.cells, *grid.mixed)
    if spec.preemptible or not tenants or not cells:
        return None
    lefts = [_left(cell.group, spec.project, tenants, shape) for cell in cells]
    if not all(left < count for left, count in lefts):
        return None
    smallest = min(range(len(cells)), key=lambda at: cells[at].group.gpu_count)
    left, _ = lefts[smallest]
    return reason(ReasonCode.NEVER_BESIDE_SHARES, group=str(cells[smallest].group), left=float(left))


def _left(group: GpuGroup, project: str, tenants: Guarantees, shape: ClusterShape) -> tuple[int, int]:
    """Return what is scarcest of a group: (GPUs that are not guaranteed to others, GPUs that it takes of those)."""
    own, total = tenants.get(project, _NOTHING), shape.gpu_count_by_type
    guaranteed = sum(one.gpu_count for one in tenants.values())
    found = [(own.gpu_count + max(sum(total.values()) - guaranteed, 0), group.gpu_count)]
    takes = Counter[str]()
    for part in group.parts:
        takes[part.gpu_type] += part.gpu_count
    for gpu_type, count in sorted(takes.items()):
        named = sum(one.of(gpu_type) for one in tenants.values())
        found.append((own.of(gpu_type) + max(total.get(gpu_type, 0) - named, 0), count))
    return min(found, key=lambda pair: (pair[0] - pair[1], pair))
