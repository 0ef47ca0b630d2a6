"""Attempts: launch, reports, stop, end, and what an end means for the job. Pure: no I/O, no clock."""

from __future__ import annotations

from functools import partial
from typing import Literal

from arena.domain.allocation import Allocation
from arena.domain.commands import LaunchAttempt, StopAttempt
from arena.domain.job import CommandSpec
from arena.domain.launch import AttemptId, DeviceId, Launch, NodeId, attempt_id
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import (
    LAUNCHES_KEPT,
    AttemptRecord,
    AttemptState,
    AttemptTransition,
    EndKind,
    EntryKind,
    JobRecord,
    JobState,
    NodeEnd,
    NodeRecord,
    Predecessor,
    Target,
    Wish,
)
from arena.domain.replacing import replace
from arena.engine.draft import Draft
from arena.engine.entries import Entry, entry
from arena.engine.node_state import settle_node
from arena.engine.outcome import conclude_job, drop_target, forgiven
from arena.engine.spending import usd_per_s
from arena.engine.state import next_epoch

NOT_THE_NODES_FAULT = frozenset({"port", "config"})
"""Launch failures that say nothing about the node: a port taken, a job that can never be started."""

SAVES_IN_GRACE = 1.5
"""Times its last save that an attempt is given to save once more and exit."""

PORT_STRIDE_AFTER_CONFLICT = 61
"""Ports skipped after one was taken: a foreign program that holds one often holds its neighbours."""


def try_launch(draft: Draft, job: JobRecord) -> None:
    """Launch a job's target if all its devices are free and reachable and no attempt of it is live.

    A target with a device that is no longer clean is given up: nobody knows when it will be, and the others are kept
    from work until then.
    """
    target = job.target
    if target is None or job.attempt_id is not None or job.wish is not Wish.RUN:
        return
    state = draft.state
    if any(device in state.holders for device in target.allocation.device_ids):
        return
    if any(not state.nodes[node_id].is_usable for node_id in target.allocation.node_ids):
        return
    if target.allocation.device_ids <= _clean_devices(draft, target.allocation.node_ids):
        draft.hold(attempt_id(job.job_id, next_epoch(draft.state, job)), target.allocation.device_ids)
        launch(draft, job, target, evaluated_at_s=job.evaluated_at_s)
    else:
        drop_target(draft, job)
        draft.put_job(replace(job, state=JobState.QUEUED, target=None, reasons=(reason(ReasonCode.NOT_YET_EVALUATED),)))


def _clean_devices(draft: Draft, node_ids: tuple[NodeId, ...]) -> frozenset[DeviceId]:
    return frozenset(
        device.device_id
        for node_id in node_ids
        for device in draft.state.nodes[node_id].info.devices
        if device.dirty is None
    )


def launch(draft: Draft, job: JobRecord, target: Target, *, evaluated_at_s: float | None) -> None:
    """Begin a job's next attempt on devices that it has been given."""
    epoch = next_epoch(draft.state, job)
    first = draft.state.nodes[target.allocation.shares[0].node_id]
    port = _lease_port(draft, first)
    attempt = AttemptRecord(
        attempt_id=attempt_id(job.job_id, epoch),
        job_id=job.job_id,
        epoch=epoch,
        plan=target.plan,
        group=target.group,
        estimate=target.estimate,
        allocation=target.allocation,
        master_addr=first.info.address,
        master_port=port,
        cause=target.cause,
        decision_index=target.decision_index,
        decided_at_s=target.decided_at_s,
        launched_at_s=draft.now_s,
        transition=AttemptTransition.RESTART if job.epoch else AttemptTransition.START,
        predecessor=job.predecessor,
    )
    draft.put_attempt(attempt)
    draft.put_job(
        replace(
            job,
            state=JobState.STARTING,
            epoch=epoch,
            attempt_id=attempt.attempt_id,
            target=None,
            reasons=(target.cause,),
            evaluated_at_s=evaluated_at_s,
            changed_at_s=draft.now_s,
            first_started_at_s=draft.now_s if job.first_started_at_s is None else job.first_started_at_s,
            launched_at_s=(*job.launched_at_s, draft.now_s)[-LAUNCHES_KEPT:],
        )
    )
    ranks = ranks_by_node(attempt.allocation, job.spec.command)
    for index in range(len(ranks)):
        draft.command(_launch_command(draft, attempt, ranks, index))
    draft.record_lazily(partial(_told_of_launch, attempt))


