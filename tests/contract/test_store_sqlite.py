"""What only the SQLite store has to promise: one server, a sound file, a local disk, survival of a kill."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from arena.domain.events import GridBuilt, JobSubmitted, Tick
from arena.domain.job import JobId
from arena.domain.records import JobState
from arena.engine.ports import Step
from arena.errors import AlreadyRunningError, ResourceExhaustedError, UnavailableError
from arena_scheduler.reading import JobQuery
from arena_scheduler.store import room
from arena_scheduler.store.lock import refuse_network_file_system
from arena_scheduler.store.room import RESERVE_BYTES, Reserve
from arena_scheduler.store.writes import SqliteStore
from tests.builders import job_record, scaling_grid, shape

ROOT = Path(__file__).parents[2]

_COMMITTER = """
import sys
from pathlib import Path
from arena.domain.events import Tick
from arena.engine.ports import Step
from arena_scheduler.store.writes import SqliteStore
from tests.builders import job_record

store = SqliteStore.open(Path(sys.argv[1]))
for number in range(100_000):
    job = job_record(f"j{number}")
    store.commit([Step(event=Tick(), at_s=1.0, jobs=(job,))])
    print(job.job_id, flush=True)
"""


def submit(number: int) -> Step:
    return Step(event=Tick(), at_s=1.0, jobs=(job_record(f"j{number}"),))


def start_committer(database: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _COMMITTER, str(database)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


@pytest.mark.parametrize("acknowledged_count", [1, 7, 60])
def test_every_acknowledged_row_survives_kill_9(tmp_path: Path, acknowledged_count: int) -> None:
    database = tmp_path / "arena.db"
    process = start_committer(database)
    assert process.stdout is not None
    acknowledged = [process.stdout.readline().strip() for _ in range(acknowledged_count)]
    process.send_signal(signal.SIGKILL)
    acknowledged += process.stdout.read().split()
    process.stdout.close()
    process.wait(timeout=30)
    store = SqliteStore.open(database)
    found = store.reader.get_jobs([JobId(name) for name in acknowledged])
    store.close()
    assert sorted(found) == sorted(acknowledged)


def test_a_second_server_is_refused_and_told_the_first_ones_pid(tmp_path: Path) -> None:
    database = tmp_path / "arena.db"
    first = SqliteStore.open(database)
    with pytest.raises(AlreadyRunningError) as caught:
        SqliteStore.open(database)
    assert f"pid {os.getpid()}" in caught.value.message
    assert str(database) in caught.value.message
    first.close()
    SqliteStore.open(database).close()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_link_to_a_database_is_that_database(tmp_path: Path, is_there: bool) -> None:
    link, real = tmp_path / "link" / "a.db", tmp_path / "real" / "b.db"
    for directory in (link.parent, real.parent):
        directory.mkdir()
    link.symlink_to(real)
    if is_there:
        SqliteStore.open(real).close()
    store = SqliteStore.open(link)
    assert [path.name for path in link.parent.iterdir()] == ["a.db"], "all else lies where the log is"
    assert {"b.db", "b.db-wal", "b.db.lock", "b.db.reserve"} <= {path.name for path in real.parent.iterdir()}
    for path in (link, real):
        with pytest.raises(AlreadyRunningError):
            SqliteStore.open(path)
    store.close()
    SqliteStore.open(real).close()


def test_a_killed_servers_lock_is_gone(tmp_path: Path) -> None:
    database = tmp_path / "arena.db"
    process = start_committer(database)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.stdout.close()
    process.wait(timeout=30)
    SqliteStore.open(database).close()


def test_a_damaged_page_is_refused_and_the_file_named(tmp_path: Path) -> None:
    database = tmp_path / "arena.db"
    store = SqliteStore.open(database)
    store.commit([submit(number) for number in range(200)])
    store.close()
    with database.open("r+b") as file:
        for page in range(3, 40):
            file.seek(4096 * page)
            file.write(b"\xff" * 64)
    with pytest.raises(UnavailableError, match="damaged") as caught:
        SqliteStore.open(database)
    assert str(database) in caught.value.message


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "arena.db"
    database.write_text("these are not the rows you are looking for\n" * 100)
    with pytest.raises(UnavailableError, match="damaged"):
        SqliteStore.open(database)


def test_a_database_of_a_newer_scheduler_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "arena.db"
    SqliteStore.open(database).close()
    connection = sqlite3.connect(database)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    with pytest.raises(UnavailableError, match="newer scheduler"):
        SqliteStore.open(database)


MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 27 0:31 / /home rw - nfs4 server:/home rw
32 27 0:32 / /mnt/with\\040space rw - fuse.sshfs host:/ rw
33 31 0:33 / /home/local rw - xfs /dev/vdb rw
"""


