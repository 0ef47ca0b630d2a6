"""What is dropped of jobs that ended long ago, on every store; what a kill in the middle leaves of it, on SQLite."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.events import GridBuilt, Tick
from arena.domain.job import JobId
from arena.domain.records import AttemptRecord, AttemptState, EntryKind, HistoryEntry, JobRecord, JobState
from arena.engine.ports import Step
from arena_scheduler.reading import HistoryQuery, JobQuery, LiveStore
from arena_scheduler.store import retention
from arena_scheduler.store.writes import SqliteStore
from tests.builders import allocation_on, job_record, node_info, scaling_grid, shape_of_nodes
from tests.contract.test_store_contract import attempt
from tests.fakes.memory_store import MemoryStore

ROOT = Path(__file__).parents[2]
NODE = node_info("n1", gpus=4)
ALLOCATION = allocation_on(("n1", [0]))
BEFORE_S = 100.0
LIVE = (JobState.QUEUED, JobState.HELD)
OVER = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


def job_of(store: LiveStore, number: int, state: JobState, ended_at_s: float) -> JobRecord:
    over_s = ended_at_s if state.is_terminal else None
    return job_record(f"{store.identity}-{number}", state=state, submitted_at_s=1.0, ended_at_s=over_s)


def entries(job: JobRecord | None, first: int, count: int, at_s: float) -> tuple[HistoryEntry, ...]:
    facts: dict[str, Any] = {"kind": EntryKind.JOB_STATE, "message": "m", "at_s": at_s}
    job_id = job.job_id if job is not None else None
    return tuple(HistoryEntry(index=first + number, job_id=job_id, **facts) for number in range(count))


def ended_attempt(job: JobRecord) -> AttemptRecord:
    return attempt(job, 1, ALLOCATION, state=AttemptState.ENDED)


def drop_all(store: LiveStore, before_s: float = BEFORE_S) -> None:
    while store.drop_before(before_s).is_more:
        pass


def history_of(store: LiveStore, job: JobRecord) -> list[int]:
    return [entry.index for entry in store.reader.history(0, HistoryQuery(job_id=job.job_id), 10_000)]


@settings(deadline=None, max_examples=30)
@given(
    jobs=st.lists(
        st.tuples(st.sampled_from((*LIVE, *OVER)), st.floats(0.0, 2 * BEFORE_S), st.integers(0, 30)), max_size=12
    ),
    node_entries=st.integers(0, 5),
    rows_max=st.sampled_from([1, 7, 2_000]),
    jobs_max=st.sampled_from([1, 3, 50]),
    kind=st.sampled_from(["sqlite", "memory"]),
)
def test_what_is_over_long_ago_goes_whole_and_all_else_stays(
    tmp_path_factory: pytest.TempPathFactory,
    jobs: list[tuple[JobState, float, int]],
    node_entries: int,
    rows_max: int,
    jobs_max: int,
    kind: str,
) -> None:
    store: Any = MemoryStore() if kind == "memory" else SqliteStore.open(tmp_path_factory.mktemp("r") / "arena.db")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(retention, "ROWS_MAX", rows_max)
            patch.setattr(retention, "JOBS_MAX", jobs_max)
            _check_dropping(store, jobs, node_entries)
    finally:
        if isinstance(store, SqliteStore):
            store.close()


def _check_dropping(store: LiveStore, jobs: list[tuple[JobState, float, int]], node_entries: int) -> None:
    records, index, kept = [], 1, {}
    for number, (state, ended_at_s, count) in enumerate(jobs, start=1):
        job = job_of(store, number, state, ended_at_s)
        history = entries(job, index, count, at_s=2.0)
        attempts = (ended_attempt(job),) if state.is_terminal else ()
        store.commit([Step(event=Tick(), at_s=2.0, jobs=(job,), attempts=attempts, history=history)])
        index += count
        records.append(job)
        kept[job.job_id] = [entry.index for entry in history]
    store.commit([Step(event=Tick(), at_s=3.0, history=entries(None, index, node_entries, at_s=3.0))])
    last = entries(None, index + node_entries, 1, at_s=BEFORE_S + 1.0)
    store.commit([Step(event=Tick(), at_s=BEFORE_S + 1.0, history=last)])
    before = store.load()
    drop_all(store)
    assert (store.load().jobs, store.load().history_index) == (before.jobs, before.history_index)
    assert (store.load().last_at_s, store.last_job_number()) == (before.last_at_s, len(jobs))
    gone = [job for job in records if job.ended_at_s is not None and job.ended_at_s < BEFORE_S]
    stay = [job for job in records if job not in gone]
    assert {job.job_id for job in store.reader.list_jobs(JobQuery(), None, 100).jobs} == {job.job_id for job in stay}
    for job in stay:
        assert history_of(store, job) == kept[job.job_id]
        assert len(store.reader.attempts_of(job.job_id)) == job.state.is_terminal
    for job in gone:
        assert (history_of(store, job), store.reader.attempts_of(job.job_id)) == ([], ())
        assert store.dropped().may_have(job.job_id)
    assert store.dropped().job_count == len(gone)
    others = [entry for entry in store.reader.history(0, HistoryQuery(), 10_000) if entry.job_id is None]
    assert [entry.index for entry in others] == [last[0].index]


def test_the_newest_entry_and_its_job_stay_until_there_is_a_newer_one(store: LiveStore) -> None:
    """Numbers of entries go on from the greatest, also after a restart: who follows them must not see one twice."""
    job = job_of(store, 1, JobState.FAILED, 5.0)
    store.commit([Step(event=Tick(), at_s=5.0, jobs=(job,), history=entries(job, 1, 3, at_s=5.0))])
    drop_all(store)
    assert (store.load().history_index, store.reader.get_job(job.job_id)) == (3, job)
    store.commit([Step(event=Tick(), at_s=6.0, history=entries(None, 4, 1, at_s=6.0))])
    drop_all(store)
    assert (store.load().history_index, store.reader.get_job(job.job_id)) == (4, None)


@pytest.mark.parametrize("number", ["²", "٣", "", "0", "1" + "0" * 5_000, "1 ", "-1", "8"])
def test_what_is_no_number_of_a_dropped_job_is_not_told_as_one(store: LiveStore, number: str) -> None:
    job = job_of(store, 7, JobState.FAILED, 5.0)
    newest = entries(None, 1, 1, at_s=6.0)
    assert not store.dropped().may_have("by-its-name"), "nothing was dropped yet"
    store.commit([Step(event=Tick(), at_s=5.0, jobs=(job,), history=newest)])
    drop_all(store)
    assert store.dropped().may_have(job.job_id)
    assert store.dropped().may_have("by-its-name")
    assert not store.dropped().may_have(JobId(f"{store.identity}-{number}"))


def test_that_the_clock_leapt_is_remembered(store: LiveStore) -> None:
    assert store.last_leap_at_s() == 0.0
    store.note_leap(1_000.25)
    assert store.last_leap_at_s() == 1_000.25


def test_a_job_of_which_an_attempt_lives_is_never_dropped(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "arena.db")
    job = job_of(store, 1, JobState.FAILED, 5.0)
    lives = attempt(job, 1, ALLOCATION)
    newest = entries(None, 2, 1, at_s=6.0)
    store.commit([Step(event=Tick(), at_s=5.0, jobs=(job,), attempts=(lives,), history=newest)])
    drop_all(store)
    assert store.reader.get_job(job.job_id) == job
    store.close()


def test_a_grid_goes_with_the_last_that_uses_it(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "arena.db")
    shape, grids = shape_of_nodes([NODE]), [scaling_grid("cpu", [(1,)], one_gpu_s=one) for one in (1.0, 2.0)]
    over, live = job_of(store, 1, JobState.FAILED, 5.0), job_of(store, 2, JobState.QUEUED, 0.0)
    for job, grid in ((over, grids[0]), (live, grids[1])):
        event = GridBuilt(job_id=job.job_id, shape=shape, grid=grid, build_s=0.1)
        store.commit([Step(event=event, at_s=2.0, jobs=(job,))])
    store.commit([Step(event=Tick(), at_s=200.0, history=entries(None, 1, 1, at_s=200.0))])
    drop_all(store)
    assert store.load().grids == {live.job_id: (shape, grids[1])}
    store.close()
    connection = sqlite3.connect(tmp_path / "arena.db")
    assert connection.execute("SELECT count(*) FROM grids").fetchone() == (1,)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


@pytest.mark.parametrize("rows_max", [1, 2_000])
def test_a_grid_goes_also_where_its_job_went_on_for_longer_than_is_kept(
    tmp_path: Path, rows_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had it made goes while its job lives, and what it was replaced by; one grid is still used."""
    monkeypatch.setattr(retention, "ROWS_MAX", rows_max)
    store = SqliteStore.open(tmp_path / "arena.db")
    shape, grids = shape_of_nodes([NODE]), [scaling_grid("cpu", [(1,)], one_gpu_s=one) for one in (1.0, 2.0, 3.0)]
    ends, lives = job_of(store, 1, JobState.QUEUED, 0.0), job_of(store, 2, JobState.QUEUED, 0.0)
    for job, grid in ((ends, grids[0]), (ends, grids[1]), (lives, grids[2])):
        event = GridBuilt(job_id=job.job_id, shape=shape, grid=grid, build_s=0.1)
        store.commit([Step(event=event, at_s=2.0, jobs=(job,))])
    store.commit([Step(event=Tick(), at_s=50.0)])
    drop_all(store, 40.0)
    assert store.load().grids == {ends.job_id: (shape, grids[1]), lives.job_id: (shape, grids[2])}
    over = job_of(store, 1, JobState.SUCCEEDED, 60.0)
    store.commit([Step(event=Tick(), at_s=60.0, jobs=(over,))])
    store.commit([Step(event=Tick(), at_s=500.0)])
    for _ in grids:  # in turns
        drop_all(store, 400.0)
    assert (store.reader.get_job(ends.job_id), set(store.load().grids)) == (None, {lives.job_id})
    store.close()
    connection = sqlite3.connect(tmp_path / "arena.db")
    assert connection.execute("SELECT count(*) FROM grids").fetchone() == (1,)
    connection.close()


