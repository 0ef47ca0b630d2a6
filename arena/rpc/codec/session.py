"""What agents and the scheduler say to each other, to proto and back. Pure: no I/O, no clock.

Messages of a session do not repeat the node's id; readers pass the id of the session they came from.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from arena.domain.cluster import NodeInfo
from arena.domain.commands import AcknowledgeEnd, AnswerRegistration, StopAttempt
from arena.domain.events import (
    AttemptEnded,
    AttemptStarted,
    DevicesChanged,
    EndedAttempt,
    HeldAttempt,
    NodeNoticeChanged,
    NodeRegistered,
    ReclaimNotice,
    WorkerReported,
)
from arena.domain.job import JobId
from arena.domain.launch import REPORT_JSON, AttemptId, DeviceId, Launch, NodeId
from arena.domain.records import AttemptTransition, NodeEnd
from arena.errors import UserError
from arena.rpc.codec import enums
from arena.rpc.codec.fields import fitting, optional, seconds_from_proto, sub
from arena.rpc.codec.plans import plan_from_proto, plan_to_proto
from arena.rpc.codec.records import device_from_proto, device_to_proto, node_end_from_proto, node_end_to_proto
from arena.rpc.codec.specs import spec_from_proto, spec_to_proto
from arena.rpc.v1 import agent_service_pb2 as pb
from arena.rpc.v1 import common_pb2
from arena.rpc.version import PROTOCOL_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The scheduler's answer to a registration.

    Args:
        keep, kill: The attempts the agent holds, told apart.
        heartbeat_interval_s: How often the agent is to say that it lives.
        node_grace_s: Silence after which the node counts as lost.
    """

    keep: tuple[AttemptId, ...]
    kill: tuple[AttemptId, ...]
    heartbeat_interval_s: float
    node_grace_s: float


def register_to_proto(registered: NodeRegistered, *, agent_now_s: float) -> pb.Register:
    """Return a registration as a message; the node's ``agent_version`` is its greeting's software version."""
    info = registered.info
    with fitting(f"the registration of node {info.node_id}"):
        return pb.Register(
            hello=common_pb2.Hello(protocol_version=PROTOCOL_VERSION, software_version=info.agent_version),
            node_id=info.node_id,
            incarnation=info.incarnation,
            gpu_type=info.gpu_type,
            devices=[device_to_proto(device) for device in info.devices],
            address=info.address,
            port_low=info.port_low,
            port_high=info.port_high,
            zone=info.zone,
            region=info.region,
            labels=info.labels,
            memory_bytes=info.memory_bytes,
            visible_places=info.visible_places,
            problem=info.problem,
            agent_now_s=agent_now_s,
            held=[_held_to_proto(held) for held in registered.held],
            ended=[attempt_ended_to_proto(ended.attempt_id, ended.end) for ended in registered.ended],
            notice=_notice_to_proto(registered.notice),
        )


def register_from_proto(message: pb.Register, *, now_s: float) -> NodeRegistered:
    """Return the registration of a message; ``now_s`` is the reader's clock, for the skew that is shown.

    Raises:
        UserError: A field is missing or an enum unspecified.
    """
    for field in ("node_id", "incarnation", "gpu_type", "address"):
        if not getattr(message, field):
            raise UserError(f"field register.{field} is empty", details={"field": field})
    info = NodeInfo(
        node_id=NodeId(message.node_id),
        incarnation=message.incarnation,
        gpu_type=message.gpu_type,
        devices=tuple(device_from_proto(device) for device in message.devices),
        address=message.address,
        port_low=message.port_low,
        port_high=message.port_high,
        zone=message.zone,
        region=message.region,
        labels=dict(message.labels),
        memory_bytes=message.memory_bytes,
        agent_version=message.hello.software_version,
        visible_places=dict(message.visible_places),
        problem=optional(message, "problem"),
        clock_skew_s=message.agent_now_s - now_s,
    )
    return NodeRegistered(
        info=info,
        held=tuple(_held_from_proto(item) for item in message.held),
        ended=tuple(_ended_from_proto(item, info.node_id) for item in message.ended),
        notice=sub(message.notice, message.HasField("notice"), _notice_from_proto),
    )


