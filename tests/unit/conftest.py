"""What unit tests share: a scheduler that serves canned values, and command lines that ask it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import cluster_of_views as canned
from tests.fakes.command_line import in_utc_at
from tests.fakes.scheduler_server import FakeScheduler


@pytest.fixture
def fake() -> Iterator[FakeScheduler]:
    """Serves the cluster of views; a module whose scheduler knows other things has a ``fake`` of its own."""
    with canned.served() as server:
        yield server


@pytest.fixture
def asks_fake(fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Has command lines run in an empty directory, in UTC, with the fake scheduler in the environment."""
    with in_utc_at(fake.address, tmp_path, monkeypatch):
        yield
