"""Writing Arena's own log, from what a store or a client knows of jobs. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from arena.domain.job import JobSpec
from arena.domain.records import AttemptRecord, JobRecord
from arena.domain.specbase import Model
from arena.rpc.views import AttemptView, JobView
from arena_traces.formats.event_log import LogAttempt, LogEnd, LogHead, LogJob


def log_lines(
    jobs: Iterable[LogJob], *, exported_at_s: float, arena_version: str = "", restart_s: float | None = None
) -> Iterator[str]:
    """Yield a log's lines, each with its end.

    Args:
        jobs: In any order.
        exported_at_s: When they were so, on the scheduler's clock; no instant of theirs is later.
        arena_version: Which Arena writes.
        restart_s: What the scheduler goes by for a restart.
    """
    yield _line(LogHead(exported_at_s=exported_at_s, arena_version=arena_version, restart_s=restart_s))
    job_count = 0
    for job in jobs:
        job_count += 1
        yield _line(job)
    yield _line(LogEnd(job_count=job_count))


def log_job(job: JobRecord | JobView, spec: JobSpec, attempts: Sequence[AttemptRecord | AttemptView]) -> LogJob:
    """Return what a log says of a job with all its attempts."""
    return LogJob(
        job_id=job.job_id,
        user=job.user,
        submitted_at_s=job.submitted_at_s,
        state=job.state,
        spec=_without_environment(spec),
        first_started_at_s=job.first_started_at_s,
        ended_at_s=job.ended_at_s,
        step=job.progress.step,
        lost_steps=job.progress.lost_steps,
        restart_count=job.restart_count,
        preemption_count=job.preemption_count,
        reconfiguration_count=job.reconfiguration_count,
        run_time_s=job.run_time_s,
        gpu_seconds=job.gpu_seconds,
        attempts=tuple(_log_attempt(one) for one in sorted(attempts, key=lambda one: one.epoch)),
    )


def _log_attempt(attempt: AttemptRecord | AttemptView) -> LogAttempt:
    counts: dict[str, int] = {}
    for part in attempt.group.parts:
        counts[part.gpu_type] = counts.get(part.gpu_type, 0) + part.gpu_count
    return LogAttempt(
        attempt_id=attempt.attempt_id,
        epoch=attempt.epoch,
        group=str(attempt.group),
        gpu_count_by_type=counts,
        plan=None if attempt.plan is None else str(attempt.plan),
        cause=attempt.cause.code,
        launched_at_s=attempt.launched_at_s,
        first_step_at_s=attempt.first_step_at_s,
        ended_at_s=attempt.ended_at_s,
        outcome=attempt.outcome,
        resumed_step=attempt.resumed_step,
        last_step=attempt.last_step,
    )


def _without_environment(spec: JobSpec) -> JobSpec:
    if spec.command is None:
        return spec
    return spec.model_copy(update={"command": spec.command.model_copy(update={"env": {}})})


def _line(part: Model) -> str:
    return f"{part.model_dump_json()}\n"
