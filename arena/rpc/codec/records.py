"""Jobs, attempts, nodes, history and status to proto and back, as views. Pure: no I/O, no clock."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from arena.domain.cluster import Device
from arena.domain.job import JobId
from arena.domain.launch import AttemptId, DeviceId, NodeId
from arena.domain.records import (
    AttemptRecord,
    Drain,
    EntryKind,
    Evaluation,
    HistoryEntry,
    JobRecord,
    NodeEnd,
    NodeRecord,
    Progress,
    Wish,
)
from arena.errors import UserError
from arena.rpc.codec import enums
from arena.rpc.codec.fields import optional, sub, word
from arena.rpc.codec.plans import (
    allocation_from_proto,
    allocation_to_proto,
    estimate_from_proto,
    estimate_to_proto,
    group_from_proto,
    group_to_proto,
    plan_from_proto,
    plan_to_proto,
    reason_from_proto,
    reason_to_proto,
    target_from_proto,
    target_to_proto,
)
from arena.rpc.codec.specs import spec_from_proto, spec_to_proto
from arena.rpc.v1 import admin_service_pb2
from arena.rpc.v1 import common_pb2 as pb
from arena.rpc.views import AttemptView, DeviceView, JobView, NodeView, attempt_view, job_view, node_view


def progress_to_proto(progress: Progress) -> pb.Progress:
    """Return a job's progress as a message."""
    return pb.Progress(
        step=progress.step,
        loss=progress.loss,
        step_time_s=progress.step_time_s,
        tokens_per_s=progress.tokens_per_s,
        durable_step=progress.durable_step,
        durable_at_s=progress.durable_at_s,
        reported_at_s=progress.reported_at_s,
        lost_steps=progress.lost_steps,
        stalled_since_s=progress.stalled_since_s,
        evaluation=_evaluation_to_proto(progress.evaluation) if progress.evaluation else None,
    )


def progress_from_proto(message: pb.Progress) -> Progress:
    """Return the progress of a message."""
    return Progress(
        step=message.step,
        loss=optional(message, "loss"),
        step_time_s=optional(message, "step_time_s"),
        tokens_per_s=optional(message, "tokens_per_s"),
        durable_step=message.durable_step,
        durable_at_s=optional(message, "durable_at_s"),
        reported_at_s=optional(message, "reported_at_s"),
        lost_steps=message.lost_steps,
        stalled_since_s=optional(message, "stalled_since_s"),
        evaluation=sub(message.evaluation, message.HasField("evaluation"), _evaluation_from_proto),
    )


def _evaluation_to_proto(evaluation: Evaluation) -> pb.Evaluation:
    return pb.Evaluation(
        step=evaluation.step,
        loss=evaluation.loss,
        accuracy=evaluation.accuracy,
        sample_count=evaluation.sample_count,
        evaluate_s=evaluation.evaluate_s,
        at_s=evaluation.at_s,
    )


def _evaluation_from_proto(message: pb.Evaluation) -> Evaluation:
    return Evaluation(
        step=message.step,
        loss=optional(message, "loss"),
        accuracy=optional(message, "accuracy"),
        sample_count=message.sample_count,
        evaluate_s=message.evaluate_s,
        at_s=message.at_s,
    )


def job_to_proto(record: JobRecord, attempt: AttemptRecord | None, *, private: bool, with_spec: bool = True) -> pb.Job:
    """Return a job with its live attempt as a message; see ``arena.rpc.views.job_view``."""
    return job_view_to_proto(job_view(record, attempt, private=private, with_spec=with_spec))


