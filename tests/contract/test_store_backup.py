"""``arena backup``: a copy of a database that a scheduler writes to, from which it can begin again."""

from __future__ import annotations

import resource
import shutil
import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from arena.domain.records import AttemptState
from arena.engine.state import next_epoch, restored_state
from arena.errors import UnavailableError
from arena_scheduler.reading import JobQuery
from arena_scheduler.store.connection import check_file
from arena_scheduler.store.writes import SqliteStore
from tests.builders import allocation_on, job_record
from tests.contract.test_store_contract import attempt, step
from tests.contract.test_store_sqlite import start_committer, submit
from tests.fakes.command_line import Arena

JOB_COUNT = 50


def job_ids(database: Path) -> set[str]:
    """What a scheduler that begins with this database knows."""
    store = SqliteStore.open(database)
    try:
        return {job.job_id for job in store.reader.list_jobs(JobQuery(), None, 100_000).jobs}
    finally:
        store.close()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database whose file is not what has been committed."""
    path = tmp_path / "state" / "scheduler.db"
    path.parent.mkdir()
    store = SqliteStore.open(path)
    for number in range(JOB_COUNT):
        store.commit([submit(number)])
    store.close()
    return path


def test_what_only_the_log_has_is_in_the_copy_and_in_no_copy_of_the_file(arena: Arena, tmp_path: Path) -> None:
    path, copy = tmp_path / "scheduler.db", tmp_path / "copy.db"
    store = SqliteStore.open(path)
    for number in range(JOB_COUNT):
        store.commit([submit(number)])
    shutil.copyfile(path, tmp_path / "file.db")
    told = arena("backup", copy, "--db", path, "--json")
    store.commit([submit(JOB_COUNT)])
    store.close()
    assert told.code == 0, told.err
    assert told.document | {"schema_version": 1} == {
        "schema_version": 1,
        "db": str(path),
        "file": str(copy),
        "size_bytes": copy.stat().st_size,
    }
    assert sorted(one.name for one in tmp_path.iterdir() if "copy" in one.name) == ["copy.db"], "it is one file"
    assert job_ids(copy) == {f"j{number}" for number in range(JOB_COUNT)}
    assert job_ids(tmp_path / "file.db") < job_ids(copy), "so a copy of the file would not have done"


def test_a_copy_beside_a_process_that_writes_has_all_that_was_acknowledged_before(arena: Arena, tmp_path: Path) -> None:
    path = tmp_path / "scheduler.db"
    process = start_committer(path)
    assert process.stdout is not None
    try:
        for round_number in range(5):
            acknowledged = [process.stdout.readline().strip() for _ in range(20)]
            copy = tmp_path / f"copy-{round_number}.db"
            assert arena("backup", copy, "--db", path).code == 0
            assert process.poll() is None, "who writes is not disturbed"
            check_file(copy)
            assert set(acknowledged) <= job_ids(copy)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_copy_is_private_where_its_database_is_and_replaces_nothing(
    arena: Arena, database: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    assert arena("backup", copy, "--db", database).out.endswith("), sound\n")
    assert stat.S_IMODE(copy.stat().st_mode) == stat.S_IMODE(database.stat().st_mode) == 0o600
    before = copy.read_bytes()
    again = arena("backup", copy, "--db", database)
    assert (again.code, copy.read_bytes()) == (4, before)
    assert "is there already" in again.err
    (tmp_path / "link.db").symlink_to(tmp_path / "elsewhere.db")
    assert arena("backup", tmp_path / "link.db", "--db", database).code == 4
    assert not (tmp_path / "elsewhere.db").exists()


def test_where_there_is_no_database_or_directory_that_is_said(
    arena: Arena, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    missing = arena("backup", tmp_path / "copy.db")
    assert (missing.code, f"there is no database {tmp_path / 'arena' / 'scheduler.db'}" in missing.err) == (5, True)
    (tmp_path / "arena" / "up").mkdir(parents=True)
    shutil.copyfile(database, tmp_path / "arena" / "up" / "scheduler.db")
    assert f"`arena up` is {tmp_path / 'arena' / 'up' / 'scheduler.db'}" in arena("backup", tmp_path / "copy.db").err
    nowhere = arena("backup", tmp_path / "nowhere" / "copy.db", "--db", database)
    assert (nowhere.code, f"there is no directory {tmp_path / 'nowhere'}" in nowhere.err) == (4, True)
    monkeypatch.setenv("ARENA_SCHEDULER_DB", str(database))
    assert arena("backup", tmp_path / "copy.db").code == 0


@pytest.mark.parametrize("damage", ["page", "no database"])
def test_of_a_damaged_database_no_copy_is_kept(arena: Arena, database: Path, tmp_path: Path, damage: str) -> None:
    content = database.read_bytes()
    page_bytes = int.from_bytes(content[16:18], "big")
    noise = b"\xff" * page_bytes
    database.write_bytes(content[: 2 * page_bytes] + noise + content[3 * page_bytes :] if damage == "page" else noise)
    done = arena("backup", tmp_path / "copy.db", "--db", database)
    assert (done.code, "is damaged" in done.err) == (UnavailableError.exit_code, True)
    assert [one.name for one in tmp_path.iterdir()] == ["state"]
    with pytest.raises(UnavailableError, match="arena backup"):
        check_file(database)


def test_a_full_disk_leaves_no_copy_and_the_database_as_it_was(arena: Arena, database: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        done = arena("backup", tmp_path / "copy.db", "--db", database)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (done.code, f"no room for the copy in {tmp_path}" in done.err) == (8, True)
    assert [one.name for one in tmp_path.iterdir()] == ["state"]
    assert len(job_ids(database)) == JOB_COUNT


def test_a_name_with_marks_of_addresses_is_a_name(arena: Arena, database: Path, tmp_path: Path) -> None:
    odd = database.rename(database.with_name("a?mode=rw#b%41.db"))
    assert arena("backup", tmp_path / "copy.db", "--db", odd).code == 0
    assert job_ids(tmp_path / "copy.db") == {f"j{number}" for number in range(JOB_COUNT)}


def test_no_job_of_a_restored_scheduler_gets_the_id_of_one_that_it_has_never_seen(
    arena: Arena, database: Path, tmp_path: Path
) -> None:
    """What was submitted after the backup left its checkpoints behind, under its id."""
    assert arena("backup", tmp_path / "copy.db", "--db", database).code == 0
    stores = [SqliteStore.open(path) for path in (database, tmp_path / "copy.db")]
    try:
        before, restored = stores
        assert before.identity != restored.identity
        assert before.last_job_number() == restored.last_job_number()
    finally:
        for store in stores:
            store.close()
    again = SqliteStore.open(tmp_path / "copy.db")
    assert again.identity == restored.identity, "it is one scheduler from then on"
    again.close()


def test_no_attempt_of_a_restored_scheduler_has_a_number_that_a_node_may_have_seen(
    arena: Arena, database: Path, tmp_path: Path
) -> None:
    """Jobs were launched again since the backup; nodes and checkpoint places refuse what is not younger than that."""
    live = replace(job_record("live"), epoch=7)
    store = SqliteStore.open(database)
    store.commit([step(live, attempts=(attempt(live, 7, allocation_on(("n1", [0])), state=AttemptState.ENDED),))])
    store.close()
    files = [database]
    for number in range(2):  # also of a copy that was restored and copied again
        files.append(tmp_path / f"copy{number}.db")
        assert arena("backup", files[-1], "--db", files[-2]).code == 0
    epochs = []
    for file in files:
        store = SqliteStore.open(file)
        epochs.append(next_epoch(restored_state(store.load(), restart_s=10.0), live))
        store.close()
    assert epochs == [8, 10_008, 20_008]


def test_a_file_that_is_no_schedulers_database_is_its_users_error(arena: Arena, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE notes (text)")
    empty = tmp_path / "empty.db"
    empty.touch()
    for file in (other, empty):
        answer = arena("backup", tmp_path / "copy.db", "--db", file)
        assert answer.code == 4
        assert "is not a scheduler's database" in answer.err
        assert not (tmp_path / "copy.db").exists()
