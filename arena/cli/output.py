"""Where commands write: tables and lines for people, JSON for programs, errors in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from arena.cli.quoting import escaped
from arena.errors import ArenaError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# Off a terminal nothing is cut or wrapped.
_ENDLESS_WIDTH = 100_000
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
        from rich.text import Text

        self.print(Text(text, style=style))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], right: Sequence[str] = ()) -> None:
        """Write an aligned table without lines; on a terminal long cells fold, elsewhere nothing is cut.

        Args:
            columns: Headings.
            rows: Cells, as many as headings.
            right: Headings of columns that are aligned to the right (numbers).
        """
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for index, column in enumerate(columns):
            # What a row is about stays in one piece, to be copied.
            whole = index == 0 or not self.is_terminal
            table.add_column(column, overflow="fold", no_wrap=whole, justify="right" if column in right else "left")
        for row in rows:
            table.add_row(*row)
        self.print(table)

    def print(self, renderable: Any) -> None:
        """Write something that rich can render."""
        console = self._rich()
        with console.capture() as capture:
            console.print(renderable, soft_wrap=not hasattr(renderable, "columns"))
        for line in capture.get().splitlines():
            self._write(line if self.is_terminal else line.rstrip())

    def raw(self, text: str) -> None:
        """Write text as it is and let it out at once."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:
            raise ReaderGoneError from None

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
