"""The cells of a table's row as values: numbers in their range, what stands for no value. Pure: no I/O, no clock."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from arena.domain.specbase import NAME_LENGTH_MAX
from arena_traces.defects import Defect
from arena_traces.formats.base import FlawError

TIME_S_MAX = 1e11
"""About 3,000 years: Unix time in seconds is far below, in milliseconds above it."""

COUNT_MAX = 2**53
"""Up to here floats hold every whole number."""

GPU_COUNT_MAX = 10**6

_NO_VALUE = frozenset({"", "nan", "none", "null", "na", "n/a", "-", "-1", "-1.0"})
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}[-/][0-9]|[0-9]{1,2}:[0-9]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """The cells of one row.

    Args:
        line: Where it stands.
        fields: Cells in the order of the columns.
        index_by_column: Place of each column that is read.
    """

    line: int
    fields: Sequence[str]
    index_by_column: Mapping[str, int]

    def text(self, column: str) -> str | None:
        """Return a cell's text, None where it has no value.

        Raises:
            FlawError: It is too long, or would steer a terminal.
        """
        index = self.index_by_column.get(column)
        value = "" if index is None else self.fields[index].strip()
        if value.casefold() in _NO_VALUE:
            return None
        if len(value) > NAME_LENGTH_MAX or not value.isprintable():
            what = f"{column} must be at most {NAME_LENGTH_MAX} printable characters, found {shown(value)}"
            raise FlawError(Defect.OUT_OF_RANGE, what)
        return value

    def number(self, column: str, maximum: float) -> float | None:
        """Return a cell's number from 0 to a maximum, None where it has no value.

        Raises:
            FlawError: It is no number, negative, or larger.
        """
        text = self.text(column)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text):
            fix = "write times as seconds, e.g. Unix time" if _DATE.match(text) else ""
            raise FlawError(Defect.NOT_A_NUMBER, f"{column} must be a number, found {shown(text)}", fix=fix)
        value = float(text)
        if value < 0:
            raise FlawError(Defect.NEGATIVE, f"{column} must not be negative, found {shown(text)}")
        if value > maximum:
            fix = "write times in seconds, not in milliseconds" if maximum == TIME_S_MAX else ""
            raise FlawError(
                Defect.OUT_OF_RANGE, f"{column} must be at most {maximum:,.0f}, found {shown(text)}", fix=fix
            )
        return abs(value)  # -0

    def whole(self, column: str, maximum: int = COUNT_MAX) -> int | None:
        """Return a cell's whole number from 0 to a maximum, None where it has no value.

        Raises:
            FlawError: As for ``number``, or it is a fraction.
        """
        value = self.number(column, maximum)
        if value is not None and not value.is_integer():
            raise FlawError(Defect.NOT_A_NUMBER, f"{column} must be a whole number, found {value:g}")
        return None if value is None else int(value)


def job_id_of(cells: Cells, column: str) -> str:
    """Return a row's id.

    Raises:
        FlawError: There is none.
    """
    job_id = cells.text(column)
    if job_id is None:
        raise FlawError(Defect.NO_ID, f"{column} is empty")
    return job_id


def submission_of(cells: Cells, column: str) -> float:
    """Return when a row's job was submitted.

    Raises:
        FlawError: It is not known, or no time.
    """
    submitted_at_s = cells.number(column, TIME_S_MAX)
    if submitted_at_s is None:
        raise FlawError(Defect.NO_SUBMISSION, f"{column} is empty")
    return submitted_at_s


def gpu_count_of(cells: Cells, column: str) -> tuple[int, tuple[Defect, ...]]:
    """Return how many GPUs a row asks for, and whether that was rounded up.

    Raises:
        FlawError: It is not known, 0, or no number.
    """
    count = cells.number(column, GPU_COUNT_MAX)
    if count is None:
        raise FlawError(Defect.NO_GPU_COUNT, f"{column} is empty")
    if count == 0:
        raise FlawError(Defect.NO_GPUS, f"{column} is 0")
    return math.ceil(count), () if count.is_integer() else (Defect.GPU_SHARE,)


def shown(text: str) -> str:
    """Return what was found as an error shows it."""
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}..."
