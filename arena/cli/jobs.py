"""``arena jobs`` and ``arena job``: lists, and one job in full."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import click

from arena.cli import words
from arena.cli.app import App, command
from arena.cli.find import find_job
from arena.cli.output import Output
from arena.cli.quoting import escaped, quoted
from arena.cli.reason_texts import Said, older_cause_text, said_of, sentence
from arena.cli.settings import user_name
from arena.domain.reason import ReasonCode
from arena.domain.records import EndKind, JobState
from arena.rpc.views import AttemptView, JobView
from arena.units import format_count

if TYPE_CHECKING:
    from arena.client import JobDetail

_SAY_IT_ALL = frozenset({"config", "data"})
"""Codes of worker errors that are the user's to mend, and say how: a file that is missing, training that diverged."""

_STATES = click.Choice([state.value for state in JobState])


@command(short_help="List jobs, newest first.")
@click.option("--state", "states", type=_STATES, multiple=True, help="Only jobs in this state; may be repeated.")
@click.option("--user", help="Only jobs of this user.")
@click.option("--mine", is_flag=True, help="Only your own jobs.")
@click.option("--project", help="Only jobs of this project.")
@click.option("--limit", type=click.IntRange(1), help="Only so many.")
def jobs(
    app: App, *, states: tuple[str, ...], user: str | None, mine: bool, project: str | None, limit: int | None
) -> None:
    """List jobs, newest first."""
    with app.client() as client:
        wanted = [JobState(state) for state in states]
        found = client.jobs(states=wanted, user=user_name() if mine else user, project=project)
        listed = tuple(islice(found, limit))
    if app.out.json_mode:
        app.out.document(jobs=listed)
    elif listed:
        columns = ("JOB", "NAME", "USER", "PROJECT", "STATE", "GROUP", "PLAN", "STEP", "LOSS", "SUBMITTED", "RUN TIME")
        spare = ("PROJECT", "PLAN", "SUBMITTED", "LOSS", "USER", "RUN TIME", "GROUP")
        app.out.table(columns, [_row(job) for job in listed], right=("STEP", "LOSS", "RUN TIME"), spare=spare)
    else:
        app.out.line("no jobs")


def _row(job: JobView) -> tuple[str, ...]:
    return (
        quoted(job.job_id),
        quoted(job.name),
        quoted(job.user),
        quoted(job.project),
        job.state.value,
        words.group_text(job.group),
        words.plan_text(job.plan, job.group),
        words.step_text(job),
        words.number_text(job.progress.loss, ".4f"),
        words.time_text(job.submitted_at_s),
        words.duration_text(job.run_time_s),
    )


@command(short_help="One job in full.")
@click.argument("job_id", metavar="JOB")
def job(app: App, job_id: str) -> None:
    """Show one job: plan, placement, progress, attempts and why each change.

    JOB is an id, a name, or the beginning of an id, at least to the digit behind its dash. Of a failed attempt it shows
    the last lines of its output, unless its error says what the job's user has to change; -v shows them always, and
    `arena logs` the whole output.
    """
    with app.client() as client:
        detail = find_job(client, job_id, explain=True, tell=app.note)
    if app.out.json_mode:
        app.out.document(job=detail.job, attempts=detail.attempts, explanation=detail.explanation)
    else:
        _write_job(app.out, detail, verbose=app.flags.verbose)


def _write_job(out: Output, detail: JobDetail, *, verbose: bool) -> None:
    told = [  # `arena why` compares the others
        one for one in said_of(detail.job, detail.explanation) if one.reason.code is not ReasonCode.NEXT_BEST
    ]
    for label, text in _facts(detail, told):
        out.sentence(f"{label:<12}{text}", hanging=12)
    if detail.attempts:
        out.line()
        columns = ("ATTEMPT", "STATE", "GROUP", "PLAN", "ON", "STEPS", "LAUNCHED", "TO READY", "SAVE", "WHY")
        spare = ("LAUNCHED", "SAVE", "TO READY", "ON", "PLAN", "GROUP")
        rows = [_attempt_row(attempt) for attempt in detail.attempts]
        out.table(columns, rows, right=("TO READY", "SAVE"), spare=spare)
        for attempt in detail.attempts:
            _write_failures(out, attempt, has_tails=verbose)


