"""``arena cancel``, ``arena hold`` and ``arena release``."""

from __future__ import annotations

import sys

import click

from arena.cli.app import App, command
from arena.cli.find import find_job_id
from arena.cli.numbers import FiniteRange
from arena.cli.quoting import quoted
from arena.errors import UserError
from arena.rpc.views import JobView


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
        # Ids are taken as they are where all exist: one call for a thousand jobs.
        found = [find_job_id(client, job_id) for job_id in job_ids] if len(job_ids) <= 20 else list(job_ids)
        answer = client.cancel(found, all_mine=all_mine)
    if app.out.json_mode:
        app.out.document(cancelled=answer.cancelled, ended=answer.ended)
        return
    for job_id in answer.cancelled:
        app.out.line(f"{quoted(job_id)} is being cancelled")
    for job_id in answer.ended:
        app.out.line(f"{quoted(job_id)} was over already")
    if not answer.cancelled and not answer.ended:
        app.out.line("nothing to cancel")


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
        app.out.line(f"{quoted(job.job_id)} is {job.state.value}, wished: {job.wish.value}")
