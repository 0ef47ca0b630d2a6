"""What tests with real ranks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.rank_launcher import RankLauncher


@pytest.fixture(scope="session")
def launcher() -> Iterator[RankLauncher]:
    """The process that ranks are forked from, one for all tests: it only imports, which takes seconds, and forks."""
    launcher = RankLauncher.start()
    yield launcher
    launcher.close()
