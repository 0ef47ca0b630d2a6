"""``arena nodes``, ``arena drain`` and ``arena undrain``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

from arena.cli import words
from arena.cli.app import App, command
from arena.cli.numbers import Duration
from arena.cli.output import Output
from arena.cli.quoting import escaped, quoted
from arena.domain.leaving import leave_at_s, may_be_repeated
from arena.domain.records import JobState
from arena.rpc.views import JobView, NodeView

if TYPE_CHECKING:
    from arena.client import ArenaClient

_STAYING = (JobState.STARTING, JobState.RUNNING)
"""States of jobs that would stay on a node if it were not drained: the others leave it anyway."""


@command(short_help="List nodes and their devices.")
@click.option("--devices", "with_devices", is_flag=True, help="One line for each device.")
def nodes(app: App, with_devices: bool) -> None:
    """List nodes: state, GPUs, who uses them, and what is wrong."""
    with app.client() as client:
        listed = tuple(client.nodes())
    if app.out.json_mode:
        app.out.document(nodes=listed)
    elif not listed:
        app.out.line("no nodes: start one with `arena agent`")
    elif with_devices:
        _write_devices(app.out, listed)
    else:
        columns = ("NODE", "STATE", "TYPE", "GPUS", "USED", "DIRTY", "ZONE", "ADDRESS", "SKEW", "ATTEMPTS", "WHY")
        spare = ("SKEW", "ADDRESS", "ZONE", "ATTEMPTS", "DIRTY", "TYPE")
        app.out.table(columns, [_row(node) for node in listed], right=("GPUS", "USED", "DIRTY", "SKEW"), spare=spare)


def _row(node: NodeView) -> tuple[str, ...]:
    state = node.state.value + ("" if node.connected else " (not connected)")
    return (
        quoted(node.node_id),
        state,
        quoted(node.gpu_type),
        str(len(node.devices)),
        str(sum(item.attempt_id is not None for item in node.devices)),
        str(sum(item.device.dirty is not None for item in node.devices)),
        quoted(node.zone),
        quoted(node.address),
        f"{round(node.clock_skew_s, 1) + 0.0:.1f}s",
        " ".join(quoted(attempt_id) for attempt_id in node.attempt_ids) or words.NOTHING,
        _why(node),
    )


def _why(node: NodeView) -> str:
    """Return why a node is in its state, and who drains it until when: each of that once."""
    said, drain = node.state_cause, node.drain
    if drain is not None:
        of_drain, until = f"{drain.why} (by {drain.by})", ""
        if drain.until_s is not None:  # as an instant: how long it was given says nothing later on
            until = f", empty by {words.time_text(drain.until_s)}"
            said = said.removesuffix(f", empty within {drain.until_s - drain.at_s:.0f} s")
        said = (said if of_drain in said else "; ".join(filter(None, (said, of_drain)))) + until
    return escaped(said) or words.NOTHING


def _write_devices(out: Output, listed: tuple[NodeView, ...]) -> None:
    rows = [
        (
            quoted(node.node_id),
            str(item.device.index),
            quoted(item.device.device_id),
            quoted(item.attempt_id) if item.attempt_id else words.NOTHING,
            escaped(item.device.dirty) if item.device.dirty is not None else words.NOTHING,
        )
        for node in listed
        for item in node.devices
    ]
    out.table(("NODE", "INDEX", "DEVICE", "ATTEMPT", "DIRTY"), rows, right=("INDEX",))


@command(short_help="Take a node out of use.")
@click.argument("node_id", metavar="NODE")
@click.option("--why", required=True, help="Shown with the node.")
@click.option("--within", "within_s", type=Duration(), help="Have it empty after so long: 90s, 10m, 1h30m.")
def drain(app: App, node_id: str, why: str, within_s: float | None) -> None:
    """Take a node out of use: nothing new starts there; what runs there runs to its end.

    With --within its jobs are moved in time: those that keep checkpoints are saved ten minutes before (those that are
    about to end, or may not be stopped, later) and go on elsewhere, others run on until shortly before, and what is
    left after so long is killed. It says what becomes of each job that runs there.
    """
    with app.client() as client:
        node = client.drain(node_id, why=why, within_s=within_s)
        jobs = _jobs_on(client, node)
    until_s = node.drain.until_s if node.drain is not None else None
    if app.out.json_mode:
        ids = {what: [one.job_id for one in jobs if _fate(one, until_s) == what] for what in ("moved", "ended", "kept")}
        app.out.document(node=node, **ids)
    else:
        _tell(app, node)
        _write_fates(app.out, node, jobs, until_s)
    if within_s is not None and (node.drain is None or node.drain.until_s is None):
        click.echo("warning: this scheduler is older and knows no --within: what runs there runs to its end", err=True)


@command(short_help="Take a drained or quarantined node back into use.")
@click.argument("node_id", metavar="NODE")
def undrain(app: App, node_id: str) -> None:
    """Take a drained or quarantined node back into use.

    Its lender's notice counts no more until its agent registers again; for good it goes with the agent's notice file.
    """
    with app.client() as client:
        _tell(app, client.undrain(node_id))


def _jobs_on(client: ArenaClient, node: NodeView) -> list[JobView]:
    """Return the jobs that run on a node, in the order of their ids; not those that are at their end."""
    if not node.attempt_ids:
        return []
    here = sorted(job.job_id for job in client.jobs(states=_STAYING) if job.attempt_id in node.attempt_ids)
    return [client.job(job_id).job for job_id in here]


def _fate(job: JobView, until_s: float | None) -> Literal["moved", "ended", "kept"]:
    """Return what becomes of a job whose node is to be empty by an instant, or just gets nothing new."""
    if until_s is None:
        return "kept"
    return "ended" if words.is_command(job) else "moved"


def _write_fates(out: Output, node: NodeView, jobs: Sequence[JobView], until_s: float | None) -> None:
    for job in jobs:
        out.sentence(f"  {words.named(job)} {_fate_text(job, until_s)}", hanging=4)
    if jobs and until_s is not None:
        out.sentence(f"`arena undrain {quoted(node.node_id)}` before then leaves them where they are")


def _fate_text(job: JobView, until_s: float | None) -> str:
    if until_s is None:
        return "runs on to its end"
    if not words.is_command(job):
        return "is saved and goes on elsewhere"
    at_s, is_repeatable = until_s, False
    if job.spec is not None:
        at_s, is_repeatable = leave_at_s(job.spec, until_s), may_be_repeated(job.spec)
    then = "started anew elsewhere" if is_repeatable else "held"
    return f"is a program: ended at {words.time_text(at_s)} unless it is over by then, and {then}"


def _tell(app: App, node: NodeView) -> None:
    if app.out.json_mode:
        app.out.document(node=node)
    else:
        app.out.line(f"{quoted(node.node_id)} is {node.state.value}")
