"""What one command line of ``arena`` did, for tests that run it in their own process."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Done:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on standard output."""
        assert self.out.count("\n") == 1
        return json.loads(self.out)


Arena = Callable[..., Done]
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(StringIO):
    """A stream that a person reads."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """What it shows, without styles and the blanks at the ends of lines."""
        return [line.rstrip() for line in _STYLE.sub("", self.getvalue()).split("\n")]


def terminal_of(columns: int, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return a terminal so wide; what asks for the width of its terminal gets that."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    return Terminal()


@contextmanager
def in_utc_at(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have command lines run in a directory without settings, in UTC, with a scheduler in the environment."""
    monkeypatch.setenv("ARENA_SCHEDULER", address)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.chdir(folder)
    yield
    monkeypatch.undo()
    time.tzset()