_DROPPER = """
import sys
from pathlib import Path
from arena_scheduler.store.writes import SqliteStore

store = SqliteStore.open(Path(sys.argv[1]))
while True:
    print("batch", flush=True)
    if not store.drop_before(100.0).is_more:
        break
print("done", flush=True)
sys.stdin.read()
"""
JOB_COUNT, ENTRIES_EACH = 600, 10


@pytest.mark.slow
@pytest.mark.parametrize("batches", [1, 2, 5, 9])
def test_a_kill_in_the_middle_leaves_each_job_whole_or_gone(tmp_path: Path, batches: int) -> None:
    path = tmp_path / "arena.db"
    store = SqliteStore.open(path)
    live = job_of(store, JOB_COUNT + 1, JobState.QUEUED, 0.0)
    for number in range(1, JOB_COUNT + 1):
        job = job_of(store, number, JobState.SUCCEEDED, 5.0)
        history = entries(job, number * ENTRIES_EACH, ENTRIES_EACH, at_s=5.0)
        store.commit([Step(event=Tick(), at_s=5.0, jobs=(job,), attempts=(ended_attempt(job),), history=history)])
    newest = entries(live, (JOB_COUNT + 1) * ENTRIES_EACH, 2, at_s=6.0)
    store.commit([Step(event=Tick(), at_s=200.0, jobs=(live,), history=newest)])
    identity = store.identity
    store.close()
    words = (sys.executable, "-c", _DROPPER, str(path))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scheduler")])}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=environ) as dropper:
        assert dropper.stdout is not None
        for _ in range(batches):
            assert dropper.stdout.readline() == "batch\n"
        dropper.send_signal(signal.SIGKILL)
    store = SqliteStore.open(path)
    there = 0
    for number in range(1, JOB_COUNT + 1):
        job_id = JobId(f"{identity}-{number}")
        job = store.reader.get_job(job_id)
        found = len(store.reader.history(0, HistoryQuery(job_id=job_id), 100))
        assert (found, len(store.reader.attempts_of(job_id))) == ((ENTRIES_EACH, 1) if job is not None else (0, 0))
        there += job is not None
    assert store.dropped().job_count == JOB_COUNT - there
    assert (batches - 1) * retention.JOBS_MAX <= JOB_COUNT - there <= batches * retention.JOBS_MAX
    drop_all(store)
    assert [job.job_id for job in store.load().jobs] == [live.job_id]
    assert len(history_of(store, live)) == 2
    assert store.dropped().job_count == JOB_COUNT
    assert store.last_job_number() == JOB_COUNT + 1
    store.close()
