"""Ranks save and load together: every rank learns of every failure, and what was saved is what is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from arena_agent.worker.agreement import Ranks
from tests.fakes.checkpoint_ranks import RankState, run_ranks

pytestmark = pytest.mark.slow


def save_twice(ranks: Ranks, directory: Path) -> int:
    state = RankState.make(ranks, directory / "checkpoints", epoch=1)
    before = state.resume()
    state.save(3)
    state.save(5)
    return before


def resume(ranks: Ranks, directory: Path) -> int:
    return RankState.make(ranks, directory / "checkpoints", epoch=2).resume()


def test_what_some_ranks_saved_others_load(tmp_path: Path) -> None:
    assert run_ranks(save_twice, tmp_path, 3) == [0, 0, 0]
    assert run_ranks(resume, tmp_path, 2) == [5, 5]
