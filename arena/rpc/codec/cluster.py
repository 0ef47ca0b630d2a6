"""The cluster's status to proto and back. Pure: no I/O, no clock."""

from __future__ import annotations

from arena.domain.job import JobId
from arena.rpc.codec import enums
from arena.rpc.codec.fields import optional
from arena.rpc.codec.plans import (
    group_from_proto,
    group_to_proto,
    plan_from_proto,
    plan_to_proto,
    reason_from_proto,
    reason_to_proto,
)
from arena.rpc.codec.records import job_from_proto, job_view_to_proto
from arena.rpc.v1 import admin_service_pb2 as pb
from arena.rpc.views import DecidedJob, DecisionView, GpuCounts, StatusView, TenantShare


def status_to_proto(view: StatusView) -> pb.GetStatusResponse:
    """Return the cluster's status as a message."""
    return pb.GetStatusResponse(
        scheduler_version=view.scheduler_version,
        policy=view.policy,
        now_s=view.now_s,
        started_at_s=view.started_at_s,
        read_only_cause=view.read_only_cause,
        gpus=[_gpu_counts_to_proto(counts) for counts in view.gpus],
        jobs=[
            pb.JobCount(state=enums.JOB_STATE.to_proto(state), count=count)
            for state, count in view.job_count_by_state.items()
        ],
        nodes=[
            pb.NodeCount(state=enums.NODE_STATE.to_proto(state), count=count)
            for state, count in view.node_count_by_state.items()
        ],
        active_jobs=[job_view_to_proto(job) for job in view.active_jobs],
        waiting_jobs=[job_view_to_proto(job) for job in view.waiting_jobs],
        decision_index=view.decision_index,
        decided_at_s=view.decided_at_s,
        decision_time_s=view.decision_time_s,
        warnings=view.warnings,
        tenants=[_tenant_to_proto(tenant) for tenant in view.tenants],
        restart_s=view.restart_s,
        restart_sample_count=view.restart_sample_count,
        checkpoint_root=view.checkpoint_root,
    )


def status_from_proto(message: pb.GetStatusResponse) -> StatusView:
    """Return the status of a message."""
    return StatusView(
        scheduler_version=message.scheduler_version,
        policy=message.policy,
        now_s=message.now_s,
        started_at_s=message.started_at_s,
        read_only_cause=optional(message, "read_only_cause"),
        gpus=tuple(_gpu_counts_from_proto(counts) for counts in message.gpus),
        job_count_by_state={
            enums.JOB_STATE.from_proto(item.state, "status.jobs.state"): item.count for item in message.jobs
        },
        node_count_by_state={
            enums.NODE_STATE.from_proto(item.state, "status.nodes.state"): item.count for item in message.nodes
        },
        active_jobs=tuple(job_from_proto(job) for job in message.active_jobs),
        waiting_jobs=tuple(job_from_proto(job) for job in message.waiting_jobs),
        decision_index=message.decision_index,
        decided_at_s=optional(message, "decided_at_s"),
        decision_time_s=message.decision_time_s,
        warnings=tuple(message.warnings),
        tenants=tuple(_tenant_from_proto(tenant) for tenant in message.tenants),
        restart_s=optional(message, "restart_s"),
        restart_sample_count=message.restart_sample_count,
        checkpoint_root=message.checkpoint_root,
    )


def _tenant_to_proto(tenant: TenantShare) -> pb.TenantShare:
    return pb.TenantShare(
        project=tenant.project,
        guaranteed=tenant.guaranteed,
        used=tenant.used,
        lent=tenant.lent,
        running_jobs=tenant.running_jobs,
        waiting_jobs=tenant.waiting_jobs,
    )


def _tenant_from_proto(message: pb.TenantShare) -> TenantShare:
    return TenantShare(
        project=message.project,
        guaranteed=dict(message.guaranteed),
        used=message.used,
        lent=message.lent,
        running_jobs=message.running_jobs,
        waiting_jobs=message.waiting_jobs,
    )


def _gpu_counts_to_proto(counts: GpuCounts) -> pb.GpuCounts:
    return pb.GpuCounts(
        gpu_type=counts.gpu_type,
        total=counts.total,
        free=counts.free,
        used=counts.used,
        draining=counts.draining,
        dirty=counts.dirty,
        down=counts.down,
    )


def _gpu_counts_from_proto(message: pb.GpuCounts) -> GpuCounts:
    return GpuCounts(
        gpu_type=message.gpu_type,
        total=message.total,
        free=message.free,
        used=message.used,
        draining=message.draining,
        dirty=message.dirty,
        down=message.down,
    )


def decision_to_proto(view: DecisionView) -> pb.Decision:
    """Return a decision as a message."""
    return pb.Decision(
        at_s=view.at_s,
        numbers=view.numbers,
        jobs=[_decided_job_to_proto(job) for job in view.jobs],
        unchanged_count=view.unchanged_count,
    )


def _decided_job_to_proto(job: DecidedJob) -> pb.DecidedJob:
    return pb.DecidedJob(
        job_id=job.job_id,
        group=group_to_proto(job.group) if job.group is not None else None,
        plan=plan_to_proto(job.plan) if job.plan is not None else None,
        reasons=[reason_to_proto(item) for item in job.reasons],
    )


def decision_from_proto(message: pb.Decision) -> DecisionView:
    """Return the decision of a message."""
    return DecisionView(
        at_s=message.at_s,
        numbers=dict(message.numbers),
        jobs=tuple(_decided_job_from_proto(job) for job in message.jobs),
        unchanged_count=message.unchanged_count,
    )


def _decided_job_from_proto(message: pb.DecidedJob) -> DecidedJob:
    return DecidedJob(
        job_id=JobId(message.job_id),
        group=group_from_proto(message.group) if message.HasField("group") else None,
        plan=plan_from_proto(message.plan) if message.HasField("plan") else None,
        reasons=tuple(reason_from_proto(item) for item in message.reasons),
    )
