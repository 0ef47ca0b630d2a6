"""Nodes: registration, silence, loss, drains, devices. Pure: no I/O, no clock."""

from __future__ import annotations

from arena.domain.cluster import NodeInfo, NodeState
from arena.domain.commands import AcknowledgeEnd, AnswerRegistration, BuildGrid, DismissNotice
from arena.domain.events import (
    AttemptEnded,
    DevicesChanged,
    NodeDisconnected,
    NodeDrainChanged,
    NodeNoticeChanged,
    NodeRegistered,
    ReclaimNotice,
)
from arena.domain.launch import AttemptId, NodeId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import (
    AttemptState,
    Drain,
    EndKind,
    JobRecord,
    JobState,
    NodeEnd,
    NodeRecord,
)
from arena.domain.replacing import replace
from arena.engine.attempts import launch_command, mark_ended, mark_started, stop_command, try_launch
from arena.engine.draft import Draft
from arena.engine.leaving import left_by_itself, set_out
from arena.engine.node_state import LENDER, OUT_OF_SIGHT, attempts_on, cause_of, settle_node
from arena.engine.outcome import drop_target
from arena.engine.state import shape_of


def register(draft: Draft, event: NodeRegistered) -> None:
    """Take a node (back) with its full inventory: a verdict over what it holds, then the ends it tells of.

    The verdict is the first command to the node: it listens to nothing before.
    """
    node_id = event.info.node_id
    known = draft.state.nodes.get(node_id)
    started = {item.attempt_id: item.started for item in event.held}
    ended = {item.attempt_id for item in event.ended}
    expected = _live_attempts_on(draft, known) if known is not None else ()
    kill = tuple(sorted(name for name in started if name not in expected))
    keep = tuple(sorted(name for name in started if name not in kill))
    draft.command(AnswerRegistration(node_id=node_id, keep=keep, kill=kill))
    if known is not None and known.notice is not None and event.notice is None and not expected:
        known = replace(known, notice=None)  # nothing ends there that it would explain
    _put_registered(draft, known, event.info, kill)
    for item in event.ended:
        end_on_node(draft, AttemptEnded(node_id=node_id, attempt_id=item.attempt_id, end=item.end))
    for name in expected:
        if name not in ended:
            _reconcile_attempt(draft, name, node_id, started=started.get(name))
    _repeat_stops(draft, keep, node_id)
    # After the ends: what they mean depends on what was known of the node's going. Before what its agent is having
    # leave: a save that it began may take until then.
    _put_notice(draft, draft.state.nodes[node_id], event.notice)
    for held in event.held:
        if held.attempt_id in keep:
            _note_left(draft, held.attempt_id, node_id, held.left_for)
    _leaving_changed(draft, node_id)


def _put_registered(draft: Draft, known: NodeRecord | None, info: NodeInfo, kill: tuple[AttemptId, ...]) -> None:
    base = known or NodeRecord(node_id=info.node_id, info=info, next_port=info.port_low)
    draft.put_node(
        replace(
            base,
            info=_with_devices_in_use(draft, base, info),
            state=NodeState.READY if base.state is NodeState.LOST else base.state,
            state_cause="" if base.state is NodeState.LOST else base.state_cause,
            disconnected_at_s=None,
            registered_at_s=draft.now_s,
            condemned=kill,
        )
    )
    draft.update(places=draft.state.places.set(info.node_id, info.visible_places))
    settle_node(draft, info.node_id)


def _with_devices_in_use(draft: Draft, known: NodeRecord, info: NodeInfo) -> NodeInfo:
    """Return what a node says of itself, with the devices that it no longer lists but that a job has or waits for.

    A driver that fails for a moment hides all devices while jobs go on: forgotten, they could neither be kept nor lost.
    """
    state, listed = draft.state, {device.device_id for device in info.devices}
    hidden = tuple(
        replace(device, dirty=OUT_OF_SIGHT)
        for device in known.info.devices
        if device.device_id not in listed and (device.device_id in state.holders or device.device_id in state.reserved)
    )
    return replace(info, devices=(*info.devices, *hidden)) if hidden else info