def job_view_to_proto(view: JobView) -> pb.Job:
    """Return a job's view as a message."""
    return pb.Job(
        job_id=view.job_id,
        name=view.name,
        user=view.user,
        project=view.project,
        priority=view.priority,
        kind=enums.JOB_KIND.to_proto(view.kind),
        state=enums.JOB_STATE.to_proto(view.state),
        wish=view.wish.value,
        epoch=view.epoch,
        attempt_id=view.attempt_id,
        group=group_to_proto(view.group) if view.group else None,
        plan=plan_to_proto(view.plan) if view.plan else None,
        allocation=allocation_to_proto(view.allocation) if view.allocation else None,
        target=target_to_proto(view.target) if view.target else None,
        reasons=[reason_to_proto(reason) for reason in view.reasons],
        evaluated_at_s=view.evaluated_at_s,
        progress=progress_to_proto(view.progress),
        launch_failure_count=view.launch_failure_count,
        restart_count=view.restart_count,
        preemption_count=view.preemption_count,
        reconfiguration_count=view.reconfiguration_count,
        submitted_at_s=view.submitted_at_s,
        first_started_at_s=view.first_started_at_s,
        changed_at_s=view.changed_at_s,
        ended_at_s=view.ended_at_s,
        run_time_s=view.run_time_s,
        gpu_seconds=view.gpu_seconds,
        not_before_s=view.not_before_s,
        step_limit=view.step_limit,
        spec=spec_to_proto(view.spec) if view.spec else None,
        result=view.result,
        error=view.error,
        deadline_at_s=view.deadline_at_s,
        is_deadline_promised=view.is_deadline_promised,
        is_promise_broken=view.is_promise_broken,
        budget_usd=view.budget_usd,
        spent_usd=view.spent_usd,
        deadline_cause=reason_to_proto(view.deadline_cause) if view.deadline_cause else None,
        deadline_earliest_at_s=view.deadline_earliest_at_s,
    )


def job_from_proto(message: pb.Job) -> JobView:
    """Return the job of a message as far as the reader was shown it."""
    attempt_id = optional(message, "attempt_id")
    return JobView(
        job_id=JobId(message.job_id),
        name=message.name,
        user=message.user,
        project=message.project,
        priority=message.priority,
        kind=enums.JOB_KIND.from_proto(message.kind, "job.kind"),
        state=enums.JOB_STATE.from_proto(message.state, "job.state"),
        wish=word(message.wish, Wish, "job.wish"),
        epoch=message.epoch,
        attempt_id=None if attempt_id is None else AttemptId(attempt_id),
        group=sub(message.group, message.HasField("group"), group_from_proto),
        plan=sub(message.plan, message.HasField("plan"), plan_from_proto),
        allocation=sub(message.allocation, message.HasField("allocation"), allocation_from_proto),
        target=sub(message.target, message.HasField("target"), target_from_proto),
        reasons=tuple(reason_from_proto(reason) for reason in message.reasons),
        evaluated_at_s=optional(message, "evaluated_at_s"),
        progress=progress_from_proto(message.progress),
        launch_failure_count=message.launch_failure_count,
        restart_count=message.restart_count,
        preemption_count=message.preemption_count,
        reconfiguration_count=message.reconfiguration_count,
        submitted_at_s=message.submitted_at_s,
        first_started_at_s=optional(message, "first_started_at_s"),
        changed_at_s=message.changed_at_s,
        ended_at_s=optional(message, "ended_at_s"),
        run_time_s=message.run_time_s,
        gpu_seconds=message.gpu_seconds,
        not_before_s=message.not_before_s,
        step_limit=optional(message, "step_limit"),
        spec=sub(message.spec, message.HasField("spec"), spec_from_proto),
        result=message.result,
        error=message.error,
        deadline_at_s=optional(message, "deadline_at_s"),
        is_deadline_promised=message.is_deadline_promised,
        is_promise_broken=message.is_promise_broken,
        budget_usd=optional(message, "budget_usd"),
        spent_usd=message.spent_usd,
        deadline_cause=sub(message.deadline_cause, message.HasField("deadline_cause"), reason_from_proto),
        deadline_earliest_at_s=optional(message, "deadline_earliest_at_s"),
    )


def node_end_to_proto(end: NodeEnd) -> pb.NodeEnd:
    """Return the verified end of one node's share as a message."""
    return pb.NodeEnd(
        node_id=end.node_id,
        kind=enums.END_KIND.to_proto(end.kind),
        exit_codes=end.exit_codes,
        error_code=end.error_code,
        message=end.message,
        log_tail=end.log_tail,
        dirty={str(device_id): why for device_id, why in end.dirty.items()},
        left_for=end.left_for,
    )


def node_end_from_proto(message: pb.NodeEnd) -> NodeEnd:
    """Return the node end of a message."""
    return NodeEnd(
        node_id=NodeId(message.node_id),
        kind=enums.END_KIND.from_proto(message.kind, "end.kind"),
        exit_codes=dict(message.exit_codes),
        error_code=message.error_code,
        message=message.message,
        log_tail=message.log_tail,
        dirty={DeviceId(device_id): why for device_id, why in message.dirty.items()},
        left_for=message.left_for,
    )


