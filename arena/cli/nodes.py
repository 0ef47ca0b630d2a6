"""``arena nodes``, ``arena drain`` and ``arena undrain``."""

from __future__ import annotations

import click

from arena.cli import words
from arena.cli.app import App, command
from arena.cli.numbers import Duration
from arena.cli.output import Output
from arena.cli.quoting import escaped, quoted
from arena.rpc.views import NodeView


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
    left after so long is killed.
    """
    with app.client() as client:
        node = client.drain(node_id, why=why, within_s=within_s)
    _tell(app, node)
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


def _tell(app: App, node: NodeView) -> None:
    if app.out.json_mode:
        app.out.document(node=node)
    else:
        app.out.line(f"{quoted(node.node_id)} is {node.state.value}")
