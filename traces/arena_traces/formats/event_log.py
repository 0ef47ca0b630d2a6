"""Arena's own log: what a scheduler did with its jobs, written by ``arena export``, as JSON lines.

The first line says what the file is, the last one how many jobs it holds, so that a cut file is known. Between them is
a line for each job: what was asked for, when, every attempt at it, and its end. Instants are of the scheduler's clock.
The environment of commands is left out: it may hold secrets, and a replay has no use for it. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from arena.domain.job import JobId, JobSpec
from arena.domain.parallel import parse_plan
from arena.domain.records import EndKind, JobState
from arena.domain.specbase import Model
from arena.domain.specfile import described
from arena.domain.trace import TraceJob, TraceOutcome
from arena.errors import SpecError
from arena.units import format_count
from arena_traces.defects import Defect
from arena_traces.formats.base import FlawError, Parsed, Reading, Row
from arena_traces.formats.cells import COUNT_MAX, GPU_COUNT_MAX, TIME_S_MAX
from arena_traces.lines import Line, Lines

LOG_VERSION = 1
_MARK = "arena-log"
Instant = Annotated[float, Field(ge=0, le=TIME_S_MAX)]
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]


class LogHead(Model):
    """The first line of a log.

    Attributes:
        exported_at_s: Until when it tells.
        arena_version: Which Arena wrote it.
        restart_s: What its scheduler goes by for a restart (save, stop, start, load), as measured where some were.
    """

    kind: Literal["head"] = "head"
    format: Literal["arena-log"] = "arena-log"
    version: Annotated[int, Field(ge=1)] = LOG_VERSION
    exported_at_s: Instant
    arena_version: str = ""
    restart_s: Instant | None = None


class LogAttempt(Model):
    """One launch of a job.

    Attributes:
        group: Its GPU group as people write it.
        gpu_count_by_type: The same as numbers.
        plan: Its parallelism plan, none for a command.
        cause: Code of the reason for which it was made.
        first_step_at_s: When it began to train (a command: to run).
        last_step: Optimizer steps of the job that were done at its end.
    """

    attempt_id: str
    epoch: Count
    group: str
    gpu_count_by_type: dict[str, Count]
    plan: str | None = None
    cause: str = ""
    launched_at_s: Instant
    first_step_at_s: Instant | None = None
    ended_at_s: Instant | None = None
    outcome: EndKind | None = None
    resumed_step: Count | None = None
    last_step: Count = 0

    @property
    def gpu_count(self) -> int:
        """GPUs over all types."""
        return sum(self.gpu_count_by_type.values())


class LogJob(Model):
    """A job from its submission to its end, or to the end of the log.

    Attributes:
        step: Optimizer steps done.
        lost_steps: Steps that were done again because an attempt died after its last checkpoint.
        run_time_s, gpu_seconds: Time that its attempts trained; GPU time that they held. Of attempts that have ended.
    """

    kind: Literal["job"] = "job"
    job_id: Annotated[str, Field(min_length=1)]
    user: str
    submitted_at_s: Instant
    state: JobState
    spec: JobSpec
    first_started_at_s: Instant | None = None
    ended_at_s: Instant | None = None
    step: Count = 0
    lost_steps: Count = 0
    restart_count: Count = 0
    preemption_count: Count = 0
    reconfiguration_count: Count = 0
    run_time_s: Instant = 0.0
    gpu_seconds: Annotated[float, Field(ge=0)] = 0.0
    attempts: tuple[LogAttempt, ...] = ()


class LogEnd(Model):
    """The last line of a log."""

    kind: Literal["end"] = "end"
    job_count: Count


_LINE: TypeAdapter[LogHead | LogJob | LogEnd] = TypeAdapter(
    Annotated[LogHead | LogJob | LogEnd, Field(discriminator="kind")]
)


class _ArenaLog:
    """The format of Arena's own logs."""

    name = _MARK
    title = "what `arena export` writes"
    columns: tuple[str, ...] = ()

    def matches(self, first: str) -> bool:
        """Whether this is the first line of a log, of whatever version."""
        return first.lstrip().startswith("{") and f'"{_MARK}"' in first

    def begin(self, first: Line, rest: Iterator[Line], lines: Lines) -> Reading:
        """Return the jobs of a log.

        Raises:
            TraceError: The first line is not a log's, or one of a later version.
        """
        lines.closing = _closing
        try:
            head = _parsed(first.text)
        except FlawError as flaw:
            if lines.stops_inside:
                raise lines.cut_error("the log looks cut: it stops inside this line", why=flaw.what) from flaw
            why = "a later version of Arena may have written it"
            raise lines.error(Defect.UNKNOWN_FORMAT, f"no log of version {LOG_VERSION}: {flaw.what}", why=why) from flaw
        if not isinstance(head, LogHead):
            raise lines.error(Defect.UNKNOWN_FORMAT, f"a log does not begin with its {head.kind}")
        if head.version > LOG_VERSION:
            why = f"it has version {head.version}, this Arena knows {LOG_VERSION}"
            raise lines.error(Defect.UNKNOWN_FORMAT, "a later version of Arena wrote the log", why=why)
        return Reading(rows=_rows(head, rest, lines), restart_s=head.restart_s)


