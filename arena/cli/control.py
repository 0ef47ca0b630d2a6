"""``arena cancel``, ``arena hold`` and ``arena release``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from arena.cli import words
from arena.cli.app import App, command
from arena.cli.find import find_job, find_job_id
from arena.cli.numbers import FiniteRange
from arena.cli.output import print_error
from arena.domain.records import LIVE_JOB_STATES, JobState, Wish
from arena.errors import ArenaError, UnavailableError, UserError
from arena.rpc.views import JobView

if TYPE_CHECKING:
    from arena.client import ArenaClient

_FOUND_MAX = 20
"""Jobs that are each looked for; more are ids as they are: one call for a thousand of them."""


@command(short_help="Cancel jobs.")
@click.argument("job_ids", metavar="[JOB]...", nargs=-1)
@click.option("--all", "all_mine", is_flag=True, help="All jobs of yours that are not over.")
@click.option("--yes", is_flag=True, help="Do not ask before --all.")
def cancel(app: App, job_ids: tuple[str, ...], all_mine: bool, yes: bool) -> None:
    """Cancel jobs, all in one step; returns once it is recorded."""
    if all_mine == bool(job_ids):
        raise UserError("name jobs, or give --all", why="got neither" if not job_ids else "got both")
    if all_mine and not yes and sys.stdin.isatty():
        click.confirm("Cancel all of your jobs?", abort=True)
    with app.client() as client:
        name_by_id = _name_by_id(client, job_ids)
        found = list(name_by_id) if 0 < len(job_ids) <= _FOUND_MAX else job_ids
        answer = client.cancel(found, all_mine=all_mine)
    if app.out.json_mode:
        app.out.document(cancelled=answer.cancelled, ended=answer.ended)
        return
    for job_id in answer.cancelled:
        app.out.line(f"{words.named_text(job_id, name_by_id.get(job_id))} is being cancelled")
    for job_id in answer.ended:
        app.out.line(f"{words.named_text(job_id, name_by_id.get(job_id))} was over already")
    if not answer.cancelled and not answer.ended:
        app.out.line("nothing to cancel")


def _name_by_id(client: ArenaClient, texts: Sequence[str]) -> dict[str, str]:
    """Return the names of the jobs that texts stand for; of many, or of all, those of jobs that are not over."""
    if 0 < len(texts) <= _FOUND_MAX:
        return {job.job_id: job.name for job in (find_job(client, text).job for text in texts)}
    return {job.job_id: job.name for job in client.jobs(states=LIVE_JOB_STATES)}


@command(short_help="Keep jobs from running.")
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
def hold(app: App, job_ids: tuple[str, ...]) -> None:
    """Keep jobs from running until they are released; a running one is stopped with its state saved."""
    with app.client() as client:
        found = [find_job_id(client, job_id) for job_id in job_ids]
        done = _each(app, found, client.hold)
        _tell(app, done.jobs, len(job_ids))
    done.raise_failure()


@command(short_help="Let held jobs run.")
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@click.option(
    "--budget",
    "budget_usd",
    type=FiniteRange(0.0, min_open=True),
    metavar="USD",
    help="Most that each may cost from now on, with what it has cost.",
)
def release(app: App, job_ids: tuple[str, ...], budget_usd: float | None) -> None:
    """Let held jobs run again: they go on where they were saved.

    One that is held because its budget is used up needs a larger one: give --budget. So may any job be given another.
    """
    with app.client() as client:
        before = [find_job(client, job_id).job for job_id in job_ids]
        done = _each(app, [job.job_id for job in before], partial(client.release, budget_usd=budget_usd))
    free = {job.job_id for job in before if job.wish is not Wish.HOLD and job.state is not JobState.HELD}
    _tell(app, done.jobs, len(job_ids), free=free, budget_usd=budget_usd)
    if budget_usd is not None and any(job.budget_usd != budget_usd for job in done.jobs):
        click.echo("warning: this scheduler is older and knows no --budget: the job's is what it was", err=True)
    done.raise_failure()


@dataclass(frozen=True, slots=True)
class _Done:
    """Jobs to which something was done, and what went wrong first."""

    jobs: tuple[JobView, ...]
    failure: ArenaError | None

    def raise_failure(self) -> None:
        """Raise what went wrong, once what was done has been told."""
        if self.failure is not None:
            raise self.failure


def _each(app: App, job_ids: Sequence[str], act: Callable[[str], JobView]) -> _Done:
    """Do something to each of several jobs: where one refuses, the others are not left out."""
    jobs, failures = list[JobView](), list[ArenaError]()
    for job_id in job_ids:
        try:
            jobs.append(act(job_id))
        except ArenaError as error:
            failures.append(error)
            if isinstance(error, UnavailableError):  # nobody is there for the others either
                break
    for failure in failures[1:]:
        print_error(failure, json_mode=app.out.json_mode)
    return _Done(tuple(jobs), failures[0] if failures else None)


def _tell(
    app: App,
    jobs: Sequence[JobView],
    asked_count: int,
    *,
    free: AbstractSet[str] = frozenset(),
    budget_usd: float | None = None,
) -> None:
    """Tell what became of jobs.

    Args:
        asked_count: How many were named; a document about one holds it as ``job`` too, whoever reads it.
        free: Ids of those that were to be released and had not been held.
        budget_usd: What they were given.
    """
    if app.out.json_mode:
        fields = {"job": jobs[0]} if asked_count == 1 and jobs else {}
        if jobs:
            app.out.document(**fields, jobs=jobs, not_held=[job.job_id for job in jobs if job.job_id in free])
        return
    for job in jobs:
        if job.job_id not in free:
            app.out.line(f"{words.named(job)} is {job.state.value}, wished: {job.wish.value}")
            continue
        is_given = budget_usd is not None and job.budget_usd == budget_usd
        given = f", its budget is {budget_usd:g} USD now" if is_given else ""
        app.out.line(f"{words.named(job)} was not held: it is {job.state.value}{given}")
