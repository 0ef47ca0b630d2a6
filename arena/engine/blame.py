"""Who is to blame where something fails on all of them together. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def to_blame(suspects: Sequence[Item], mends: Callable[[frozenset[Item]], bool]) -> frozenset[Item]:
    """Return as few suspects as can be whose leaving out mends it; of two that would do alone the one that is first.

    Leaving out all of them mends it. Each one to blame costs some log2(suspects) tries (Junker, "QuickXplain", 2004,
    with what is left out in the place of what conflicts).

    Args:
        mends: Tells whether it works without some of them.
    """
    return _least(tuple(suspects), frozenset(), mends)


def _least(
    suspects: tuple[Item, ...], besides: frozenset[Item], mends: Callable[[frozenset[Item]], bool]
) -> frozenset[Item]:
    """Return the fewest of some suspects to be left out besides others; leaving out all of them mends it."""
    if len(suspects) <= 1:
        return frozenset(suspects)
    half = len(suspects) // 2
    first, second = suspects[:half], suspects[half:]
    if mends(besides | frozenset(first)):
        return _least(first, besides, mends)
    of_second = _least(second, besides | frozenset(first), mends)
    if mends(besides | of_second):
        return of_second
    return of_second | _least(first, besides | of_second, mends)
