"""What every store promises of the cost of restarts: after one a scheduler knows what the one before it measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from arena.domain.events import Tick
from arena.engine.ports import RestartCost, Step
from arena.errors import InternalError
from arena_scheduler.reading import LiveStore
from arena_scheduler.store.schema import META
from arena_scheduler.store.writes import RESTART_COST, SqliteStore
from tests.builders import job_record


def step(at_s: float, mean_s: float | None = None, sample_count: int = 1) -> Step:
    cost = None if mean_s is None else RestartCost(mean_s=mean_s, sample_count=sample_count)
    return Step(event=Tick(), at_s=at_s, restart_cost=cost)


def test_where_none_was_measured_none_is_known(store: LiveStore) -> None:
    store.commit([step(1.0)])
    assert store.load().restart_cost is None


def test_the_latest_that_was_measured_is_known_to_the_last_digit(store: LiveStore) -> None:
    store.commit([step(1.0, 7.0), step(2.0, 1.0 / 3.0, 2), step(3.0)])
    assert store.load().restart_cost == RestartCost(mean_s=1.0 / 3.0, sample_count=2)
    store.commit([step(4.0, 0.1 + 0.2, 3)])
    store.commit([step(5.0)])
    assert store.load().restart_cost == RestartCost(mean_s=0.1 + 0.2, sample_count=3)


def test_it_is_written_with_its_step_or_not_at_all(store: LiveStore) -> None:
    store.commit([step(1.0, 7.0)])
    twins = tuple(job_record(name, request_id="same") for name in ("j1", "j2"))
    with pytest.raises(InternalError):
        store.commit([step(2.0, 9.0, 2), Step(event=Tick(), at_s=2.0, jobs=twins)])
    assert store.load().restart_cost == RestartCost(mean_s=7.0, sample_count=1)


def test_it_is_kept_when_old_history_is_dropped(store: LiveStore) -> None:
    store.commit([step(1.0, 7.0)])
    store.drop_before(1e9)
    assert store.load().restart_cost == RestartCost(mean_s=7.0, sample_count=1)


@pytest.mark.parametrize("text", ["", "{}", '{"mean_s": "x", "sample_count": 1}'])
def test_one_that_cannot_be_read_is_warned_of_and_keeps_no_scheduler_from_starting(tmp_path: Path, text: str) -> None:
    path = tmp_path / "arena.db"
    store = SqliteStore.open(path)
    store.commit([step(1.0, 7.0)])
    store.close()
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sa.update(META).where(META.c.key == RESTART_COST).values(value=text))
    engine.dispose()
    store = SqliteStore.open(path)
    try:
        assert store.load().restart_cost is None
        assert "restart" in store.warnings[0]
    finally:
        store.close()
