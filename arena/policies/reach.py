"""Which nodes a job may run on together: those that see its checkpoint place, and that it did not fail on.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import PurePosixPath

from arena.domain.allocation import Allocation
from arena.domain.failed_start import FailedStart
from arena.domain.grid import Cell, Grid
from arena.domain.launch import NodeId
from arena.domain.reason import Reason
from arena.domain.records import JobRecord
from arena.domain.replacing import replace
from arena.policies.base import Snapshot
from arena.policies.capacity import Capacity
from arena.policies.placement import Wanted, place

NodeSets = tuple[frozenset[NodeId] | None, ...]
ANY_NODE: NodeSets = (None,)


def checkpoint_place(snapshot: Snapshot, job: JobRecord) -> str:
    """Return where a job keeps its checkpoints; empty for command jobs and where nothing is known."""
    return (job.spec.checkpoint.dir or snapshot.checkpoint_root) if job.spec.train else ""


def reachable_nodes(snapshot: Snapshot, job: JobRecord, current: Allocation | None = None) -> NodeSets:
    """Return the sets of nodes that share the job's checkpoint place, the best set first; None stands for any node.

    Two nodes that see the same path with different markers see two places. A node that does not see the place at
    all can still hold the job by itself, for as long as the job stays there.

    Args:
        snapshot: What the nodes see.
        job: Whose place is meant.
        current: What the job has: its next allocation must see the place its checkpoints are in.
    """
    place = checkpoint_place(snapshot, job)
    if not place or not any(snapshot.places.values()):
        return ANY_NODE
    nodes_by_marker: dict[str, set[NodeId]] = {}
    for node_id, seen in snapshot.places.items():
        nodes_by_marker.setdefault(_marker(seen, place) or f"only {node_id}", set()).add(node_id)
    sets = [frozenset(nodes) for nodes in nodes_by_marker.values()]
    if current is not None:
        sets = [nodes for nodes in sets if nodes & set(current.node_ids)]
    return tuple(sorted(sets, key=lambda nodes: (-len(nodes), min(nodes))))


def allowed_nodes(snapshot: Snapshot, job: JobRecord, current: Allocation | None = None) -> NodeSets:
    """Return the sets of nodes that a job may be given, the best first; None stands for any node.

    It keeps away from those that it failed on before its first step, for as long as it could have others if nothing
    ran there: those may be worth waiting for.
    """
    sets = reachable_nodes(snapshot, job, current)
    if not job.failed_starts:
        return sets
    others = _others(snapshot, job, sets, current)
    grid = snapshot.grids.get(job.job_id)
    cells = (*grid.cells, *grid.mixed) if grid is not None else ()
    return others if any(_could_be_had(snapshot, job, cell, others) for cell in cells) else sets


def off_avoided(snapshot: Snapshot, job: JobRecord, grid: Grid) -> Grid:
    """Return a grid without the cells that a job could only have on nodes that it keeps away from, if any are left."""
    if not job.failed_starts:
        return grid
    others = _others(snapshot, job, reachable_nodes(snapshot, job))
    cells = tuple(cell for cell in grid.cells if _could_be_had(snapshot, job, cell, others))
    return replace(grid, cells=cells) if cells else grid


def avoided(snapshot: Snapshot, job: JobRecord) -> Mapping[NodeId, FailedStart]:
    """Return the nodes that a job keeps away from, as long as there are others."""
    return {one.node_id: one for one in job.failed_starts if snapshot.now_s < one.avoided_until_s}


def _others(snapshot: Snapshot, job: JobRecord, sets: NodeSets, current: Allocation | None = None) -> NodeSets:
    """Return sets of nodes without those that a job keeps away from; it is not driven from what it has."""
    names = avoided(snapshot, job).keys() - set(current.node_ids if current is not None else ())
    if not names:
        return sets
    left = (frozenset(snapshot.capacity.devices if nodes is None else nodes) - names for nodes in sets)
    return tuple(nodes for nodes in left if nodes)


def _could_be_had(snapshot: Snapshot, job: JobRecord, cell: Cell, sets: NodeSets) -> bool:
    """Tell whether a cell could be placed on usable nodes of one of the sets if nothing ran there."""
    wanted = Wanted(plan=cell.best.plan, same_zone=job.spec.gpus.same_zone)
    return any(not isinstance(place(_emptied(snapshot, nodes), cell.group, wanted), Reason) for nodes in sets)


def _emptied(snapshot: Snapshot, nodes: Set[NodeId] | None) -> Capacity:
    rooms = snapshot.capacity.devices.items()
    return Capacity().with_rooms(
        (node_id, room.pool, room.free) for node_id, room in rooms if nodes is None or node_id in nodes
    )


def sees_place(snapshot: Snapshot, node_id: NodeId, place: str) -> bool:
    """Tell whether a node sees a checkpoint place."""
    return _marker(snapshot.places.get(node_id, {}), place) is not None


def _marker(seen: Mapping[str, str], place: str) -> str | None:
    """Return the marker of the innermost place that holds a path."""
    inside = [root for root in seen if PurePosixPath(place).is_relative_to(root)]
    return seen[max(inside, key=len)] if inside else None
