"""``arena cancel``, ``arena hold`` and ``arena release``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from arena.cli import words
from arena.cli.app import App, command
from arena.cli.find import find_job, find_job_id
from arena.cli.numbers import FiniteRange
from arena.domain.records import JobState
from arena.errors import UserError
from arena.rpc.views import JobView

if TYPE_CHECKING:
    from arena.client import ArenaClient

_FOUND_MAX = 20
"""Jobs that are each looked for; more are ids as they are: one call for a thousand of them."""
_LIVE = tuple(state for state in JobState if not state.is_terminal)


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
    return {job.job_id: job.name for job in client.jobs(states=_LIVE)}


@command(short_help="Keep a job from running.")
@click.argument("job_id", metavar="JOB")
def hold(app: App, job_id: str) -> None:
    """Keep a job from running until it is released; a running one is stopped with its state saved."""
    with app.client() as client:
        _tell(app, client.hold(find_job_id(client, job_id)))


@command(short_help="Let a held job run.")
@click.argument("job_id", metavar="JOB")
@click.option(
    "--budget",
    "budget_usd",
    type=FiniteRange(0.0, min_open=True),
    metavar="USD",
    help="Most that it may cost from now on, with what it has cost.",
)
def release(app: App, job_id: str, budget_usd: float | None) -> None:
    """Let a held job run again: it goes on where it was saved.

    One that is held because its budget is used up needs a larger one: give --budget. So may any job be given another.
    """
    with app.client() as client:
        job = client.release(find_job_id(client, job_id), budget_usd=budget_usd)
    _tell(app, job)
    if budget_usd is not None and job.budget_usd != budget_usd:
        click.echo("warning: this scheduler is older and knows no --budget: the job's is what it was", err=True)


def _tell(app: App, job: JobView) -> None:
    if app.out.json_mode:
        app.out.document(job=job)
    else:
        app.out.line(f"{words.named(job)} is {job.state.value}, wished: {job.wish.value}")
