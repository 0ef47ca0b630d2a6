"""Room on the disk of a database for the one thing that gives room back when the disk is full: emptying its log.

A commit goes to SQLite's log (``-wal``), which a commit empties into the database after every 1000 pages. On a full
disk no commit succeeds, so it would stay as it is; and emptying it takes room, as the database grows by what is new.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
from pathlib import Path

from sqlalchemy import Engine

from arena_scheduler.store.connection import BUSY_TIMEOUT_MS

_log = logging.getLogger(__name__)
RESERVE_BYTES = 4 * 1024 * 1024
"""What a database can grow by when a log of 1000 pages of 4 KiB is emptied into it."""
_STEP_BYTES = 64 * 1024


class Reserve:
    """A file beside a database that takes room, to be given up when there is none.

    Args:
        database: The file of the database.
    """

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(f"{database.name}.reserve")

    def give_up(self) -> int:
        """Give the room back; returns how many bytes it was."""
        try:
            held_bytes = self.path.stat().st_size
            self.path.unlink()
        except OSError:
            return 0
        return held_bytes

    def take(self, held_bytes: int = 0) -> None:
        """Take room: what was held before, as far as it is there, or else half of what is free.

        What was held must not be left to the log: it would fill it, and emptying it would have no room any more.
        """
        with contextlib.suppress(OSError):
            free_bytes = _free_bytes(self.path.parent)
            wanted_bytes = min(RESERVE_BYTES, max(min(held_bytes, free_bytes), free_bytes // 2))
            for size_bytes in range(wanted_bytes - wanted_bytes % _STEP_BYTES, 0, -_STEP_BYTES):
                if self._has_taken(size_bytes):
                    return
            self.give_up()

    def grow(self) -> None:
        """Take more room where more is free by now than when it was taken.

        It becomes what it would be if it were taken now, and so leaves as much to the log as it has, however often it
        is asked.
        """
        with contextlib.suppress(OSError):
            held_bytes = self.path.stat().st_size if self.path.exists() else 0
            wanted_bytes = min(RESERVE_BYTES, (held_bytes + _free_bytes(self.path.parent)) // 2)
            wanted_bytes -= wanted_bytes % _STEP_BYTES
            if wanted_bytes > held_bytes:
                self._has_taken(wanted_bytes)

    def _has_taken(self, size_bytes: int) -> bool:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            held_bytes = os.fstat(descriptor).st_size
            try:
                _fill(descriptor, size_bytes)
            except OSError:  # file systems need room for more than the bytes of a file
                os.ftruncate(descriptor, held_bytes)
                return False
        finally:
            os.close(descriptor)
        return True


def _fill(descriptor: int, size_bytes: int) -> None:
    """Take room for a file of so many bytes.

    Raises:
        OSError: There is not as much.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
    elif os.pwrite(descriptor, bytes(size_bytes), 0) < size_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _free_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def empty_log(engine: Engine, reserve: Reserve) -> None:
    """Empty a database's log into it and give its room back, as far as readers and the disk allow.

    Args:
        engine: Of the writer, which has no transaction open.
        reserve: Given up for it, and taken again.
    """
    held_bytes = reserve.give_up()
    try:
        connection = engine.raw_connection()
        try:
            cursor = connection.cursor()
            # Readers are waited for by trying again, not with the writer held up.
            cursor.execute("PRAGMA busy_timeout=0")
            try:
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
                cursor.close()
        finally:
            connection.close()
    except sqlite3.Error as error:
        _log.debug("the log was not emptied: %s", error)
    finally:
        reserve.take(held_bytes)
