"""From cells to devices: the first cell of a list that fits, with the job's own constraints. Pure: no I/O, no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence, Set

from arena.domain.allocation import Allocation
from arena.domain.grid import Cell, Grid
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import JobRecord
from arena.policies.base import Choice, Snapshot
from arena.policies.capacity import Capacity
from arena.policies.placement import Wanted, fits, place, refused
from arena.policies.reach import NodeSets, allowed_nodes, avoided, checkpoint_place, off_avoided, sees_place

PLANNING = (reason(ReasonCode.PLANNING),)
"""Why a job waits whose grid is being built."""


def requested_cells(grid: Grid) -> Sequence[Cell]:
    """Return the cells of the largest GPU count, fastest first; a grid is sorted by count, then time.

    It is what a job asks for under policies that do not choose: rigid jobs have one count, the others their largest.
    """
    if not grid.cells:
        return ()
    count = grid.cells[-1].group.gpu_count
    if len(grid.cells) == 1:
        return grid.cells
    return grid.cells[bisect_left(grid.cells, count, key=lambda cell: cell.group.gpu_count) :]


def cells_asked(snapshot: Snapshot, job_id: JobId) -> tuple[Sequence[Cell], tuple[Reason, ...]]:
    """Return what a job asks for; where there is nothing that it could get, also why."""
    grid = snapshot.grids.get(job_id)
    if grid is None:
        return (), PLANNING
    if grid.cells:
        return requested_cells(off_avoided(snapshot, snapshot.jobs[job_id], grid)), ()
    return (), tuple(item.reason for item in grid.infeasible[:1]) or (reason(ReasonCode.NO_FEASIBLE_PLAN),)


def choice_of(cell: Cell, allocation: Allocation, code: ReasonCode = ReasonCode.STARTED) -> Choice:
    """Return the choice of a cell on devices, with its group as the reason's number."""
    return Choice(
        group=cell.group,
        plan=cell.best.plan,
        estimate=cell.best.estimate,
        allocation=allocation,
        cause=reason(code, group=str(cell.group)),
    )


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
    job = snapshot.jobs[job_id]
    refusal: Reason | None = None
    node_sets: NodeSets | None = None
    for cell in cells:
        if not fits(capacity, cell.group):  # the usual case in a full cluster; the checkpoint place need not be known
            refusal = refusal or refused(capacity, cell.group, Wanted(shape=snapshot.shape))
            continue
        node_sets = allowed_nodes(snapshot, job, prefer) if node_sets is None else node_sets
        for nodes in node_sets:
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
            refusal = refusal or _blind_refusal(snapshot, job, cell, capacity, nodes) or found
    return refusal or reason(ReasonCode.NO_FEASIBLE_PLAN, detail="its grid has no such cell")


def _blind_refusal(
    snapshot: Snapshot, job: JobRecord, cell: Cell, capacity: Capacity, nodes: Set[NodeId] | None
) -> Reason | None:
    """Return a refusal that names the checkpoint place, or the node that is avoided, where that alone is in the way."""
    if nodes is None:
        return None
    anywhere = place(capacity, cell.group, Wanted(plan=cell.best.plan, same_zone=job.spec.gpus.same_zone))
    if isinstance(anywhere, Reason):
        return None
    where = checkpoint_place(snapshot, job)
    outside = [node_id for node_id in anywhere.node_ids if node_id not in nodes]
    is_known = bool(where) and any(snapshot.places.values())
    blind = [node_id for node_id in outside if is_known and not sees_place(snapshot, node_id, where)]
    failed = next((one for node_id, one in avoided(snapshot, job).items() if node_id in outside), None)
    if failed is not None and not blind:
        return reason(ReasonCode.NODE_AVOIDED, node=str(failed.node_id), error=failed.error)
    return reason(ReasonCode.NO_SHARED_CHECKPOINT_PLACE, place=where, node=str((blind or outside)[0]))
