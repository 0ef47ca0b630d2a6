"""Jobs: submission, the user's wishes, grids. Pure: no I/O, no clock."""

from __future__ import annotations

from functools import partial

from arena.domain.commands import BuildGrid
from arena.domain.events import GridBuilt, GridFailed, JobsCancelled, JobSubmitted, JobWishChanged
from arena.domain.grid import Grid
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import EntryKind, JobRecord, JobState, Wish
from arena.domain.replacing import replace
from arena.domain.struck import without
from arena.engine.attempts import hasten, stop_attempt, try_launch
from arena.engine.draft import Draft
from arena.engine.entries import Entry, entry
from arena.engine.outcome import backoff_s, drop_target, forgiven
from arena.engine.spending import is_spent, spent_usd
from arena.units import format_count


def submit(draft: Draft, event: JobSubmitted) -> bool:
    """Queue a new job and ask for its grid, unless it has come with one; a repeated submission changes nothing.

    Returns:
        Whether it has its grid: one that it has come with, for the present shape. Of nodes that have only just come or
        gone it is too soon to say what a job could have there.
    """
    if event.job_id in draft.state.jobs:
        draft.log_as(replace(event, planned=None))
        return False
    job = JobRecord(
        job_id=event.job_id,
        spec=event.spec,
        user=event.user,
        request_id=event.request_id,
        submitted_at_s=draft.now_s,
        changed_at_s=draft.now_s,
    )
    shape = draft.state.shape
    planned = event.planned if event.planned is not None and event.planned.shape == shape else None
    if planned is not None:
        _keep_grid(draft, job, planned)
    elif event.planned is not None:
        draft.log_as(replace(event, planned=None))
    draft.put_job(job)
    draft.record_lazily(partial(_told_of_submission, event))
    if planned is not None:
        draft.record_lazily(partial(_told_of_grid, planned))
    elif shape.pools:
        draft.command(BuildGrid(job_id=job.job_id, spec=job.spec, shape=shape))
    return planned is not None


def _told_of_submission(event: JobSubmitted) -> Entry:
    return entry(
        EntryKind.JOB_SUBMITTED,
        f"{event.spec.name!r} by {event.user}",
        job_id=event.job_id,
        user=event.user,
        name=event.spec.name,
        kind=event.spec.kind.value,
    )


def change_wish(draft: Draft, event: JobWishChanged) -> None:
    """Hold, release or cancel a job; what is over stays over."""
    job = draft.state.jobs.get(event.job_id)
    if job is None or job.wish is Wish.CANCEL:
        return
    if event.wish == "run" and event.budget_usd is not None:
        job = _with_budget(draft, job, event.budget_usd, event.by)
    if job.wish.value == event.wish:
        return
    match event.wish:
        case "run":
            _release(draft, job)
        case "hold":
            _take_off(draft, replace(job, wish=Wish.HOLD), JobState.HELD, JobState.PREEMPTING, event.by)
        case "cancel":
            _take_off(draft, replace(job, wish=Wish.CANCEL), JobState.CANCELLED, JobState.CANCELLING, event.by)


def cancel_all(draft: Draft, event: JobsCancelled) -> None:
    """Cancel jobs, each as if it alone were; what is over stays over."""
    for job_id in event.job_ids:
        change_wish(draft, JobWishChanged(job_id=job_id, wish="cancel", by=event.by))


def _release(draft: Draft, job: JobRecord) -> None:
    if is_spent(job):
        return  # it would be stopped at once
    state = JobState.QUEUED if job.state is JobState.HELD else job.state
    cause = reason(ReasonCode.NOT_YET_EVALUATED)
    job = replace(forgiven(job), restarts_since_progress=0)
    if job.state is JobState.HELD:
        job = replace(job, launched_at_s=())  # its user has it started again: nobody moved it
    draft.put_job(replace(job, wish=Wish.RUN, state=state, reasons=(cause,)))


def _with_budget(draft: Draft, job: JobRecord, budget_usd: float, by: str) -> JobRecord:
    """Give a job another budget, unless it has cost that much already."""
    live = draft.state.attempts.get(job.attempt_id) if job.attempt_id is not None else None
    if budget_usd <= spent_usd(job, live, draft.config.usd_per_hour, draft.now_s):
        return job
    reasons = tuple(one for one in job.reasons if one.code is not ReasonCode.BUDGET_SPENT)
    job = replace(job, spec=job.spec.model_copy(update={"budget_usd": budget_usd}), reasons=reasons)
    draft.put_job(job)
    if live is not None:
        draft.put_attempt(live)  # it is to be stopped for its budget at another instant
    draft.update(decision_due=True)
    draft.record(
        EntryKind.JOB_BUDGET,
        f"its budget is {budget_usd:.6g} USD now, by {by}",
        job_id=job.job_id,
        attempt_id=job.attempt_id,
        budget_usd=budget_usd,
    )
    return job


