"""Formats that are tables: a line of column names, then a row a line, parted by commas, tabs or semicolons.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from arena_traces.defects import Defect
from arena_traces.formats.base import FlawError, Parsed, Reading, Row
from arena_traces.formats.cells import Cells, shown
from arena_traces.lines import Line, Lines

DELIMITERS = (",", "\t", ";")
_SHOWN_COLUMNS_MAX = 20
_COMPARED_COLUMNS_MAX = 200
_CLOSE = 0.7
"""So that submit_time is close to submission_time, and duration not to num_iteration."""


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
        missing = self.missing(head)
        if missing:
            what = f"a trace of format {self.name} has no {columns_text(missing)} here"
            raise lines.error(Defect.BAD_COLUMNS, what, why=self.needs(head), fix=renaming(missing, self.spare(head)))
        twice = [column for column in (*self.columns, *self.optional) if head.names.count(column) > 1]
        if twice:
            fix = "remove one, or give it another name in the first line"
            raise lines.error(Defect.BAD_COLUMNS, f"{columns_text(twice)} is there twice", fix=fix)

    def missing(self, head: Head) -> list[str]:
        """Return the columns that a table should have, and has not."""
        return [column for column in self.columns if column not in head.names]

    def spare(self, head: Head) -> Head:
        """Return a first line without the columns that this format reads: others may be meant by missing ones."""
        known = {*self.columns, *self.optional}
        left = [index for index, name in enumerate(head.names) if name not in known]
        columns, names = (tuple(values[index] for index in left) for values in (head.columns, head.names))
        return replace(head, columns=columns, names=names)

    def needs(self, head: Head) -> str:
        """Return what a table should have, and what it has."""
        return f"it needs {', '.join(self.columns)}; found {head.listed()}"

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
        raise FlawError(Defect.FIELD_COUNT, what)
    return fields


def _split(text: str, delimiter: str) -> list[str]:
    if '"' not in text:
        return text.split(delimiter)
    return next(csv.reader((text,), delimiter=delimiter, strict=True))


def columns_text(columns: Sequence[str]) -> str:
    """Return columns for people."""
    return f"column{'' if len(columns) == 1 else 's'} {', '.join(columns)}"


def renaming(missing: Sequence[str], head: Head) -> str:
    """Return what to do about columns that are missing: names that are close to them, and what has none."""
    found = close_columns(missing, head)
    texts = [f"{shown(meant)} to {column}" for column, meant in found.items()]
    fixes = [f"rename {', '.join(texts)} in the first line, if that is meant"] if texts else []
    left = [column for column in missing if column not in found]
    fixes += [f"add {columns_text(left)}, or rename what holds {'it' if len(left) == 1 else 'them'}"] if left else []
    return "; ".join(fixes)


def close_columns(missing: Sequence[str], head: Head) -> dict[str, str]:
    """Return the column of a file that may be meant by each missing one, each at most once."""
    spare = dict(zip(head.names[:_COMPARED_COLUMNS_MAX], head.columns, strict=False))
    found: dict[str, str] = {}
    for column in missing:
        close = difflib.get_close_matches(column, list(spare), n=1, cutoff=_CLOSE)
        if close:
            found[column] = spare.pop(close[0])
    return found
