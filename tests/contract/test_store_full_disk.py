"""A disk that is really full, of which all files share the rest: a small one in memory, mounted for one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from arena.errors import ResourceExhaustedError
from arena_scheduler.reading import JobQuery
from arena_scheduler.store.room import RESERVE_BYTES
from arena_scheduler.store.writes import SqliteStore
from tests.contract.test_store_sqlite import submit

ROOT = Path(__file__).parents[2]
DISK_MIB = 16
_MOUNT = 'mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && exec "$@"'


def on_small_disk(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a disk of its own mounted at a directory, which nobody else sees."""
    mounting = ["unshare", "-Urm", "sh", "-c", _MOUNT, "sh", f"{DISK_MIB}m", str(directory)]
    return subprocess.run([*mounting, *command], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Where a small disk can be mounted."""
    try:
        told = on_small_disk(tmp_path, "true")
    except FileNotFoundError:
        pytest.skip("there is no `unshare` here to mount a small disk with")
    if told.returncode:
        pytest.skip(f"no small disk can be mounted here: {told.stderr.strip()}")
    return tmp_path


@pytest.mark.parametrize("free_at_start_kib", [300, 8_000])
def test_a_disk_that_others_have_filled_heals_by_the_room_that_was_kept(disk: Path, free_at_start_kib: int) -> None:
    code = f"import sys; from {__name__} import heal; heal(sys.argv[1], int(sys.argv[2]))"
    told = on_small_disk(disk, sys.executable, "-c", code, str(disk), str(free_at_start_kib))
    assert told.returncode == 0, told.stderr


def heal(directory: str, free_at_start_kib: int) -> None:
    """Fill a small disk and have a store write again though nobody frees anything.

    Args:
        directory: Where the disk is mounted.
        free_at_start_kib: How much of it is free when the store is opened; it is all free soon after.
    """
    disk = Path(directory)
    others = disk / "others"
    others.write_bytes(bytes(DISK_MIB * 1024 * 1024 - free_at_start_kib * 1024))
    store = SqliteStore.open(disk / "arena.db")
    others.unlink()
    store.keep_room()
    assert (disk / "arena.db.reserve").stat().st_size == RESERVE_BYTES
    count = 0
    log = disk / "arena.db-wal"
    while log.stat().st_size < 3 * 1024 * 1024:  # SQLite itself empties it at 4 MiB
        store.commit([submit(number) for number in range(count, count + 100)])
        count += 100
    fill(others)
    assert fails_to_commit(store, count)
    store.probe()
    assert not fails_to_commit(store, count)
    assert store.reader.list_jobs(JobQuery(), None, 1).total_count == count + 1
    store.close()


def fill(path: Path) -> None:
    """Write a file until not a page more has room."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


def fails_to_commit(store: SqliteStore, number: int) -> bool:
    """Commit a job; tell whether there was no room."""
    try:
        store.commit([submit(number)])
    except ResourceExhaustedError:
        return True
    return False
