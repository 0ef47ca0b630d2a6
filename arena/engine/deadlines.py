"""Deadlines: when each record wants to be looked at again, and what is done then. Pure: no I/O, no clock.

Every deadline is worked out from a record, so after a restart or a rollback they are all found again; what is done at
one checks the record first, so that a late or doubled wake-up does no harm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from arena.domain.cluster import NodeState
from arena.domain.reason import ReasonCode, reason
from arena.domain.records import (
    AttemptRecord,
    AttemptState,
    EntryKind,
    JobRecord,
    JobState,
    NodeRecord,
)
from arena.domain.replacing import replace
from arena.engine.attempts import saving_grace_s, stop_attempt, stop_command
from arena.engine.config import EngineConfig
from arena.engine.draft import Draft
from arena.engine.jobs import hold_spent, tell_broken, wake
from arena.engine.leaving import look_at, own_end_at_s
from arena.engine.node_state import is_in_use, settle_node
from arena.engine.nodes import lose, retry_targets
from arena.engine.spending import saved_from_s, spent_at_s
from arena.units import format_duration

EVALUATIONS_IN_SILENCE = 2.0
"""Times its last evaluation that a job may be silent at least: training stands still meanwhile."""

_STOPPED = frozenset({AttemptState.STOPPING, AttemptState.ENDED})


def stall_timeout_s(job: JobRecord, config: EngineConfig) -> float:
    """Return after how long without a step a job counts as stalled."""
    if job.spec.stall_timeout_s is not None:
        return job.spec.stall_timeout_s
    return max(config.stall_s_min, config.stall_factor * (job.progress.step_time_s or 0.0))


def of_job(job: JobRecord, config: EngineConfig) -> Sequence[float]:
    """Return the instants at which a job wants to be looked at."""
    due_s = _promised_end_s(job) if job.is_deadline_promised else None
    promised = () if due_s is None else (due_s,)
    if job.state is JobState.QUEUED:
        # One that was over when the job was queued again has nothing to wake.
        return (*promised, job.not_before_s) if job.not_before_s > job.changed_at_s else promised
    stalls_at_s = _stalls_at_s(job, config)
    return promised if stalls_at_s is None else (*promised, stalls_at_s)


def _promised_end_s(job: JobRecord) -> float | None:
    """Return by when a job is to have ended that was promised so, and not yet told that it will not."""
    if not job.is_deadline_promised or job.is_promise_broken or job.spec.deadline_s is None or job.state.is_terminal:
        return None
    return job.submitted_at_s + job.spec.deadline_s


def _stalls_at_s(job: JobRecord, config: EngineConfig) -> float | None:
    """Return when a job that shows no further step will count as stalled; None where nobody can tell.

    A training job may take as long for its first step as its ranks may take to meet. Of a program only its user knows
    how long it may be silent, and only once it has told of a step that it tells of any.
    """
    progress = job.progress
    if progress.stalled_since_s is not None or progress.reported_at_s is None or job.attempt_id is None:
        return None
    if not job.launched_at_s or progress.reported_at_s < job.launched_at_s[-1]:
        return None  # it was an attempt before that told
    timeout_s = _silence_s(job, config)
    return None if timeout_s is None else max(progress.reported_at_s, progress.durable_at_s or 0.0) + timeout_s


def _silence_s(job: JobRecord, config: EngineConfig) -> float | None:
    """Return how long a job may be silent in the state it is in."""
    if job.state is JobState.RUNNING:
        is_told = job.spec.keeps_checkpoints or job.spec.stall_timeout_s is not None
        evaluation = job.progress.evaluation
        evaluates_s = 0.0 if evaluation is None else EVALUATIONS_IN_SILENCE * evaluation.evaluate_s
        return max(stall_timeout_s(job, config), evaluates_s) if is_told else None
    if job.state is JobState.STARTING and job.spec.keeps_checkpoints:
        return max(stall_timeout_s(job, config), config.ready_deadline_s)
    return None


def of_attempt(attempt: AttemptRecord, job: JobRecord, config: EngineConfig) -> Sequence[float]:
    """Return the instants at which an attempt wants to be looked at."""
    state = attempt.state
    if state is AttemptState.STOPPING and attempt.stop_requested_at_s is not None:
        grace_s = 0.0 if attempt.stop_mode == "kill" else saving_grace_s(attempt, job)
        late_at_s = attempt.stop_requested_at_s + grace_s + config.stop_margin_s
        if attempt.leave_at_s is None:
            return (late_at_s,)
        return (attempt.leave_at_s,) if attempt.has_till_its_node_goes else (attempt.leave_at_s, late_at_s)
    if state in _STOPPED:
        return ()
    instants = [] if attempt.leave_at_s is None else [attempt.leave_at_s]
    if state is AttemptState.LAUNCHING:
        instants.append(attempt.launched_at_s + config.launch_deadline_s)
    elif state is AttemptState.STARTING and attempt.ready_at_s is None and attempt.started_at_s is not None:
        instants.append(attempt.started_at_s + config.ready_deadline_s)
    if attempt.first_end_at_s is not None and job.spec.keeps_checkpoints:
        instants.append(attempt.first_end_at_s + job.spec.grace_s + config.stop_margin_s)
    limit_at_s = _time_limit_at_s(attempt, job) if attempt.first_step_at_s is not None else None
    if limit_at_s is not None:
        instants.append(limit_at_s)
    if job.spec.budget_usd is None:
        return instants
    budget_ends_at_s = spent_at_s(job, attempt, config.usd_per_hour)
    if budget_ends_at_s is not None:
        # Both: what is expected at the first may have changed by the second.
        instants += [_saved_from_s(attempt, job, config) or budget_ends_at_s, budget_ends_at_s]
    return instants


def _saved_from_s(attempt: AttemptRecord, job: JobRecord, config: EngineConfig) -> float | None:
    """Return when an attempt is to be stopped for its job's budget, None where it never is.

    One that has made no step has nothing to save.
    """
    if attempt.first_step_at_s is None:
        return spent_at_s(job, attempt, config.usd_per_hour)
    ends_at_s, limit_at_s = own_end_at_s(attempt, job), _time_limit_at_s(attempt, job)
    return saved_from_s(
        job, attempt, config.usd_per_hour, min(ends_at_s, math.inf if limit_at_s is None else limit_at_s)
    )


def _time_limit_at_s(attempt: AttemptRecord, job: JobRecord) -> float | None:
    """Return when an attempt is to be stopped for the job's time limit.

    A training job ends itself, with its model exported; it gets its grace on top before it is made to.
    """
    if attempt.first_step_at_s is None:
        return None
    limit = job.spec.stop.time_limit_s
    if limit is None:
        return None
    own_end_s = job.spec.grace_s if job.spec.keeps_checkpoints else 0.0
    return attempt.first_step_at_s + max(limit - job.run_time_s, 0.0) + own_end_s


def of_node(node: NodeRecord, config: EngineConfig) -> Sequence[float]:
    """Return the instants at which a node wants to be looked at."""
    instants = []
    if node.disconnected_at_s is not None and node.state is not NodeState.LOST:
        instants.append(node.disconnected_at_s + config.node_grace_s)
    forgotten_at_s = _forgotten_at_s(node, config)
    if forgotten_at_s is not None:
        instants.append(forgotten_at_s)
    if node.quarantined_until_s is not None:
        instants.append(node.quarantined_until_s)
    return instants


def _forgotten_at_s(node: NodeRecord, config: EngineConfig) -> float | None:
    """Return when a node has been lost for so long that it is forgotten; an admin's drain outlives that."""
    if node.state is not NodeState.LOST or node.drain is not None or config.forget_lost_s is None:
        return None
    return None if node.disconnected_at_s is None else node.disconnected_at_s + config.forget_lost_s


