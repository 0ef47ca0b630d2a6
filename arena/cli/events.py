"""``arena events``: the history, as lines for people or JSON lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from arena.cli import words
from arena.cli.app import App, command
from arena.cli.find import find_job_id
from arena.cli.quoting import escaped
from arena.domain.records import EntryKind, HistoryEntry
from arena.errors import NotFoundError

if TYPE_CHECKING:
    from arena.client import ArenaClient


@command(short_help="What happened.")
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on as things happen.")
@click.option("--node", "node_id", help="Only what happened to this node.")
@click.option(
    "--kind", "kinds", type=click.Choice([kind.value for kind in EntryKind]), multiple=True, help="Only this kind."
)
@click.option("--all", "everything", is_flag=True, help="Also the steps of running jobs (job_progress).")
@click.option("--after", type=click.IntRange(0), default=0, metavar="INDEX", help="Only what came after this entry.")
def events(
    app: App,
    *,
    job_id: str | None,
    follow: bool,
    node_id: str | None,
    kinds: tuple[str, ...],
    everything: bool,
    after: int,
) -> None:
    """Show what happened, to one job or at all.

    Lines for people leave out each step of running jobs unless --all or --kind job_progress asks for them; --json is
    always complete, one entry a line.
    """
    complete = everything or kinds or app.out.json_mode
    with app.client() as client:
        if node_id is not None:
            _check_node(client, node_id)
        entries = client.stream_events(
            after_index=after,
            job_id=find_job_id(client, job_id, tell=app.note) if job_id else None,
            node_id=node_id,
            kinds=[EntryKind(kind) for kind in kinds],
            kinds_left_out=() if complete else (EntryKind.JOB_PROGRESS,),
            follow=follow,
        )
        for entry in entries:
            if app.out.json_mode:
                app.out.json_line(entry)
            else:
                app.out.sentence(_line(entry), hanging=8)


def _check_node(client: ArenaClient, node_id: str) -> None:
    """Refuse a node that nobody knows; one that the scheduler has forgotten may still be in the history.

    Raises:
        NotFoundError: It never was there.
    """
    if any(node.node_id == node_id for node in client.nodes()):
        return
    if next(client.stream_events(node_id=node_id), None) is None:
        raise NotFoundError(f"there is no node {node_id}", fix="see `arena nodes`", details={"node_id": node_id})


def _line(entry: HistoryEntry) -> str:
    about = entry.attempt_id or entry.job_id or entry.node_id or ""
    return f"{entry.index:>6}  {words.time_text(entry.at_s)}  {entry.kind.value:<22}  {escaped(about):<12}  " + escaped(
        entry.message
    )