def _told_of_launch(attempt: AttemptRecord) -> Entry:
    group, plan, cause = str(attempt.group), str(attempt.plan) if attempt.plan else None, attempt.cause
    return entry(
        EntryKind.ATTEMPT_LAUNCHED,
        f"launched on {group}: {cause}" if plan is None else f"launched on {group} as {plan}: {cause}",
        job_id=attempt.job_id,
        attempt_id=attempt.attempt_id,
        plan=plan,
        group=group,
        gpu_count=attempt.group.gpu_count,
        nodes=list(attempt.allocation.node_ids),
        cause=cause.code.value,
        waited_s=attempt.launched_at_s - attempt.decided_at_s,
    )


def _lease_port(draft: Draft, node: NodeRecord) -> int:
    low, high = node.info.port_low, node.info.port_high
    port = node.next_port if low <= node.next_port <= high else low
    draft.put_node(replace(node, next_port=port + 1 if port < high else low))
    return port


def launch_command(draft: Draft, attempt: AttemptRecord, node_id: NodeId) -> LaunchAttempt:
    """Return the command that starts one node's share of an attempt."""
    ranks = ranks_by_node(attempt.allocation, draft.state.jobs[attempt.job_id].spec.command)
    return _launch_command(draft, attempt, ranks, attempt.allocation.node_ids.index(node_id))


def _launch_command(draft: Draft, attempt: AttemptRecord, ranks: list[tuple[int, ...]], index: int) -> LaunchAttempt:
    job, config = draft.state.jobs[attempt.job_id], draft.config
    spec, share = job.spec, attempt.allocation.shares[index]
    limit = spec.stop.time_limit_s
    return LaunchAttempt(
        node_id=share.node_id,
        launch=Launch(
            attempt_id=attempt.attempt_id,
            job_id=job.job_id,
            epoch=attempt.epoch,
            spec=spec,
            plan=attempt.plan,
            node_ranks=ranks[index],
            node_index=index,
            node_count=len(ranks),
            world_size=ranks[-1][-1] + 1,
            device_ids=share.device_ids,
            gpu_type=draft.state.nodes[share.node_id].info.gpu_type,
            master_addr=attempt.master_addr,
            master_port=attempt.master_port,
            checkpoint_dir=f"{spec.checkpoint.dir or config.checkpoint_root}/{job.job_id}",
            output_dir=spec.output_dir or f"{config.output_root}/{job.job_id}",
            time_left_s=None if limit is None else max(limit - job.run_time_s, 0.0),
            durable_step=job.progress.durable_step,
        ),
    )


def ranks_by_node(allocation: Allocation, command: CommandSpec | None) -> list[tuple[int, ...]]:
    """Return the global ranks on each node of an allocation, in its order: one for each device, or one in all."""
    ranks: list[tuple[int, ...]] = []
    first = 0
    for share in allocation.shares:
        count = 1 if command is not None and command.processes_per_gpu == 0 else len(share.device_ids)
        ranks.append(tuple(range(first, first + count)))
        first += count
    return ranks