def job_due(draft: Draft, job: JobRecord) -> None:
    """Look at a job: its backoff may be over, its deadline may pass, it may have stalled."""
    due_s = _promised_end_s(job)
    if due_s is not None and draft.now_s >= due_s:
        tell_broken(draft, job, reason(ReasonCode.DEADLINE_PASSED))
        job = draft.state.jobs[job.job_id]
    wake(draft, job)
    stalls_at_s = _stalls_at_s(job, draft.config)
    if stalls_at_s is not None and draft.now_s >= stalls_at_s:
        _stall(draft, job)


def _stall(draft: Draft, job: JobRecord) -> None:
    """Tell that a job shows no further step."""
    last_at_s, timeout_s = job.progress.reported_at_s, _silence_s(job, draft.config)
    assert last_at_s is not None
    assert timeout_s is not None
    since = f"step {job.progress.step}" if job.state is JobState.RUNNING else "its ranks had met"
    cause = reason(ReasonCode.STALLED, timeout_s=timeout_s, since=since)
    progress = replace(job.progress, stalled_since_s=last_at_s)
    draft.put_job(replace(job, progress=progress, reasons=(*job.reasons, cause)))
    draft.record(
        EntryKind.JOB_STALLED,
        f"no step for {draft.now_s - last_at_s:.0f} s after {since}",
        job_id=job.job_id,
        attempt_id=job.attempt_id,
        since_s=last_at_s,
    )
    assert job.attempt_id is not None
    attempt = draft.state.attempts[job.attempt_id]
    if job.spec.retry.on_stall == "restart" and attempt.state is not AttemptState.STOPPING:
        error = str(cause)
        stop_attempt(draft, replace(attempt, error=error), "kill", reason(ReasonCode.WORKER_FAILED, error=error))


