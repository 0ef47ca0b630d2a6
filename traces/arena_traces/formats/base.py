"""What a format of traces is: it knows its first line, and turns the others into jobs or flaws.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from arena.domain.job import JobSpec
from arena.domain.trace import TraceJob
from arena_traces.defects import Defect
from arena_traces.lines import Line, Lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A row that is a job.

    Args:
        repairs: What had to be mended.
        spec: Its specification, where the format has one.
        starts_s: What each of its starts took, from its launch until it ran, where the format says.
    """

    job: TraceJob
    repairs: tuple[Defect, ...] = ()
    spec: JobSpec | None = None
    starts_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flawed:
    """A row that is none.

    Args:
        what: What is wrong, with what was found.
        fix: What to do about it.
    """

    line: int
    defect: Defect
    what: str
    fix: str = ""


Row = Parsed | Flawed


class FlawError(Exception):
    """A row cannot be read; never leaves the format that raised it."""

    def __init__(self, defect: Defect, what: str, *, fix: str = "") -> None:
        super().__init__(what)
        self.defect = defect
        self.what = what
        self.fix = fix

    def at(self, line: int) -> Flawed:
        """Return it as what a reader passes on."""
        return Flawed(line=line, defect=self.defect, what=self.what, fix=self.fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A file of a known format.

    Args:
        rows: One for each row of the file, in order; raises TraceError where the file as a whole is at fault.
        restart_s: What a restart took where the jobs ran, None where the file does not say.
    """

    rows: Iterator[Row]
    ignored_columns: tuple[str, ...] = ()
    restart_s: float | None = None


class TraceFormat(Protocol):
    """A format of traces."""

    @property
    def name(self) -> str:
        """As users name it."""
        ...

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that a file of it must have; empty where it is no table."""
        ...

    def matches(self, first: str) -> bool:
        """Whether a file that begins with this line is of this format."""
        ...

    def begin(self, first: Line, rest: Iterator[Line], lines: Lines) -> Reading:
        """Return the rows under a file's first line.

        Raises:
            TraceError: The first line is none of this format.
        """
        ...
