"""Inputs of the engine, a closed union. Pure: no I/O, no clock.

The log of these, with the instant at which each was handled, is complete: fed to a fresh engine with the same policy
it gives the same commands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from arena.domain.cluster import ClusterShape, Device, NodeInfo
from arena.domain.grid import Grid
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import JSON_CONFIG, AttemptId, NodeId, WorkerReport
from arena.domain.records import NodeEnd
from arena.domain.replacing import quickly_made


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStarted:
    """A scheduler process took over; nodes that do not register within the grace period are lost."""

    kind: Literal["scheduler_started"] = "scheduler_started"
    scheduler_version: str
    policy: str
    policy_version: str


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class GridBuilt:
    """A job's grid, made for the cluster shape ``shape``: the answer to a ``BuildGrid``, or what a job comes with."""

    kind: Literal["grid_built"] = "grid_built"
    job_id: JobId
    shape: ClusterShape
    grid: Grid
    build_s: float = 0.0


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """A valid job arrived; its id was made by the service.

    Args:
        planned: Its grid, where whoever took the job has it already for the cluster's settled shape: the planner need
            not be asked then.
    """

    kind: Literal["job_submitted"] = "job_submitted"
    job_id: JobId
    spec: JobSpec
    user: str
    request_id: str
    allow_infeasible: bool = False
    planned: GridBuilt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWishChanged:
    """The user (or an admin) holds, releases or cancels a job.

    Args:
        budget_usd: With ``run``: the job's budget from now on; None leaves it as it is.
    """

    kind: Literal["job_wish_changed"] = "job_wish_changed"
    job_id: JobId
    wish: Literal["run", "hold", "cancel"]
    by: str
    budget_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsCancelled:
    """The user (or an admin) cancels jobs, in this order; one event, so that it is decided once for all of them.

    A log of before this kind has a ``JobWishChanged`` for each.
    """

    kind: Literal["jobs_cancelled"] = "jobs_cancelled"
    job_ids: tuple[JobId, ...]
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFailed:
    """The planner could not make a grid (a fault of ours or of the job's model)."""

    kind: Literal["grid_failed"] = "grid_failed"
    job_id: JobId
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldAttempt:
    """An attempt whose processes live on a node that registers.

    Args:
        left_for: Why its agent is having it save and stop without being asked, as in ``NodeEnd``.
    """

    attempt_id: AttemptId
    started: bool
    left_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """An attempt that ended on a node and was not acknowledged yet."""

    attempt_id: AttemptId
    end: NodeEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimNotice:
    """Word from a node that it will be taken away, as lent ones (spot) are.

    Args:
        within_s: From the word until it is gone; a length, since two hosts' clocks are never compared.
        why: For people.
        notice_id: The same for as long as it is the same word, whoever says it again; empty from an older agent.
    """

    within_s: float
    why: str
    notice_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRegistered:
    """An agent connected, with its full inventory in one message."""

    kind: Literal["node_registered"] = "node_registered"
    info: NodeInfo
    held: tuple[HeldAttempt, ...] = ()
    ended: tuple[EndedAttempt, ...] = ()
    notice: ReclaimNotice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDisconnected:
    """An agent's stream is down or silent; ``incarnation`` guards against a late word about an old stream."""

    kind: Literal["node_disconnected"] = "node_disconnected"
    node_id: NodeId
    incarnation: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrainChanged:
    """An admin drains a node (``drain=True``) or takes it back, whatever its lender had said of it until then.

    Args:
        within_s: After so long it is to be empty; None lets what runs there run to its end.
    """

    kind: Literal["node_drain_changed"] = "node_drain_changed"
    node_id: NodeId
    drain: bool
    by: str
    why: str = ""
    within_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNoticeChanged:
    """A node was told that it will be taken away, or (None) that it will not after all."""

    kind: Literal["node_notice_changed"] = "node_notice_changed"
    node_id: NodeId
    notice: ReclaimNotice | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesChanged:
    """A node's devices became dirty or clean; ``cleaning`` while leftovers are being removed."""

    kind: Literal["devices_changed"] = "devices_changed"
    node_id: NodeId
    devices: tuple[Device, ...]
    problem: str | None = None


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """All local ranks of an attempt are up on a node."""

    kind: Literal["attempt_started"] = "attempt_started"
    node_id: NodeId
    attempt_id: AttemptId


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReported:
    """A worker said something (rank 0, or a rank that fails)."""

    kind: Literal["worker_reported"] = "worker_reported"
    node_id: NodeId
    attempt_id: AttemptId
    report: WorkerReport


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """A node's share of an attempt is verified gone; repeated until acknowledged."""

    kind: Literal["attempt_ended"] = "attempt_ended"
    node_id: NodeId
    attempt_id: AttemptId
    end: NodeEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed: deadlines are looked at."""

    kind: Literal["tick"] = "tick"


Event = Annotated[
    SchedulerStarted
    | JobSubmitted
    | JobWishChanged
    | JobsCancelled
    | GridBuilt
    | GridFailed
    | NodeRegistered
    | NodeDisconnected
    | NodeDrainChanged
    | NodeNoticeChanged
    | DevicesChanged
    | AttemptStarted
    | WorkerReported
    | AttemptEnded
    | Tick,
    Field(discriminator="kind"),
]

EVENT_JSON: TypeAdapter[Event] = TypeAdapter(Event, config=JSON_CONFIG)


def built_grid(event: Event) -> GridBuilt | None:
    """Return the grid that an event brings, be it with its job."""
    if isinstance(event, JobSubmitted):
        return event.planned
    return event if isinstance(event, GridBuilt) else None
