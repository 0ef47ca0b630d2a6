"""``arena wait``: until a job has ended or reached a state."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from arena.cli import words
from arena.cli.app import App, command
from arena.cli.find import find_job_id
from arena.cli.quoting import escaped, quoted
from arena.cli.reason_texts import said_of, sentence
from arena.domain.records import EntryKind, JobState

if TYPE_CHECKING:
    from arena.client import ArenaClient
    from arena.rpc.views import JobView

TIMED_OUT = 124
NOT_SUCCEEDED = 1
_LOOK_S = 2.0
"""How often a terminal is told how far a job is."""
_MOVES = (EntryKind.JOB_SUBMITTED, EntryKind.JOB_STATE)


@command(short_help="Wait for jobs.", meant={"--state": "--for", "--until": "--for"})
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@click.option("--for", "state", type=click.Choice([state.value for state in JobState]), help="Wait for this state.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0), metavar="SECONDS", help="Give up then (exit 124).")
def wait(app: App, job_ids: tuple[str, ...], state: str | None, timeout_s: float | None) -> int:
    """Wait until each job has ended, or reached a state.

    Exits 0 when all succeeded (or reached the state), 1 when one did not, 124 when time ran out.
    """
    with app.client() as client:
        found = [find_job_id(client, job_id, tell=app.note) for job_id in job_ids]
        return wait_and_tell(app, client, found, JobState(state) if state else None, timeout_s)


def wait_and_tell(
    app: App,
    client: ArenaClient,
    job_ids: Sequence[str],
    state: JobState | None = None,
    timeout_s: float | None = None,
) -> int:
    """Wait for jobs, write where each came to, and return the exit code."""
    ends_at_s = None if timeout_s is None else time.monotonic() + timeout_s
    with _live_line(app) as show:
        jobs = [wait_for(client, job_id, state, ends_at_s, show) for job_id in job_ids]
    if app.out.json_mode:
        app.out.document(jobs=jobs, timed_out=[job.job_id for job in jobs if not _is_there(job, state)])
    else:
        for job in jobs:
            app.out.sentence(_sentence(job, state, timeout_s))
    return max(_exit_code(job, state) for job in jobs)


def wait_for(
    client: ArenaClient,
    job_id: str,
    state: JobState | None,
    ends_at_s: float | None,
    show: Callable[[JobView], None] | None = None,
) -> JobView:
    """Return a job once it is in a state or at its end, or as it is when time is up.

    Args:
        client: The scheduler.
        job_id: The job.
        state: The state to wait for; None waits for the end.
        ends_at_s: Monotonic instant at which to give up.
        show: Shown now and then how far it is; None is shown nothing, and nothing is asked for it.
    """
    job, told, after_index = client.job(job_id).job, False, 0
    while not _is_there(job, state):
        told = _tell_held(job, told=told)
        if show is not None:
            show(job)
        left_s = None if ends_at_s is None else max(0.0, ends_at_s - time.monotonic())
        look_s = left_s if show is None else min(_LOOK_S, left_s if left_s is not None else _LOOK_S)
        for entry in client.stream_events(
            job_id=job_id, kinds=_MOVES, after_index=after_index, follow=True, deadline_s=look_s
        ):
            after_index = entry.index
            job = client.job(job_id).job
            if _is_there(job, state):
                return job
            told = _tell_held(job, told=told)
        job = client.job(job_id).job  # how far it is now: steps are no moves, so none of those brought it
        if show is None or (ends_at_s is not None and time.monotonic() >= ends_at_s):
            return job
    return job


@contextmanager
def _live_line(app: App) -> Iterator[Callable[[JobView], None] | None]:
    """Keep a line at the terminal that says how far a job is, and goes in the end; elsewhere there is none."""
    if app.out.json_mode or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as lines:
        line = lines.add_task("")
        yield lambda job: lines.update(line, description=_live_text(job), refresh=True)


def _live_text(job: JobView) -> str:
    """Return how far a job is, as far as is known: state, step, loss, plan, time left."""
    told = [f"{words.named(job)} {job.state.value}"]
    progress = job.progress
    if words.tells_steps(job):
        told[0] += f" at step {words.step_text(job)}"
        told.append(f"loss {words.number_text(progress.loss, '.4f')}")
    if job.group is not None:
        told.append(words.plan_text(job.plan, job.group))
    if job.state is JobState.RUNNING and job.step_limit is not None and progress.step_time_s is not None:
        left_s = max(0, job.step_limit - progress.step) * progress.step_time_s
        told.append(f"about {words.duration_text(left_s)} left")
    return ", ".join(told)


def _tell_held(job: JobView, *, told: bool) -> bool:
    """Tell once, each time, that a job is held for its budget: nobody but its user has it go on."""
    advice = words.way_on(job) if job.state is JobState.HELD else ""
    if advice and not told:
        click.echo(f"{quoted(job.job_id)} is held: {sentence(said_of(job))}; {advice}", err=True)
    return bool(advice)


def _is_there(job: JobView, state: JobState | None) -> bool:
    return job.state.is_terminal or job.state is state


def _exit_code(job: JobView, state: JobState | None) -> int:
    if job.state is (state or JobState.SUCCEEDED):
        return 0
    return NOT_SUCCEEDED if job.state.is_terminal else TIMED_OUT


def _sentence(job: JobView, state: JobState | None, timeout_s: float | None) -> str:
    said, progress = job.error or job.result, job.progress
    is_in_time = timeout_s is None or _is_there(job, state)
    tail = f": {escaped(said)}" if said else ""
    where = ""
    if words.tells_steps(job):
        where = f" at step {words.step_text(job)}, loss {words.number_text(progress.loss, '.4f')}"
    late = "" if is_in_time else f": time ran out after {words.duration_text(timeout_s)}"
    return f"{quoted(job.job_id)} {'' if is_in_time else 'is still '}{job.state.value}{where}{tail}{late}"
