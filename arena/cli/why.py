"""``arena why``: the reasons of a job, and what it was offered instead."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from arena.cli import words
from arena.cli.app import App, command
from arena.cli.find import find_job
from arena.cli.output import Output
from arena.cli.quoting import escaped, quoted
from arena.cli.reason_texts import said_of
from arena.domain.reason import Reason, ReasonCode, rough_text
from arena.domain.records import JobState

_OFFERS = (ReasonCode.KEPT, ReasonCode.OUTBID, ReasonCode.TIED, ReasonCode.INDIVISIBLE, ReasonCode.NEXT_BEST)
_NOTES = {
    ReasonCode.KEPT: "has it",
    ReasonCode.OUTBID: "others pay more",
    ReasonCode.TIED: "too close to call",
    ReasonCode.INDIVISIBLE: "others fit better",
}
_COLUMNS = ("GROUP", "GPUS", "NODES", "SPEED", "USD/H", "SAVES", "OTHERS", "")
_LEGEND = (
    "SPEED is against {first}. SAVES: seconds of waiting that the job there saves all jobs each second, a restart",
    "counted; OTHERS: what others would save with those GPUs. It has, or gets, what saves most beyond that.",
)


@command(short_help="Why a job is where it is.")
@click.argument("job_id", metavar="JOB")
def why(app: App, job_id: str) -> None:
    """Show why a job is where it is, with the numbers behind each reason, and what else it could be given."""
    with app.client() as client:
        detail = find_job(client, job_id, explain=True, tell=app.note)
    found = detail.job
    if app.out.json_mode:
        app.out.document(
            job_id=found.job_id,
            state=found.state,
            evaluated_at_s=found.evaluated_at_s,
            reasons=found.reasons,
            explanation=detail.explanation,
        )
        return
    said = found.error or found.result
    app.out.sentence(f"{quoted(found.job_id)} is {found.state.value}{f': {escaped(said)}' if said else ''}")
    if found.state is JobState.FAILED:
        app.out.sentence(f"  `arena job {quoted(found.job_id)}` has the last lines of what it wrote", hanging=4)
    if found.state.is_terminal:
        return
    told = said_of(found, detail.explanation)
    reasons = [one.reason for one in told]
    offers = [one for one in reasons if one.code in _OFFERS and "gpu_count" in one.numbers]
    for one in told:
        if one.reason not in offers:
            app.out.sentence(f"  {one.text}  {_facts_text(one.reason)}", hanging=4)
        elif one.reason.code is not ReasonCode.NEXT_BEST:
            app.out.sentence(f"  {one.text}", hanging=4)
    if advice := words.way_on(found, reasons):
        app.out.sentence(f"  {advice}", hanging=4)
    if len(offers) > 1:
        _write_offers(app.out, offers)


def _write_offers(out: Output, offers: Sequence[Reason]) -> None:
    """Write what a job has or wants, and what else it could be given, side by side."""
    out.line()
    out.table(_COLUMNS, [_offer_row(one, offers[0]) for one in offers], right=_COLUMNS[1:-1])
    out.paragraph(line.format(first=escaped(offers[0].names.get("group", "?"))) for line in _LEGEND)


def _offer_row(offer: Reason, first: Reason) -> tuple[str, ...]:
    numbers, zone = offer.numbers, offer.names.get("zone", "")
    speed = numbers["steps_per_s"] / first.numbers["steps_per_s"] if first.numbers.get("steps_per_s") else None
    return (
        escaped(offer.names.get("group", "?") + (f" in {zone}" if zone else "")),
        f"{numbers['gpu_count']:.0f}",
        f"{numbers['node_count']:.0f}",
        words.number_text(speed, ".2f") + "x",
        words.number_text(numbers.get("usd_per_hour"), ".4g"),
        words.short_text(numbers["value"]),
        words.short_text(numbers["price"]),
        _NOTES.get(offer.code, ""),
    )


def _facts_text(reason: Reason) -> str:
    """Return a reason's code, with those of its facts that its sentence does not hold."""
    told = set(re.findall(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?", str(reason)))
    facts: dict[str, float | str] = {**reason.numbers, **reason.names}
    numbers = ", ".join(
        f"{key}={_fact(value)}" for key, value in sorted(facts.items()) if not _is_told(value, reason, told)
    )
    return f"[{reason.code.value}{': ' if numbers else ''}{numbers}]"


def _is_told(value: float | str, reason: Reason, told: set[str]) -> bool:
    if isinstance(value, str):
        return re.search(rf"(?<![\w-]){re.escape(value)}(?![\w-])", str(reason)) is not None
    return bool(told & {rough_text(value), *(format(value, form) for form in (".0f", ".1f", ".2f", ".3g", ".6g"))})


def _fact(value: float | str) -> str:
    return quoted(value) if isinstance(value, str) else f"{value:.4g}"
