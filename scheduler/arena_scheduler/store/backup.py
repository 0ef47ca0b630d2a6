"""A copy of the database of a scheduler, which may be at work meanwhile.

What was acknowledged last may be in SQLite's log (``-wal``) alone, so that a copy of the file lacks it, and one that is
taken while the log is emptied into it is torn. SQLite's own backup reads one state of both.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from arena.errors import ArenaError, ResourceExhaustedError, UnavailableError, UserError
from arena_scheduler.store.connection import BUSY_TIMEOUT_MS, FULL, problems_of, translated

EPOCHS_APART = 10_000
"""No job is launched so often before the copy of its scheduler's database is of no use any more."""

_EPOCHS_GIVEN = """
SELECT max(coalesce((SELECT max(epoch) FROM attempts), 0),
           coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'epoch_floor'), 0))
"""


def copy_database(database: Path, file: Path) -> None:
    """Copy a database as it is at one instant into an empty file, and examine the copy.

    The database is opened for reading only; who writes to it meanwhile is neither blocked nor waited for.

    Raises:
        UserError: It is not a scheduler's database.
        UnavailableError: The database is damaged, or busy; what is in the file is of no use.
        ResourceExhaustedError: The disk of the file is full.
    """
    try:
        source = sqlite3.connect(f"file:{quote(str(database.absolute()))}?mode=ro", uri=True)
        with closing(source), closing(sqlite3.connect(file)) as copy:
            source.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
            if source.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('meta', 'jobs')").fetchone() != (2,):
                raise UserError(f"{database} is not a scheduler's database", fix="name it with --db")
            source.backup(copy)
            # Like its original it says of itself that a log lies beside it; without, it is whole wherever it is taken.
            copy.execute("PRAGMA journal_mode=DELETE")
            # Job ids begin with it. Who starts from the copy makes another: ids that were given since are taken, and
            # where their jobs' checkpoints lie a new job would load what another one learned.
            copy.execute("DELETE FROM meta WHERE key = 'identity'")
            # Nodes and checkpoint places refuse numbers of attempts that they have seen, and some will be given yet.
            (given,) = copy.execute(_EPOCHS_GIVEN).fetchone()
            copy.execute("INSERT OR REPLACE INTO meta (key, value) VALUES ('epoch_floor', ?)", [given + EPOCHS_APART])
            copy.commit()
            problems = problems_of(copy)
    except sqlite3.Error as error:
        raise _told(error, database, file) from error
    if problems != ["ok"]:
        raise UnavailableError(f"database {database} is damaged", why="; ".join(problems)[:400], fix=_KEEP)


_KEEP = "keep the backups that were made before"


def _told(error: sqlite3.Error, database: Path, file: Path) -> ArenaError:
    """Return the error of a copy in our words; nothing is wrong with a scheduler because its copy found no room."""
    if error.sqlite_errorcode in FULL:
        return ResourceExhaustedError(f"no room for the copy in {file.parent}", why=str(error), fix="make room there")
    told = translated(error, database)
    return UnavailableError(told.what, why=told.why, fix=_KEEP)
