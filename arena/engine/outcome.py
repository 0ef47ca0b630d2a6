"""What the end of an attempt means for its job: done, again, later, held, or failed. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Collection

from arena.domain.launch import NodeId
from arena.domain.leaving import may_be_repeated
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import NODE_GOES, AttemptRecord, EndKind, EntryKind, JobRecord, JobState, Wish
from arena.domain.replacing import replace
from arena.domain.struck import StruckPlan, without
from arena.engine.draft import Draft
from arena.engine.failed_starts import remembered
from arena.engine.node_state import cause_of

NODE_LOSSES_MIN = 3
"""A lost node is not a job's fault: a training job is granted at least so many restarts after one, whatever its budget.

A command is not: its ranks may live on behind a cut network, and nothing fences what a foreign program writes, so only
its user may say (``retry.restarts_max``) that it can be repeated.
"""

_ARENA = "Arena, since a program may not be safe to repeat: release it if it is"
"""Who holds a program whose node went before it had ended."""

DOUBLINGS_MAX = 64
"""Of a wait: more would only overflow."""

_HOPELESS = frozenset({"config", "data"})
"""Worker errors that a repetition cannot mend."""

_OWN_FAULTS = _HOPELESS | {"oom", "checkpoint"}
"""Worker errors that no loss of a node explains."""


def conclude_job(draft: Draft, job: JobRecord, attempt: AttemptRecord, outcome: EndKind) -> None:
    """Move a job on after its attempt has ended everywhere.

    Args:
        job: Its record, already without a live attempt.
        attempt: The ended attempt.
        outcome: What the attempt came to.
    """
    if outcome is EndKind.FINISHED:
        _end(draft, job, JobState.SUCCEEDED, result=job.result or "finished")
    elif job.wish is Wish.CANCEL:
        _end(draft, job, JobState.CANCELLED)
    elif attempt.stop_cause is not None and attempt.stop_cause.names.get("limit") == "time":
        _end_at_time_limit(draft, job)
    elif _was_asked_to_stop(attempt, outcome):
        _after_stop(draft, job, attempt)
    elif _went_with_its_node(draft, job, attempt, outcome):
        _after_reclaim(draft, job, attempt)
    else:
        _after_failure(draft, job, attempt, outcome)


def _end(draft: Draft, job: JobRecord, state: JobState, *, result: str = "", error: str = "") -> None:
    drop_target(draft, job)
    reasons = (reason(ReasonCode.WORKER_FAILED, error=error),) if error else ()
    draft.put_job(
        replace(
            job,
            state=state,
            target=None,
            reasons=reasons,
            evaluated_at_s=draft.now_s,
            changed_at_s=draft.now_s if state is not job.state else job.changed_at_s,
            ended_at_s=draft.now_s,
            result=result,
            error=error,
        )
    )


def _end_at_time_limit(draft: Draft, job: JobRecord) -> None:
    text = f"reached its time limit of {job.spec.stop.time_limit_s:.0f} s"
    if job.spec.keeps_checkpoints:
        _end(draft, job, JobState.SUCCEEDED, result=f"{text} at step {job.progress.durable_step}")
    else:
        _end(draft, job, JobState.FAILED, error=text)


def _was_asked_to_stop(attempt: AttemptRecord, outcome: EndKind) -> bool:
    """Tell whether it ended because somebody wanted it to, killed or not, and not because something had failed."""
    cause = attempt.stop_cause
    is_wanted = cause is not None and cause.code is not ReasonCode.WORKER_FAILED
    return is_wanted and outcome in {EndKind.STOPPED, EndKind.KILLED}


def _may_be_repeated(job: JobRecord, attempt: AttemptRecord) -> bool:
    """Tell whether a job may start anew after its node had to be left: only its user knows that of a program."""
    is_going = attempt.stop_cause is not None and attempt.stop_cause.code in NODE_GOES
    return not is_going or may_be_repeated(job.spec)


def _after_stop(draft: Draft, job: JobRecord, attempt: AttemptRecord) -> None:
    if job.wish is Wish.HOLD:
        drop_target(draft, job)
        draft.put_job(replace(job, state=JobState.HELD, target=None, reasons=_causes(attempt)))
    elif not _may_be_repeated(job, attempt):
        drop_target(draft, job)
        _hold_for_its_user(draft, replace(job, target=None), (*_causes(attempt), reason(ReasonCode.HELD, by=_ARENA)))
    elif job.target is not None:
        draft.put_job(replace(job, state=JobState.RECONFIGURING))
    else:
        draft.put_job(replace(job, state=JobState.QUEUED, reasons=tuple(map(looking_back, _causes(attempt)))))


def looking_back(cause: Reason) -> Reason:
    """Return why a job was stopped as it is told while it waits: how long its node had then says nothing any more."""
    return reason(ReasonCode.NODE_LEFT, **cause.names) if cause.code in NODE_GOES else cause


def _went_with_its_node(draft: Draft, job: JobRecord, attempt: AttemptRecord, outcome: EndKind) -> bool:
    """Tell whether an attempt ended, not as it should, because a node of it went away as had been announced.

    What a foreign program does behind a cut network nothing fences, so only its user may say that it can be repeated.
    """
    if not job.spec.keeps_checkpoints or outcome in {EndKind.STOPPED, EndKind.FINISHED}:
        return False
    announced = {name for name in attempt.allocation.node_ids if draft.state.nodes[name].empty_at_s is not None}
    if any(end.kind is EndKind.LOST and end.node_id in announced for end in attempt.ends):
        return True
    has_fault = any(end.error_code in _OWN_FAULTS for end in attempt.ends)
    return attempt.stop_cause is not None and attempt.stop_cause.code in NODE_GOES and not has_fault


def _after_reclaim(draft: Draft, job: JobRecord, attempt: AttemptRecord) -> None:
    """Queue (or hold) a job again; it costs nothing of its budgets, and it waits for nothing but GPUs."""
    drop_target(draft, job)
    node_ids = [name for name in attempt.allocation.node_ids if draft.state.nodes[name].empty_at_s is not None]
    causes = _causes(attempt) or tuple(cause_of(draft.state.nodes[name], draft.now_s) for name in node_ids[:1])
    state = JobState.HELD if job.wish is Wish.HOLD else JobState.QUEUED
    draft.put_job(replace(job, state=state, target=None, reasons=tuple(map(looking_back, causes))))


def _causes(attempt: AttemptRecord) -> tuple[Reason, ...]:
    return (attempt.stop_cause,) if attempt.stop_cause is not None else ()


def _after_failure(draft: Draft, job: JobRecord, attempt: AttemptRecord, outcome: EndKind) -> None:
    drop_target(draft, job)
    job = replace(job, target=None)
    code = next((end.error_code for end in attempt.ends if end.error_code), "")
    if code == "port":
        job = replace(job, port_failure_count=job.port_failure_count + 1)
        if job.port_failure_count % draft.config.port_failures_max:
            _retry(draft, job, attempt, wait_s=0.0, number=job.port_failure_count, limit=draft.config.port_failures_max)
            return
    if code in _HOPELESS:
        _end(draft, job, JobState.FAILED, error=attempt.error)
    elif any(end.error_code == "oom" for end in attempt.ends) and _is_struck_out(draft, job, attempt):
        pass  # it goes on with another plan
    elif outcome is EndKind.LAUNCH_FAILED:
        _after_launch_failure(draft, remembered(draft, job, attempt, outcome), attempt)
    elif code == "checkpoint":
        error = f"{attempt.error}; release the job once its checkpoints are right"
        _hold_for_its_user(draft, job, (reason(ReasonCode.WORKER_FAILED, error=error),))
    else:
        _after_crash(draft, remembered(draft, job, attempt, outcome), attempt, outcome)


def _is_struck_out(draft: Draft, job: JobRecord, attempt: AttemptRecord) -> bool:
    """Queue a job without the plan that ran out of memory; False where it has no other, or has tried enough.

    It costs no restart of the job's budget: what is repeated is not what failed. A program whose layout is its own may
    need what it needs by chance, and what there is no other way to run may be tried again: both are left to the budget.
    """
    grid = draft.state.grids.get(job.job_id)
    if grid is None or job.spec.command is not None or len(job.struck) >= draft.config.plans_struck_max:
        return False
    memory_bytes = attempt.estimate.memory_bytes if attempt.estimate is not None else 0
    struck = StruckPlan(
        group=attempt.group, plan=attempt.plan, memory_bytes=memory_bytes, error=attempt.error, at_s=draft.now_s
    )
    left = without(grid, (struck,))
    if not (left.cells or left.mixed):
        return False
    draft.update(grids=draft.state.grids.set(job.job_id, left))
    draft.record(
        EntryKind.PLAN_STRUCK,
        str(struck.reason),
        job_id=job.job_id,
        attempt_id=attempt.attempt_id,
        plan=str(attempt.plan) if attempt.plan is not None else None,
        group=str(attempt.group),
        memory_bytes=memory_bytes or None,
        error=attempt.error,
        cells_left=len(left.cells) + len(left.mixed),
    )
    state = JobState.HELD if job.wish is Wish.HOLD else JobState.QUEUED
    job = replace(job, struck=(*job.struck, struck), restart_count=job.restart_count + 1)
    draft.put_job(replace(job, state=state, reasons=(struck.reason,), evaluated_at_s=draft.now_s))
    return True


def _after_launch_failure(draft: Draft, job: JobRecord, attempt: AttemptRecord) -> None:
    count = job.launch_failure_count + 1
    limit = job.spec.retry.launch_failures_max
    job = replace(job, launch_failure_count=count)
    if count >= limit:
        node = next((end.node_id for end in attempt.ends if end.kind is EndKind.LAUNCH_FAILED), "?")
        _end(
            draft,
            job,
            JobState.FAILED,
            error=str(
                reason(ReasonCode.LAUNCH_FAILED, node=str(node), error=attempt.error, tries=count, tries_max=limit)
            ),
        )
    else:
        _retry(draft, job, attempt, wait_s=backoff_s(draft, count), number=count, limit=limit)


def _after_crash(draft: Draft, job: JobRecord, attempt: AttemptRecord, outcome: EndKind) -> None:
    count = job.restarts_since_progress + 1
    limit = job.spec.restarts_max
    if outcome is EndKind.LOST and job.spec.keeps_checkpoints:
        limit = max(limit, NODE_LOSSES_MIN)
    if count > limit:
        suffix = f" (restarted {limit} of {limit} times without progress)" if limit else ""
        _end(draft, job, JobState.FAILED, error=f"{attempt.error or outcome.value}{suffix}")
        return
    job = replace(job, restarts_since_progress=count, restart_count=job.restart_count + 1)
    _retry(draft, job, attempt, wait_s=backoff_s(draft, count), number=count, limit=limit)


def _retry(draft: Draft, job: JobRecord, attempt: AttemptRecord, *, wait_s: float, number: int, limit: int) -> None:
    cause = reason(ReasonCode.BACKOFF, retry=number, retries_max=limit, wait_s=wait_s, error=attempt.error or "?")
    held = job.wish is Wish.HOLD
    draft.put_job(
        replace(
            job,
            state=JobState.HELD if held else JobState.QUEUED,
            not_before_s=draft.now_s + wait_s,
            reasons=(cause,),
            evaluated_at_s=draft.now_s,
        )
    )


def _hold_for_its_user(draft: Draft, job: JobRecord, causes: tuple[Reason, ...]) -> None:
    draft.put_job(replace(job, state=JobState.QUEUED, wish=Wish.HOLD, reasons=causes))
    draft.put_job(replace(draft.state.jobs[job.job_id], state=JobState.HELD))
    told = "; ".join(map(str, causes))
    draft.record(EntryKind.JOB_STATE, f"held: {told}", job_id=job.job_id, after=JobState.HELD.value)


def forgiven(job: JobRecord, nodes: Collection[NodeId] | None = None) -> JobRecord:
    """Return a job that has come to run: of what must not fail too often in a row, nothing has failed so far.

    Args:
        nodes: Where it runs: of these it is forgotten that it failed there. None: of all.
    """
    failed_starts = () if nodes is None else tuple(one for one in job.failed_starts if one.node_id not in nodes)
    if failed_starts != job.failed_starts:
        job = replace(job, failed_starts=failed_starts)
    if not (job.launch_failure_count or job.port_failure_count or job.evaluation_failure_count):
        return job
    return replace(job, launch_failure_count=0, port_failure_count=0, evaluation_failure_count=0)


def backoff_s(draft: Draft, count: int) -> float:
    """Return how long to wait after so many failures in a row: twice as long each time, up to a limit."""
    config = draft.config
    return min(math.ldexp(config.backoff_s, min(count - 1, DOUBLINGS_MAX)), config.backoff_s_max)


def drop_target(draft: Draft, job: JobRecord) -> None:
    """Give up the devices kept for a job's target, if it has one; the caller clears the field."""
    if job.target is not None:
        draft.unreserve(job.target.allocation.node_ids, job.target.allocation.device_ids)
