"""What the loop is at, and for how long: noted by the loop, read from any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum


class Part(StrEnum):
    """What a turn of the loop waits for, in words for people."""

    DECISION = "a decision"
    WRITING = "writing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The loop's present turn: it takes what has arrived, has it decided about, and has that written.

    Args:
        took_s: For how long it has been at it, 0 while it waits for something to do.
        part: What it waits for, None for neither.
        part_s: Since when it waits for that, in seconds.
    """

    took_s: float = 0.0
    part: Part | None = None
    part_s: float = 0.0

    def time_at_s(self, part: Part) -> float:
        """Return for how long it has waited for this, 0 where it does not."""
        return self.part_s if self.part is part else 0.0


class TurnWatch:
    """Times the turns of a loop.

    Args:
        now_s: A clock that never goes back, safe from any thread.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        # Each is replaced as a whole, so that whoever looks finds what belongs together.
        self._since_s: float | None = None
        self._part: tuple[Part, float] | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Note that a turn goes on."""
        self._since_s = self._now_s()
        try:
            yield
        finally:
            self._since_s = None

    @contextmanager
    def part(self, part: Part) -> Iterator[None]:
        """Note what is waited for."""
        self._part = part, self._now_s()
        try:
            yield
        finally:
            self._part = None

    def seen(self) -> Turn:
        """Return the present turn; safe from any thread."""
        since_s, found = self._since_s, self._part
        now_s = self._now_s()
        took_s = 0.0 if since_s is None else now_s - since_s
        if found is None:
            return Turn(took_s=took_s)
        part, part_since_s = found
        return Turn(took_s=took_s, part=part, part_s=now_s - part_since_s)