def attempt_to_proto(record: AttemptRecord, *, private: bool) -> pb.Attempt:
    """Return an attempt as a message; see ``arena.rpc.views.attempt_view``."""
    return attempt_view_to_proto(attempt_view(record, private=private))


def attempt_view_to_proto(view: AttemptView) -> pb.Attempt:
    """Return an attempt's view as a message."""
    return pb.Attempt(
        attempt_id=view.attempt_id,
        job_id=view.job_id,
        epoch=view.epoch,
        state=enums.ATTEMPT_STATE.to_proto(view.state),
        transition=enums.ATTEMPT_TRANSITION.to_proto(view.transition),
        plan=plan_to_proto(view.plan) if view.plan else None,
        group=group_to_proto(view.group),
        estimate=estimate_to_proto(view.estimate) if view.estimate else None,
        allocation=allocation_to_proto(view.allocation),
        cause=reason_to_proto(view.cause),
        decision_index=view.decision_index,
        decided_at_s=view.decided_at_s,
        launched_at_s=view.launched_at_s,
        started_at_s=view.started_at_s,
        ready_at_s=view.ready_at_s,
        first_step_at_s=view.first_step_at_s,
        stop_requested_at_s=view.stop_requested_at_s,
        stop_mode=view.stop_mode,
        stop_cause=reason_to_proto(view.stop_cause) if view.stop_cause else None,
        stopped_at_s=view.stopped_at_s,
        ended_at_s=view.ended_at_s,
        resumed_step=view.resumed_step,
        last_step=view.last_step,
        durable_step=view.durable_step,
        rendezvous_s=view.rendezvous_s,
        load_s=view.load_s,
        save_s=view.save_s,
        outcome=enums.END_KIND.to_proto(view.outcome) if view.outcome else pb.END_KIND_UNSPECIFIED,
        ends=[node_end_to_proto(end) for end in view.ends],
        error=view.error,
    )


def attempt_from_proto(message: pb.Attempt) -> AttemptView:
    """Return the attempt of a message as far as the reader was shown it."""
    return AttemptView(
        attempt_id=AttemptId(message.attempt_id),
        job_id=JobId(message.job_id),
        epoch=message.epoch,
        state=enums.ATTEMPT_STATE.from_proto(message.state, "attempt.state"),
        transition=enums.ATTEMPT_TRANSITION.from_proto(message.transition, "attempt.transition"),
        plan=sub(message.plan, message.HasField("plan"), plan_from_proto),
        group=group_from_proto(message.group),
        estimate=sub(message.estimate, message.HasField("estimate"), estimate_from_proto),
        allocation=allocation_from_proto(message.allocation),
        cause=reason_from_proto(message.cause),
        decision_index=message.decision_index,
        decided_at_s=message.decided_at_s,
        launched_at_s=message.launched_at_s,
        started_at_s=optional(message, "started_at_s"),
        ready_at_s=optional(message, "ready_at_s"),
        first_step_at_s=optional(message, "first_step_at_s"),
        stop_requested_at_s=optional(message, "stop_requested_at_s"),
        stop_mode=message.stop_mode,
        stop_cause=sub(message.stop_cause, message.HasField("stop_cause"), reason_from_proto),
        stopped_at_s=optional(message, "stopped_at_s"),
        ended_at_s=optional(message, "ended_at_s"),
        resumed_step=optional(message, "resumed_step"),
        last_step=message.last_step,
        durable_step=message.durable_step,
        rendezvous_s=optional(message, "rendezvous_s"),
        load_s=optional(message, "load_s"),
        save_s=optional(message, "save_s"),
        outcome=enums.END_KIND.from_proto(message.outcome, "attempt.outcome") if message.outcome else None,
        ends=tuple(node_end_from_proto(end) for end in message.ends),
        error=message.error,
    )


def device_to_proto(device: Device, attempt_id: AttemptId | None = None) -> pb.Device:
    """Return a device as a message, with the live attempt that holds it."""
    return pb.Device(device_id=device.device_id, index=device.index, dirty=device.dirty, attempt_id=attempt_id)