ARENA_LOG = _ArenaLog()


def _rows(head: LogHead, rest: Iterator[Line], lines: Lines) -> Iterator[Row]:
    row_count, end = 0, None
    for line in rest:
        if end is not None:
            raise lines.error(Defect.CUT_FILE, "the log goes on after its end", fix="keep one log in one file")
        part = _row_or_end(line, head)
        if isinstance(part, LogEnd):
            end = part
            continue
        row_count += 1
        yield part
    if end is None:
        raise lines.cut_error("the log looks cut: after this line its end is missing")
    if end.job_count != row_count:
        what = f"the log should hold {format_count(end.job_count, 'job')}, and holds {row_count:,}"
        raise lines.error(Defect.CUT_FILE, what, why="lines are missing or were added", fix="export it again")


def _closing(row_count: int) -> str:
    return LogEnd(job_count=row_count).model_dump_json()


def _row_or_end(line: Line, head: LogHead) -> Row | LogEnd:
    try:
        part = _parsed(line.text)
        match part:
            case LogEnd():
                return part
            case LogJob():
                return parsed_job(part, line.number, head.exported_at_s)
            case LogHead():
                fix = "keep one log in one file"
                raise FlawError(Defect.BAD_RECORD, "a log begins in the middle of another", fix=fix)
    except FlawError as flaw:
        return flaw.at(line.number)


def _parsed(text: str) -> LogHead | LogJob | LogEnd:
    try:
        return _LINE.validate_json(text)
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in item["loc"][1:])
        what = f"{field}: {described(item)}" if field else str(item["msg"])
        raise FlawError(Defect.BAD_RECORD, what) from error


def parsed_job(job: LogJob, row: int, exported_at_s: float) -> Parsed:
    """Return a job of a log as a trace's.

    GPU time is kept: where a job's GPU count changed, its duration is what it would be on ``gpu_count`` of them. A job
    that has ended has the steps that it did, others those that they are to do.

    Raises:
        FlawError: It did nothing, or what it is to do cannot be known.
    """
    gpu_count = _gpu_count(job)
    if gpu_count > GPU_COUNT_MAX:
        raise FlawError(Defect.OUT_OF_RANGE, f"a job of {gpu_count:,} GPUs, at most {GPU_COUNT_MAX:,} make sense")
    gpu_seconds = sum(_ran_s(one, exported_at_s) * one.gpu_count for one in job.attempts)
    duration_s = gpu_seconds / gpu_count if job.attempts else None
    step_count = _step_count(job)
    if job.state.is_terminal and not duration_s and not step_count:
        raise FlawError(Defect.NO_TIME, f"{job.state} before it did anything")
    if not duration_s and not step_count:
        raise FlawError(Defect.NO_WORK, f"{job.state}, and nothing says how long it will run")
    spec, types = job.spec, {name for one in job.attempts for name in one.gpu_count_by_type} or set(job.spec.gpus.types)
    made = TraceJob(
        job_id=JobId(job.job_id),
        row=row,
        submitted_at_s=job.submitted_at_s,
        gpu_count=gpu_count,
        duration_s=duration_s or None,
        step_count=step_count or None,
        workload=spec.workload,
        gpu_type=min(types) if len(types) == 1 else None,
        deadline_s=spec.deadline_s,
        user=job.user,
        project=spec.project,
        outcome=_OUTCOMES.get(job.state, TraceOutcome.RUNNING),
    )
    return Parsed(job=made, spec=spec, starts_s=tuple(_starts_s(job)))


_OUTCOMES = {
    JobState.SUCCEEDED: TraceOutcome.COMPLETED,
    JobState.FAILED: TraceOutcome.FAILED,
    JobState.CANCELLED: TraceOutcome.CANCELLED,
}


def _gpu_count(job: LogJob) -> int:
    """Return what was asked for; where that was left open, the most that it had, else the least that it takes."""
    spec = job.spec
    if spec.gpus.count is not None:
        return spec.gpus.count
    if spec.train is not None and spec.parallel.plan is not None:
        try:
            return parse_plan(spec.parallel.plan, layer_count=spec.train.model.layers).gpu_count
        except SpecError as error:
            raise FlawError(Defect.BAD_RECORD, f"spec.parallel.plan: {error.what}") from error
    return max((one.gpu_count for one in job.attempts), default=0) or spec.gpus.count_min


def _ran_s(attempt: LogAttempt, exported_at_s: float) -> float:
    if attempt.first_step_at_s is None:
        return 0.0
    ended_at_s = exported_at_s if attempt.ended_at_s is None else attempt.ended_at_s
    if ended_at_s < attempt.first_step_at_s:
        raise FlawError(Defect.NEGATIVE, f"attempt {attempt.attempt_id} ended before it began")
    return ended_at_s - attempt.first_step_at_s


def _starts_s(job: LogJob) -> Iterator[float]:
    for one in job.attempts:
        if one.first_step_at_s is not None:
            yield max(0.0, one.first_step_at_s - one.launched_at_s)


def _step_count(job: LogJob) -> int | None:
    if job.spec.command is not None:
        return None
    return job.step if job.state.is_terminal else job.spec.step_limit
