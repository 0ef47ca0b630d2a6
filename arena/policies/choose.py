"""From cells to devices: the first cell of a list that fits, with the job's own constraints. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable

from arena.domain.allocation import Allocation
from arena.domain.grid import Cell
from arena.domain.job import JobId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.base import Snapshot
from arena.policies.capacity import Capacity
from arena.policies.placement import Wanted, fits, place
from arena.policies.reach import NodeSets, reachable_nodes


def choose_cell(
    snapshot: Snapshot,
    job_id: JobId,
    cells: Iterable[Cell],
    capacity: Capacity,
    prefer: Allocation | None = None,
) -> tuple[Cell, Allocation] | Reason:
    """Return the first cell that can be placed with its devices, else why the first of them cannot.

    Args:
        snapshot: Where the jobs and the checkpoint places are looked up.
        job_id: Whose cells these are.
        cells: In order of preference.
        capacity: What is free, with whatever the job would give up already given back.
        prefer: What the job has now: its devices are kept where possible, its checkpoint place stays in reach.
    """
    refusal: Reason | None = None
    node_sets: NodeSets | None = None
    job = snapshot.jobs[job_id]
    for cell in cells:
        allowed: NodeSets = (None,)
        if fits(capacity, cell.group):  # only then the checkpoint places are worth looking at
            node_sets = reachable_nodes(snapshot, job, prefer) if node_sets is None else node_sets
            allowed = node_sets
        for nodes in allowed:
            wanted = Wanted(
                plan=cell.best.plan,
                prefer=prefer,
                allowed_nodes=nodes,
                same_zone=job.spec.gpus.same_zone,
                shape=snapshot.shape,
            )
            found = place(capacity, cell.group, wanted)
            if not isinstance(found, Reason):
                return cell, found
            refusal = refusal or _told(found, snapshot, cell, capacity, nodes is not None)
    return refusal or reason(ReasonCode.NO_FEASIBLE_PLAN, detail="its grid has no such cell")


def _told(found: Reason, snapshot: Snapshot, cell: Cell, capacity: Capacity, restricted: bool) -> Reason:
    """Name the checkpoint place where it is what stands in the way."""
    if not restricted or isinstance(place(capacity, cell.group), Reason):
        return found
    blind = sorted(node_id for node_id in capacity.rooms if not snapshot.places.get(node_id))
    return reason(
        ReasonCode.NO_SHARED_CHECKPOINT_PLACE,
        place=snapshot.checkpoint_root or "of the job",
        node=blind[0] if blind else "of another group",
    )