def _live_attempts_on(draft: Draft, node: NodeRecord) -> tuple[AttemptId, ...]:
    return tuple(
        name for name in attempts_on(draft, node) if node.node_id not in draft.state.attempts[name].ended_nodes
    )


def _reconcile_attempt(draft: Draft, name: AttemptId, node_id: NodeId, *, started: bool | None) -> None:
    """Bring one attempt that should be on the node in line with what the node says of it.

    Args:
        started: Whether its ranks are up there; None if the node does not have it at all.
    """
    attempt = draft.state.attempts.get(name)
    if attempt is None:
        return
    if started:
        mark_started(draft, node_id, name)
    elif started is None and node_id not in attempt.started_nodes and attempt.state is AttemptState.LAUNCHING:
        draft.command(launch_command(draft, attempt, node_id))  # the launch was lost on its way
    elif started is None:
        message = f"node {node_id} came back without it"
        mark_ended(draft, name, NodeEnd(node_id=node_id, kind=EndKind.LOST, message=message))


def _repeat_stops(draft: Draft, names: tuple[AttemptId, ...], node_id: NodeId) -> None:
    for name in names:
        attempt = draft.state.attempts.get(name)
        if attempt is not None and attempt.state is AttemptState.STOPPING:
            draft.command(stop_command(draft, attempt, node_id))


def end_on_node(draft: Draft, event: AttemptEnded) -> None:
    """Take the end of an attempt on a node: acknowledge it, always, and apply it if it is news."""
    if event.end.kind is not EndKind.FINISHED:
        _note_left(draft, event.attempt_id, event.node_id, event.end.left_for)
    draft.command(AcknowledgeEnd(node_id=event.node_id, attempt_id=event.attempt_id))
    mark_ended(draft, event.attempt_id, event.end)
    node = draft.state.nodes.get(event.node_id)
    if node is not None and event.attempt_id in node.condemned:
        rest = tuple(name for name in node.condemned if name != event.attempt_id)
        draft.put_node(replace(node, condemned=rest))
        settle_node(draft, event.node_id)
    retry_targets(draft, event.node_id)


def _note_left(draft: Draft, name: AttemptId, node_id: NodeId, why: str) -> None:
    attempt = draft.state.attempts.get(name)
    if attempt is not None and why:
        left_by_itself(draft, attempt, node_id, why)


def disconnect(draft: Draft, event: NodeDisconnected) -> None:
    """Note that a node is out of reach; its attempts go on, its grace begins."""
    node = draft.state.nodes.get(event.node_id)
    if node is None or node.info.incarnation != event.incarnation or node.disconnected_at_s is not None:
        return
    draft.put_node(replace(node, disconnected_at_s=draft.now_s))


def lose(draft: Draft, node: NodeRecord) -> None:
    """Give a node up: its shares of attempts are lost, and targets on it are void."""
    cause = f"no word for {draft.config.node_grace_s:.0f} s"
    names = _live_attempts_on(draft, node)
    draft.put_node(replace(node, state=NodeState.LOST, state_cause=cause))
    drop_targets_on(draft, node.node_id, reason(ReasonCode.NODE_LOST, node=str(node.node_id)))
    for name in names:
        end = NodeEnd(node_id=node.node_id, kind=EndKind.LOST, message=f"node {node.node_id} was lost: {cause}")
        mark_ended(draft, name, end)


def change_drain(draft: Draft, event: NodeDrainChanged) -> None:
    """Drain a node (nothing new comes; what runs there runs on, or leaves in time) or take it back."""
    node = draft.state.nodes.get(event.node_id)
    if node is None:
        return
    until_s = None if event.within_s is None else draft.now_s + event.within_s
    drain = Drain(by=event.by, at_s=draft.now_s, why=event.why, until_s=until_s) if event.drain else None
    if not event.drain and node.notice is not None:
        node = _without_notice(draft, node)
    draft.put_node(replace(node, drain=drain, quarantined_until_s=None))
    _leaving_changed(draft, event.node_id)


