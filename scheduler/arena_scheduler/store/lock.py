"""One server per database file, and only on a disk that can hold one safely."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from arena.errors import AlreadyRunningError, UnavailableError

NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "orangefs"}
)
_MOUNTS = Path("/proc/self/mountinfo")


class FileLock:
    """An advisory lock on ``<database>.lock``, with the holder's pid inside; the kernel drops it when we die."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".lock")
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            AlreadyRunningError: Another process has it; the message names its pid.
        """
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise AlreadyRunningError(
                f"database {self._path.with_suffix('')} is in use",
                why=f"the scheduler with pid {holder} has it open",
                fix="stop that one, or give this one another --db",
                details={"pid": holder},
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Give the lock back; the file stays, since removing it would race with the next holder."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _is_network(kind: str) -> bool:
    # A FUSE file system may be local or remote; those that are known to be local name a block device (fuseblk).
    return kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse.") or kind == "fuse"


def refuse_network_file_system(path: Path, mounts: str | None = None) -> None:
    """Refuse a database on a network file system, where SQLite's write-ahead log corrupts silently.

    Args:
        path: The database file, which need not exist.
        mounts: Contents of ``/proc/self/mountinfo``; read when absent.

    Raises:
        UnavailableError: The file would be on one.
    """
    if mounts is None:
        mounts = _MOUNTS.read_text() if _MOUNTS.exists() else ""
    mount_point, kind = _mount_of(path.resolve(), mounts)
    if _is_network(kind):
        raise UnavailableError(
            f"database {path} is on a network file system",
            why=f"{mount_point} is {kind}, where SQLite's write-ahead log is not safe",
            fix="put --db on a local disk",
            details={"file_system": kind},
        )


def _mount_of(path: Path, mounts: str) -> tuple[str, str]:
    best, best_kind = "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) < 5 or not tail:
            continue
        mount_point = fields[4].encode().decode("unicode_escape")  # spaces are written as \040
        if path.is_relative_to(mount_point) and len(mount_point) >= len(best):
            best, best_kind = mount_point, tail[0]
    return best, best_kind