def _why_text(detail: JobDetail, told: Sequence[Said]) -> str:
    """Return why a job is where it is; of one that was cancelled, who did so, where that is known."""
    job = detail.job
    if job.state is not JobState.CANCELLED:
        return "; ".join(filter(None, (sentence(told), words.way_on(job, [one.reason for one in told]))))
    stops = [attempt.stop_cause for attempt in detail.attempts[-1:] if attempt.stop_cause is not None]
    asked = [
        one.names.get("by", "") for one in (*(said.reason for said in told), *stops) if one.code is ReasonCode.REQUESTED
    ]
    by = next(filter(None, asked), "")
    return f"cancelled by {quoted(by)}" if by else "cancelled"


def _facts(detail: JobDetail, told: Sequence[Said]) -> list[tuple[str, str]]:
    job = detail.job
    facts = [
        ("job", f"{quoted(job.job_id)}  {quoted(job.name)}"),
        ("user", f"{quoted(job.user)}, project {quoted(job.project)}, priority {job.priority}, {job.kind.value}"),
        ("state", job.state.value + (f" (wished: {job.wish.value})" if job.wish.value != "run" else "")),
        ("why", _why_text(detail, told)),
        ("group", words.group_text(job.group)),
        ("plan", words.plan_text(job.plan, job.group)),
        ("on", _devices_text(job)),
        *_training(job),
        ("counts", _counts_text(job)),
        (
            "times",
            (
                f"submitted {words.time_text(job.submitted_at_s)}, started {words.time_text(job.first_started_at_s)}, "
                f"ended {words.time_text(job.ended_at_s)}, ran {words.duration_text(job.run_time_s)} "
                f"({job.gpu_seconds:.0f} GPU-seconds)"
            ),
        ),
    ]
    facts += _terms(job, detail.now_s)
    if job.target is not None:
        target = f"{words.plan_text(job.target.plan, job.target.group)} on {words.places_text(job.target.allocation)}"
        facts.insert(7, ("next", f"{target}: {escaped(str(job.target.cause))}"))
    facts += [(label, escaped(text)) for label, text in (("result", job.result), ("error", job.error)) if text]
    return facts


def _training(job: JobView) -> list[tuple[str, str]]:
    """Return how far a job is; nothing of a program, which tells nobody and saves by itself if it does."""
    if words.is_program(job):
        return []
    evaluation = _evaluation_text(job)
    facts = [("progress", _progress_text(job)), ("evaluation", evaluation), ("checkpoint", _checkpoint_text(job))]
    return [(label, text) for label, text in facts if text]


def _counts_text(job: JobView) -> str:
    counts = [
        format_count(job.restart_count, "restart"),
        format_count(job.reconfiguration_count, "reconfiguration"),
        format_count(job.preemption_count, "preemption"),
        format_count(job.launch_failure_count, "launch failure"),
    ]
    repeated = [] if words.is_program(job) else [f"{format_count(job.progress.lost_steps, 'step')} repeated"]
    return ", ".join([*counts, *repeated])


def _terms(job: JobView, now_s: float | None) -> list[tuple[str, str]]:
    """Return how it stands with a job's deadline and its cost, as far as there are any."""
    terms = []
    if job.deadline_at_s is not None:
        promise = "promised" if job.is_deadline_promised else "not promised"
        told = f"{promise}{_met_text(job, job.deadline_at_s, now_s)}{_not_promised_text(job)}"
        terms.append(("deadline", f"{words.time_text(job.deadline_at_s)}, {told}"))
    if job.spent_usd > 0.0 or job.budget_usd is not None:
        budget = ""
        if job.budget_usd is not None:
            left_usd = max(job.budget_usd - job.spent_usd, 0.0)
            budget = f" of a budget of {job.budget_usd:.6g}, {left_usd:.6g} left"
        so_far = "" if job.state.is_terminal else " so far"
        terms.append(("cost", f"{job.spent_usd:.6g} USD{so_far}{budget}"))
    return terms


