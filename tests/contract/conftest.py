"""Both stores, for the suite of promises that every store keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from arena_scheduler.reading import LiveStore
from arena_scheduler.store.writes import SqliteStore
from tests.fakes.memory_store import MemoryStore


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LiveStore]:
    """A store with nothing in it."""
    if request.param == "memory":
        yield MemoryStore()
        return
    sqlite = SqliteStore.open(tmp_path / "arena.db")
    yield sqlite
    sqlite.close()