def _ended_from_proto(message: pb.AttemptEnded, node_id: NodeId) -> EndedAttempt:
    event = attempt_ended_from_proto(message, node_id)
    return EndedAttempt(attempt_id=event.attempt_id, end=event.end)


def verdict_to_proto(answer: AnswerRegistration, *, heartbeat_interval_s: float, node_grace_s: float) -> pb.Verdict:
    """Return the engine's answer to a registration as a message, with the times the agent has to keep."""
    return pb.Verdict(
        keep_attempt_ids=answer.keep,
        kill_attempt_ids=answer.kill,
        heartbeat_interval_s=heartbeat_interval_s,
        node_grace_s=node_grace_s,
    )


def verdict_from_proto(message: pb.Verdict) -> Verdict:
    """Return the verdict of a message."""
    return Verdict(
        keep=tuple(AttemptId(attempt_id) for attempt_id in message.keep_attempt_ids),
        kill=tuple(AttemptId(attempt_id) for attempt_id in message.kill_attempt_ids),
        heartbeat_interval_s=message.heartbeat_interval_s,
        node_grace_s=message.node_grace_s,
    )


def launch_to_proto(launch: Launch, transition: AttemptTransition = AttemptTransition.START) -> pb.Launch:
    """Return one node's share of an attempt as a message."""
    with fitting(f"the launch of attempt {launch.attempt_id}"):
        return pb.Launch(
            attempt_id=launch.attempt_id,
            job_id=launch.job_id,
            epoch=launch.epoch,
            spec=spec_to_proto(launch.spec),
            plan=plan_to_proto(launch.plan) if launch.plan else None,
            node_ranks=launch.node_ranks,
            node_index=launch.node_index,
            node_count=launch.node_count,
            world_size=launch.world_size,
            device_ids=launch.device_ids,
            gpu_type=launch.gpu_type,
            master_addr=launch.master_addr,
            master_port=launch.master_port,
            checkpoint_dir=launch.checkpoint_dir,
            output_dir=launch.output_dir,
            transition=enums.ATTEMPT_TRANSITION.to_proto(transition),
            time_left_s=launch.time_left_s,
            durable_step=launch.durable_step,
        )


def launch_from_proto(message: pb.Launch) -> Launch:
    """Return the launch of a message."""
    return Launch(
        attempt_id=AttemptId(message.attempt_id),
        job_id=JobId(message.job_id),
        epoch=message.epoch,
        spec=spec_from_proto(message.spec),
        plan=sub(message.plan, message.HasField("plan"), plan_from_proto),
        node_ranks=tuple(message.node_ranks),
        node_index=message.node_index,
        node_count=message.node_count,
        world_size=message.world_size,
        device_ids=tuple(DeviceId(device_id) for device_id in message.device_ids),
        gpu_type=message.gpu_type,
        master_addr=message.master_addr,
        master_port=message.master_port,
        checkpoint_dir=message.checkpoint_dir,
        output_dir=message.output_dir,
        time_left_s=optional(message, "time_left_s"),
        durable_step=message.durable_step,
    )


def launch_transition_from_proto(message: pb.Launch) -> AttemptTransition:
    """Return how the launched attempt comes from the one before it."""
    return enums.ATTEMPT_TRANSITION.from_proto(message.transition, "launch.transition")


def stop_attempt_to_proto(command: StopAttempt) -> pb.StopAttempt:
    """Return a stop command as a message."""
    return pb.StopAttempt(
        attempt_id=command.attempt_id, mode=enums.STOP_MODE.to_proto(command.mode), grace_s=command.grace_s
    )


def stop_attempt_from_proto(message: pb.StopAttempt, node_id: NodeId) -> StopAttempt:
    """Return the stop command of a message."""
    return StopAttempt(
        node_id=node_id,
        attempt_id=AttemptId(message.attempt_id),
        mode=enums.STOP_MODE.from_proto(message.mode, "stop_attempt.mode"),
        grace_s=message.grace_s,
    )


def acknowledge_end_to_proto(command: AcknowledgeEnd) -> pb.AcknowledgeEnd:
    """Return the acknowledgement of an end as a message."""
    return pb.AcknowledgeEnd(attempt_id=command.attempt_id)


