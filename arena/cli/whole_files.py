"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from arena.errors import ArenaError, ResourceExhaustedError, UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says where a disk, or what may be written to it, is full."""


def write_whole(path: Path, data: bytes | Iterable[bytes], *, fix: str) -> None:
    """Write a file aside and rename it; what is no regular file, e.g. a device, is written as it is.

    Args:
        data: All of it, or its parts in order; where one cannot be made, there is no file.

    Raises:
        ResourceExhaustedError: The disk is full.
        UserError: It cannot be written, e.g. as there is no directory for it.
    """
    require_folder(path)
    if path.exists() and not path.is_file():
        aside = path
    else:
        aside = path.with_name(f".{path.name}.{os.getpid()}") if path.name else path
    try:
        with aside.open("wb") as file:
            for part in (data,) if isinstance(data, bytes) else data:
                file.write(part)
        if aside != path:
            aside.replace(path)
    except BaseException as error:
        if aside != path:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise writing_error(path, error, fix=fix) from error
        raise


def require_folder(path: Path) -> None:
    """Refuse a file whose directory is not there: it is more often mistyped than meant to be made.

    Raises:
        UserError: There is none.
    """
    if not path.parent.is_dir():
        raise UserError(
            f"cannot write {path}", why=f"there is no directory {path.parent}", fix="make it, or name another"
        )


def require_new(path: Path, *, force: bool, fix: str) -> None:
    """Refuse a file that is there already, unless it is to be replaced.

    What is no regular file, e.g. a device, is nothing that would be lost; others refuse it where they cannot write it.

    Args:
        force: Whether its user said that it may be replaced.
        fix: What else could be done.

    Raises:
        UserError: It is there.
    """
    is_there = path.is_file() or (path.is_symlink() and not path.exists())
    if is_there and not force:
        raise UserError(f"{path} is there already", fix=f"{fix}, or add --force to replace it")


def writing_error(path: Path, error: OSError, *, fix: str) -> ArenaError:
    """Return the error of a file that cannot be written."""
    what, why = f"cannot write {path}", error.strerror or str(error)
    if error.errno in FULL:
        return ResourceExhaustedError(what, why=why, fix=f"make room, or {fix}")
    return UserError(what, why=why, fix=fix)
