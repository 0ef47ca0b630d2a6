"""Jobs, attempts, nodes and the cluster as people may see them: what the API shows of the records. Pure: no I/O.

A view made with ``private=False`` is what every user may see of somebody else's job: its id, user, state, group, plan
and progress, but neither its specification nor texts that its program wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from arena.domain.allocation import Allocation, GpuGroup
from arena.domain.cluster import Device, NodeState
from arena.domain.grid import Estimate
from arena.domain.job import JobId, JobKind, JobSpec
from arena.domain.launch import AttemptId, DeviceId, NodeId
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import Reason
from arena.domain.records import (
    AttemptRecord,
    AttemptState,
    AttemptTransition,
    Drain,
    EndKind,
    JobRecord,
    JobState,
    NodeEnd,
    NodeRecord,
    Progress,
    Target,
    Wish,
)

HIDDEN = "(only shown to its user and admins)"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as its reader may see it.

    Args:
        group, plan, allocation: Of the live attempt; None while none is live, ``plan`` also for command jobs.
        step_limit: The last step by the stop condition, None when steps do not end the job.
        spec: None where the reader may not see it (and in lists).
        changed_at_s: Since when it is in its state.
        run_time_s, gpu_seconds, spent_usd: What its attempts have had and cost, up to when it was looked at.
    """

    job_id: JobId
    name: str
    user: str
    project: str
    priority: int
    kind: JobKind
    state: JobState
    wish: Wish
    epoch: int
    attempt_id: AttemptId | None
    group: GpuGroup | None
    plan: ParallelPlan | None
    allocation: Allocation | None
    target: Target | None
    reasons: tuple[Reason, ...]
    evaluated_at_s: float | None
    progress: Progress
    launch_failure_count: int
    restart_count: int
    preemption_count: int
    reconfiguration_count: int
    submitted_at_s: float
    first_started_at_s: float | None
    changed_at_s: float
    ended_at_s: float | None
    run_time_s: float
    gpu_seconds: float
    not_before_s: float
    step_limit: int | None
    spec: JobSpec | None = None
    result: str = ""
    error: str = ""
    deadline_at_s: float | None = None
    is_deadline_promised: bool = False
    is_promise_broken: bool = False
    budget_usd: float | None = None
    spent_usd: float = 0.0
    deadline_cause: Reason | None = None
    deadline_earliest_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """An attempt as its reader may see it; the fields are those of ``AttemptRecord``."""

    attempt_id: AttemptId
    job_id: JobId
    epoch: int
    state: AttemptState
    transition: AttemptTransition
    plan: ParallelPlan | None
    group: GpuGroup
    estimate: Estimate | None
    allocation: Allocation
    cause: Reason
    decision_index: int
    decided_at_s: float
    launched_at_s: float
    started_at_s: float | None
    ready_at_s: float | None
    first_step_at_s: float | None
    stop_requested_at_s: float | None
    stop_mode: str
    stop_cause: Reason | None
    stopped_at_s: float | None
    ended_at_s: float | None
    resumed_step: int | None
    last_step: int
    durable_step: int
    rendezvous_s: float | None
    load_s: float | None
    save_s: float | None
    outcome: EndKind | None
    ends: tuple[NodeEnd, ...]
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """A device and the live attempt that holds it, if any."""

    device: Device
    attempt_id: AttemptId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node as everybody may see it; ``drain`` is what keeps work from it, its lender's notice as well."""

    node_id: NodeId
    state: NodeState
    state_cause: str
    gpu_type: str
    zone: str
    region: str
    devices: tuple[DeviceView, ...]
    address: str
    memory_bytes: int
    agent_version: str
    drain: Drain | None
    attempt_ids: tuple[AttemptId, ...]
    clock_skew_s: float
    labels: Mapping[str, str]
    disconnected_at_s: float | None
    launch_failure_count: int

    @property
    def connected(self) -> bool:
        """Whether its agent's stream is up."""
        return self.disconnected_at_s is None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCounts:
    """GPUs of one type: free + used + draining + dirty = total; ``down`` (on lost nodes) is outside the sum."""

    gpu_type: str
    total: int
    free: int = 0
    used: int = 0
    draining: int = 0
    dirty: int = 0
    down: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShare:
    """A project's guaranteed GPUs, and what became of them.

    Args:
        project: Empty for all projects together that are guaranteed nothing.
        guaranteed: GPUs by type; of all types together under ``any``.
        used: GPUs that its jobs have; more than are guaranteed where it has borrowed.
        lent: Of its guaranteed GPUs, those that others use.
        waiting_jobs: Jobs of it that wait for GPUs.
    """

    project: str
    guaranteed: Mapping[str, int] = field(default_factory=dict)
    used: int = 0
    lent: int = 0
    running_jobs: int = 0
    waiting_jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedJob:
    """What a decision gave one job; without a group it took all that the job had."""

    job_id: JobId
    group: GpuGroup | None
    plan: ParallelPlan | None
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionView:
    """A decision as everybody may see it.

    Args:
        numbers: Facts of the policy about it: its value, the bound, their gap, prices.
        jobs: Those that it changed.
        unchanged_count: Jobs that it left as they were and said why.
    """

    at_s: float
    numbers: Mapping[str, float] = field(default_factory=dict)
    jobs: tuple[DecidedJob, ...] = ()
    unchanged_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """The cluster at a glance.

    Args:
        active_jobs: Jobs that hold GPUs.
        waiting_jobs: Jobs that wait, in order of service.
        read_only_cause: Why nothing can be written at present, None when all is well.
        decision_time_s: How long the latest decision took.
        tenants: Projects with guaranteed GPUs, then all others together; none if nobody is guaranteed any.
        restart_s: What a restart (save, stop, start, load) is taken to cost, None where the scheduler does not say.
        restart_sample_count: Of how many this is the mean; 0 where it is assumed.
        checkpoint_root: Where jobs that name no place keep checkpoints; empty where the scheduler does not say.
    """

    scheduler_version: str
    policy: str
    now_s: float
    started_at_s: float
    read_only_cause: str | None = None
    gpus: tuple[GpuCounts, ...] = ()
    job_count_by_state: Mapping[JobState, int] = field(default_factory=dict)
    node_count_by_state: Mapping[NodeState, int] = field(default_factory=dict)
    active_jobs: tuple[JobView, ...] = ()
    waiting_jobs: tuple[JobView, ...] = ()
    decision_index: int = 0
    decided_at_s: float | None = None
    decision_time_s: float = 0.0
    warnings: tuple[str, ...] = ()
    tenants: tuple[TenantShare, ...] = ()
    restart_s: float | None = None
    restart_sample_count: int = 0
    checkpoint_root: str = ""


