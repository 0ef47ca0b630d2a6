"""The cluster as the engine sees it: records and the indexes derived from them, all persistent. Pure: no I/O, no clock.

A state is a value: keeping an old one costs nothing, so a step whose commit failed is undone by putting it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from immutables import Map

from arena.domain.cluster import ClusterShape, NodePool, NodeState
from arena.domain.grid import Grid
from arena.domain.history import LengthHistory
from arena.domain.job import JobId
from arena.domain.launch import AttemptId, DeviceId, NodeId
from arena.domain.paces import PaceHistory
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import AttemptRecord, JobRecord, JobState, NodeRecord, Wish
from arena.domain.struck import without
from arena.engine.ports import RestartCost, Restored
from arena.engine.queue import JobQueue
from arena.policies.base import Holding
from arena.policies.capacity import Capacity, Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """Everything the engine knows.

    Args:
        jobs: Non-terminal jobs.
        attempts: Live attempts.
        nodes: All known nodes.
        holders: Which live attempt has a device; it has it until its node says the process group is gone.
        reserved: Which job's target a device is kept for.
        capacity: Devices that are clean, not held, not reserved, on usable nodes.
        queue: Jobs that wait for devices, in order of service.
        holding: What jobs have or are about to have (see ``arena.policies.base.Holding``).
        grids, grid_shapes: Latest grid of each job and the cluster shape it was made for.
        shape: The settled cluster shape; ``shape_dirty_at_s`` is set while nodes come and go.
        decision_due: Something changed that a policy would look at; ``due_since_s`` is when the first of it did.
        rest: Why the jobs that the latest decision did not look at wait.
        reasons: Why the jobs it looked at wait or stay.
        restart_s: Cost of a reconfiguration: assumed until ``restart_sample_count`` were measured, then their
            moving average.
        lengths: What jobs that ended have taught about lengths.
        paces: How fast runs that ended were against their estimates.
        epoch_floor: See ``Restored``.
    """

    jobs: Map[JobId, JobRecord] = field(default_factory=Map)
    attempts: Map[AttemptId, AttemptRecord] = field(default_factory=Map)
    nodes: Map[NodeId, NodeRecord] = field(default_factory=Map)
    holders: Map[DeviceId, AttemptId] = field(default_factory=Map)
    reserved: Map[DeviceId, JobId] = field(default_factory=Map)
    capacity: Capacity = field(default_factory=Capacity)
    queue: JobQueue = field(default_factory=JobQueue)
    holding: Map[JobId, Holding] = field(default_factory=Map)
    grids: Map[JobId, Grid] = field(default_factory=Map)
    grid_shapes: Map[JobId, ClusterShape] = field(default_factory=Map)
    places: Map[NodeId, Mapping[str, str]] = field(default_factory=Map)
    shape: ClusterShape = field(default_factory=lambda: ClusterShape(pools=()))
    shape_dirty_at_s: float | None = None
    history_index: int = 0
    decision_index: int = 0
    decided_at_s: float | None = None
    decision_due: bool = False
    due_since_s: float | None = None
    look_again_at_s: float | None = None
    rest: Reason | None = None
    reasons: Mapping[JobId, tuple[Reason, ...]] = field(default_factory=dict)
    restart_s: float = 10.0
    restart_sample_count: int = 0
    lengths: LengthHistory = field(default_factory=LengthHistory)
    paces: PaceHistory = field(default_factory=PaceHistory)
    epoch_floor: int = 0


def next_epoch(state: ClusterState, job: JobRecord) -> int:
    """Return the number of a job's next attempt: none that was ever given to it."""
    return max(job.epoch, state.epoch_floor) + 1


def pool_of(node: NodeRecord) -> Pool:
    """Return the pool a node belongs to."""
    return (node.info.gpu_type, node.info.zone)


def shape_of(nodes: Mapping[NodeId, NodeRecord]) -> ClusterShape:
    """Return the shape of all nodes that are not lost."""
    counts: dict[tuple[str, str, int], int] = {}
    for node in nodes.values():
        if node.state is not NodeState.LOST and node.info.devices:
            key = (node.info.gpu_type, node.info.zone, len(node.info.devices))
            counts[key] = counts.get(key, 0) + 1
    return ClusterShape(
        pools=tuple(
            NodePool(gpu_type=gpu_type, zone=zone, gpus_per_node=gpus, node_count=count)
            for (gpu_type, zone, gpus), count in sorted(counts.items())
        )
    )


