"""The lock files of `arena up` and of what it starts: each dies with its holder, and has the holder's pid in it."""

from __future__ import annotations

import fcntl
from pathlib import Path


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
