"""``arena events``: the history, as lines for people or JSON lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from arena.cli import words
from arena.cli.app import App, command
from arena.cli.find import find_job_id
from arena.cli.quoting import escaped
from arena.domain.records import LIVE_JOB_STATES, EntryKind, HistoryEntry
from arena.errors import NotFoundError

if TYPE_CHECKING:
    from arena.client import ArenaClient


@command(short_help="What happened.")
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on as things happen; of a job, until it has ended.")
@click.option("--node", "node_id", help="Only what happened to this node.")
@click.option(
    "--kind", "kinds", type=click.Choice([kind.value for kind in EntryKind]), multiple=True, help="Only this kind."
)
@click.option("--all", "everything", is_flag=True, help="Also the steps of running jobs (job_progress).")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Of what has happened only the last so many.")
@click.option("--after", type=click.IntRange(0), default=0, metavar="INDEX", help="Only what came after this entry.")
def events(
    app: App,
    *,
    job_id: str | None,
    follow: bool,
    node_id: str | None,
    kinds: tuple[str, ...],
    everything: bool,
    last: int | None,
    after: int,
) -> None:
    """Show what happened, to one job or at all.

    Following a job ends with it. Lines for people leave out each step of running jobs unless --all or --kind
    job_progress asks for them; --json is always complete, one entry a line.
    """
    complete = everything or kinds or app.out.json_mode
    with app.client() as client:
        if node_id is not None:
            _check_node(client, node_id)
        asked = _Asked(
            client=client,
            job_id=find_job_id(client, job_id, tell=app.note) if job_id else None,
            node_id=node_id,
            kinds=frozenset(EntryKind(kind) for kind in kinds),
            kinds_left_out=() if complete else (EntryKind.JOB_PROGRESS,),
        )
        for entry in asked.entries(after, last=last, follow=follow):
            if app.out.json_mode:
                app.out.json_line(entry)
            else:
                app.out.sentence(_line(entry), hanging=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Which entries of the history are to be shown."""

    client: ArenaClient
    job_id: str | None
    node_id: str | None
    kinds: frozenset[EntryKind]
    kinds_left_out: tuple[EntryKind, ...]

    def entries(self, after_index: int, *, last: int | None, follow: bool) -> Iterator[HistoryEntry]:
        """Yield what has happened, or the last of it; with ``follow`` also what happens from now on."""
        past = self._read(after_index)
        for entry in past if last is None else deque(past, maxlen=last):
            after_index = entry.index
            yield entry
        if follow and self.job_id is not None:
            yield from self._until_job_ends(self.job_id, after_index)
        elif follow:
            yield from self._read(after_index, follow=True)

    def _read(self, after_index: int, *, follow: bool = False) -> Iterator[HistoryEntry]:
        return self.client.stream_events(
            after_index=after_index,
            job_id=self.job_id,
            node_id=self.node_id,
            kinds=sorted(self.kinds),
            kinds_left_out=self.kinds_left_out,
            follow=follow,
        )

    def _until_job_ends(self, job_id: str, after_index: int) -> Iterator[HistoryEntry]:
        """Yield entries until a job is over; its end is listened for also where it is not to be shown."""
        while not self.client.job(job_id).job.state.is_terminal:
            for entry in self.client.stream_events(
                after_index=after_index,
                job_id=job_id,
                kinds=sorted(self.kinds | {EntryKind.JOB_STATE}) if self.kinds else (),
                kinds_left_out=self.kinds_left_out,
                follow=True,
            ):
                after_index = entry.index
                if self._is_shown(entry):
                    yield entry
                if entry.kind is EntryKind.JOB_STATE and entry.data.get("after") not in LIVE_JOB_STATES:
                    break
        yield from self._read(after_index)  # what was recorded together with its end

    def _is_shown(self, entry: HistoryEntry) -> bool:
        return (not self.kinds or entry.kind in self.kinds) and self.node_id in {None, entry.node_id}


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