def stop_attempt(
    draft: Draft, attempt: AttemptRecord, mode: Literal["save", "kill"], cause: Reason, told: str = ""
) -> AttemptRecord:
    """Ask every node that still has processes of an attempt to end them; a kill overrides an earlier save.

    Args:
        told: How the history is to say it, if not as usual.

    Returns:
        The attempt as it is now.
    """
    if attempt.state is AttemptState.STOPPING and (mode == "save" or attempt.stop_mode == "kill"):
        return attempt
    first = attempt.state is not AttemptState.STOPPING
    attempt = replace(
        attempt,
        state=AttemptState.STOPPING,
        stop_requested_at_s=draft.now_s,
        stop_mode=mode,
        stop_cause=cause if first else attempt.stop_cause,
    )
    draft.put_attempt(attempt)
    _send_stops(draft, attempt)
    if first:
        draft.record(
            EntryKind.ATTEMPT_STOP_REQUESTED,
            told or f"asked to {'save and stop' if mode == 'save' else 'stop at once'}: {cause}",
            job_id=attempt.job_id,
            attempt_id=attempt.attempt_id,
            mode=mode,
            cause=cause.code.value,
            step=attempt.last_step,
        )
    return attempt


def hasten(draft: Draft, attempt: AttemptRecord, cause: Reason) -> None:
    """Give an attempt that saves for as long as its node is there no more than its job's grace from now on."""
    draft.put_attempt(replace(attempt, stop_requested_at_s=draft.now_s, stop_cause=cause))
    _send_stops(draft, draft.state.attempts[attempt.attempt_id])


def _send_stops(draft: Draft, attempt: AttemptRecord) -> None:
    for node_id in attempt.allocation.node_ids:
        if node_id not in attempt.ended_nodes:
            draft.command(stop_command(draft, attempt, node_id))


def stop_command(draft: Draft, attempt: AttemptRecord, node_id: NodeId) -> StopAttempt:
    """Return the command that ends one node's share the way the attempt is being stopped."""
    job = draft.state.jobs[attempt.job_id]
    return StopAttempt(
        node_id=node_id,
        attempt_id=attempt.attempt_id,
        mode="kill" if attempt.stop_mode == "kill" else "save",
        grace_s=_grace_s(draft, attempt, job),
    )


def _grace_s(draft: Draft, attempt: AttemptRecord, job: JobRecord) -> float:
    """Return how long an attempt has from now on to save and exit: where its node goes, for as long as it is there."""
    if attempt.stop_mode == "kill":
        return 0.0
    instants = [draft.state.nodes[name].empty_at_s for name in attempt.allocation.node_ids]
    until_s = min((at_s for at_s in instants if at_s is not None), default=None)
    grace_s = saving_grace_s(attempt, job)
    left_s = grace_s if until_s is None else max(until_s - draft.now_s, 0.0)
    return left_s if attempt.has_till_its_node_goes else min(grace_s, left_s)


def saving_grace_s(attempt: AttemptRecord, job: JobRecord) -> float:
    """Return how long an attempt has to save and exit: its job's grace, or what its last save took and half as much.

    One that is killed while it saves repeats all steps since its last checkpoint, at every change.
    """
    return max(job.spec.grace_s, SAVES_IN_GRACE * (_last_save_s(attempt) or 0.0))


def _last_save_s(attempt: AttemptRecord) -> float | None:
    """Return how long the last save took, be it of an attempt before."""
    if attempt.save_s is not None or attempt.predecessor is None:
        return attempt.save_s
    return attempt.predecessor.save_s


def mark_started(draft: Draft, node_id: NodeId, attempt_name: AttemptId) -> None:
    """Note that all ranks of a node are up; with the last node the attempt is starting."""
    attempt = draft.state.attempts.get(attempt_name)
    if attempt is None or node_id in attempt.started_nodes or node_id not in attempt.allocation.node_ids:
        return
    started_nodes = (*attempt.started_nodes, node_id)
    node = draft.state.nodes.get(node_id)
    if node is not None and node.launch_failure_count:
        draft.put_node(replace(node, launch_failure_count=0))
    is_up = attempt.state is AttemptState.LAUNCHING and len(started_nodes) == len(attempt.allocation.shares)
    attempt = replace(attempt, started_nodes=started_nodes) if not is_up else _up(draft, attempt, started_nodes)
    draft.put_attempt(attempt)


