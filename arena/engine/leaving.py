"""Nodes that are to be empty by an instant: what runs there is saved and goes on elsewhere. Pure: no I/O, no clock.

Why jobs do not simply stop when their node does: a lost node costs each of them the steps since its last checkpoint,
and the wait until the node is given up.
"""

from __future__ import annotations

import math

from arena.domain.launch import NodeId
from arena.domain.leaving import last_leave_at_s, leave_at_s
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import AttemptRecord, AttemptState, EntryKind, JobRecord, JobState, NodeRecord
from arena.domain.replacing import replace
from arena.engine.attempts import stop_attempt
from arena.engine.draft import Draft
from arena.engine.node_state import LENDER, attempts_on, cause_of
from arena.engine.outcome import looking_back

_ENDS_ITSELF = frozenset({AttemptState.FINISHING, AttemptState.STOPPING})


def set_out(draft: Draft, node_id: NodeId) -> None:
    """Have what runs on a node leave in time, by what is known of its nodes now; or stay, if the word was withdrawn."""
    for name in attempts_on(draft, draft.state.nodes[node_id]):
        look_at(draft, draft.state.attempts[name])


def look_at(draft: Draft, attempt: AttemptRecord) -> None:
    """Have an attempt leave if it is time, else note when it will be."""
    node = _first_to_go(draft, attempt)
    at_s = None if node is None else _leave_at_s(draft, attempt, node)
    if node is not None and at_s is not None and draft.now_s >= at_s:
        _leave(draft, attempt, node)
    elif at_s != attempt.leave_at_s:
        is_withdrawn = at_s is None and attempt.has_till_its_node_goes
        asked_at_s = draft.now_s if is_withdrawn else attempt.stop_requested_at_s  # its job's grace begins now
        draft.put_attempt(replace(attempt, leave_at_s=at_s, stop_requested_at_s=asked_at_s))


def _first_to_go(draft: Draft, attempt: AttemptRecord) -> NodeRecord | None:
    """Return the first of an attempt's nodes that is to be empty, None where none is."""
    nodes = [draft.state.nodes[node_id] for node_id in attempt.allocation.node_ids]
    return min((node for node in nodes if node.empty_at_s is not None), key=_by_time, default=None)


def _by_time(node: NodeRecord) -> tuple[float, NodeId]:
    return _span_s(node)[1], node.node_id


def _span_s(node: NodeRecord) -> tuple[float, float]:
    """Return when it was said that a node is to be empty, and when it is to be."""
    leaving = node.leaving
    assert leaving is not None
    assert leaving.until_s is not None
    return leaving.at_s, leaving.until_s


def _leave_at_s(draft: Draft, attempt: AttemptRecord, node: NodeRecord) -> float | None:
    """Return when an attempt leaves a node that is to be empty.

    By the rule of ``arena.domain.leaving``, but that one that will have ended by itself, with half of the time to spare
    or two graces, is left for as long. What is about to end anyway has until the last moment, and what is being killed
    cannot be made to leave sooner.
    """
    job, (said_at_s, until_s) = draft.state.jobs[attempt.job_id], _span_s(node)
    if attempt.state in _ENDS_ITSELF:
        return until_s if attempt.stop_mode != "kill" else None
    last_s = last_leave_at_s(job.spec, said_at_s, until_s)
    if job.spec.keeps_checkpoints and own_end_at_s(attempt, job) <= last_s:
        return last_s
    return leave_at_s(job.spec, until_s, ahead_s=draft.config.leave_ahead_s)


def own_end_at_s(attempt: AttemptRecord, job: JobRecord) -> float:
    """Return when an attempt will have made its job's last step at its present pace, infinity where nobody can tell."""
    steps, progress = job.spec.step_limit, job.progress
    if attempt.first_step_at_s is None or steps is None:
        return math.inf
    if progress.step_time_s is None or progress.reported_at_s is None:
        return math.inf
    return progress.reported_at_s + max(steps - progress.step, 0) * progress.step_time_s


def _leave(draft: Draft, attempt: AttemptRecord, node: NodeRecord) -> None:
    """Have an attempt save and stop, or stop at once where there is nothing to save, or no time."""
    job, cause, (_, until_s) = draft.state.jobs[attempt.job_id], cause_of(node, draft.now_s), _span_s(node)
    if job.state in {JobState.STARTING, JobState.RUNNING}:
        _record_preempted(draft, job, cause)
    is_kill = attempt.first_step_at_s is None or draft.now_s >= until_s
    stop_attempt(draft, replace(attempt, leave_at_s=None if is_kill else until_s), "kill" if is_kill else "save", cause)


def left_by_itself(draft: Draft, attempt: AttemptRecord, node_id: NodeId, why: str) -> None:
    """Take a node's word that its agent had an attempt leave, since there was no scheduler to ask for it."""
    if attempt.state in {AttemptState.STOPPING, AttemptState.ENDED}:
        return  # it was asked as well
    job = draft.state.jobs[attempt.job_id]
    cause = reason(ReasonCode.NODE_RECLAIMED, node=str(node_id), why=why, by=LENDER, left_s=0.0)
    told = f"stopped by its agent, with no scheduler to ask: {looking_back(cause)}"
    if job.state in {JobState.STARTING, JobState.RUNNING}:
        _record_preempted(draft, job, cause, told)
    stop_attempt(draft, attempt, "save", cause, told)


def _record_preempted(draft: Draft, job: JobRecord, cause: Reason, told: str = "") -> None:
    count = job.preemption_count + 1
    draft.put_job(replace(job, state=JobState.PREEMPTING, preemption_count=count, reasons=(cause,)))
    draft.record(
        EntryKind.JOB_PREEMPTED,
        told or str(cause),
        job_id=job.job_id,
        attempt_id=job.attempt_id,
        preemption_count=count,
        by=cause.names.get("by"),
    )
