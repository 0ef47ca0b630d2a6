"""``arena backup``: a copy of the scheduler's database, on its machine, while it serves or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from arena.cli.app import App, command
from arena.cli.quoting import quoted
from arena.cli.services import state_home
from arena.cli.whole_files import require_folder, writing_error
from arena.errors import NotFoundError, UserError
from arena.units import format_bytes

_OTHER_NAME = "give the copy another name"


@command(asks_scheduler=False, short_help="Copy the scheduler's database, which may be at work meanwhile.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--db",
    type=click.Path(path_type=Path),
    envvar="ARENA_SCHEDULER_DB",
    help="The scheduler's database file.  [default: scheduler.db in the state directory]",
)
def backup(app: App, *, file: Path, db: Path | None) -> None:
    """Copy the scheduler's database to FILE, on the scheduler's machine.

    The scheduler may run meanwhile: the copy is of one instant, with all that was acknowledged by then, which a copy of
    the database file alone is not. It is examined before it gets its name, and replaces nothing. Like the database it
    holds every job's specification.

    To restore: stop the scheduler, remove its database with what begins with its name (-wal, -shm), copy FILE there,
    and start it again.
    """
    from arena_scheduler.store.backup import copy_database

    database = db or state_home() / "scheduler.db"
    _check(database, file)
    with _aside(file) as aside:
        copy_database(database, aside)
        with _writing(file):
            _finish(aside, file, mode=database.stat().st_mode & 0o777)
            size_bytes = file.stat().st_size
    if app.out.json_mode:
        app.out.document(db=str(database), file=str(file), size_bytes=size_bytes)
    else:
        app.out.line(f"{quoted(str(database))} -> {quoted(str(file))} ({format_bytes(size_bytes)}), sound")


def _check(database: Path, file: Path) -> None:
    """Refuse what cannot be copied, or not there, before anything is done."""
    if not database.is_file():
        of_up = state_home() / "up" / "scheduler.db"
        fix = "name the scheduler's with --db" + (f"; that of `arena up` is {of_up}" if of_up.is_file() else "")
        raise NotFoundError(f"there is no database {database}", fix=fix)
    require_folder(file)
    _require_free(file)


def _require_free(file: Path) -> None:
    if os.path.lexists(file):
        raise UserError(f"{file} is there already", why="a backup replaces nothing", fix=_OTHER_NAME)


@contextmanager
def _aside(file: Path) -> Iterator[Path]:
    """Make an empty file beside another that only its owner reads, and see to it that nothing of it stays."""
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    with _writing(file):
        os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        yield aside
    finally:
        for leftover in (aside, *(Path(f"{aside}-{log}") for log in ("journal", "wal", "shm"))):
            with suppress(OSError):
                leftover.unlink(missing_ok=True)


def _finish(aside: Path, file: Path, *, mode: int) -> None:
    """Give a file that is whole its name, durably."""
    aside.chmod(mode)
    _sync(aside)
    _require_free(file)
    aside.rename(file)
    _sync(file.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise writing_error(file, error, fix=_OTHER_NAME) from error
