"""Formats that are tables: a line of column names, then a row a line, parted by commas, tabs or semicolons.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from arena_traces.defects import Defect
from arena_traces.formats.base import FlawError, Parsed, Reading, Row
from arena_traces.formats.cells import Cells, shown
from arena_traces.lines import Line, Lines

DELIMITERS = (",", "\t", ";")
_SHOWN_COLUMNS_MAX = 20
_COMPARED_COLUMNS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A table's first line.

    Args:
        columns: Names as they stand there, without blanks around them, and without empty ones at the end.
        names: The same as they are compared.
    """

    delimiter: str
    columns: tuple[str, ...]
    names: tuple[str, ...]

    def listed(self) -> str:
        """Return the columns for people."""
        listed = ", ".join(shown(column) for column in self.columns[:_SHOWN_COLUMNS_MAX])
        more = len(self.columns) - _SHOWN_COLUMNS_MAX
        return f"{listed} and {more} more" if more > 0 else listed


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """A format that is a table.

    Args:
        columns: That it must have; others are ignored, and named.
        optional: That it may have beside them.
        job: Makes a row's job; raises FlawError.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    job: Callable[[Cells], Parsed]
    optional: tuple[str, ...] = ()

    def matches(self, first: str) -> bool:
        """Whether all columns are there."""
        try:
            return set(self.columns) <= set(head_of(first).names)
        except csv.Error:
            return False

    def begin(self, first: Line, rest: Iterator[Line], lines: Lines) -> Reading:
        """Return the rows under a table's first line.

        Raises:
            TraceError: Columns are missing or there twice.
        """
        try:
            head = head_of(first.text)
        except csv.Error as error:
            raise lines.error(Defect.BAD_QUOTES, "the line of columns cannot be read", why=str(error)) from error
        self._check(head, lines)
        known = (*self.columns, *self.optional)
        ignored = tuple(column for column in head.columns if column.casefold() not in known)
        return Reading(rows=self._rows(head, rest, lines), ignored_columns=ignored)

    def _check(self, head: Head, lines: Lines) -> None:
        missing = [column for column in self.columns if column not in head.names]
        if missing:
            why = f"it needs {', '.join(self.columns)}; found {head.listed()}"
            what = f"a trace of format {self.name} has no column {', '.join(missing)} here"
            raise lines.error(Defect.BAD_COLUMNS, what, why=why, fix=close_columns(missing, head.names))
        twice = [column for column in (*self.columns, *self.optional) if head.names.count(column) > 1]
        if twice:
            raise lines.error(Defect.BAD_COLUMNS, f"column {', '.join(twice)} is there twice", fix="remove one")

    def _rows(self, head: Head, rest: Iterator[Line], lines: Lines) -> Iterator[Row]:
        known = (*self.columns, *self.optional)
        index_by_column = {name: index for index, name in enumerate(head.names) if name in known}
        line = None
        for line in rest:
            try:
                fields = _fields(line.text, head)
                yield self.job(Cells(line=line.number, fields=fields, index_by_column=index_by_column))
            except FlawError as flaw:
                yield flaw.at(line.number)
        lines.check_end()
        if line is None:
            raise lines.error(Defect.NO_ROWS, "there are columns, and no row under them", fix="was the file cut?")


def head_of(first: str) -> Head:
    """Return a table's first line, by the delimiter that gives the most columns.

    Raises:
        csv.Error: Its quotes do not close.
    """
    split = {delimiter: _split(first, delimiter) for delimiter in DELIMITERS}
    delimiter = max(DELIMITERS, key=lambda one: len(split[one]))
    columns = [column.strip() for column in split[delimiter]]
    while columns and not columns[-1]:
        columns.pop()
    names = tuple(column.casefold() for column in columns)
    return Head(delimiter=delimiter, columns=tuple(columns), names=names)


def _fields(text: str, head: Head) -> Sequence[str]:
    try:
        fields = _split(text, head.delimiter)
    except csv.Error as error:
        what = f"the row cannot be read ({error})"
        raise FlawError(Defect.BAD_QUOTES, what, fix="close its quotes; a field ends in its line") from error
    count = len(head.columns)
    if len(fields) < count or any(field.strip() for field in fields[count:]):
        what = f"the row has {len(fields)} fields, there are {count} columns"
        raise FlawError(Defect.FIELD_COUNT, what, fix="was the file cut here?" if len(fields) < count else "")
    return fields


def _split(text: str, delimiter: str) -> list[str]:
    if '"' not in text:
        return text.split(delimiter)
    return next(csv.reader((text,), delimiter=delimiter, strict=True))


def close_columns(missing: Sequence[str], found: Sequence[str]) -> str:
    """Return a question that names a column that may be meant, or nothing where none is close."""
    for column in missing:
        close = difflib.get_close_matches(column, found[:_COMPARED_COLUMNS_MAX], n=1)
        if close:
            return f"is {shown(close[0])} meant to be {column}?"
    return ""
