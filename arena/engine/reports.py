"""What workers report, and what it changes. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from typing import Any

from arena.domain.launch import (
    AttemptId,
    CheckpointFailed,
    CheckpointSaved,
    Evaluated,
    Finished,
    Finishing,
    Progress,
    Ready,
    StepPoint,
    Stopped,
    WorkerError,
    WorkerReport,
)
from arena.domain.paces import possible_step_s
from arena.domain.reason import Reason, ReasonCode
from arena.domain.records import (
    AttemptRecord,
    AttemptState,
    EntryKind,
    Evaluation,
    JobRecord,
    JobState,
)
from arena.domain.replacing import replace
from arena.engine.draft import Draft
from arena.engine.failed_starts import forget_on
from arena.engine.outcome import forgiven
from arena.units import format_count

RESTART_SAMPLES_MAX = 4
"""Measurements that the moving average of a reconfiguration's cost remembers, so that it follows the cluster."""


def apply_report(draft: Draft, attempt_name: AttemptId, report: WorkerReport) -> None:
    """Apply one report; reports of attempts that are over are dropped, repeated ones change nothing."""
    attempt = draft.state.attempts.get(attempt_name)
    if attempt is None:
        return
    match report:
        case Ready():
            _ready(draft, attempt, report)
        case Progress():
            _progress(draft, attempt, report.points)
        case Evaluated():
            _evaluated(draft, attempt, report)
        case CheckpointSaved():
            _saved(draft, attempt, report)
        case CheckpointFailed():
            draft.record(
                EntryKind.CHECKPOINT_FAILED,
                f"checkpoint of step {report.step} failed: {report.error}",
                job_id=attempt.job_id,
                attempt_id=attempt.attempt_id,
                step=report.step,
                error=report.error,
            )
        case Stopped():
            _stopped(draft, attempt, report)
        case Finishing():
            _finishing(draft, attempt, report)
        case Finished():
            _finished(draft, attempt, report)
        case WorkerError():
            draft.put_attempt(replace(attempt, error=f"rank {report.rank}: {report.message}"))


def _ready(draft: Draft, attempt: AttemptRecord, report: Ready) -> None:
    if attempt.ready_at_s is not None:
        return
    job = draft.state.jobs[attempt.job_id]
    before = job.predecessor.last_step if job.predecessor is not None else 0
    lost = max(before - report.resumed_step, 0)
    draft.put_attempt(
        replace(
            attempt,
            ready_at_s=draft.now_s,
            resumed_step=report.resumed_step,
            last_step=report.resumed_step,
            durable_step=report.resumed_step,
            rendezvous_s=report.rendezvous_s,
            load_s=report.load_s,
        )
    )
    progress = replace(
        job.progress,
        step=report.resumed_step,
        durable_step=report.resumed_step,
        lost_steps=job.progress.lost_steps + lost,
        reported_at_s=draft.now_s,
    )
    draft.put_job(replace(job, progress=progress))
    start = f"step {report.resumed_step} of {report.checkpoint}" if report.checkpoint else "fresh"
    draft.record(
        EntryKind.ATTEMPT_READY,
        f"ready, {start}" + (f", {format_count(lost, 'step')} to repeat" if lost else ""),
        job_id=attempt.job_id,
        attempt_id=attempt.attempt_id,
        resumed_step=report.resumed_step,
        checkpoint=report.checkpoint,
        lost_steps=lost,
        rendezvous_s=report.rendezvous_s,
        load_s=report.load_s,
    )
    for name, why in sorted(report.skipped.items()):
        draft.record(
            EntryKind.CHECKPOINT_SKIPPED,
            f"checkpoint {name} was skipped: {why}",
            job_id=attempt.job_id,
            attempt_id=attempt.attempt_id,
            checkpoint=name,
            why=why,
        )


