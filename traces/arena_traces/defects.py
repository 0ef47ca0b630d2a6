"""What can be wrong with a trace, and what is done about it: one table, which the documentation prints.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from arena.errors import UserError


class TraceError(UserError):
    """A trace cannot be read; ``details`` holds ``file``, ``line`` and ``defect``."""

    code = "trace"


class Treatment(StrEnum):
    """What a defect does to a trace: it ends the reading, costs a row, or a row is mended. The latter are counted."""

    ERROR = "error"
    DROP = "drop"
    REPAIR = "repair"


class Defect(StrEnum):
    """What can be wrong with a trace."""

    UNREADABLE = "unreadable"
    UNKNOWN_FORMAT = "unknown_format"
    BAD_ARCHIVE = "bad_archive"
    CUT_ARCHIVE = "cut_archive"
    NOT_TEXT = "not_text"
    LINE_TOO_LONG = "line_too_long"
    TOO_MANY_ROWS = "too_many_rows"
    NO_ROWS = "no_rows"
    CUT_FILE = "cut_file"
    CHANGED = "changed"
    BAD_COLUMNS = "bad_columns"
    BAD_QUOTES = "bad_quotes"
    FIELD_COUNT = "field_count"
    BAD_RECORD = "bad_record"
    NOT_A_NUMBER = "not_a_number"
    NEGATIVE = "negative"
    OUT_OF_RANGE = "out_of_range"
    BAD_MODEL_NAME = "bad_model_name"
    NO_ID = "no_id"
    NO_SUBMISSION = "no_submission"
    NO_GPU_COUNT = "no_gpu_count"
    NO_GPUS = "no_gpus"
    NO_WORK = "no_work"
    NO_TIME = "no_time"
    REPEATED_ROW = "repeated_row"
    REPEATED_ID = "repeated_id"
    GPU_SHARE = "gpu_share"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is done about a defect.

    Args:
        says: The defect, for people.
        can_drop: A reader may be told to drop such rows instead of ending.
    """

    treatment: Treatment
    says: str
    can_drop: bool = False


def _ends(says: str) -> Rule:
    return Rule(treatment=Treatment.ERROR, says=says)


def _ends_or_drops(says: str) -> Rule:
    return Rule(treatment=Treatment.ERROR, says=says, can_drop=True)


def _drops(says: str) -> Rule:
    return Rule(treatment=Treatment.DROP, says=says, can_drop=True)


def _mends(says: str) -> Rule:
    return Rule(treatment=Treatment.REPAIR, says=says, can_drop=True)


RULES: Mapping[Defect, Rule] = {
    Defect.UNREADABLE: _ends("no file, or one that may not be read"),
    Defect.UNKNOWN_FORMAT: _ends("the first line is of no format known"),
    Defect.BAD_ARCHIVE: _ends("a damaged gz or zip, a zip of several files, or one with a password"),
    Defect.CUT_ARCHIVE: _ends("a gz that ends too early"),
    Defect.NOT_TEXT: _ends("bytes that are no UTF-8 text, NUL among them, or lines that end in a bare CR"),
    Defect.LINE_TOO_LONG: _ends("a line beyond the limit of bytes"),
    Defect.TOO_MANY_ROWS: _ends("more lines or bytes, unpacked, than the limit"),
    Defect.NO_ROWS: _ends("columns, and no row under them"),
    Defect.CUT_FILE: _ends("a last line that does not end, or a log without its closing line"),
    Defect.CHANGED: _ends("a file that changes while it is read"),
    Defect.BAD_COLUMNS: _ends("columns that are missing or there twice"),
    Defect.BAD_QUOTES: _ends_or_drops("quotes that do not close, or text after them"),
    Defect.FIELD_COUNT: _ends_or_drops("a row with fewer or more fields than columns (empty ones at its end are none)"),
    Defect.BAD_RECORD: _ends_or_drops("a line of a log that is no JSON, or has other fields than it should"),
    Defect.NOT_A_NUMBER: _ends_or_drops("text or a fraction where a number or a whole number should be"),
    Defect.NEGATIVE: _ends_or_drops("a time, length or count below zero, other than -1; an end before its beginning"),
    Defect.OUT_OF_RANGE: _ends_or_drops("a number beyond all sense, or text beyond its limit"),
    Defect.BAD_MODEL_NAME: _ends_or_drops("a model that is not written family__size"),
    Defect.NO_ID: _drops("no id"),
    Defect.NO_SUBMISSION: _drops("no time of submission"),
    Defect.NO_GPU_COUNT: _drops("no count of GPUs"),
    Defect.NO_GPUS: _drops("asks for 0 GPUs"),
    Defect.NO_WORK: _drops("neither how long it ran nor what it had to do is known"),
    Defect.NO_TIME: _drops("ran for 0 s, or did 0 steps"),
    Defect.REPEATED_ROW: _drops("the same row again, but for its line"),
    Defect.REPEATED_ID: _mends("another row's id: @ and the line are added to it"),
    Defect.GPU_SHARE: _mends("a share of a GPU is rounded up to a whole one"),
}
"""What is done about each defect; empty, NaN, None, null, NA, - and -1 are no value, in any column."""


def effective_treatments(dropped: frozenset[Defect]) -> Mapping[Defect, Treatment]:
    """Return what is done about each defect where rows with some of them are to be dropped.

    Raises:
        UserError: One of them is about the whole file, which cannot be dropped.
    """
    for defect in sorted(dropped):
        if not RULES[defect].can_drop:
            droppable = ", ".join(one for one, rule in RULES.items() if rule.can_drop)
            raise UserError(f"{defect} is about a whole file and no row", fix=f"these can be dropped: {droppable}")
    return {defect: Treatment.DROP if defect in dropped else rule.treatment for defect, rule in RULES.items()}


def trace_error(
    file: str, defect: Defect, what: str, *, line: int | None = None, why: str = "", fix: str = ""
) -> TraceError:
    """Return the error of a file, at a line of it where one is to blame."""
    place = file if line is None else f"{file}, line {line}"
    details = {"file": file, "defect": str(defect)} | ({} if line is None else {"line": str(line)})
    return TraceError(f"{place}: {what}", why=why, fix=fix, details=details)
