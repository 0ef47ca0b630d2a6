"""How often it is decided: the engine's setting, from the command line on."""

from __future__ import annotations

from pathlib import Path

import pytest

from arena.errors import UserError
from arena_scheduler.app import engine_config
from arena_scheduler.config import SchedulerConfig


def test_a_scheduler_decides_at_every_event_unless_told_to_gather(tmp_path: Path):
    assert engine_config(SchedulerConfig(db=tmp_path / "a.db")).decide_after_s is None
    assert engine_config(SchedulerConfig(db=tmp_path / "a.db", decide_after_s=2.5)).decide_after_s == 2.5


@pytest.mark.parametrize("decide_after_s", [-1.0, float("nan"), float("inf")])
def test_decisions_wait_for_a_time(tmp_path: Path, decide_after_s: float):
    with pytest.raises(UserError, match="cannot wait"):
        SchedulerConfig(db=tmp_path / "a.db", decide_after_s=decide_after_s)
