"""Which nodes a job may run on together: those that see its checkpoint place, and that it did not fail on.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
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
    """Return the sets of nodes that a job may be given, the best first; None stands for any node."""
    sets, names = reachable_nodes(snapshot, job, current), avoided(snapshot, job, current).keys()
    return _others(snapshot, sets, names) if names else sets


def avoided(snapshot: Snapshot, job: JobRecord, current: Allocation | None = None) -> Mapping[NodeId, FailedStart]:
    """Return the nodes that a job keeps away from at present, having failed there before its first step.

    None, where it could have no others if nothing ran there: those may be worth waiting for. Nor is it driven from what
    it has.
    """
    if not job.failed_starts:
        return {}
    mine = set(current.node_ids if current is not None else ())
    failed = {one.node_id: one for one in job.failed_starts if snapshot.now_s < one.avoided_until_s}
    failed = {node_id: one for node_id, one in failed.items() if node_id not in mine}
    grid = snapshot.grids.get(job.job_id)
    if not failed or grid is None:
        return {}
    others = _emptied(snapshot, _others(snapshot, reachable_nodes(snapshot, job, current), failed.keys()))
    return failed if any(_could_be_had(job, cell, others) for cell in (*grid.cells, *grid.mixed)) else {}


def off_avoided(snapshot: Snapshot, job: JobRecord, grid: Grid) -> Grid:
    """Return a grid without the cells that a job could only have on nodes that it keeps away from, if any are left."""
    names = avoided(snapshot, job).keys()
    if not names:
        return grid
    sets = reachable_nodes(snapshot, job)
    everywhere, others = _emptied(snapshot, sets), _emptied(snapshot, _others(snapshot, sets, names))
    cells = tuple(
        cell
        for cell in grid.cells
        if _could_be_had(job, cell, others) or not _could_be_had(job, cell, everywhere)  # that is not for this
    )
    return replace(grid, cells=cells) if cells else grid


def _others(snapshot: Snapshot, sets: NodeSets, names: Set[NodeId]) -> NodeSets:
    """Return sets of nodes without some."""
    left = (frozenset(snapshot.capacity.devices if nodes is None else nodes) - names for nodes in sets)
    return tuple(nodes for nodes in left if nodes)


def _could_be_had(job: JobRecord, cell: Cell, rooms: Sequence[Capacity]) -> bool:
    """Tell whether a cell could be placed in any of some rooms."""
    wanted = Wanted(plan=cell.best.plan, same_zone=job.spec.gpus.same_zone)
    return any(not isinstance(place(room, cell.group, wanted), Reason) for room in rooms)


def _emptied(snapshot: Snapshot, sets: NodeSets) -> list[Capacity]:
    """Return what the usable nodes of each set would have to give if nothing ran there."""
    devices = snapshot.capacity.devices.items()
    return [
        Capacity().with_rooms(
            (node_id, room.pool, room.free) for node_id, room in devices if nodes is None or node_id in nodes
        )
        for nodes in sets
    ]


def sees_place(snapshot: Snapshot, node_id: NodeId, place: str) -> bool:
    """Tell whether a node sees a checkpoint place."""
    return _marker(snapshot.places.get(node_id, {}), place) is not None


def _marker(seen: Mapping[str, str], place: str) -> str | None:
    """Return the marker of the innermost place that holds a path."""
    inside = [root for root in seen if PurePosixPath(place).is_relative_to(root)]
    return seen[max(inside, key=len)] if inside else None
