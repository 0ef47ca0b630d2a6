"""Plans, groups, allocations, estimates and reasons to proto and back. Pure: no I/O, no clock."""

from __future__ import annotations

from arena.domain.allocation import Allocation, GpuGroup, GroupPart, NodeShare
from arena.domain.grid import Estimate
from arena.domain.launch import DeviceId, NodeId
from arena.domain.parallel import ParallelPlan, Replica, Stage
from arena.domain.reason import Reason, ReasonCode
from arena.domain.records import Target
from arena.rpc.codec import enums
from arena.rpc.codec.fields import fitting, optional, sub
from arena.rpc.v1 import common_pb2 as pb


def plan_to_proto(plan: ParallelPlan) -> pb.ParallelPlan:
    """Return a parallelism plan as a message, with its short text beside it."""
    with fitting("the plan"):
        return pb.ParallelPlan(
            stages=[_stage_to_proto(stage) for stage in plan.stages],
            micro_batch_size=plan.micro_batch_size,
            schedule=enums.SCHEDULE.to_proto(plan.schedule),
            virtual_stage_count=plan.virtual_stage_count,
            zero=plan.zero,
            recompute=enums.RECOMPUTE.to_proto(plan.recompute),
            expert_parallel=plan.expert_parallel,
            sequence_parallel=plan.sequence_parallel,
            text=str(plan),
        )


def _stage_to_proto(stage: Stage) -> pb.Stage:
    return pb.Stage(
        layer_count=stage.layer_count,
        replicas=[
            pb.Replica(
                tp=replica.tp,
                gpu_type=replica.gpu_type,
                zone=replica.zone,
                micro_batch_count=replica.micro_batch_count,
            )
            for replica in stage.replicas
        ],
    )


def plan_from_proto(message: pb.ParallelPlan) -> ParallelPlan:
    """Return the plan of a message.

    Raises:
        UserError: An enum is unspecified or the degrees do not fit together.
    """
    return ParallelPlan(
        stages=tuple(_stage_from_proto(stage) for stage in message.stages),
        micro_batch_size=message.micro_batch_size,
        schedule=enums.SCHEDULE.from_proto(message.schedule, "plan.schedule"),
        virtual_stage_count=message.virtual_stage_count,
        zero=message.zero,
        recompute=enums.RECOMPUTE.from_proto(message.recompute, "plan.recompute"),
        expert_parallel=message.expert_parallel,
        sequence_parallel=message.sequence_parallel,
    )


def _stage_from_proto(message: pb.Stage) -> Stage:
    return Stage(
        layer_count=message.layer_count,
        replicas=tuple(
            Replica(
                tp=replica.tp,
                gpu_type=optional(replica, "gpu_type"),
                zone=optional(replica, "zone"),
                micro_batch_count=optional(replica, "micro_batch_count"),
            )
            for replica in message.replicas
        ),
    )


def group_to_proto(group: GpuGroup) -> pb.GpuGroup:
    """Return a GPU group as a message, with its short text beside it."""
    return pb.GpuGroup(
        parts=[
            pb.GroupPart(gpu_type=part.gpu_type, node_counts=part.node_counts, zone=part.zone) for part in group.parts
        ],
        text=str(group),
    )


def group_from_proto(message: pb.GpuGroup) -> GpuGroup:
    """Return the GPU group of a message."""
    return GpuGroup(
        parts=tuple(
            GroupPart(gpu_type=part.gpu_type, node_counts=tuple(part.node_counts), zone=optional(part, "zone"))
            for part in message.parts
        )
    )


def allocation_to_proto(allocation: Allocation) -> pb.Allocation:
    """Return an allocation as a message; the order of nodes and devices is the order of ranks."""
    return pb.Allocation(
        shares=[pb.NodeShare(node_id=share.node_id, device_ids=share.device_ids) for share in allocation.shares]
    )


def allocation_from_proto(message: pb.Allocation) -> Allocation:
    """Return the allocation of a message."""
    return Allocation(
        shares=tuple(
            NodeShare(node_id=NodeId(share.node_id), device_ids=tuple(DeviceId(device) for device in share.device_ids))
            for share in message.shares
        )
    )


def estimate_to_proto(estimate: Estimate) -> pb.Estimate:
    """Return an estimate as a message."""
    return pb.Estimate(
        iter_time_s=estimate.iter_time_s,
        memory_bytes_by_stage=estimate.memory_bytes_by_stage,
        breakdown_s=estimate.breakdown_s,
        relative_error=estimate.relative_error,
        usd_per_step=estimate.usd_per_step,
    )


def estimate_from_proto(message: pb.Estimate) -> Estimate:
    """Return the estimate of a message."""
    return Estimate(
        iter_time_s=message.iter_time_s,
        memory_bytes_by_stage=tuple(message.memory_bytes_by_stage),
        breakdown_s=dict(message.breakdown_s),
        relative_error=message.relative_error,
        usd_per_step=message.usd_per_step,
    )


def reason_to_proto(reason: Reason) -> pb.Reason:
    """Return a reason as a message, with its sentence beside it."""
    return pb.Reason(code=reason.code.value, numbers=reason.numbers, names=reason.names, text=str(reason))


def reason_from_proto(message: pb.Reason) -> Reason:
    """Return the reason of a message.

    The list of codes grows: one that a newer scheduler knows and this client does not keeps its sentence, as an
    ``unsupported`` reason that names the code.
    """
    numbers, names = dict(message.numbers), dict(message.names)
    try:
        return Reason(code=ReasonCode(message.code), numbers=numbers, names=names)
    except ValueError:
        names = {**names, "detail": message.text or message.code, "code": message.code}
        return Reason(code=ReasonCode.UNSUPPORTED, numbers=numbers, names=names)


def target_to_proto(target: Target) -> pb.Target:
    """Return what a decision wants for a job as a message."""
    return pb.Target(
        group=group_to_proto(target.group),
        plan=plan_to_proto(target.plan) if target.plan else None,
        estimate=estimate_to_proto(target.estimate) if target.estimate else None,
        allocation=allocation_to_proto(target.allocation),
        decided_at_s=target.decided_at_s,
        decision_index=target.decision_index,
        cause=reason_to_proto(target.cause),
    )


def target_from_proto(message: pb.Target) -> Target:
    """Return the target of a message."""
    return Target(
        group=group_from_proto(message.group),
        plan=sub(message.plan, message.HasField("plan"), plan_from_proto),
        estimate=sub(message.estimate, message.HasField("estimate"), estimate_from_proto),
        allocation=allocation_from_proto(message.allocation),
        decided_at_s=message.decided_at_s,
        decision_index=message.decision_index,
        cause=reason_from_proto(message.cause),
    )
