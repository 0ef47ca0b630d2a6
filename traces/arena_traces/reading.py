"""Reading a trace: each row becomes a job, is dropped and counted, or ends the reading with its line."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from arena.domain.job import JobId, JobSpec
from arena.domain.trace import TraceJob
from arena_traces.defects import RULES, Defect, Treatment, effective_treatments, trace_error
from arena_traces.formats import format_named, format_of
from arena_traces.formats.base import Flawed, Parsed, Reading, TraceFormat
from arena_traces.lines import DEFAULT_LIMITS, Limits, Line, Lines, opened
from arena_traces.trace import Accounting, Source, Trace, order


def read_trace(
    path: str | Path,
    *,
    format: str | None = None,  # noqa: A002 - the word that users know
    dropped: frozenset[Defect] = frozenset(),
    limits: Limits = DEFAULT_LIMITS,
) -> Trace:
    """Read a trace, plain or packed (gz, zip of one file).

    Args:
        path: A regular file.
        format: Name of its format; by default, the one that its first line shows.
        dropped: Defects for which a row is dropped instead of ending the reading.
        limits: What a trace may be at most.

    Raises:
        TraceError: The file cannot be read, or a row has a defect that ends the reading.
        UserError: There is no such format, or a defect that cannot be dropped is in ``dropped``.
    """
    collector = _Collector(str(path), effective_treatments(dropped))
    named = None if format is None else format_named(format)
    with opened(path, limits) as file:
        found, reading = _begun(file.lines, named)
        for row in reading.rows:
            if isinstance(row, Flawed) and file.lines.stops_inside:
                raise file.lines.cut_error("the file looks cut: it stops inside this line", why=row.what)
            collector.add(row)
        source = Source(
            file=str(path),
            format_name=found.name,
            sha256=file.sha256(),
            ignored_columns=reading.ignored_columns,
        )
    return collector.trace(source, restart_s=reading.restart_s)


def _begun(lines: Lines, named: TraceFormat | None) -> tuple[TraceFormat, Reading]:
    rest = iter(lines)
    first: Line | None = next(rest, None)
    if first is None:
        raise trace_error(lines.file, Defect.UNKNOWN_FORMAT, "is empty")
    found = named or format_of(first, lines)
    return found, found.begin(first, rest, lines)


def _way_out(row: Flawed) -> str:
    dropping = f"leave such rows out, and count them, with --drop {row.defect}" if RULES[row.defect].can_drop else ""
    return ", or ".join(filter(None, (row.fix, dropping)))


class _Collector:
    """Takes rows in, and keeps account of them."""

    def __init__(self, file: str, treatments: Mapping[Defect, Treatment]) -> None:
        self._file = file
        self._treatments = treatments
        self._row_count = 0
        self._jobs: list[TraceJob] = []
        self._specs: dict[JobId, JobSpec] = {}
        self._index_by_id: dict[JobId, int] = {}
        self._contents: dict[JobId, set[TraceJob]] = {}
        self._dropped: defaultdict[Defect, list[int]] = defaultdict(list)
        self._repaired: defaultdict[Defect, list[int]] = defaultdict(list)
        self._program_starts_s: list[float] = []

    def add(self, row: Parsed | Flawed) -> None:
        """Take one row in.

        Raises:
            TraceError: Its defect ends the reading.
        """
        self._row_count += 1
        if isinstance(row, Flawed):
            if self._treatments[row.defect] is Treatment.ERROR:
                raise trace_error(self._file, row.defect, row.what, line=row.line, fix=_way_out(row))
            self._dropped[row.defect].append(row.line)
            return
        wanted = row.job.job_id
        row = self._with_own_id(row)
        for defect in row.repairs:
            if self._treatments[defect] is Treatment.DROP:
                self._dropped[defect].append(row.job.row)
                return
        self._keep(row, wanted)

    def trace(self, source: Source, *, restart_s: float | None) -> Trace:
        """Return all that was taken in."""
        accounting = Accounting(
            row_count=self._row_count,
            job_count=len(self._jobs),
            dropped_lines={defect: tuple(lines) for defect, lines in self._dropped.items()},
            repaired_lines={defect: tuple(lines) for defect, lines in self._repaired.items()},
        )
        jobs = tuple(sorted(self._jobs, key=order))
        starts_s = self._program_starts_s
        return Trace(
            source=source,
            jobs=jobs,
            accounting=accounting,
            spec_by_job=self._specs,
            restart_s=restart_s,
            program_start_s=math.fsum(starts_s) / len(starts_s) if starts_s else None,
        )

    def _with_own_id(self, row: Parsed) -> Parsed:
        """Return the row under an id that no other has; a defect says so where that is not its own."""
        wanted = row.job.job_id
        if wanted not in self._index_by_id:
            return row
        first = self._jobs[self._index_by_id[wanted]]
        if _content(row.job) in self._contents.setdefault(wanted, {_content(first)}):
            return replace(row, repairs=(Defect.REPEATED_ROW,))
        job_id = wanted
        while job_id in self._index_by_id:
            job_id = JobId(f"{job_id}@{row.job.row}")
        return replace(row, job=replace(row.job, job_id=job_id), repairs=(*row.repairs, Defect.REPEATED_ID))

    def _keep(self, row: Parsed, wanted: JobId) -> None:
        job = row.job
        if job.job_id != wanted:
            self._contents[wanted].add(_content(job))
        self._index_by_id[job.job_id] = len(self._jobs)
        self._jobs.append(job)
        for defect in row.repairs:
            self._repaired[defect].append(job.row)
        if row.spec is not None:
            self._specs[job.job_id] = row.spec
            if row.spec.command is not None:
                self._program_starts_s.extend(row.starts_s)


def _content(job: TraceJob) -> TraceJob:
    """Return what rows with the same id have to have in common to be the same row again."""
    return replace(job, job_id=JobId(""), row=0)