def _progress(draft: Draft, attempt: AttemptRecord, points: tuple[StepPoint, ...]) -> None:
    new = [point for point in points if point.step > attempt.last_step]
    if not new:
        return
    last, is_first, before = new[-1], attempt.first_step_at_s is None, attempt.last_step
    begins = attempt.state in {AttemptState.LAUNCHING, AttemptState.STARTING}
    timed = [step_s for point in new[is_first:] if (step_s := possible_step_s(point.step_time_s)) is not None]
    attempt = replace(
        attempt,
        last_step=last.step,
        timed_steps=attempt.timed_steps + len(timed),
        timed_s=attempt.timed_s + sum(timed),
        first_step_at_s=draft.now_s if attempt.first_step_at_s is None else attempt.first_step_at_s,
        state=AttemptState.RUNNING if begins else attempt.state,
    )
    job = draft.state.jobs[attempt.job_id]
    if is_first:
        _first_step(draft, attempt)
    if is_first or before == 0:  # of a program the first that is told of
        forget_on(draft, attempt.allocation.node_ids)
        job = forgiven(job, attempt.allocation.node_ids)
    progress = replace(
        job.progress,
        step=last.step,
        loss=last.loss,
        step_time_s=possible_step_s(last.step_time_s),
        tokens_per_s=last.tokens_per_s,
        reported_at_s=draft.now_s,
        stalled_since_s=None,
    )
    state = JobState.RUNNING if job.state is JobState.STARTING else job.state
    # The attempt first: a job that is running has a running attempt, so that its holding becomes movable.
    draft.put_attempt(attempt)
    draft.put_job(replace(job, state=state, progress=progress, reasons=_without_stall(job)))
    draft.record(
        EntryKind.JOB_PROGRESS,
        f"step {last.step}, loss {last.loss:.4f}",
        job_id=attempt.job_id,
        attempt_id=attempt.attempt_id,
        step=last.step,
        loss=last.loss,
        tokens_per_s=last.tokens_per_s,
        steps=[point.step for point in new],
        losses=[point.loss for point in new],
    )


def _without_stall(job: JobRecord) -> tuple[Reason, ...]:
    """Return why a job is where it is, now that it shows signs of life."""
    if job.progress.stalled_since_s is None:
        return job.reasons
    return tuple(one for one in job.reasons if one.code is not ReasonCode.STALLED)


def _first_step(draft: Draft, attempt: AttemptRecord) -> None:
    draft.record(
        EntryKind.ATTEMPT_FIRST_STEP,
        "first step done",
        job_id=attempt.job_id,
        attempt_id=attempt.attempt_id,
        since_launch_s=draft.now_s - attempt.launched_at_s,
    )
    draft.update(decision_due=True)  # the job can be moved again
    before = attempt.predecessor
    if before is None or (before.plan, before.group) == (attempt.plan, attempt.group):
        return  # it begins, or goes on as it was
    parts = _change_parts_s(attempt, draft.now_s)
    cost_s = sum(parts.values())
    # What others kept it waiting for is not the cost of a change.
    _learn_restart_cost(draft, cost_s - parts["place_s"])
    draft.record(
        EntryKind.PLAN_CHANGED,
        f"{before.group} {before.plan} -> {attempt.group} {attempt.plan} in {cost_s:.1f} s: {attempt.cause}",
        job_id=attempt.job_id,
        attempt_id=attempt.attempt_id,
        from_plan=str(before.plan),
        to_plan=str(attempt.plan),
        from_group=str(before.group),
        to_group=str(attempt.group),
        from_gpu_count=before.group.gpu_count,
        to_gpu_count=attempt.group.gpu_count,
        cause=attempt.cause.code.value,
        why=str(attempt.cause),
        step=attempt.resumed_step,
        cost_s=cost_s,
        **parts,
    )


def _learn_restart_cost(draft: Draft, cost_s: float) -> None:
    state = draft.state
    count = min(state.restart_sample_count + 1, RESTART_SAMPLES_MAX)
    # With count 1 the measurement replaces what was assumed.
    mean_s = state.restart_s + (cost_s - state.restart_s) / count
    draft.update(restart_s=mean_s, restart_sample_count=count)


def _change_parts_s(attempt: AttemptRecord, now_s: float) -> dict[str, Any]:
    """Return the parts of a change, from the request to stop (or the old end) to the first new step.

    ``stop_s`` save and exit of the old ranks, ``place_s`` waiting for devices, ``launch_s`` processes up,
    ``load_s`` process group and state, ``first_step_s`` the first step itself.
    """
    before = attempt.predecessor
    assert before is not None
    began_at_s = before.stop_requested_at_s if before.stop_requested_at_s is not None else before.ended_at_s
    started_at_s = attempt.started_at_s if attempt.started_at_s is not None else attempt.launched_at_s
    ready_at_s = max(attempt.ready_at_s if attempt.ready_at_s is not None else started_at_s, started_at_s)
    return {
        "stop_s": before.ended_at_s - began_at_s,
        "place_s": attempt.launched_at_s - before.ended_at_s,
        "launch_s": started_at_s - attempt.launched_at_s,
        "load_s": ready_at_s - started_at_s,
        "first_step_s": now_s - ready_at_s,
    }


