"""Everything that is particular to SQLite: pragmas, transactions, checks at the start, its error codes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from arena.errors import ArenaError, InternalError, ResourceExhaustedError, UnavailableError

BUSY_TIMEOUT_MS = 5_000
READERS_MAX = 8
FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_FSYNC}
# SQLAlchemy wraps what statements raise, not what happens while a connection is being set up.
DATABASE_ERRORS = (DBAPIError, sqlite3.Error)
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def writer_engine(path: Path) -> Engine:
    """Return the engine of the single writer: each transaction takes the write lock at its start."""
    engine = create_engine(f"sqlite:///{path}", connect_args={"check_same_thread": False}, pool_size=1, max_overflow=0)

    @event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver's own transaction control begins too late
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def reader_engine(path: Path) -> Engine:
    """Return an engine of read-only connections, which neither block the writer nor wait for it."""
    engine = create_engine(
        f"sqlite:///file:{path}?mode=ro&uri=true",
        connect_args={"check_same_thread": False},
        pool_size=READERS_MAX,
        max_overflow=0,
    )

    @event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA query_only=ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def check_file(path: Path) -> None:
    """Refuse a damaged database.

    Raises:
        UnavailableError: The file is no database or a page of it is damaged; the message names the file.
    """
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        connection = sqlite3.connect(path)
        try:
            problems = problems_of(connection)
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        problems = [str(error)]
    if problems != ["ok"]:
        raise UnavailableError(
            f"database {path} is damaged",
            why="; ".join(problems)[:400],
            fix=f"restore a copy that `arena backup` made, or move {path.name} aside to start empty",
            details={"path": str(path)},
        )


def problems_of(connection: sqlite3.Connection) -> list[str]:
    """Return what SQLite finds wrong with the pages of a database; of a sound one it says ``ok``."""
    return [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]


def optimize(engine: Engine) -> None:
    """Let SQLite refresh its statistics where they are stale."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA optimize").close()
    finally:
        connection.close()


def translated(error: DBAPIError | sqlite3.Error, path: Path) -> ArenaError:
    """Return the database's error in our words; ``ENOSPC`` and a full quota are one kind, a lock another."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = int(getattr(cause, "sqlite_errorcode", 0) or 0)
    text = str(cause)
    if code in FULL or "disk is full" in text:
        return ResourceExhaustedError(
            "nothing can be written to the scheduler's database",
            why=f"the disk of {path} is full ({text})",
            fix="free some space there; the scheduler goes on by itself",
        )
    if isinstance(cause, sqlite3.IntegrityError):
        return InternalError("the store refused a record", why=text)
    primary = code & 0xFF
    if primary in _BUSY:
        return UnavailableError("the scheduler's database is busy", why=f"another process holds {path} ({text})")
    if primary in _CORRUPT:
        fix = "stop the scheduler, restore a copy that `arena backup` made"
        return UnavailableError(f"database {path} is damaged", why=text, fix=fix)
    return UnavailableError("the scheduler's database failed", why=f"{path}: {text}")