def _up(draft: Draft, attempt: AttemptRecord, started_nodes: tuple[NodeId, ...]) -> AttemptRecord:
    """Return an attempt whose processes are all up."""
    draft.record_lazily(partial(_told_of_start, attempt, draft.now_s))
    job, state, first_step_at_s = draft.state.jobs[attempt.job_id], AttemptState.STARTING, attempt.first_step_at_s
    if job.spec.command is not None:  # a foreign program has no first step to wait for
        state, first_step_at_s = AttemptState.RUNNING, draft.now_s
        if job.state is JobState.STARTING:
            job = replace(job, state=JobState.RUNNING, changed_at_s=draft.now_s)
        draft.put_job(forgiven(job, nodes=()))  # that its processes are up says little of a program
    return replace(
        attempt,
        started_nodes=started_nodes,
        state=state,
        started_at_s=draft.now_s,
        first_step_at_s=first_step_at_s,
    )


def _told_of_start(attempt: AttemptRecord, now_s: float) -> Entry:
    return entry(
        EntryKind.ATTEMPT_STARTED,
        f"processes are up on {', '.join(attempt.allocation.node_ids)}",
        job_id=attempt.job_id,
        attempt_id=attempt.attempt_id,
        launch_s=now_s - attempt.launched_at_s,
    )


def mark_ended(draft: Draft, attempt_name: AttemptId, end: NodeEnd) -> None:
    """Note that a node's share is verified gone: its devices are free, the others follow, the last one concludes."""
    attempt = draft.state.attempts.get(attempt_name)
    if attempt is None or end.node_id not in attempt.allocation.node_ids:
        return
    if end.node_id in [one.node_id for one in attempt.ends]:
        return
    ends = (*attempt.ends, end)
    first_at_s = draft.now_s if attempt.first_end_at_s is None else attempt.first_end_at_s
    is_over = len(ends) == len(attempt.allocation.shares)
    if not is_over:
        attempt = replace(attempt, ends=ends, first_end_at_s=first_at_s)
        draft.put_attempt(attempt)
    _mark_dirty(draft, end)
    draft.release(attempt, end.node_id)
    if end.kind is EndKind.LAUNCH_FAILED and end.error_code not in NOT_THE_NODES_FAULT:
        _count_launch_failure(draft, end)
    settle_node(draft, end.node_id)
    if not is_over:
        if end.kind not in {EndKind.FINISHED, EndKind.STOPPED}:
            cause = reason(ReasonCode.WORKER_FAILED, error=end.message or f"{end.kind.value} on node {end.node_id}")
            stop_attempt(draft, attempt, "kill", cause)
        return
    _conclude(draft, attempt, ends, first_at_s)


def _mark_dirty(draft: Draft, end: NodeEnd) -> None:
    node = draft.state.nodes.get(end.node_id)
    if node is None or not end.dirty:
        return
    devices = tuple(
        replace(device, dirty=end.dirty.get(device.device_id, device.dirty)) for device in node.info.devices
    )
    draft.put_node(replace(node, info=replace(node.info, devices=devices)))


def _count_launch_failure(draft: Draft, end: NodeEnd) -> None:
    node = draft.state.nodes.get(end.node_id)
    if node is None:
        return
    count = node.launch_failure_count + 1
    until_s = node.quarantined_until_s
    if count >= draft.config.quarantine_after:
        count, until_s = 0, draft.now_s + draft.config.quarantine_s
    draft.put_node(
        replace(node, launch_failure_count=count, quarantined_until_s=until_s, last_launch_error=end.message)
    )


def _conclude(draft: Draft, attempt: AttemptRecord, ends: tuple[NodeEnd, ...], first_end_at_s: float) -> None:
    outcome = _outcome(attempt, ends)
    attempt = replace(
        attempt,
        state=AttemptState.ENDED,
        ends=ends,
        first_end_at_s=first_end_at_s,
        ended_at_s=draft.now_s,
        outcome=outcome,
        error=_error(attempt.error, ends, outcome),
    )
    draft.put_attempt(attempt)
    draft.record_lazily(partial(_told_of_end, attempt, outcome))
    if "port" in [end.error_code for end in ends]:
        _skip_ports(draft, attempt)
    job = _with_service(draft, draft.state.jobs[attempt.job_id], attempt)
    conclude_job(draft, job, attempt, outcome)
    follow_up = draft.state.jobs.get(attempt.job_id)
    if follow_up is not None:
        try_launch(draft, follow_up)


