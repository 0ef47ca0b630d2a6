"""Formats of traces: the registry, and which of them a file is. Pure: no I/O, no clock."""

from __future__ import annotations

import csv

from arena.errors import UserError
from arena_traces.defects import Defect, TraceError
from arena_traces.formats.arena_csv import ARENA_CSV
from arena_traces.formats.base import TraceFormat
from arena_traces.formats.event_log import ARENA_LOG
from arena_traces.formats.itp import MICROSOFT_ITP
from arena_traces.formats.table import close_columns, head_of
from arena_traces.lines import Line, Lines

FORMATS: tuple[TraceFormat, ...] = (ARENA_LOG, ARENA_CSV, MICROSOFT_ITP)
"""All formats; the first that knows a file's first line is taken, so one with more columns comes before its parts."""


def format_named(name: str) -> TraceFormat:
    """Return a format by its name.

    Raises:
        UserError: There is none of that name.
    """
    for one in FORMATS:
        if one.name == name:
            return one
    raise UserError(f"no format of traces is called {name!r}", fix=f"formats: {', '.join(one.name for one in FORMATS)}")


def format_of(first: Line, lines: Lines) -> TraceFormat:
    """Return the format of a file by its first line.

    Raises:
        TraceError: It is none that is known; says what the nearest one lacks.
    """
    for one in FORMATS:
        if one.matches(first.text):
            return one
    raise _unknown(first, lines)


def _unknown(first: Line, lines: Lines) -> TraceError:
    what = "the first line is of no format known"
    try:
        head = head_of(first.text)
    except csv.Error as error:
        return lines.error(Defect.UNKNOWN_FORMAT, what, why=str(error))
    tables = [one for one in FORMATS if one.columns]
    nearest = max(tables, key=lambda one: _share(one, head.names))
    missing = [column for column in nearest.columns if column not in head.names]
    if len(missing) < len(nearest.columns):
        why = f"the nearest, {nearest.name}, lacks {', '.join(missing)}; found {head.listed()}"
        return lines.error(Defect.UNKNOWN_FORMAT, what, why=why, fix=close_columns(missing, head.names))
    listed = "; ".join(f"{one.name}: {', '.join(one.columns)}" for one in tables)
    fix = f"the first line of a table names its columns ({listed})"
    return lines.error(Defect.UNKNOWN_FORMAT, what, why=f"found {head.listed()}", fix=fix)


def _share(one: TraceFormat, names: tuple[str, ...]) -> float:
    return len(set(one.columns) & set(names)) / len(one.columns)
