"""Formats of traces: the registry, and which of them a file is. Pure: no I/O, no clock."""

from __future__ import annotations

import csv

from arena.errors import UserError
from arena_traces.defects import Defect, TraceError
from arena_traces.formats.arena_csv import ARENA_CSV
from arena_traces.formats.base import TraceFormat
from arena_traces.formats.event_log import ARENA_LOG
from arena_traces.formats.itp import MICROSOFT_ITP
from arena_traces.formats.table import Head, TableFormat, close_columns, columns_text, head_of, renaming
from arena_traces.lines import Line, Lines

TABLES: tuple[TableFormat, ...] = (ARENA_CSV, MICROSOFT_ITP)
FORMATS: tuple[TraceFormat, ...] = (ARENA_LOG, *TABLES)
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
    nearest = max(TABLES, key=lambda one: _likeness(one, head))
    missing = nearest.missing(head)
    if _likeness(nearest, head):
        cut = ", and the line does not end: the file looks cut" if lines.stops_inside else ""
        why = f"the nearest, {nearest.name}, lacks {columns_text(missing)}: {nearest.needs(head)}{cut}"
        return lines.error(Defect.UNKNOWN_FORMAT, what, why=why, fix=renaming(missing, nearest.spare(head)))
    listed = "; ".join(f"{one.name}: {', '.join(one.columns)}" for one in TABLES)
    fix = f"the first line of a table names its columns ({listed})"
    return lines.error(Defect.UNKNOWN_FORMAT, what, why=f"found {head.listed()}", fix=fix)


def _likeness(one: TableFormat, head: Head) -> float:
    """Return the share of a format's columns that are there, or something like them."""
    missing = one.missing(head)
    return 1 - (len(missing) - len(close_columns(missing, one.spare(head)))) / len(one.columns)