def _told_of_end(attempt: AttemptRecord, outcome: EndKind) -> Entry:
    return entry(
        EntryKind.ATTEMPT_ENDED,
        f"{outcome}: {attempt.error}" if attempt.error else str(outcome),
        job_id=attempt.job_id,
        attempt_id=attempt.attempt_id,
        outcome=str(outcome),
        error=attempt.error or None,
        step=attempt.last_step,
        durable_step=attempt.durable_step,
        log_tail=next((end.log_tail for end in attempt.ends if end.log_tail), None) if attempt.error else None,
    )


def _skip_ports(draft: Draft, attempt: AttemptRecord) -> None:
    node = draft.state.nodes.get(attempt.allocation.node_ids[0])
    if node is not None:
        span = node.info.port_high - node.info.port_low + 1
        offset = (attempt.master_port - node.info.port_low + PORT_STRIDE_AFTER_CONFLICT) % span
        draft.put_node(replace(node, next_port=node.info.port_low + offset))


def _outcome(attempt: AttemptRecord, ends: tuple[NodeEnd, ...]) -> EndKind:
    kinds = {end.kind for end in ends}
    if attempt.finished_report or kinds == {EndKind.FINISHED}:
        return EndKind.FINISHED
    if EndKind.LOST in kinds:
        return EndKind.LOST
    if EndKind.LAUNCH_FAILED in kinds:
        return EndKind.LAUNCH_FAILED
    if EndKind.FAILED in kinds:
        return EndKind.FAILED
    if attempt.stop_mode == "save" and kinds <= {EndKind.STOPPED, EndKind.FINISHED}:
        return EndKind.STOPPED
    return EndKind.KILLED if EndKind.KILLED in kinds else EndKind.STOPPED


def _error(reported: str, ends: tuple[NodeEnd, ...], outcome: EndKind) -> str:
    if outcome is EndKind.FINISHED or outcome is EndKind.STOPPED:
        return ""
    if outcome is EndKind.KILLED and reported:
        return reported  # why it was killed; its nodes only know that they were asked to
    told = [end for end in ends if end.kind is outcome and end.message]
    if not told:
        return reported
    # A node's own word matters more than the kills that followed on the others.
    named = next((end for end in told if end.error_code), told[0])
    return named.message


def _with_service(draft: Draft, job: JobRecord, attempt: AttemptRecord) -> JobRecord:
    now_s = draft.now_s
    started_at_s = attempt.first_step_at_s if attempt.first_step_at_s is not None else now_s
    held_s = now_s - attempt.launched_at_s
    progress = job.progress
    return replace(
        job,
        attempt_id=None,
        progress=progress if progress.stalled_since_s is None else replace(progress, stalled_since_s=None),
        run_time_s=job.run_time_s + now_s - started_at_s,
        gpu_seconds=job.gpu_seconds + held_s * attempt.allocation.gpu_count,
        spent_usd=job.spent_usd + held_s * usd_per_s(attempt.group, draft.config.usd_per_hour),
        predecessor=_predecessor_after(attempt, now_s),
    )


def _predecessor_after(attempt: AttemptRecord, now_s: float) -> Predecessor | None:
    """Return what the job last ran as; an attempt that never made a step leaves what was before it."""
    if attempt.first_step_at_s is None:
        return attempt.predecessor
    return Predecessor(
        attempt_id=attempt.attempt_id,
        plan=attempt.plan,
        group=attempt.group,
        decided_at_s=attempt.decided_at_s,
        stop_requested_at_s=attempt.stop_requested_at_s,
        stopped_at_s=attempt.stopped_at_s,
        ended_at_s=now_s,
        last_step=max(attempt.last_step, attempt.resumed_step or 0),
        save_s=_last_save_s(attempt),
    )
