"""Which nodes a job may run on together: those that see its checkpoint place. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from arena.domain.allocation import Allocation
from arena.domain.launch import NodeId
from arena.domain.records import JobRecord
from arena.policies.base import Snapshot

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


def sees_place(snapshot: Snapshot, node_id: NodeId, place: str) -> bool:
    """Tell whether a node sees a checkpoint place."""
    return _marker(snapshot.places.get(node_id, {}), place) is not None


def _marker(seen: Mapping[str, str], place: str) -> str | None:
    """Return the marker of the innermost place that holds a path."""
    inside = [root for root in seen if PurePosixPath(place).is_relative_to(root)]
    return seen[max(inside, key=len)] if inside else None
