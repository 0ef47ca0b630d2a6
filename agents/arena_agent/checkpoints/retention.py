"""Which checkpoints go: beyond the number to keep or the space allowed, the oldest first. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COMPLETE_MIN = 2
"""The newest complete ones that always stay: should the newest turn out damaged, there is another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One checkpoint directory.

    Args:
        name: Its name.
        step: Its step.
        size_bytes: What it takes on disk.
        is_complete: Whether it could be loaded.
    """

    name: str
    step: int
    size_bytes: int
    is_complete: bool


def names_to_remove(stored: Sequence[Stored], *, keep: int, quota_bytes: int | None = None) -> tuple[str, ...]:
    """Return the directories to remove, oldest first.

    Args:
        stored: All directories, in any order.
        keep: Complete ones to keep; fewer than two count as two.
        quota_bytes: Most that all of them may take together; the newest two complete ones stay nevertheless.
    """
    newest_first = sorted(stored, key=lambda item: item.step, reverse=True)
    complete = [item for item in newest_first if item.is_complete]
    if not complete:
        return ()
    kept = complete[: max(keep, COMPLETE_MIN)]
    while quota_bytes is not None and len(kept) > COMPLETE_MIN and _taken(newest_first, kept) > quota_bytes:
        kept.pop()
    return tuple(item.name for item in reversed(newest_first) if item.step < kept[-1].step)


def _taken(stored: Sequence[Stored], kept: Sequence[Stored]) -> int:
    """Return the bytes of what stays: the kept ones, and incomplete ones among or above them."""
    return sum(item.size_bytes for item in stored if item.step >= kept[-1].step)