def _evaluated(draft: Draft, attempt: AttemptRecord, report: Evaluated) -> None:
    if attempt.evaluated_step is not None and report.step <= attempt.evaluated_step:
        return
    draft.put_attempt(replace(attempt, evaluated_step=report.step))
    job = draft.state.jobs[attempt.job_id]
    evaluation = Evaluation(
        step=report.step,
        loss=report.loss if math.isfinite(report.loss) else None,
        accuracy=report.accuracy,
        sample_count=report.sample_count,
        evaluate_s=report.evaluate_s,
        at_s=draft.now_s,
    )
    # Also a sign of life: training stood still for the evaluation and has not stalled.
    progress = replace(job.progress, evaluation=evaluation, reported_at_s=draft.now_s, stalled_since_s=None)
    draft.put_job(replace(job, progress=progress, reasons=_without_stall(job)))
    accuracy = f", accuracy {report.accuracy:.4f}" if report.accuracy is not None else ""
    draft.record(
        EntryKind.JOB_EVALUATED,
        f"evaluated at step {report.step}, loss {report.loss:.4f}{accuracy}",
        job_id=attempt.job_id,
        attempt_id=attempt.attempt_id,
        step=report.step,
        loss=report.loss,
        accuracy=report.accuracy,
        sample_count=report.sample_count,
        evaluate_s=report.evaluate_s,
    )


def _saved(draft: Draft, attempt: AttemptRecord, report: CheckpointSaved) -> None:
    if report.step <= attempt.durable_step:
        return
    job = draft.state.jobs[attempt.job_id]
    draft.put_attempt(replace(attempt, durable_step=report.step, save_s=report.save_s))
    draft.put_job(
        replace(
            job,
            progress=replace(job.progress, durable_step=report.step, durable_at_s=draft.now_s),
            restarts_since_progress=0,
        )
    )
    draft.record(
        EntryKind.CHECKPOINT_SAVED,
        f"checkpoint {report.name} is durable",
        job_id=attempt.job_id,
        attempt_id=attempt.attempt_id,
        step=report.step,
        name=report.name,
        size_bytes=report.size_bytes,
        save_s=report.save_s,
    )


def _stopped(draft: Draft, attempt: AttemptRecord, report: Stopped) -> None:
    if attempt.stopped_at_s is not None:
        return
    draft.put_attempt(
        replace(
            attempt,
            stopped_at_s=draft.now_s,
            last_step=max(report.step, attempt.last_step),
            durable_step=max(report.durable_step, attempt.durable_step),
        )
    )
    job = draft.state.jobs[attempt.job_id]
    if report.step > job.progress.step:  # steps since the last report count as well
        draft.put_job(replace(job, progress=replace(job.progress, step=report.step)))
    draft.record(
        EntryKind.ATTEMPT_STOPPED,
        f"stopped at step {report.step}, step {report.durable_step} is durable",
        job_id=attempt.job_id,
        attempt_id=attempt.attempt_id,
        step=report.step,
        durable_step=report.durable_step,
    )


def _finishing(draft: Draft, attempt: AttemptRecord, report: Finishing) -> None:
    if attempt.state not in {AttemptState.STOPPING, AttemptState.FINISHING}:
        draft.put_attempt(replace(attempt, state=AttemptState.FINISHING))
    job = draft.state.jobs[attempt.job_id]
    if job.state not in {JobState.CANCELLING, JobState.FINISHING}:
        draft.put_job(_with_target_dropped(draft, replace(job, state=JobState.FINISHING)))


def _with_target_dropped(draft: Draft, job: JobRecord) -> JobRecord:
    if job.target is None:
        return job
    draft.unreserve(job.target.allocation.node_ids, job.target.allocation.device_ids)
    return replace(job, target=None)


def _finished(draft: Draft, attempt: AttemptRecord, report: Finished) -> None:
    draft.put_attempt(replace(attempt, finished_report=True, last_step=max(report.step, attempt.last_step)))
    job = draft.state.jobs[attempt.job_id]
    loss = f", loss {report.loss:.4f}" if report.loss is not None else ""
    where = f", model in {report.output}" if report.output else ""
    draft.put_job(replace(job, result=f"finished at step {report.step}{loss}{where}"))
