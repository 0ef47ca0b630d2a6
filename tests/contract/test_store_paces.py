"""What every store promises of measured paces: after a restart a scheduler knows what the one before it measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from arena.domain.events import Tick
from arena.domain.paces import KINDS_KEPT, PaceHistory, PaceKind
from arena.engine.ports import Step
from arena.errors import InternalError
from arena_scheduler.reading import LiveStore
from arena_scheduler.store.schema import META
from arena_scheduler.store.writes import PACES, SqliteStore
from tests.builders import job_record

GPT = PaceKind("calibrated-3", "gpt 4x64 seq 128 batch 8 fp32", "a100+t4")


def step(at_s: float, paces: PaceHistory | None = None) -> Step:
    return Step(event=Tick(), at_s=at_s, paces=paces)


def test_where_none_was_measured_none_is_known(store: LiveStore) -> None:
    store.commit([step(1.0)])
    assert store.load().paces == PaceHistory()


def test_the_latest_that_was_measured_is_known_to_the_last_digit(store: LiveStore) -> None:
    first = PaceHistory().after(GPT, 1.0 / 3.0, 1.1)
    second = first.after(PaceKind("table", "ann: python", "cpu"), 7.0, 1.2).after(GPT, 0.1, 0.1 + 0.2)
    store.commit([step(1.0, first), step(2.0, second), step(3.0)])
    assert store.load().paces == second
    store.commit([step(5.0)])
    assert store.load().paces.all == second.all


def test_as_many_as_are_remembered_are_given_back(store: LiveStore) -> None:
    paces = PaceHistory()
    for index in range(KINDS_KEPT + 9):
        paces = paces.after(PaceKind("calibrated-3", f"work {index}", "cpu"), 1.0 + index, float(index))
    store.commit([step(1.0, paces)])
    assert store.load().paces == paces


def test_they_are_written_with_their_step_or_not_at_all(store: LiveStore) -> None:
    known = PaceHistory().after(GPT, 0.5, 1.0)
    store.commit([step(1.0, known)])
    twins = tuple(job_record(name, request_id="same") for name in ("j1", "j2"))
    with pytest.raises(InternalError):
        store.commit([step(2.0, known.after(GPT, 9.0, 2.0)), Step(event=Tick(), at_s=2.0, jobs=twins)])
    assert store.load().paces == known


def test_they_are_kept_when_old_history_is_dropped(store: LiveStore) -> None:
    known = PaceHistory().after(GPT, 0.5, 1.0)
    store.commit([step(1.0, known)])
    store.drop_before(1e9)
    assert store.load().paces == known


@pytest.mark.parametrize("text", ["", "{}", '[{"kind": ["a", "b"], "log_paces": [1.0], "at_s": 1.0}]'])
def test_what_cannot_be_read_is_warned_of_and_keeps_no_scheduler_from_starting(tmp_path: Path, text: str) -> None:
    path = tmp_path / "arena.db"
    store = SqliteStore.open(path)
    store.commit([step(1.0, PaceHistory().after(GPT, 0.5, 1.0))])
    store.close()
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sa.update(META).where(META.c.key == PACES).values(value=text))
    engine.dispose()
    store = SqliteStore.open(path)
    try:
        assert store.load().paces == PaceHistory()
        assert "measured anew" in store.warnings[0]
    finally:
        store.close()
