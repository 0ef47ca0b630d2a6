"""What one command line of ``arena`` did, for tests that run it in their own process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
