"""One agent a directory: a lock that dies with its holder and names it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from arena.errors import AlreadyRunningError


@contextlib.contextmanager
def directory_lock(path: Path) -> Iterator[None]:
    """Hold a lock file, with our pid in it.

    Raises:
        AlreadyRunningError: Another process holds it; its pid is named.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise AlreadyRunningError(
                f"an agent already runs on {path.parent}",
                why=f"process {pid} holds it",
                fix="give this one another --state-dir, or stop the other one",
                details={"pid": pid},
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
