"""Names of the files on the directory of an `arena up`, and who holds its locks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from arena.errors import AlreadyRunningError


@dataclass(frozen=True, slots=True, kw_only=True)
class UpFiles:
    """Names of the files of one ``arena up``.

    Args:
        directory: Its ``--dir``.
    """

    directory: Path

    @property
    def database(self) -> Path:
        """Of the scheduler."""
        return self.directory / "scheduler.db"

    @property
    def database_lock(self) -> Path:
        """Held by the scheduler."""
        return self.directory / "scheduler.db.lock"

    @property
    def address(self) -> Path:
        """Where the scheduler writes its address once it serves."""
        return self.directory / "address"

    @property
    def ports(self) -> Path:
        """The ports on which ranks meet."""
        return self.directory / "ports"

    @property
    def lock(self) -> Path:
        """Held while ``arena up`` runs on this directory; holds its pid."""
        return self.directory / "up.pid"

    @property
    def log(self) -> Path:
        """What one in the background says; it holds the lock of this file."""
        return self.directory / "up.log"

    @property
    def ready(self) -> Path:
        """Says which process's ``arena up`` has all its nodes, and where it serves: ``PID ADDRESS``."""
        return self.directory / "up.ready"

    @property
    def held(self) -> Path:
        """Jobs that were held when it was stopped, to be released when it starts again."""
        return self.directory / "held-by-up"

    def agent(self, index: int) -> Path:
        """Return the state directory of an agent, counted from 0."""
        return self.directory / f"node-{index + 1}"

    def agents(self) -> list[Path]:
        """Return the state directories of all agents that were ever started here."""
        return sorted(lock.parent for lock in self.directory.glob("node-*/agent.lock"))


@contextmanager
def up_lock(files: UpFiles) -> Iterator[None]:
    """Be the one who starts or ends something on a directory.

    Raises:
        AlreadyRunningError: Another is.
    """
    with files.lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise runs_already(files) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def runs_already(files: UpFiles) -> AlreadyRunningError:
    """Return the error of whoever comes second."""
    fix = "stop it with `arena down`, or give another --dir"
    return AlreadyRunningError(f"`arena up` runs on {files.directory} already, or is being started there", fix=fix)


def holder(lock: Path) -> int | None:
    """Return the pid of who holds a lock; None where nobody does.

    0 stands for somebody who has not written it yet.
    """
    try:
        file = lock.open("r+")
    except FileNotFoundError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read().strip()
            return int(text) if text.isdecimal() else 0
    return None
