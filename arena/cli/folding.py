"""Texts and tables folded to the width of a terminal, no number and no id in two pieces. Pure: no I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

GAP = "  "
"""Between the columns of a table, and between the facts of a row that has lines of its own."""

_WHOLE_WIDTH_MAX = 24
"""Columns up to this wide are never folded, others not below it: a state in two pieces is misread."""
_WORD_WIDTH_MAX = 60
"""Words up to this wide, as ids and names of hosts are, stay whole in a column; those with a digit always do."""

_HAS_DIGIT = re.compile(r"\S*[0-9]\S*")
# What stands between backquotes is to be copied, so that it stays on one line; so does a number with its share in (%).
_WORD = re.compile(r"( *)((?:[^\s`]|`[^`]*`)+(?: \([^\s()]*\)\S*)?|\S+)")


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes; most need no table of all characters for that."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def folded(text: str, width: int, hanging: int = 0) -> list[str]:
    """Return a text as lines that break between words; a word that is wider than a line has one for itself.

    Args:
        width: Columns that a line may take.
        hanging: Columns by which all lines but the first are indented.
    """
    lines: list[str] = []
    for part in text.split("\n"):
        line = " " * hanging if lines else ""
        for blanks, word in _WORD.findall(part.rstrip()):
            if line.strip() and text_width(line + blanks + word) > width:
                lines.append(line)
                line = " " * hanging + word
            else:
                line += blanks + word
        lines.append(line)
    return lines


def column_widths(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """Return how wide the columns of a table are on a terminal, or None where it is too narrow for them side by side.

    The first one, what a row is about, is whole, to be copied; so are numbers, ids and names wherever they are.
    """
    whole, least = _bounds(columns, rows)
    left = width - _side_by_side(least)
    if left < 0:
        return None
    widths = list(least)
    while left > 0 and (narrow := [index for index, size in enumerate(widths) if size < whole[index]]):
        widths[min(narrow, key=widths.__getitem__)] += 1
        left -= 1
    return widths


def columns_that_fit(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, spare: Sequence[str]
) -> list[int] | None:
    """Return which columns of a table have room side by side; None where not even those have that are always there.

    Args:
        columns: Headings.
        rows: Cells, as many as headings.
        width: Columns of the terminal.
        spare: Headings of those that may be left out, in the order in which they are: what matters least first.
    """
    _, least = _bounds(columns, rows)
    for left_out_count in range(len(spare) + 1):
        left_out = spare[:left_out_count]
        kept = [index for index, column in enumerate(columns) if column not in left_out]
        if _side_by_side([least[index] for index in kept]) <= width:
            return kept
    return None


def _bounds(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[int], list[int]]:
    """Return how wide the columns of a table are where there is room, and how narrow each may become."""
    lines = (columns, *rows)
    whole = [max(text_width(line[index]) for line in lines) for index in range(len(columns))]
    least = [
        size if index == 0 or size <= _WHOLE_WIDTH_MAX else max(_WHOLE_WIDTH_MAX, _word_width(lines, index))
        for index, size in enumerate(whole)
    ]
    return whole, least


def _side_by_side(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _word_width(lines: Sequence[Sequence[str]], index: int) -> int:
    words = [word for line in lines for word in line[index].split()]
    widths = [(text_width(word), bool(_HAS_DIGIT.fullmatch(word))) for word in words]
    return max((width if is_number else min(width, _WORD_WIDTH_MAX) for width, is_number in widths), default=0)


def row_lines(columns: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """Yield the lines of a row whose table is too wide: what it is about, then each fact with its heading before it."""
    told = [f"{column} {cell}".strip() for column, cell in zip(columns, row, strict=True) if cell]
    first, facts = "".join(told[:1]), told[1:]
    yield from folded(first, width, hanging=2)
    line = ""
    for fact in facts:
        joined = f"{line}{GAP}{fact}"
        if line and text_width(joined) > width:
            yield from folded(line, width, hanging=4)
            joined = f"{GAP}{fact}"
        line = joined
    if line:
        yield from folded(line, width, hanging=4)