def _met_text(job: JobView, deadline_at_s: float, now_s: float | None) -> str:
    """Return what has become of a deadline, as soon as that is known."""
    at_s = job.ended_at_s if job.ended_at_s is not None else now_s
    if (at_s is not None and at_s > deadline_at_s) or job.state is JobState.FAILED:
        return ", missed"
    if job.state.is_terminal:
        return ", met" if job.state is JobState.SUCCEEDED else ""  # who was cancelled before did neither
    return ", cannot be kept" if job.is_promise_broken else ""


def _not_promised_text(job: JobView) -> str:
    """Return why a deadline was not promised when the job came; nothing where nobody can say."""
    said = [older_cause_text(job.deadline_cause, job)] if job.deadline_cause is not None else []
    if job.deadline_earliest_at_s is not None:
        said.append(f"the earliest that could be promised was {words.time_text(job.deadline_earliest_at_s)}")
    return f": {'; '.join(said)}" if said else ""


def _devices_text(job: JobView) -> str:
    if job.allocation is None:
        return words.NOTHING
    return "; ".join(
        f"{quoted(share.node_id)}: {', '.join(quoted(device) for device in share.device_ids)}"
        for share in job.allocation.shares
    )


def _progress_text(job: JobView) -> str:
    progress = job.progress
    return (
        f"step {words.step_text(job)}, loss {words.number_text(progress.loss, '.4f')}, "
        f"{words.number_text(progress.tokens_per_s, ',.0f')} tokens/s, "
        f"{words.number_text(progress.step_time_s, '.3f')} s/step"
    )


def _evaluation_text(job: JobView) -> str:
    """Return what the latest evaluation found; nothing for a job that is not evaluated, as far as its reader knows."""
    found = job.progress.evaluation
    if found is None:
        spec = job.spec.train.evaluation if job.spec is not None and job.spec.train is not None else None
        return f"none yet, every {format_count(spec.interval_steps, 'step')}" if spec is not None else ""
    accuracy = f", accuracy {found.accuracy:.4f}" if found.accuracy is not None else ""
    return (
        f"loss {words.number_text(found.loss, '.4f')} at step {found.step}{accuracy}, "
        f"{format_count(found.sample_count, 'sample')} in {words.duration_text(found.evaluate_s)}"
    )


def _checkpoint_text(job: JobView) -> str:
    progress = job.progress
    if progress.durable_at_s is None:
        return "none yet"
    return f"step {progress.durable_step}, durable {words.time_text(progress.durable_at_s)}"


def _attempt_row(attempt: AttemptView) -> tuple[str, ...]:
    outcome = f" ({attempt.outcome.value})" if attempt.outcome is not None else ""
    why = escaped(str(attempt.cause))
    if attempt.stop_cause is not None:
        why += f"; stopped: {escaped(str(attempt.stop_cause))}"
    return (
        quoted(attempt.attempt_id),
        attempt.state.value + outcome,
        words.group_text(attempt.group),
        words.plan_text(attempt.plan, attempt.group),
        words.places_text(attempt.allocation),
        _steps_text(attempt),
        words.time_text(attempt.launched_at_s),
        words.span_text(attempt.decided_at_s, attempt.ready_at_s),
        words.duration_text(attempt.save_s),
        why,
    )


def _steps_text(attempt: AttemptView) -> str:
    """Return the steps that an attempt made: ``0..400``; nothing while it tells of none, as programs never do."""
    if attempt.resumed_step is None:
        return f"..{attempt.last_step}" if attempt.last_step else words.NOTHING
    return f"{attempt.resumed_step}..{attempt.last_step}"


def _write_failures(out: Output, attempt: AttemptView, *, has_tails: bool) -> None:
    """Write how the shares of an attempt failed.

    Args:
        has_tails: Whether the last lines of a rank's output are shown also where its error says everything: they are
            then a traceback of our own files.
    """
    for end in attempt.ends:
        if end.kind not in {EndKind.FAILED, EndKind.LAUNCH_FAILED, EndKind.LOST}:
            continue
        out.line()
        said = escaped(end.message) or end.kind.value
        out.sentence(f"{quoted(attempt.attempt_id)} on {quoted(end.node_id)}: {said}", style="red")
        if end.error_code in _SAY_IT_ALL and not has_tails:
            continue
        for line in end.log_tail.splitlines():
            out.line(f"    {escaped(line, keep=chr(9))}")
