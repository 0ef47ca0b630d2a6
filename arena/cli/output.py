"""Where commands write: tables and lines for people, JSON for programs, errors in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from arena.cli.folding import GAP, column_widths, columns_that_fit, folded, row_lines, text_width
from arena.cli.quoting import escaped
from arena.cli.whole_files import writing_error
from arena.errors import ArenaError

if TYPE_CHECKING:
    from rich.console import Console

# Off a terminal nothing is cut or wrapped.
_ENDLESS_WIDTH = 100_000


class ReaderGoneError(Exception):
    """Nobody reads our output any more (`arena jobs | head`); no fault of anybody."""


class Output:
    """Standard output in one of its two forms.

    Args:
        json_mode: Write JSON instead of text.
        stream: Where to; standard output by default.
    """

    def __init__(self, *, json_mode: bool, stream: TextIO | None = None) -> None:
        self.json_mode = json_mode
        self._stream = stream or sys.stdout
        self._console: Console | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads along."""
        return self._stream.isatty()

    def document(self, **fields: object) -> None:
        """Write one JSON document."""
        from arena.cli.json_form import document, dumps

        self._write(dumps(document(**fields)))

    def json_line(self, value: object) -> None:
        """Write one line of a JSON stream."""
        from arena.cli.json_form import dumps

        self._write(dumps(value))

    def line(self, text: str = "", style: str = "") -> None:
        """Write a line for people; ``text`` is already safe or comes from us."""
        if not self.is_terminal:
            self._write(text)
            return
        from rich.text import Text

        self.print(Text(text, style=style))

    def sentence(self, text: str, *, hanging: int = 2, style: str = "") -> None:
        """Write a line for people that may be long: on a terminal it breaks between words.

        Args:
            text: Safe already, or ours.
            hanging: Columns by which all lines but the first are indented there.
            style: Of the whole.
        """
        for line in folded(text, self._rich().width, hanging) if self.is_terminal else [text]:
            self.line(line, style=style)

    def paragraph(self, lines: Iterable[str]) -> None:
        """Write lines that are one text; a terminal that is narrower than they are gets it in its own width."""
        told = list(lines)
        for line in folded(" ".join(told), self._rich().width) if self.is_terminal else told:
            self.line(line)

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        right: Sequence[str] = (),
        spare: Sequence[str] = (),
    ) -> None:
        """Write an aligned table without lines; elsewhere than on a terminal nothing is cut.

        There long texts fold within their columns. Where it is too narrow even so, columns that matter least are left
        out, and named below; where not even the others have room, each row has lines of its own, with all there is.

        Args:
            columns: Headings.
            rows: Cells, as many as headings.
            right: Headings of columns that are aligned to the right (numbers).
            spare: Headings of columns that may be left out, what matters least first.
        """
        if not self.is_terminal:
            self._plain_table(columns, rows, right)
            return
        kept = columns_that_fit(columns, rows, self._rich().width, spare)
        if kept is None:
            self._records(columns, rows)
            return
        self._side_by_side([columns[index] for index in kept], [[row[index] for index in kept] for row in rows], right)
        left_out = ", ".join(column for index, column in enumerate(columns) if index not in kept)
        if left_out:
            self.sentence(f"left out: {left_out} (in --json, or a wider terminal)", style="dim")

    def _records(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write rows that have lines of their own."""
        for row in rows:
            for index, line in enumerate(row_lines(columns, row, self._rich().width)):
                self.line(line, style="" if index else "bold")

    def _side_by_side(self, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
        """Write a table for which a terminal has room."""
        from rich.table import Table

        widths = column_widths(columns, rows, self._rich().width) or [0] * len(columns)
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, len(GAP), 0, 0))
        for column, width in zip(columns, widths, strict=True):
            justify: Literal["left", "right"] = "right" if column in right else "left"
            table.add_column(column, overflow="fold", width=width, justify=justify)
        for row in rows:
            table.add_row(*row)
        self.print(table)

    def _plain_table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
        """Write a table for a pipe or a file: whole cells, and several times faster than a rendered one."""
        lines = [columns, *rows]
        widths = [max(text_width(line[index]) for line in lines) for index in range(len(columns))]
        for line in lines:
            padded = []
            for column, cell, width in zip(columns, line, widths, strict=True):
                space = " " * (width - text_width(cell))
                padded.append(space + cell if column in right else cell + space)
            self._write(GAP.join(padded).rstrip())

    def print(self, renderable: Any) -> None:
        """Write something that rich can render."""
        console = self._rich()
        with console.capture() as capture:
            console.print(renderable, soft_wrap=not hasattr(renderable, "columns"))
        for line in capture.get().splitlines():
            self._write(line if self.is_terminal else line.rstrip())

    def raw(self, text: str) -> None:
        """Write text as it is and let it out at once.

        Raises:
            ReaderGoneError: Nobody reads it.
            ResourceExhaustedError: It goes to a file whose disk is full.
            UserError: It cannot be written.
        """
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            raise ReaderGoneError from None
        except OSError as error:
            fix = "send the output elsewhere"
            raise writing_error(Path("standard output"), error, fix=fix) from error

    def _write(self, line: str) -> None:
        self.raw(f"{line}\n")

    def _rich(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(
                file=self._stream,
                markup=False,
                emoji=False,
                highlight=False,
                force_terminal=self.is_terminal,
                no_color=bool(os.environ.get("NO_COLOR")) or not self.is_terminal,
                color_system="auto" if self.is_terminal else None,
                width=None if self.is_terminal else _ENDLESS_WIDTH,
                legacy_windows=False,
            )
        return self._console


def print_error(error: ArenaError, *, json_mode: bool) -> None:
    """Write an error to standard error: one line for a person, or one JSON object.

    A specification with several mistakes has one line for each.
    """
    if json_mode:
        write_error_document(
            code=error.code,
            message=error.message,
            what=error.what,
            why=error.why,
            fix=error.fix,
            exit_code=error.exit_code,
            details=error.details,
        )
        return
    lines = escaped(error.message, keep="\n").splitlines() or [""]
    sys.stderr.write("".join(f"error: {line}\n" for line in lines))


def write_error_document(
    *, code: str, message: str, what: str, why: str, fix: str, exit_code: int, details: Mapping[str, str] | None = None
) -> None:
    """Write an error to standard error as one JSON object: every kind of error has the same fields."""
    from arena.cli.json_form import document, dumps

    fields = {
        "code": code,
        "message": message,
        "what": what,
        "why": why,
        "fix": fix,
        "details": dict(details or {}),
        "exit_code": exit_code,
    }
    sys.stderr.write(f"{dumps(document(error=fields))}\n")
