"""A trace in memory: its jobs, where they come from, and what became of every row. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from arena.domain.job import JobId, JobSpec
from arena.domain.trace import TraceJob
from arena.errors import InternalError
from arena_traces.defects import Defect, Treatment


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """What became of the rows of a source: each is a job, was dropped, or was left out of a part of the trace.

    Args:
        row_count: Rows read, without column names, blank lines and the frame of a log.
        job_count: Jobs of the trace.
        left_out_count: Jobs that a window, or the first so many, do not hold.
        dropped_lines: Lines of rows that were dropped, by defect.
        repaired_lines: Lines of rows that were mended and kept, by defect; a row may have several.
    """

    row_count: int
    job_count: int
    left_out_count: int = 0
    dropped_lines: Mapping[Defect, tuple[int, ...]] = field(default_factory=dict)
    repaired_lines: Mapping[Defect, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = self.job_count + self.left_out_count + self.dropped_count
        if found != self.row_count:
            raise InternalError("rows of a trace are lost", why=f"{self.row_count} were read, {found} are known")

    @property
    def dropped_count(self) -> int:
        """Rows that were dropped."""
        return sum(len(lines) for lines in self.dropped_lines.values())

    @property
    def repaired_count(self) -> int:
        """Rows that were mended, each counted once."""
        return len({line for lines in self.repaired_lines.values() for line in lines})

    def counted(self) -> tuple[tuple[Treatment, Defect, tuple[int, ...]], ...]:
        """Return what was done, why, and to which lines; dropped ones first."""
        both = ((Treatment.DROP, self.dropped_lines), (Treatment.REPAIR, self.repaired_lines))
        return tuple((done, defect, lines[defect]) for done, lines in both for defect in sorted(lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What chance gave a job.

    Args:
        row: Line of the source that the job was read from.
        number: The random number in [0, 1) that decided.
        gpu_hours: Of the source; they chose the class.
        class_index: Of the mapping's classes.
        workload: Name of what was drawn.
    """

    job_id: JobId
    row: int
    number: float
    gpu_hours: float
    class_index: int
    workload: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a trace comes from.

    Args:
        file: As it was named to the reader.
        format_name: Of the registry.
        sha256: Of the file's bytes, packed ones where it is packed.
        ignored_columns: Columns of the file that its format does not read.
    """

    file: str
    format_name: str
    sha256: str
    ignored_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Jobs in the order of their submission; equal instants in the order of their rows.

    Args:
        changes: What was done to the trace after it was read, one sentence each, in order.
        draws: What chance gave its jobs, in the order of the jobs.
        spec_by_job: Specifications, where the source has them (Arena's own log).
        restart_s: What a restart took where the jobs ran, None where the source does not say.
        program_start_s: What the start of a program took there, in the mean, likewise.
    """

    source: Source
    jobs: tuple[TraceJob, ...]
    accounting: Accounting
    changes: tuple[str, ...] = ()
    draws: tuple[Draw, ...] = ()
    spec_by_job: Mapping[JobId, JobSpec] = field(default_factory=dict)
    restart_s: float | None = None
    program_start_s: float | None = None

    def __post_init__(self) -> None:
        if len(self.jobs) != self.accounting.job_count:
            found = f"{len(self.jobs)} jobs, {self.accounting.job_count} in the accounts"
            raise InternalError("a trace and its accounts differ", why=found)
        if any(order(first) > order(second) for first, second in pairwise(self.jobs)):
            raise InternalError("jobs of a trace are not in the order of their submission")


def order(job: TraceJob) -> tuple[float, int]:
    """The order of a trace's jobs."""
    return (job.submitted_at_s, job.row)
