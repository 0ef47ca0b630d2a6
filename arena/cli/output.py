"""Where commands write: tables and lines for people, JSON for programs, errors in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from arena.cli.quoting import escaped
from arena.cli.whole_files import writing_error
from arena.errors import ArenaError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# Off a terminal nothing is cut or wrapped.
_ENDLESS_WIDTH = 100_000

_WHOLE_WIDTH_MAX = 24
"""Columns up to this wide are never folded, others not below it: a number or a state in two pieces is misread."""
Cell = "str | Text"


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

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], right: Sequence[str] = ()) -> None:
        """Write an aligned table without lines; on a terminal long texts fold, elsewhere nothing is cut.

        Args:
            columns: Headings.
            rows: Cells, as many as headings.
            right: Headings of columns that are aligned to the right (numbers).
        """
        if not self.is_terminal:
            self._plain_table(columns, rows, right)
            return
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        widths = [max(_width(str(line[index])) for line in (columns, *rows)) for index in range(len(columns))]
        for index, (column, width) in enumerate(zip(columns, widths, strict=True)):
            justify: Literal["left", "right"] = "right" if column in right else "left"
            is_whole = width <= _WHOLE_WIDTH_MAX or index == 0  # what a row is about, to be copied
            least = width if is_whole else _WHOLE_WIDTH_MAX
            table.add_column(column, overflow="fold", no_wrap=is_whole, min_width=least, justify=justify)
        for row in rows:
            table.add_row(*row)
        # Where the terminal is narrower than what must stay whole, it breaks lines itself, where its edge is.
        self.print(table, width_min=sum(column.min_width or 0 for column in table.columns) + 2 * len(columns))

    def _plain_table(self, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], right: Sequence[str]) -> None:
        """Write a table for a pipe or a file: whole cells, and several times faster than a rendered one."""
        lines = [list(columns), *([str(cell) for cell in row] for row in rows)]
        widths = [max(_width(line[index]) for line in lines) for index in range(len(columns))]
        for line in lines:
            padded = []
            for column, cell, width in zip(columns, line, widths, strict=True):
                space = " " * (width - _width(cell))
                padded.append(space + cell if column in right else cell + space)
            self._write("  ".join(padded).rstrip())

    def print(self, renderable: Any, *, width_min: int = 0) -> None:
        """Write something that rich can render.

        Args:
            width_min: Columns that it is given at least, on however narrow a terminal.
        """
        console = self._rich()
        if console.width < width_min:
            console = self._console_of(width_min)
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
            self._console = self._console_of(None if self.is_terminal else _ENDLESS_WIDTH)
        return self._console

    def _console_of(self, width: int | None) -> Console:
        """Return a console of a width, or of the terminal's own."""
        from rich.console import Console

        return Console(
            file=self._stream,
            markup=False,
            emoji=False,
            highlight=False,
            force_terminal=self.is_terminal,
            no_color=bool(os.environ.get("NO_COLOR")) or not self.is_terminal,
            color_system="auto" if self.is_terminal else None,
            width=width,
            legacy_windows=False,
        )


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes; most need no table of all characters for that."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def print_error(error: ArenaError, *, json_mode: bool) -> None:
    """Write an error to standard error: one line for a person, or one JSON object.

    A specification with several mistakes has one line for each.
    """
    if json_mode:
        from arena.cli.json_form import document, dumps

        fields = {
            "code": error.code,
            "message": error.message,
            "what": error.what,
            "why": error.why,
            "fix": error.fix,
            "details": error.details,
            "exit_code": error.exit_code,
        }
        sys.stderr.write(f"{dumps(document(error=fields))}\n")
        return
    lines = escaped(error.message, keep="\n").splitlines() or [""]
    sys.stderr.write("".join(f"error: {line}\n" for line in lines))