def attempt_due(draft: Draft, attempt: AttemptRecord) -> None:
    """Look at an attempt: it may be to leave, late to start or stop, half ended, or out of time or budget."""
    config, now_s = draft.config, draft.now_s
    job = draft.state.jobs[attempt.job_id]
    stop_at_s = _saved_from_s(attempt, job, config) if attempt.first_step_at_s is None else None
    if attempt.leave_at_s is not None and now_s >= attempt.leave_at_s:
        look_at(draft, attempt)
        attempt = draft.state.attempts[attempt.attempt_id]
    if attempt.state is AttemptState.STOPPING:
        _repeat_stop(draft, attempt, job)
    elif stop_at_s is not None and now_s >= stop_at_s:
        hold_spent(draft, job)  # to start costs as much as to run
    elif attempt.state is AttemptState.LAUNCHING and now_s >= attempt.launched_at_s + config.launch_deadline_s:
        _roll_back_launch(draft, attempt)
    elif attempt.state is AttemptState.STARTING and attempt.ready_at_s is None and attempt.started_at_s is not None:
        if now_s >= attempt.started_at_s + config.ready_deadline_s:
            error = f"the ranks did not meet within {config.ready_deadline_s:.0f} s"
            stop_attempt(draft, replace(attempt, error=error), "kill", reason(ReasonCode.WORKER_FAILED, error=error))
    else:
        _overdue(draft, attempt, job)


def _roll_back_launch(draft: Draft, attempt: AttemptRecord) -> None:
    late = [node for node in attempt.allocation.node_ids if node not in attempt.started_nodes]
    error = f"processes did not come up on {', '.join(late)} within {draft.config.launch_deadline_s:.0f} s"
    cause = reason(ReasonCode.WORKER_FAILED, error=error)
    stop_attempt(draft, replace(attempt, error=error), "kill", cause)


def _repeat_stop(draft: Draft, attempt: AttemptRecord, job: JobRecord) -> None:
    asked_at_s = attempt.stop_requested_at_s
    margin_s = draft.config.stop_margin_s
    if asked_at_s is None or (attempt.has_till_its_node_goes and attempt.leave_at_s is not None):
        return
    if attempt.stop_mode == "save" and draft.now_s >= asked_at_s + saving_grace_s(attempt, job) + margin_s:
        stop_attempt(draft, attempt, "kill", reason(ReasonCode.WORKER_FAILED, error="it did not stop in its grace"))
    elif attempt.stop_mode == "kill" and draft.now_s >= asked_at_s + margin_s:
        draft.put_attempt(replace(attempt, stop_requested_at_s=draft.now_s))
        for node_id in attempt.allocation.node_ids:
            if node_id not in attempt.ended_nodes:
                draft.command(stop_command(draft, attempt, node_id))


def _overdue(draft: Draft, attempt: AttemptRecord, job: JobRecord) -> None:
    margin_s = job.spec.grace_s + draft.config.stop_margin_s
    if (
        attempt.first_end_at_s is not None
        and job.spec.keeps_checkpoints
        and draft.now_s >= attempt.first_end_at_s + margin_s
    ):
        error = "some of its nodes ended and others did not"
        stop_attempt(draft, attempt, "kill", reason(ReasonCode.WORKER_FAILED, error=error))
        return
    limit_at_s = _time_limit_at_s(attempt, job)
    if limit_at_s is not None and draft.now_s >= limit_at_s:
        stop_attempt(draft, attempt, "save", reason(ReasonCode.REQUESTED, by="its time limit", limit="time"))
        return
    stop_at_s = _saved_from_s(attempt, job, draft.config)
    if stop_at_s is not None and draft.now_s >= stop_at_s:
        hold_spent(draft, job)


def node_due(draft: Draft, node: NodeRecord) -> None:
    """Look at a node: its grace, its quarantine, or the time that it is remembered may be over."""
    away_s = node.disconnected_at_s
    if away_s is not None and node.state is not NodeState.LOST and draft.now_s >= away_s + draft.config.node_grace_s:
        lose(draft, node)
        return
    forgotten_at_s = _forgotten_at_s(node, draft.config)
    if forgotten_at_s is not None and draft.now_s >= forgotten_at_s and not is_in_use(draft, node):
        draft.forget_node(node, f"no word for {format_duration(draft.config.forget_lost_s or 0.0)}")
        return
    if node.quarantined_until_s is not None and draft.now_s >= node.quarantined_until_s:
        draft.put_node(replace(node, quarantined_until_s=None, failed_starts=()))
        settle_node(draft, node.node_id)
        retry_targets(draft, node.node_id)
