"""``arena export``: what a scheduler did with its jobs, as a trace that ``arena replay`` reads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from arena.cli.app import App, command
from arena.cli.quoting import quoted
from arena.cli.whole_files import require_new, write_whole
from arena.domain.records import ENDED_JOB_STATES, LIVE_JOB_STATES, JobState
from arena.rpc.version import software_version
from arena.units import format_count

if TYPE_CHECKING:
    from arena.client import ArenaClient
    from arena_traces.formats.event_log import LogJob

Advance = Callable[[int], None]
_OTHER_OUT = "name another --out"


@command(short_help="What the scheduler ran, as a trace for `arena replay`.")
@click.option("-o", "--out", metavar="FILE", help="Write it there, whole or not at all; else to standard output.")
@click.option("--force", is_flag=True, help="With --out: replace a file that is there.")
@click.option("--user", help="Only jobs of this user.")
@click.option("--project", help="Only jobs of this project.")
def export(app: App, *, out: str | None, force: bool, user: str | None, project: str | None) -> None:
    """Write every job with its specification, its attempts and its end, in Arena's own format (arena-log).

    \b
    arena export -o july.jsonl
    arena replay july.jsonl --cluster cluster.yaml --policy fcfs,elastic

    Jobs of others are left out, and counted, unless you are an admin. The environment of commands is left out: it may
    hold secrets. With --out, --json tells what was written; without, the log itself is JSON.
    """  # noqa: D301 - click wants the backspace itself
    if out is not None:
        require_new(Path(out), force=force, fix=_OTHER_OUT)
    with app.client() as client:
        export = _Export(client=client, user=user, project=project)
        with _progress(app, client, is_shown=out is not None or not app.out.is_terminal) as advance:
            lines = export.lines(advance)
            if out is None:
                for line in lines:
                    app.out.raw(line)
            else:
                write_whole(Path(out), (line.encode() for line in lines), fix=_OTHER_OUT)
    _tell(app, export, out)


def _tell(app: App, export: _Export, out: str | None) -> None:
    if out is not None and app.out.json_mode:
        app.out.document(
            file=out,
            format="arena-log",
            exported_at_s=export.exported_at_s,
            job_count=export.written_count,
            live_count=export.live_count,
            hidden_count=export.hidden_count,
            dropped_count=export.dropped_count,
        )
        return
    text = f"{format_count(export.written_count, 'job')}, {export.live_count:,} of them not over"
    if export.hidden_count:
        text += f"; {export.hidden_count:,} of others left out, which an admin may see"
    if export.dropped_count:
        text += f"; {export.dropped_count:,} that ended longer ago are not kept any more"
    if out is not None:
        app.out.line(f"{quoted(out)}: {text}")
    elif not app.out.json_mode:
        click.echo(text, err=True)


@dataclass(slots=True, kw_only=True)
class _Export:
    """An export on its way.

    Jobs that are not over are asked for first, and the instant of the export is taken right after them: no job that is
    written has a time beyond it. The others do not change any more; who ended in between has been written already.

    Attributes:
        written_count, live_count, hidden_count: So far; the second are those written that are not over, the last
            those of others.
        dropped_count: Jobs that the scheduler does not keep any more.
    """

    client: ArenaClient
    user: str | None
    project: str | None
    exported_at_s: float = field(default=0.0, init=False)
    written_count: int = field(default=0, init=False)
    live_count: int = field(default=0, init=False)
    hidden_count: int = field(default=0, init=False)
    dropped_count: int = field(default=0, init=False)

    def lines(self, advance: Advance) -> Iterator[str]:
        """Yield the log; ``advance`` is called with every number of jobs that are there."""
        from arena_traces.formats.log_writing import log_lines

        live = list(self._logged(LIVE_JOB_STATES, advance))
        self.live_count = len(live)
        status = self.client.status(job_count_max=1)
        self.exported_at_s = status.now_s
        yield from log_lines(
            self._counted(live, advance),
            exported_at_s=self.exported_at_s,
            arena_version=software_version(),
            restart_s=status.restart_s,
        )

    def _counted(self, live: list[LogJob], advance: Advance) -> Iterator[LogJob]:
        written = {job.job_id for job in live}
        self.written_count = len(live)
        yield from live
        for job in self._logged(ENDED_JOB_STATES, advance):
            if job.job_id not in written and job.submitted_at_s <= self.exported_at_s:
                self.written_count += 1
                yield job

    def _logged(self, states: tuple[JobState, ...], advance: Advance) -> Iterator[LogJob]:
        from arena_traces.formats.log_writing import log_job

        for some in self.client.export_jobs(states=states, user=self.user, project=self.project):
            self.hidden_count += some.hidden_count
            self.dropped_count += some.dropped_count
            advance(len(some.jobs) + some.hidden_count)
            for one in some.jobs:
                if one.job.spec is not None:
                    yield log_job(one.job, one.job.spec, one.attempts)


@contextmanager
def _progress(app: App, client: ArenaClient, *, is_shown: bool) -> Iterator[Advance]:
    """Show how many jobs are there, of all that the scheduler knows.

    Args:
        is_shown: False where the log itself goes to the terminal: a bar would stand amid its lines.
    """
    from rich.console import Console
    from rich.progress import Progress

    is_shown = is_shown and not app.out.json_mode and sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=not is_shown) as bar:
        total = sum(client.status(job_count_max=1).job_count_by_state.values()) if is_shown else None
        task = bar.add_task("exporting", total=total)
        yield lambda count: bar.advance(task, count)
