"""``arena decisions``: what the policy decided of late, with what it went by."""

from __future__ import annotations

from collections.abc import Mapping

import click

from arena.cli import words
from arena.cli.app import App, command
from arena.cli.output import Output
from arena.cli.quoting import escaped, quoted
from arena.rpc.views import DecidedJob, DecisionView

_LAST_MAX = 50


@command(short_help="The latest decisions.")
@click.option("--last", type=click.IntRange(1, _LAST_MAX), default=10, show_default=True, help="So many.")
def decisions(app: App, last: int) -> None:
    """Show the latest decisions, oldest first: whom they changed and why, and the numbers they went by.

    Under `arena` these are the value of the choice, the most that any choice could be worth (bound), how far apart the
    two are (gap), and the price of a GPU of each kind: the seconds of waiting that it saves all jobs each second.
    """
    with app.client() as client:
        found = client.decisions(count_max=last)[::-1]
    if app.out.json_mode:
        app.out.document(decisions=found)
    elif found:
        for decision in found:
            _write(app.out, decision)
    else:
        app.out.line("no decision yet")


def _write(out: Output, decision: DecisionView) -> None:
    out.line(f"{words.time_text(decision.at_s)}  {escaped(_numbers_text(decision.numbers)) or words.NOTHING}")
    for job in decision.jobs:
        out.line(f"    {quoted(job.job_id)}  {_given(job)}: {words.reasons_text(job.reasons)}")
    if decision.unchanged_count:
        out.line(f"    {decision.unchanged_count} left as they were")


def _given(job: DecidedJob) -> str:
    if job.group is None:
        return "nothing"
    return f"{words.group_text(job.group)}, {words.plan_text(job.plan, job.group)}"


def _numbers_text(numbers: Mapping[str, float]) -> str:
    """Return what was gained before what it was priced at."""
    ordered = sorted(numbers.items(), key=lambda item: (item[0].startswith("price"), item[0]))
    return ", ".join(f"{name} {value:.3g}" for name, value in ordered)