def acknowledge_end_from_proto(message: pb.AcknowledgeEnd, node_id: NodeId) -> AcknowledgeEnd:
    """Return the acknowledgement of a message."""
    return AcknowledgeEnd(node_id=node_id, attempt_id=AttemptId(message.attempt_id))


def attempt_started_to_proto(event: AttemptStarted) -> pb.AttemptStarted:
    """Return the word that all local ranks are up as a message."""
    return pb.AttemptStarted(attempt_id=event.attempt_id)


def attempt_started_from_proto(message: pb.AttemptStarted, node_id: NodeId) -> AttemptStarted:
    """Return the event of a message."""
    return AttemptStarted(node_id=node_id, attempt_id=AttemptId(message.attempt_id))


def worker_report_to_proto(event: WorkerReported) -> pb.WorkerReport:
    """Return a worker's report as a message."""
    return pb.WorkerReport(attempt_id=event.attempt_id, report_json=REPORT_JSON.dump_json(event.report).decode())


def worker_report_from_proto(message: pb.WorkerReport, node_id: NodeId) -> WorkerReported:
    """Return the worker's report of a message.

    Raises:
        UserError: The JSON is no report.
    """
    try:
        report = REPORT_JSON.validate_json(message.report_json)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise UserError(
            f"the report of attempt {message.attempt_id} cannot be read",
            why=f"{'.'.join(map(str, problem['loc'])) or 'report'}: {problem['msg']}",
        ) from error
    return WorkerReported(node_id=node_id, attempt_id=AttemptId(message.attempt_id), report=report)


def attempt_ended_to_proto(attempt_id: AttemptId, end: NodeEnd) -> pb.AttemptEnded:
    """Return the verified end of a node's share as a message."""
    return pb.AttemptEnded(attempt_id=attempt_id, end=node_end_to_proto(end))


def attempt_ended_from_proto(message: pb.AttemptEnded, node_id: NodeId) -> AttemptEnded:
    """Return the end of a message.

    Raises:
        UserError: The end names another node than the session's.
    """
    end = node_end_from_proto(message.end)
    if end.node_id != node_id:
        raise UserError(
            f"the end of attempt {message.attempt_id} names node {end.node_id!r}", why=f"node {node_id!r} sent it"
        )
    return AttemptEnded(node_id=node_id, attempt_id=AttemptId(message.attempt_id), end=end)


def devices_changed_to_proto(event: DevicesChanged) -> pb.DevicesChanged:
    """Return a node's new device states as a message."""
    return pb.DevicesChanged(devices=[device_to_proto(device) for device in event.devices], problem=event.problem)


def devices_changed_from_proto(message: pb.DevicesChanged, node_id: NodeId) -> DevicesChanged:
    """Return the event of a message."""
    return DevicesChanged(
        node_id=node_id,
        devices=tuple(device_from_proto(device) for device in message.devices),
        problem=optional(message, "problem"),
    )


def notice_changed_to_proto(event: NodeNoticeChanged) -> pb.NoticeChanged:
    """Return what a node says of its being taken away as a message."""
    return pb.NoticeChanged(notice=_notice_to_proto(event.notice))


def notice_changed_from_proto(message: pb.NoticeChanged, node_id: NodeId) -> NodeNoticeChanged:
    """Return the event of a message.

    Raises:
        UserError: The time is no time.
    """
    notice = sub(message.notice, message.HasField("notice"), _notice_from_proto)
    return NodeNoticeChanged(node_id=node_id, notice=notice)


def _held_to_proto(held: HeldAttempt) -> pb.HeldAttempt:
    return pb.HeldAttempt(attempt_id=held.attempt_id, started=held.started, left_for=held.left_for)


def _held_from_proto(message: pb.HeldAttempt) -> HeldAttempt:
    return HeldAttempt(attempt_id=AttemptId(message.attempt_id), started=message.started, left_for=message.left_for)


def _notice_to_proto(notice: ReclaimNotice | None) -> pb.ReclaimNotice | None:
    if notice is None:
        return None
    return pb.ReclaimNotice(within_s=notice.within_s, why=notice.why, notice_id=notice.notice_id)


def _notice_from_proto(message: pb.ReclaimNotice) -> ReclaimNotice:
    within_s = seconds_from_proto(message.within_s, "notice.within_s")
    return ReclaimNotice(within_s=within_s, why=message.why, notice_id=message.notice_id)