def job_view(record: JobRecord, attempt: AttemptRecord | None, *, private: bool, with_spec: bool = True) -> JobView:
    """Return a job as its reader may see it.

    Args:
        record: The job.
        attempt: Its live attempt, None when it has none.
        private: Whether the reader is its user or an admin: only they see specification, result and error texts.
        with_spec: Whether to include the specification for such a reader; lists leave it out.
    """
    live = attempt if attempt is not None and attempt.is_live else None
    spec, cause = record.spec, record.deadline_cause
    return JobView(
        job_id=record.job_id,
        name=spec.name,
        user=record.user,
        project=spec.project,
        priority=spec.priority,
        kind=spec.kind,
        state=record.state,
        wish=record.wish,
        epoch=record.epoch,
        attempt_id=record.attempt_id,
        group=live.group if live else None,
        plan=live.plan if live else None,
        allocation=live.allocation if live else None,
        target=record.target if private or record.target is None else _public_target(record.target),
        reasons=record.reasons if private else tuple(public_reason(reason) for reason in record.reasons),
        evaluated_at_s=record.evaluated_at_s,
        progress=record.progress,
        launch_failure_count=record.launch_failure_count,
        restart_count=record.restart_count,
        preemption_count=record.preemption_count,
        reconfiguration_count=record.reconfiguration_count,
        submitted_at_s=record.submitted_at_s,
        first_started_at_s=record.first_started_at_s,
        changed_at_s=record.changed_at_s,
        ended_at_s=record.ended_at_s,
        run_time_s=record.run_time_s,
        gpu_seconds=record.gpu_seconds,
        not_before_s=record.not_before_s,
        step_limit=spec.step_limit,
        spec=spec if private and with_spec else None,
        result=record.result if private else "",
        error=record.error if private else "",
        deadline_at_s=None if spec.deadline_s is None else record.submitted_at_s + spec.deadline_s,
        is_deadline_promised=record.is_deadline_promised,
        is_promise_broken=record.is_promise_broken,
        budget_usd=spec.budget_usd,
        spent_usd=record.spent_usd,
        deadline_cause=cause if private or cause is None else public_reason(cause),
        deadline_earliest_at_s=record.deadline_earliest_at_s,
    )