def _without_notice(draft: Draft, node: NodeRecord) -> NodeRecord:
    """Return a node that is taken back in spite of its lender's word: who does that by hand knows better.

    The word is remembered, since its agent repeats it with every registration; one without a name cannot be told from
    the next, and counts again.
    """
    if node.notice_id:
        draft.command(DismissNotice(node_id=node.node_id, notice_id=node.notice_id))
    return replace(node, notice=None, dismissed_notice_id=node.notice_id)


def change_notice(draft: Draft, event: NodeNoticeChanged) -> None:
    """Take a node's word that it will be taken away, or that it will not."""
    node = draft.state.nodes.get(event.node_id)
    if node is not None and (event.notice is not None or node.notice is not None):
        _put_notice(draft, node, event.notice)
        _leaving_changed(draft, event.node_id)


def _put_notice(draft: Draft, node: NodeRecord, notice: ReclaimNotice | None) -> None:
    """Record what a node says of its going; what runs there follows with ``_leaving_changed``."""
    drain, notice_id = None, node.notice_id
    if notice is not None and notice.notice_id and notice.notice_id == node.dismissed_notice_id:
        draft.command(DismissNotice(node_id=node.node_id, notice_id=notice.notice_id))
    elif notice is not None:
        notice_id = notice.notice_id
        drain = Drain(by=LENDER, at_s=draft.now_s, why=notice.why, until_s=draft.now_s + notice.within_s)
    if (node.notice, drain) != (None, None):
        draft.put_node(replace(node, notice=drain, notice_id=notice_id))


def _leaving_changed(draft: Draft, node_id: NodeId) -> None:
    """Have what a node runs, and what counts on it, follow what is now known of its going."""
    settle_node(draft, node_id)
    node = draft.state.nodes[node_id]
    if node.leaving is not None:
        drop_targets_on(draft, node_id, cause_of(node, draft.now_s))
    set_out(draft, node_id)
    retry_targets(draft, node_id)


def change_devices(draft: Draft, event: DevicesChanged) -> None:
    """Take a node's word on which of its devices are dirty and whether it has a problem."""
    node = draft.state.nodes.get(event.node_id)
    if node is None:
        return
    info = replace(node.info, devices=event.devices, problem=event.problem)
    draft.put_node(replace(node, info=_with_devices_in_use(draft, node, info)))
    settle_node(draft, event.node_id)
    retry_targets(draft, event.node_id)


def _jobs_with_targets_on(draft: Draft, node_id: NodeId) -> list[JobRecord]:
    reserved = draft.state.reserved
    if not reserved:
        return []
    node = draft.state.nodes.get(node_id)
    devices = node.info.devices if node is not None else ()
    found = {reserved[device.device_id] for device in devices if device.device_id in reserved}
    return [draft.state.jobs[job_id] for job_id in sorted(found)]


def retry_targets(draft: Draft, node_id: NodeId) -> None:
    """Launch the targets that waited for devices of a node, if they can go now."""
    for job in _jobs_with_targets_on(draft, node_id):
        try_launch(draft, job)


def drop_targets_on(draft: Draft, node_id: NodeId, cause: Reason) -> None:
    """Give up the targets that count on a node; their jobs go back to where a decision finds them."""
    for job in _jobs_with_targets_on(draft, node_id):
        drop_target(draft, job)
        state = JobState.PREEMPTING if job.state is JobState.RECONFIGURING and job.attempt_id else job.state
        if job.state is JobState.RECONFIGURING and job.attempt_id is None:
            state = JobState.QUEUED
        draft.put_job(replace(job, state=state, target=None, reasons=(cause,)))


def settle_shape(draft: Draft) -> None:
    """Take the present shape and have the grids of all jobs made for it that were made for another."""
    draft.update(shape=shape_of(draft.state.nodes), shape_dirty_at_s=None)
    ask_for_grids(draft)


def ask_for_grids(draft: Draft) -> None:
    """Ask for the grid of every job that has none for the present shape, in order of service."""
    shape = draft.state.shape
    if not shape.pools:
        return
    for job in sorted(draft.state.jobs.values(), key=lambda job: job.queue_key):
        if draft.state.grid_shapes.get(job.job_id) != shape:
            draft.command(BuildGrid(job_id=job.job_id, spec=job.spec, shape=shape))
