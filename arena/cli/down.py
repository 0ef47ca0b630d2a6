"""``arena down``: stops what `arena up` started, also where that was killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from arena.cli.app import App, command
from arena.cli.children import END_LIMIT_S
from arena.cli.services import state_home
from arena.cli.settings import user_name
from arena.cli.up_files import UpFiles, holder, up_lock
from arena.cli.up_jobs import HOLD_LIMIT_S, POLL_S, SERVE_LIMIT_S, hold_all
from arena.cli.up_orphans import SCHEDULER, Orphan, end_orphans, kill_ranks, orphans, ranks
from arena.cli.up_places import start_ticks
from arena.client import ArenaClient, ClientSettings
from arena.errors import ArenaError, NotFoundError, UnavailableError

_DIRECTORY = click.Path(path_type=Path, file_okay=False)


@command(asks_scheduler=False, short_help="Stop what `arena up` started.")
@click.option("--dir", "directory", type=_DIRECTORY, help="That of `arena up`.  [default: up in the state directory]")
def down(app: App, directory: Path | None) -> None:
    """Stop what `arena up --detach` started: jobs are saved and held, then everything ends.

    Where `arena up` itself was killed, what it left running is stopped in the same way.
    """
    files = UpFiles(directory=(directory or state_home() / "up").absolute())
    try:
        files.lock.open("r+").close()
    except OSError as error:
        raise NotFoundError(f"`arena up` never ran on {files.directory}", why=str(error.strerror)) from error
    pid = holder(files.lock)
    if pid is None:
        _end_what_is_left(files)
    else:
        _end_up(files, pid)
    if app.out.json_mode:
        app.out.document(stopped=str(files.directory))
    else:
        app.out.line(f"stopped {files.directory}")


def _end_up(files: UpFiles, pid: int) -> None:
    """End an ``arena up``, which ends the rest.

    Args:
        pid: Of who holds its lock; 0 where it has not written that yet.
    """
    started_ticks = start_ticks(pid)
    told_bytes = files.log.stat().st_size if files.log.exists() else 0
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + SERVE_LIMIT_S + HOLD_LIMIT_S + 3 * END_LIMIT_S
    # It lets go of its lock a moment before it has ended.
    while holder(files.lock) is not None or (started_ticks and start_ticks(pid) == started_ticks):
        if time.monotonic() > deadline_s:
            raise UnavailableError("it does not end", fix=f"see {files.log}")
        time.sleep(POLL_S)
    _tell_rest(files.log, told_bytes)


def _tell_rest(log: Path, told_bytes: int) -> None:
    """Tell what was said in a log from some byte on: whether jobs could not be saved is for who stops them."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(told_bytes)
        click.echo(file.read().decode(errors="replace"), nl=False, err=True)


def _end_what_is_left(files: UpFiles) -> None:
    """End the services that an ``arena up`` left running when it was killed: as it would have, jobs first.

    Raises:
        NotFoundError: There are none, and no ranks.
    """
    with up_lock(files), _no_signals():
        left = orphans(files)
        if not left and not ranks(files.agents()):
            raise NotFoundError(f"nothing runs on {files.directory}")
        named = ", ".join(orphan.name for orphan in left) or "jobs"
        sys.stderr.write(f"`arena up` was killed and left {named}\n")
        _hold_jobs(files, left)
        end_orphans([orphan for orphan in left if orphan.name != SCHEDULER])
        kill_ranks(files.agents())
        end_orphans([orphan for orphan in left if orphan.name == SCHEDULER])


def _hold_jobs(files: UpFiles, left: list[Orphan]) -> None:
    """Hold the jobs, where there is a scheduler to do so; say where they were not saved."""
    try:
        if not any(orphan.name == SCHEDULER for orphan in left):
            raise UnavailableError("the scheduler had ended")
        address = files.address.read_text().strip()
        with ArenaClient(ClientSettings(address=address, user=user_name())) as client:
            hold_all(client, files.held)
    except (ArenaError, OSError) as error:
        sys.stderr.write(f"warning: jobs were not saved, they go on from their last checkpoints: {error}\n")


@contextmanager
def _no_signals() -> Iterator[None]:
    """Ignore who would cut a stop short, another `arena down` too: it is bounded, and would leave processes behind."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