def attempt_view(record: AttemptRecord, *, private: bool) -> AttemptView:
    """Return an attempt as its reader may see it; others see no text that the job's program wrote."""
    return AttemptView(
        attempt_id=record.attempt_id,
        job_id=record.job_id,
        epoch=record.epoch,
        state=record.state,
        transition=record.transition,
        plan=record.plan,
        group=record.group,
        estimate=record.estimate,
        allocation=record.allocation,
        cause=record.cause if private else public_reason(record.cause),
        decision_index=record.decision_index,
        decided_at_s=record.decided_at_s,
        launched_at_s=record.launched_at_s,
        started_at_s=record.started_at_s,
        ready_at_s=record.ready_at_s,
        first_step_at_s=record.first_step_at_s,
        stop_requested_at_s=record.stop_requested_at_s,
        stop_mode=record.stop_mode,
        stop_cause=record.stop_cause if private or record.stop_cause is None else public_reason(record.stop_cause),
        stopped_at_s=record.stopped_at_s,
        ended_at_s=record.ended_at_s,
        resumed_step=record.resumed_step,
        last_step=record.last_step,
        durable_step=record.durable_step,
        rendezvous_s=record.rendezvous_s,
        load_s=record.load_s,
        save_s=record.save_s,
        outcome=record.outcome,
        ends=record.ends if private else tuple(replace(end, message="", log_tail="") for end in record.ends),
        error=record.error if private else "",
    )


def node_view(record: NodeRecord, attempt_id_by_device: Mapping[DeviceId, AttemptId]) -> NodeView:
    """Return a node as everybody may see it.

    Args:
        record: The node.
        attempt_id_by_device: The live attempts that hold its devices.
    """
    info = record.info
    holders = {attempt_id_by_device[d.device_id] for d in info.devices if d.device_id in attempt_id_by_device}
    return NodeView(
        node_id=record.node_id,
        state=record.state,
        state_cause=record.state_cause,
        gpu_type=info.gpu_type,
        zone=info.zone,
        region=info.region,
        devices=tuple(
            DeviceView(device=device, attempt_id=attempt_id_by_device.get(device.device_id)) for device in info.devices
        ),
        address=info.address,
        memory_bytes=info.memory_bytes,
        agent_version=info.agent_version,
        drain=record.leaving,
        attempt_ids=tuple(sorted(holders)),
        clock_skew_s=info.clock_skew_s,
        labels=dict(info.labels),
        disconnected_at_s=record.disconnected_at_s,
        launch_failure_count=record.launch_failure_count,
    )


def public_reason(reason: Reason) -> Reason:
    """Return a reason without the error text of the job's program."""
    if "error" not in reason.names:
        return reason
    return replace(reason, names={**reason.names, "error": HIDDEN})


def _public_target(target: Target) -> Target:
    return replace(target, cause=public_reason(target.cause))