@pytest.mark.parametrize(("path", "kind"), [("/home/ann/arena.db", "nfs4"), ("/mnt/with space/arena.db", "fuse.sshfs")])
def test_a_network_file_system_is_refused(path: str, kind: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        refuse_network_file_system(Path(path), MOUNTS)
    assert kind in caught.value.message


@pytest.mark.parametrize("path", ["/var/arena.db", "/home/local/arena.db", "/homes/arena.db"])
def test_a_local_file_system_is_fine(path: str) -> None:
    refuse_network_file_system(Path(path), MOUNTS)


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """No file may grow beyond this, as on a disk without space (a write fails, and the process lives)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_said_nothing_is_half_written_and_it_recovers(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "arena.db")
    store.commit([submit(0)])
    with file_size_limit(20_000):
        with pytest.raises(ResourceExhaustedError, match="full"):
            store.commit([submit(number) for number in range(1, 300)])
        with pytest.raises(ResourceExhaustedError):
            store.probe()
        assert [job.job_id for job in store.reader.list_jobs(JobQuery(), None, 10).jobs] == ["j0"]
    store.commit([submit(1)])
    store.probe()
    assert store.reader.list_jobs(JobQuery(), None, 10).total_count == 2
    store.close()


def filled(store: SqliteStore, first: int) -> int:
    """Commit small batches until there is no room; return how many."""
    for number in range(first, first + 1000):
        try:
            store.commit([submit(number)])
        except ResourceExhaustedError:
            return number - first
    raise AssertionError("it never gets full")


def test_a_disk_that_only_the_log_fills_heals_by_itself_again_and_again(tmp_path: Path) -> None:
    """Nobody frees anything: what the log holds many times over takes little room in the database."""
    store = SqliteStore.open(tmp_path / "arena.db")
    log = tmp_path / "arena.db-wal"
    with file_size_limit(600_000):
        count = filled(store, 0)
        for _ in range(3):
            assert log.stat().st_size > 500_000
            store.probe()
            assert log.stat().st_size < 200_000, "the probe's own row, and no more"
            more = filled(store, count)
            assert more >= 3
            count += more
    store.probe()
    assert store.reader.list_jobs(JobQuery(), None, 10).total_count == count
    store.close()


def test_a_reader_that_holds_the_log_up_is_not_waited_for(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "arena.db")
    reader = sqlite3.connect(tmp_path / "arena.db", isolation_level=None)
    store.commit([submit(0)])
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
    store.commit([submit(1)])
    store.probe()
    assert (tmp_path / "arena.db-wal").stat().st_size > 0
    assert reader.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
    reader.close()
    store.probe()
    assert store.reader.list_jobs(JobQuery(), None, 10).total_count == 2
    store.close()


def test_room_is_kept_and_given_up_while_the_log_is_emptied(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "arena.db")
    reserve = tmp_path / "arena.db.reserve"
    assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES, "room is taken, not only promised"
    assert reserve.stat().st_mode & 0o077 == 0
    kept: list[bool] = []
    from sqlalchemy import event  # noqa: PLC0415 - looks under the hood, here alone

    def seen(connection: sqlite3.Connection, _record: object) -> None:
        connection.set_trace_callback(lambda text: kept.append(reserve.exists()) if "wal_checkpoint" in text else None)

    store._engine.dispose()  # its next connection is watched
    event.listen(store._engine, "connect", seen)
    store.probe()
    assert kept == [False]
    assert reserve.stat().st_size == RESERVE_BYTES
    with file_size_limit(1_000_000):  # no room for all of it
        store.probe()
        assert 900_000 < reserve.stat().st_size < 1_000_000, "the log gets nothing of it"
    store.probe()
    assert reserve.stat().st_size == RESERVE_BYTES
    store.close()


def test_room_that_was_too_small_grows_once_more_is_free(tmp_path: Path) -> None:
    reserve = tmp_path / "arena.db.reserve"
    with file_size_limit(1_000_000):
        store = SqliteStore.open(tmp_path / "arena.db")
        held_bytes = reserve.stat().st_size
        assert 900_000 < held_bytes < 1_000_000
        store.keep_room()
        assert reserve.stat().st_size == held_bytes, "what it has it keeps where no more is free"
    store.keep_room()
    assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES
    reserve.unlink()  # as where there was none at all
    store.keep_room()
    assert reserve.stat().st_size == RESERVE_BYTES
    store.close()


def test_room_that_grows_again_and_again_takes_no_more_than_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Reserve(tmp_path / "arena.db")
    disk_bytes = 0

    def held_bytes() -> int:
        return reserve.path.stat().st_size if reserve.path.exists() else 0

    monkeypatch.setattr(room, "_free_bytes", lambda _: disk_bytes - held_bytes())
    for mib, expected_kib in ((1, 512), (3, 1536), (1, 1536), (1024, 4096)):
        disk_bytes = mib << 20
        for _ in range(3):
            reserve.grow()
            assert held_bytes() == expected_kib << 10


def test_room_is_taken_by_writing_where_the_system_cannot_reserve_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    reserve = tmp_path / "arena.db.reserve"
    with file_size_limit(1_000_000):
        store = SqliteStore.open(tmp_path / "arena.db")
        assert 900_000 < reserve.stat().st_size < 1_000_000
    store.keep_room()
    assert reserve.stat().st_size == RESERVE_BYTES
    store.probe()
    assert reserve.stat().st_size == RESERVE_BYTES
    store.close()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSPC, errno.EIO])
def test_a_database_opens_and_is_probed_where_no_room_can_be_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    store = SqliteStore.open(tmp_path / "arena.db")
    store.keep_room()
    store.probe()
    assert not (tmp_path / "arena.db.reserve").exists()
    store.close()


def test_a_row_that_cannot_be_read_harms_no_other(tmp_path: Path) -> None:
    database = tmp_path / "arena.db"
    store = SqliteStore.open(database)
    store.commit([submit(1), submit(2)])
    store.close()
    connection = sqlite3.connect(database)
    connection.execute("UPDATE jobs SET record = '{\"job_id\": ' WHERE job_id = 'j1'")
    connection.commit()
    connection.close()
    store = SqliteStore.open(database)
    assert [job.job_id for job in store.load().jobs] == ["j2"]
    assert any("j1" in warning for warning in store.warnings)
    store.close()


def test_the_input_log_gives_back_every_event_with_its_grid(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "arena.db")
    job = job_record("j1")
    submitted = JobSubmitted(job_id=job.job_id, spec=job.spec, user="ann", request_id="r")
    built = GridBuilt(job_id=job.job_id, shape=shape(("cpu", 2, 1)), grid=scaling_grid("cpu", [[1], [2]]))
    other = job_record("j2")
    its_grid = replace(built, job_id=other.job_id)
    planned = JobSubmitted(job_id=other.job_id, spec=other.spec, user="ann", request_id="s", planned=its_grid)
    store.commit(
        [
            Step(event=submitted, at_s=1.0, jobs=(job,)),
            Step(event=Tick(), at_s=1.5),
            Step(event=built, at_s=2.0),
            Step(event=replace(built, build_s=2.0), at_s=3.0),
            Step(event=planned, at_s=4.0, jobs=(other,)),
        ]
    )
    logged = [(at_s, event) for _, at_s, event in store.reader.inputs(0, 100)]
    assert logged == [(1.0, submitted), (1.5, Tick()), (2.0, built), (3.0, replace(built, build_s=2.0)), (4.0, planned)]
    store.close()


def test_each_write_takes_the_lock_at_its_start_and_is_synced(tmp_path: Path) -> None:
    database = tmp_path / "arena.db"
    store = SqliteStore.open(database)
    other = sqlite3.connect(database, timeout=0, isolation_level=None)
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.execute("BEGIN IMMEDIATE")
    other.execute("UPDATE meta SET value = value")
    other.execute("COMMIT")
    statements: list[str] = []
    from sqlalchemy import event  # noqa: PLC0415 - looks under the hood, here alone

    event.listen(store._engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    store.commit([submit(1)])
    assert statements[0] == "BEGIN IMMEDIATE"
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    other.close()
    store.close()


def test_job_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    database = tmp_path / "arena.db"
    store = SqliteStore.open(database)
    identity = store.identity
    names = [f"{identity}-{number}" for number in (2, 10)]
    store.commit([Step(event=Tick(), at_s=1.0, jobs=tuple(job_record(name) for name in names))])
    store.close()
    store = SqliteStore.open(database)
    assert (store.identity, store.last_job_number()) == (identity, 10)
    store.close()


def test_only_the_schedulers_account_can_read_what_users_submitted(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = SqliteStore.open(tmp_path / "arena.db")
        store.commit([submit(1)])
        modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.glob("arena.db*")}
        store.close()
    finally:
        os.umask(before)
    assert {"arena.db", "arena.db-wal", "arena.db-shm"} <= modes.keys()
    assert set(modes.values()) == {0}


def test_the_lookup_of_a_project_reads_one_row_however_many_jobs_there_are(tmp_path: Path) -> None:
    """By SQLite's own account of what it does: instructions of its virtual machine, which is the same on any host."""

    def instructions_of(job_count: int) -> int:
        store = SqliteStore.open(tmp_path / f"{job_count}.db")
        try:
            jobs = tuple(job_record(f"j{number}", state=JobState.SUCCEEDED) for number in range(job_count))
            store.commit([Step(event=Tick(), at_s=1.0, jobs=jobs)])
            counted: list[int] = []
            with store._reader_engine.connect() as connection:
                raw = connection.connection.driver_connection
                assert raw is not None
                raw.set_progress_handler(lambda: counted.append(1), 1)
            assert not store.reader.has_succeeded_in("another")
            return len(counted)
        finally:
            store.close()

    assert 0 < instructions_of(2_000) <= instructions_of(1)
