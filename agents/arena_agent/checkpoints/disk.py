"""Files that survive a crash: written through a port, synced, replaced and removed so that readers see no half."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

TEMPORARY_PREFIX = ".tmp-"
_READ_BYTES = 1 << 20


class Disk(Protocol):
    """Where the bulk of a save goes."""

    def write(self, file: BinaryIO, block: memoryview) -> None:
        """Write a block at the end of an open file."""
        ...

    def sync(self, file: BinaryIO) -> None:
        """Return when an open file's content is durable."""
        ...


class LocalDisk:
    """What the operating system offers under a path."""

    def write(self, file: BinaryIO, block: memoryview) -> None:
        """Write a block at the end of an open file."""
        file.write(block)

    def sync(self, file: BinaryIO) -> None:
        """Return when an open file's content is durable."""
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """Size and digest of one file of a checkpoint."""

    size_bytes: int
    sha256: str


def file_entry(path: Path, on_read: Callable[[int], None] | None = None) -> FileEntry:
    """Read a file and return its size and digest, telling of the bytes of each block read."""
    digest = hashlib.sha256()
    size_bytes = 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
            size_bytes += len(block)
            if on_read is not None:
                on_read(len(block))
    return FileEntry(size_bytes=size_bytes, sha256=digest.hexdigest())


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file so that after a crash it is either the old one or the new one."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Force a file's or directory's content to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file or directory; a directory leaves the sight of readers and writers before its files go."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.startswith(f"{TEMPORARY_PREFIX}removed-"):
        hidden = path.with_name(f"{TEMPORARY_PREFIX}removed-{path.name}")
        shutil.rmtree(hidden, ignore_errors=True)
        path = path.rename(hidden)
    shutil.rmtree(path)


def size_on_disk(path: Path) -> int:
    """Return the bytes of a file, or of all files below a directory; what vanishes meanwhile counts nothing."""
    if not path.is_dir():
        return _size_bytes(path)
    return sum(_size_bytes(Path(folder) / name) for folder, _, names in os.walk(path) for name in names)


def _size_bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