def wants_devices(job: JobRecord, now_s: float) -> bool:
    """Tell whether a job waits for a decision: queued, wished to run, without target, its backoff over."""
    return (
        job.state is JobState.QUEUED
        and job.wish is Wish.RUN
        and job.target is None
        and job.attempt_id is None
        and job.not_before_s <= now_s
    )


def reasons_of(state: ClusterState, job: JobRecord) -> tuple[tuple[Reason, ...], float | None]:
    """Return why a job is where it is, and when that was last looked at.

    A waiting job that the latest decision did not name waits for that decision's general reason.
    """
    if job.target is not None:
        return (_waits_for_devices(state, job), job.target.cause), job.target.decided_at_s
    if job.state is not JobState.QUEUED or job.wish is not Wish.RUN:
        told = state.reasons.get(job.job_id, job.reasons)
        stalled = tuple(one for one in job.reasons if one.code is ReasonCode.STALLED and one not in told)
        return told + stalled, job.evaluated_at_s
    if job.job_id not in state.grids:
        code = ReasonCode.PLANNING if state.shape.pools else ReasonCode.NO_NODES
        return (reason(code, nodes=len(state.nodes)),), state.decided_at_s
    if state.decided_at_s is None or job.changed_at_s > state.decided_at_s or job.not_before_s > state.decided_at_s:
        return job.reasons, job.evaluated_at_s
    found = state.reasons.get(job.job_id)
    if found is None:
        found = (state.rest,) if state.rest is not None else job.reasons
    left = tuple(one for one in job.reasons if one.code is ReasonCode.NODE_LEFT and one not in found)
    return found + left, state.decided_at_s


def _waits_for_devices(state: ClusterState, job: JobRecord) -> Reason:
    assert job.target is not None
    devices = job.target.allocation.device_ids
    busy = {state.holders[device] for device in devices if device in state.holders}
    return reason(
        ReasonCode.WAITING_FOR_DEVICES,
        group=str(job.target.group),
        needed=len(devices),
        free=sum(device not in state.holders for device in devices),
        holder=", ".join(sorted(busy)) or "its nodes",
    )


def restored_state(restored: Restored, restart_s: float) -> ClusterState:
    """Return the state after a restart, before the derived indexes of nodes and jobs are filled (see ``Draft``).

    Args:
        restart_s: Cost of a reconfiguration, assumed if none was measured before.
    """
    holders = {
        device: attempt.attempt_id
        for attempt in restored.attempts
        for share in attempt.allocation.shares
        if share.node_id not in attempt.ended_nodes
        for device in share.device_ids
    }
    reserved = {
        device: job.job_id
        for job in restored.jobs
        if job.target is not None
        for device in job.target.allocation.device_ids
    }
    nodes = {node.node_id: node for node in restored.nodes}
    struck = {job.job_id: job.struck for job in restored.jobs}
    cost = restored.restart_cost or RestartCost(mean_s=restart_s, sample_count=0)
    return ClusterState(
        jobs=Map({job.job_id: job for job in restored.jobs}),
        attempts=Map({attempt.attempt_id: attempt for attempt in restored.attempts}),
        nodes=Map(nodes),
        holders=Map(holders),
        reserved=Map(reserved),
        grids=Map({job_id: without(grid, struck.get(job_id, ())) for job_id, (_, grid) in restored.grids.items()}),
        grid_shapes=Map({job_id: shape for job_id, (shape, _) in restored.grids.items()}),
        places=Map({node_id: node.info.visible_places for node_id, node in nodes.items()}),
        shape=shape_of(nodes),
        history_index=restored.history_index,
        decision_index=restored.decision_index,
        lengths=restored.lengths,
        paces=restored.paces,
        restart_s=cost.mean_s,
        restart_sample_count=cost.sample_count,
        epoch_floor=restored.epoch_floor,
    )