def hold_spent(draft: Draft, job: JobRecord) -> None:
    """Hold a job that has used up its budget, saved if it has made a step; one that is about to end is left to it."""
    live = draft.state.attempts.get(job.attempt_id) if job.attempt_id is not None else None
    if live is None or job.state in {JobState.FINISHING, JobState.CANCELLING, JobState.PREEMPTING}:
        return
    spent = spent_usd(job, live, draft.config.usd_per_hour, draft.now_s)
    cause = reason(ReasonCode.BUDGET_SPENT, budget_usd=job.spec.budget_usd or 0.0, spent_usd=spent)
    drop_target(draft, job)
    draft.put_job(replace(job, wish=Wish.HOLD, target=None, state=JobState.PREEMPTING, reasons=(cause,)))
    stop_attempt(draft, live, "kill" if live.first_step_at_s is None else "save", cause)


def tell_broken(draft: Draft, job: JobRecord, why: Reason) -> None:
    """Note once that a deadline that was promised is not kept."""
    if not job.is_deadline_promised or job.is_promise_broken:
        return
    draft.put_job(replace(job, is_promise_broken=True))
    draft.record(
        EntryKind.PROMISE_BROKEN,
        f"its deadline was promised, but: {why}",
        job_id=job.job_id,
        attempt_id=job.attempt_id,
        cause=why.code.value,
        late_s=why.numbers.get("late_s"),
    )


def _take_off(draft: Draft, job: JobRecord, now: JobState, after_stop: JobState, by: str) -> None:
    """Bring a job to ``now`` at once if nothing of it runs, else to ``after_stop`` until its attempt is gone."""
    drop_target(draft, job)
    code = ReasonCode.HELD if job.wish is Wish.HOLD else ReasonCode.REQUESTED
    cause = reason(code, by=by)
    job = replace(job, target=None, reasons=(cause,))
    if job.attempt_id is None:
        if job.state is JobState.RECONFIGURING:  # between two attempts
            draft.put_job(replace(job, state=JobState.QUEUED))
        ended_at_s = draft.now_s if now.is_terminal else None
        draft.put_job(replace(job, state=now, ended_at_s=ended_at_s))
        return
    if job.state is JobState.FINISHING and job.wish is Wish.HOLD:
        draft.put_job(job)  # it is all but done
        return
    draft.put_job(replace(job, state=after_stop))
    attempt = draft.state.attempts[job.attempt_id]
    if job.wish is Wish.CANCEL and attempt.has_till_its_node_goes:
        hasten(draft, attempt, cause)
    else:
        stop_attempt(draft, attempt, "save", cause)


def take_grid(draft: Draft, event: GridBuilt) -> None:
    """Keep a job's grid; if the cluster changed meanwhile, ask again and use this one until then."""
    job = draft.state.jobs.get(event.job_id)
    if job is None:
        return
    _keep_grid(draft, job, event)
    draft.refresh_queue(job, job)
    draft.record_lazily(partial(_told_of_grid, event))
    if event.shape != draft.state.shape and draft.state.shape.pools:
        draft.command(BuildGrid(job_id=job.job_id, spec=job.spec, shape=draft.state.shape))


def _keep_grid(draft: Draft, job: JobRecord, event: GridBuilt) -> None:
    draft.update(
        grids=draft.state.grids.set(job.job_id, without(event.grid, job.struck)),
        grid_shapes=draft.state.grid_shapes.set(job.job_id, event.shape),
        decision_due=True,
    )


def _told_of_grid(event: GridBuilt) -> Entry:
    return entry(
        EntryKind.GRID_BUILT,
        f"grid of {_counted(event.grid)} by {event.grid.source}",
        job_id=event.job_id,
        cell_count=len(event.grid.cells),
        mixed_count=len(event.grid.mixed),
        infeasible_count=len(event.grid.infeasible),
        source=event.grid.source,
        build_s=event.build_s,
    )


def _counted(grid: Grid) -> str:
    mixed = f" and {len(grid.mixed)} over several GPU types" if grid.mixed else ""
    return f"{format_count(len(grid.cells), 'group')}{mixed}"


def grid_failed(draft: Draft, event: GridFailed) -> None:
    """Try again later, and hold a job whose grid keeps failing, so that it cannot harm the others."""
    job = draft.state.jobs.get(event.job_id)
    if job is not None:
        count_evaluation_failure(draft, job, event.error)


def count_evaluation_failure(draft: Draft, job: JobRecord, error: str) -> None:
    """Count a failure of ours on one job: back off, and hold the job after too many."""
    count = job.evaluation_failure_count + 1
    cause = reason(ReasonCode.INTERNAL_ERROR, error=error)
    wait_s = backoff_s(draft, count)
    job = replace(
        job,
        evaluation_failure_count=count,
        reasons=(cause,),
        evaluated_at_s=draft.now_s,
        not_before_s=max(job.not_before_s, draft.now_s + wait_s),
    )
    if count >= draft.config.evaluation_failures_max and job.state is JobState.QUEUED:
        drop_target(draft, job)
        job = replace(job, wish=Wish.HOLD, state=JobState.HELD, target=None)
    draft.put_job(job)


def wake(draft: Draft, job: JobRecord) -> None:
    """Look at a job whose backoff may be over: queue it, launch its target, or ask for its grid again."""
    draft.refresh_queue(job, job)
    if job.target is not None:
        try_launch(draft, job)
    elif job.job_id not in draft.state.grids and draft.state.shape.pools and job.state is JobState.QUEUED:
        draft.command(BuildGrid(job_id=job.job_id, spec=job.spec, shape=draft.state.shape))
