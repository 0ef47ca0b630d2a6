"""What every store promises of what was measured: after a restart a scheduler knows what the one before it did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from arena.domain.events import Tick
from arena.domain.paces import KINDS_KEPT, PaceHistory, PaceKind
from arena.engine.ports import RestartCost, Step
from arena.errors import InternalError
from arena_scheduler.reading import LiveStore
from arena_scheduler.store.schema import META
from arena_scheduler.store.writes import PACES, RESTART_COST, SqliteStore
from tests.builders import job_record

GPT = PaceKind("calibrated-3", "gpt 4x64 seq 128 batch 8 fp32", "a100+t4")
FIRST_PACES = PaceHistory().after(GPT, 1.0 / 3.0, 1.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A single value that a store keeps beside the records.

    Args:
        name: What it is called in a step and in what is loaded.
        key: Where a database keeps it.
        values: Three that follow each other.
        none: What is loaded where none was measured.
        warned: A word of the warning about one that cannot be read.
    """

    name: str
    key: str
    values: tuple[Any, Any, Any]
    none: object
    warned: str

    def step(self, at_s: float, index: int | None = None) -> Step:
        """Return a step in which the value became one of the three, or stayed as it was."""
        return Step(event=Tick(), at_s=at_s, **({} if index is None else {self.name: self.values[index]}))

    def of(self, store: LiveStore) -> object:
        """Return what a store gives back."""
        return getattr(store.load(), self.name)


RESTARTS = Measured(
    name="restart_cost",
    key=RESTART_COST,
    values=(
        RestartCost(mean_s=7.0, sample_count=1),
        RestartCost(mean_s=1.0 / 3.0, sample_count=2),
        RestartCost(mean_s=0.1 + 0.2, sample_count=3),
    ),
    none=None,
    warned="restart",
)
MEASURED_PACES = Measured(
    name="paces",
    key=PACES,
    values=(
        FIRST_PACES,
        FIRST_PACES.after(PaceKind("table", "ann: python", "cpu"), 7.0, 1.2).after(GPT, 0.1, 0.1 + 0.2),
        FIRST_PACES.after(GPT, 9.0, 2.0),
    ),
    none=PaceHistory(),
    warned="measured anew",
)

every = pytest.mark.parametrize("measured", [RESTARTS, MEASURED_PACES], ids=lambda measured: measured.name)


@every
def test_where_none_was_measured_none_is_known(store: LiveStore, measured: Measured) -> None:
    store.commit([measured.step(1.0)])
    assert measured.of(store) == measured.none


@every
def test_the_latest_that_was_measured_is_known_to_the_last_digit(store: LiveStore, measured: Measured) -> None:
    store.commit([measured.step(1.0, 0), measured.step(2.0, 1), measured.step(3.0)])
    assert measured.of(store) == measured.values[1]
    store.commit([measured.step(4.0, 2)])
    store.commit([measured.step(5.0)])
    assert measured.of(store) == measured.values[2]


@every
def test_it_is_written_with_its_step_or_not_at_all(store: LiveStore, measured: Measured) -> None:
    store.commit([measured.step(1.0, 0)])
    twins = tuple(job_record(name, request_id="same") for name in ("j1", "j2"))
    with pytest.raises(InternalError):
        store.commit([measured.step(2.0, 1), Step(event=Tick(), at_s=2.0, jobs=twins)])
    assert measured.of(store) == measured.values[0]


@every
def test_it_is_kept_when_old_history_is_dropped(store: LiveStore, measured: Measured) -> None:
    store.commit([measured.step(1.0, 0)])
    store.drop_before(1e9)
    assert measured.of(store) == measured.values[0]


@pytest.mark.parametrize(
    ("measured", "text"),
    [
        (RESTARTS, ""),
        (RESTARTS, "{}"),
        (RESTARTS, '{"mean_s": "x", "sample_count": 1}'),
        (MEASURED_PACES, ""),
        (MEASURED_PACES, "{}"),
        (MEASURED_PACES, '[{"kind": ["a", "b"], "log_paces": [1.0], "at_s": 1.0}]'),
    ],
)
def test_what_cannot_be_read_is_warned_of_and_keeps_no_scheduler_from_starting(
    tmp_path: Path, measured: Measured, text: str
) -> None:
    path = tmp_path / "arena.db"
    store = SqliteStore.open(path)
    store.commit([measured.step(1.0, 0)])
    store.close()
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sa.update(META).where(META.c.key == measured.key).values(value=text))
    engine.dispose()
    store = SqliteStore.open(path)
    try:
        assert measured.of(store) == measured.none
        assert measured.warned in store.warnings[0]
    finally:
        store.close()


@pytest.mark.parametrize("pace", [0.0, 1e300, float("inf")])
def test_a_pace_beyond_all_measure_takes_no_other_with_it(store: LiveStore, pace: float) -> None:
    paces = FIRST_PACES.after(PaceKind("table", "ann: python", "cpu", "ann"), pace, 3.0)
    store.commit([Step(event=Tick(), at_s=1.0, paces=paces)])
    assert store.load().paces == paces


def test_as_many_paces_as_are_remembered_are_given_back(store: LiveStore) -> None:
    paces = PaceHistory()
    for index in range(KINDS_KEPT + 9):
        paces = paces.after(PaceKind("calibrated-3", f"work {index}", "cpu"), 1.0 + index, float(index))
    store.commit([Step(event=Tick(), at_s=1.0, paces=paces)])
    assert store.load().paces == paces
