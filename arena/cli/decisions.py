"""``arena decisions``: what the policy decided of late, with what it went by."""

from __future__ import annotations

from collections.abc import Mapping

import click

from arena.cli import words
from arena.cli.app import App, command
from arena.cli.output import Output
from arena.cli.quoting import escaped, quoted
from arena.cli.words import short_text
from arena.rpc.views import DecidedJob, DecisionView

_LAST_MAX = 50
_MERITS = ("value", "bound", "gap")
_GAP_SHOWN_MIN = 1e-6
"""Less than this is rounding."""

_PRICE = "price "
_LEGEND = (
    "value: seconds of waiting that the choice saves all jobs each second; bound: no choice could save more; gap: how",
    'far the choice is below it. Price: what one GPU of a type and zone is worth to all jobs each second; "by 8": what',
    "it costs beyond that where 8 must be together on a node. Kinds that nobody waits for have none.",
)
_LEGEND_OF_SHARES = (
    '"beside A": what it costs others beyond that, as A has work for what it is guaranteed; "for good": what it costs',
    "those that may not be stopped, since they could not give it back.",
)


@command(short_help="The latest decisions.")
@click.option("--last", type=click.IntRange(1, _LAST_MAX), default=10, show_default=True, help="So many.")
def decisions(app: App, last: int) -> None:
    """Show the latest decisions, oldest first: whom they changed and why, and the numbers they went by."""
    with app.client() as client:
        found = client.decisions(count_max=last)[::-1]
    if app.out.json_mode:
        app.out.document(decisions=found)
    elif found:
        for decision in found:
            _write(app.out, decision)
        if any("value" in decision.numbers for decision in found):
            app.out.line()
            has_shares = any(_is_of_shares(name) for decision in found for name in decision.numbers)
            app.out.paragraph((*_LEGEND, *(_LEGEND_OF_SHARES if has_shares else ())))
    else:
        app.out.line("no decision yet")


def _write(out: Output, decision: DecisionView) -> None:
    said = escaped(_numbers_text(decision.numbers)) or words.NOTHING
    out.sentence(f"{words.time_text(decision.at_s)}  {said}", hanging=4)
    for job in decision.jobs:
        out.sentence(f"    {quoted(job.job_id)}  {_given(job)}: {words.reasons_text(job.reasons)}", hanging=8)
    if decision.unchanged_count:
        out.line(f"    {decision.unchanged_count} left as they were")


def _given(job: DecidedJob) -> str:
    if job.group is None:
        return "nothing"
    return f"{words.group_text(job.group)}, {words.plan_text(job.plan, job.group)}"


def _numbers_text(numbers: Mapping[str, float]) -> str:
    """Return what was gained, how much more there could have been, and at what prices."""
    facts = [(name, numbers[name]) for name in _MERITS if name in numbers]
    facts += sorted(item for item in numbers.items() if item[0] not in _MERITS and not item[0].startswith(_PRICE))
    told = ", ".join(f"{name} {_number_text(name, value)}" for name, value in facts)
    prices = {name.removeprefix(_PRICE): value for name, value in numbers.items() if name.startswith(_PRICE)}
    if not prices:
        return told
    dear = "; ".join(
        f"{name} = {short_text(value)}" for name, value in sorted(prices.items()) if short_text(value) != "0"
    )
    return f"{told}; {f'prices: {dear}' if dear else 'no GPU has a price'}"


def _is_of_shares(name: str) -> bool:
    return name.startswith(_PRICE) and (" beside " in name or " for good" in name)


def _number_text(name: str, value: float) -> str:
    if name == "gap":
        return f"{value * 100:.2g}%" if value >= _GAP_SHOWN_MIN else "0%"
    return short_text(value)