def device_from_proto(message: pb.Device) -> Device:
    """Return the device of a message."""
    return Device(device_id=DeviceId(message.device_id), index=message.index, dirty=optional(message, "dirty"))


def _device_view_from_proto(message: pb.Device) -> DeviceView:
    attempt_id = AttemptId(message.attempt_id) if message.HasField("attempt_id") else None
    return DeviceView(device=device_from_proto(message), attempt_id=attempt_id)


def node_to_proto(record: NodeRecord, attempt_id_by_device: Mapping[DeviceId, AttemptId]) -> admin_service_pb2.Node:
    """Return a node as a message; see ``arena.rpc.views.node_view``."""
    return node_view_to_proto(node_view(record, attempt_id_by_device))


def node_view_to_proto(view: NodeView) -> admin_service_pb2.Node:
    """Return a node's view as a message."""
    return admin_service_pb2.Node(
        node_id=view.node_id,
        state=enums.NODE_STATE.to_proto(view.state),
        state_cause=view.state_cause,
        gpu_type=view.gpu_type,
        zone=view.zone,
        region=view.region,
        devices=[device_to_proto(item.device, item.attempt_id) for item in view.devices],
        address=view.address,
        memory_bytes=view.memory_bytes,
        agent_version=view.agent_version,
        connected=view.connected,
        drain_by=view.drain.by if view.drain else None,
        drain_at_s=view.drain.at_s if view.drain else None,
        drain_why=view.drain.why if view.drain else None,
        drain_until_s=view.drain.until_s if view.drain else None,
        attempt_ids=view.attempt_ids,
        clock_skew_s=view.clock_skew_s,
        labels=view.labels,
        disconnected_at_s=view.disconnected_at_s,
        launch_failure_count=view.launch_failure_count,
    )


def node_from_proto(message: admin_service_pb2.Node) -> NodeView:
    """Return the node of a message."""
    drain = None
    if message.HasField("drain_by"):
        until_s = optional(message, "drain_until_s")
        drain = Drain(by=message.drain_by, at_s=message.drain_at_s, why=message.drain_why, until_s=until_s)
    return NodeView(
        node_id=NodeId(message.node_id),
        state=enums.NODE_STATE.from_proto(message.state, "node.state"),
        state_cause=message.state_cause,
        gpu_type=message.gpu_type,
        zone=message.zone,
        region=message.region,
        devices=tuple(_device_view_from_proto(device) for device in message.devices),
        address=message.address,
        memory_bytes=message.memory_bytes,
        agent_version=message.agent_version,
        drain=drain,
        attempt_ids=tuple(AttemptId(attempt_id) for attempt_id in message.attempt_ids),
        clock_skew_s=message.clock_skew_s,
        labels=dict(message.labels),
        disconnected_at_s=optional(message, "disconnected_at_s"),
        launch_failure_count=message.launch_failure_count,
    )


def entry_to_proto(entry: HistoryEntry) -> pb.HistoryEntry:
    """Return a history entry as a message."""
    return pb.HistoryEntry(
        index=entry.index,
        at_s=entry.at_s,
        kind=entry.kind.value,
        message=entry.message,
        job_id=entry.job_id,
        attempt_id=entry.attempt_id,
        node_id=entry.node_id,
        data_json=json.dumps(_finite(entry.data), sort_keys=True, allow_nan=False),
    )


def entry_from_proto(message: pb.HistoryEntry) -> HistoryEntry:
    """Return the history entry of a message.

    Raises:
        UserError: Its kind is unknown here, or its facts are no JSON object.
    """
    try:
        data = json.loads(message.data_json or "{}")
    except ValueError as error:
        raise UserError("field entry.data_json is no JSON", why=str(error)) from error
    if not isinstance(data, dict):
        raise UserError("field entry.data_json is no JSON object", why=f"got {type(data).__name__}")
    return HistoryEntry(
        index=message.index,
        at_s=message.at_s,
        kind=word(message.kind, EntryKind, "entry.kind"),
        message=message.message,
        job_id=optional(message, "job_id"),
        attempt_id=optional(message, "attempt_id"),
        node_id=optional(message, "node_id"),
        data=data,
    )


def _finite(value: object) -> object:
    """Return JSON-ready facts: a loss that is not a number becomes null, since JSON has no word for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
