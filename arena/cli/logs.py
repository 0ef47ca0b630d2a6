"""``arena logs``: what a job's ranks wrote."""

from __future__ import annotations

import codecs
import sys
from typing import TYPE_CHECKING

import click

from arena.cli.app import App, command
from arena.cli.find import find_job
from arena.cli.quoting import escaped, quoted
from arena.cli.words import is_program
from arena.domain.records import JobState
from arena.units import format_bytes

if TYPE_CHECKING:
    from arena.client import LogChunk
    from arena.rpc.views import JobView


@command(short_help="What a job's ranks wrote.")
@click.argument("job_id", metavar="JOB")
@click.option("-f", "--follow", is_flag=True, help="Go on as the ranks write.")
@click.option("--rank", type=click.IntRange(0), help="Only this rank.")
@click.option(
    "--attempt", "epoch", type=click.IntRange(1), metavar="NUMBER", help="This attempt; the latest otherwise."
)
@click.option("--tail", "tail_bytes", type=click.IntRange(0), metavar="BYTES", help="Only the end of each rank's log.")
def logs(app: App, *, job_id: str, follow: bool, rank: int | None, epoch: int | None, tail_bytes: int | None) -> None:
    """Show what a job's ranks wrote; lines of several ranks carry the rank.

    With --json each line is one piece: attempt_id, rank, offset_bytes, dropped_bytes, text.
    """
    printer = _Printer(app, one_rank=rank is not None)
    with app.client() as client:
        found = find_job(client, job_id, tell=app.note).job
        chunks = client.stream_logs(found.job_id, rank=rank, epoch=epoch, follow=follow, tail_bytes=tail_bytes)
        try:
            for chunk in chunks:
                printer.add(chunk)
        finally:
            printer.finish()
    if printer.is_silent and not app.out.json_mode:
        click.echo(_silence_text(found), err=True)


def _silence_text(job: JobView) -> str:
    """Return why there is nothing to show, and where to look instead."""
    if job.first_started_at_s is None and job.state in {JobState.QUEUED, JobState.HELD}:
        return f"it has not run yet; why: `arena why {quoted(job.job_id)}`"
    if job.state is JobState.FAILED and job.error:
        return f"its processes have written nothing; it failed: {escaped(job.error)}"
    where = "" if is_program(job) else f"; how far it is: `arena job {quoted(job.job_id)}`"
    return f"its processes have written nothing{where}"


class _Printer:
    """Puts pieces of several ranks together to whole lines."""

    def __init__(self, app: App, *, one_rank: bool) -> None:
        self._app = app
        self._one_rank = one_rank
        self._decoders: dict[int, codecs.IncrementalDecoder] = {}
        self._rest: dict[int, list[str]] = {}

    @property
    def is_silent(self) -> bool:
        """Whether nothing has come."""
        return not self._decoders

    def add(self, chunk: LogChunk) -> None:
        decoder = self._decoders.setdefault(chunk.rank, codecs.getincrementaldecoder("utf-8")("replace"))
        if chunk.dropped_bytes:
            self._tell_gap(chunk)
        text = decoder.decode(chunk.data)
        if self._app.out.json_mode:
            self._app.out.json_line(
                {
                    "attempt_id": chunk.attempt_id,
                    "rank": chunk.rank,
                    "offset_bytes": chunk.offset_bytes,
                    "dropped_bytes": chunk.dropped_bytes,
                    "text": text,
                }
            )
            return
        rest, lines = self._rest.setdefault(chunk.rank, []), text.split("\n")
        if len(lines) > 1:
            lines[0] = "".join((*rest, lines[0]))
            rest.clear()
            self._write(chunk.rank, lines[:-1])
        rest.append(lines[-1])  # joined once, however long the line becomes

    def finish(self) -> None:
        """Write the lines that have no end yet."""
        for rank, parts in sorted(self._rest.items()):
            if line := "".join(parts):
                self._write(rank, [line])
        self._rest.clear()

    def _write(self, rank: int, lines: list[str]) -> None:
        prefix = "" if self._one_rank else f"[{rank}] "
        # On a terminal a program's output must not steer it; a pipe gets it as it was written.
        shown = [escaped(line, keep="\t\r") for line in lines] if self._app.out.is_terminal else lines
        self._app.out.raw("".join(f"{prefix}{line}\n" for line in shown))

    def _tell_gap(self, chunk: LogChunk) -> None:
        sys.stderr.write(
            f"... {format_bytes(chunk.dropped_bytes)} of rank {chunk.rank} were dropped by the log's cap\n"
        )
