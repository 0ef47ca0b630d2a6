"""The policy protocol, the snapshot it sees and the decision it returns. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from arena.domain.allocation import Allocation, GpuGroup
from arena.domain.cluster import ClusterShape
from arena.domain.grid import Estimate, Grid
from arena.domain.history import LengthHistory
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.paces import PaceHistory
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import Reason
from arena.domain.records import JobRecord, NodeRecord
from arena.domain.replacing import quickly_made
from arena.domain.tenants import Guarantees
from arena.policies.capacity import Capacity


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a job has, or is about to have: its target if it has one, else its live attempt's share.

    Args:
        movable: False while a change is under way or the job may not be moved; the policy must leave it as it is. Of
            what is movable every device is held: a job that has given up some of its nodes is about to end, and is not.
        since_s: When it got it.
    """

    group: GpuGroup
    plan: ParallelPlan | None
    estimate: Estimate | None
    allocation: Allocation
    movable: bool
    since_s: float


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a policy may look at, at one instant; values, never changed afterwards.

    Args:
        now_s: The instant of the decision.
        decision_index: Number of this decision.
        jobs: Non-terminal jobs by id.
        waiting: Jobs that want devices and have none, in order of service; backoff over, grid known.
        holding: What jobs have (see ``Holding``), by id.
        grids: Grids by job; jobs whose grid is still being built are absent.
        capacity: Devices that are free and not spoken for by a target, on usable nodes.
        shape: The cluster's shape.
        nodes: All known nodes, for what is told of those that take no work.
        places: Checkpoint places seen by each node.
        restart_s: Usual cost of a reconfiguration, measured so far (save, stop, start, load).
        checkpoint_root: Place of the jobs that name none; empty when unknown.
        history: What jobs that ended have taught about lengths.
        paces: How fast jobs that ended ran against their estimates.
        usd_per_hour: Price of a GPU hour of each type; without one it costs nothing.
        tenants: Guaranteed GPUs by project.
    """

    now_s: float
    decision_index: int
    jobs: Mapping[JobId, JobRecord]
    waiting: Sequence[JobId]
    holding: Mapping[JobId, Holding]
    grids: Mapping[JobId, Grid]
    capacity: Capacity
    shape: ClusterShape
    nodes: Mapping[NodeId, NodeRecord] = field(default_factory=dict)
    places: Mapping[NodeId, Mapping[str, str]] = field(default_factory=dict)
    restart_s: float = 10.0
    checkpoint_root: str = ""
    history: LengthHistory = field(default_factory=LengthHistory)
    paces: PaceHistory = field(default_factory=PaceHistory)
    usd_per_hour: Mapping[str, float] = field(default_factory=dict)
    tenants: Guarantees = field(default_factory=dict)


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a job is to have: a group with a plan on concrete devices, and why."""

    group: GpuGroup
    plan: ParallelPlan | None
    estimate: Estimate | None
    allocation: Allocation
    cause: Reason


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The policy's answer; it names only what it changes or looked at, so that it stays small.

    Args:
        choices: New or changed groups by job; None takes everything away (preemption), with ``reasons`` saying why.
            A choice may use devices that another job gives up by this same decision.
        reasons: Why a job waits or stays, for the jobs the policy looked at.
        rest: Reason of all other waiting jobs (e.g. behind the first that does not fit).
        look_again_at_s: When the policy wants to be asked again even if nothing happens.
        numbers: Facts about the decision (value, bound, gap, prices) for display.
    """

    choices: Mapping[JobId, Choice | None] = field(default_factory=dict)
    reasons: Mapping[JobId, tuple[Reason, ...]] = field(default_factory=dict)
    rest: Reason | None = None
    look_again_at_s: float | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class Explaining(Protocol):
    """A policy that can say more of one job than its decision does; pure as well."""

    def explain(self, snapshot: Snapshot, job_id: JobId) -> tuple[Reason, ...]:
        """Return why a job has what it has and what would give way for more; none of a job that does not compete."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Whether a job's deadline can be promised.

    Args:
        is_promised: It can, with all that was promised before kept.
        earliest_end_s: The earliest instant that can be promised, the deadline itself where it can be; None where
            nothing can.
        reason: Why it cannot be: what is in the way.
    """

    is_promised: bool
    earliest_end_s: float | None
    reason: Reason | None = None


@runtime_checkable
class Admitting(Protocol):
    """A policy that can promise that a deadline will be met; pure as well."""

    def admission(self, snapshot: Snapshot, job_id: JobId) -> Admission | None:
        """Return whether a waiting job's deadline can be promised; None where nothing can be said of it."""
        ...


@runtime_checkable
class ServingWaiting(Protocol):
    """A policy that may change what runs only for the sake of jobs that wait."""

    @property
    def serves_waiting_only(self) -> bool:
        """Whether it does so: while no job waits there is nothing to ask it."""
        ...


class Policy(Protocol):
    """A pure function of a snapshot."""

    @property
    def name(self) -> str:
        """Registry name."""
        ...

    @property
    def version(self) -> str:
        """Changed whenever the same snapshot may give another decision; recorded with every run."""
        ...

    def decide(self, snapshot: Snapshot) -> Decision:
        """Return what is to change; pure, deterministic, ties broken by id."""
        ...
