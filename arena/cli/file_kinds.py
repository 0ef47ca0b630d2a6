"""Files of one kind given where another is wanted: most likely they are swapped, and that is all that is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from arena.domain.yamltree import read_tree
from arena.errors import SpecError


class FileKind(StrEnum):
    """What a YAML file of ours is about."""

    JOB = "job"
    CLUSTER = "cluster"
    TENANTS = "tenants"


_TELLING = {
    FileKind.JOB: frozenset({"train", "command"}),
    FileKind.CLUSTER: frozenset({"nodes"}),
    FileKind.TENANTS: frozenset({"projects"}),
}
"""Fields that files of a kind have, and no others."""


@contextmanager
def read_as(wanted: FileKind, text: str, *, source: str) -> Iterator[None]:
    """Have a file of another kind told as that, instead of all its fields that files of this kind do not have.

    Args:
        wanted: The kind that the file is read as.
        text: What it holds.
        source: Its name, for the error.

    Raises:
        SpecError: It is not right; in the words of its reader where nothing says that it is of another kind.
    """
    try:
        yield
    except SpecError as error:
        if wanted is FileKind.JOB and _is_program(text, source):
            what, run = f"{source} is no job file", source if text.startswith("#!") else f"python {source}"
            fix = f"run it with `arena submit --gpus N -- {run}`"
            raise SpecError(what, why="it looks like a program", fix=fix) from error
        found = _kind(text)
        if found in {None, wanted}:
            raise
        what, why = f"{source} is no {wanted.value} file", f"it looks like a {found} file"
        raise SpecError(what, why=why, fix=f"give a {wanted.value} file there; are two files swapped?") from error


def _is_program(text: str, source: str) -> bool:
    return text.startswith("#!") or Path(source).suffix == ".py"


def _kind(text: str) -> FileKind | None:
    """Return what a text looks like, None where it looks like nothing or like several."""
    try:
        data = read_tree(text, "").data
    except SpecError:
        return None
    kinds = [kind for kind, fields in _TELLING.items() if isinstance(data, dict) and fields & set(data)]
    return kinds[0] if len(kinds) == 1 else None
