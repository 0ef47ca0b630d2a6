"""Who is to blame where something fails on all of them together. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from arena.domain.job import JobId

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed(Generic[Answer]):
    """Who was found, and what comes without some.

    Args:
        guilty: Those that were singled out.
        answer: What works, without as few as it was found to; None where nothing does, or nothing was tried.
        left_out: Those that it is without: the guilty, and more where the tries were over before all were found.
    """

    guilty: frozenset[JobId] = frozenset()
    answer: Answer | None = None
    left_out: frozenset[JobId] = frozenset()


def to_blame(
    suspects: Sequence[JobId], without: Callable[[frozenset[JobId]], Answer | None], *, tries_max: int
) -> Blamed[Answer]:
    """Find as few suspects as can be whose leaving out mends it; of two that would do alone the one that is first.

    Each one to blame costs some log2(suspects) tries (Junker, "QuickXplain", 2004, with what is left out in the place
    of what conflicts).

    Args:
        without: Tries it without some of them; None where it fails.
        tries_max: When these are over, those that were singled out so far are all that is known.
    """
    search = _Search(without=without, tries_max=tries_max)
    everybody = frozenset(suspects)
    try:
        if search.mends(everybody):
            search.least(tuple(suspects), frozenset())
    except _OverError:
        pass
    best = min((one for one, answer in search.tried.items() if answer is not None), key=len, default=frozenset())
    return Blamed(guilty=frozenset(search.guilty), answer=search.tried.get(best), left_out=best)


class _OverError(Exception):
    """No further try is to be made."""


@dataclass(slots=True, kw_only=True)
class _Search(Generic[Answer]):
    without: Callable[[frozenset[JobId]], Answer | None]
    tries_max: int
    tried: dict[frozenset[JobId], Answer | None] = field(default_factory=dict)
    guilty: set[JobId] = field(default_factory=set)

    def mends(self, left_out: frozenset[JobId]) -> bool:
        if left_out not in self.tried:
            if len(self.tried) >= self.tries_max:
                raise _OverError
            self.tried[left_out] = self.without(left_out)
        return self.tried[left_out] is not None

    def least(self, suspects: tuple[JobId, ...], besides: frozenset[JobId]) -> frozenset[JobId]:
        """Return the fewest of some suspects to be left out besides others; leaving out all of them mends it."""
        if len(suspects) <= 1:
            self.guilty.update(suspects)
            return frozenset(suspects)
        half = len(suspects) // 2
        first, second = suspects[:half], suspects[half:]
        if self.mends(besides | frozenset(first)):
            return self.least(first, besides)
        of_second = self.least(second, besides | frozenset(first))
        if self.mends(besides | of_second):
            return of_second
        return of_second | self.least(first, besides | of_second)
