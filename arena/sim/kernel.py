"""The simulator's clock: a heap of future events ordered by (time, priority, sequence). Pure: no I/O, no clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(slots=True)
class Kernel(Generic[Item]):
    """Virtual time. Items at the same instant come out by priority (lower first), then as they were put in.

    Args:
        now_s: The present instant; it moves only forward, with ``pop``.
    """

    now_s: float = 0.0
    _heap: list[tuple[float, int, int, Item]] = field(default_factory=list)
    _sequence: int = 0

    def push(self, at_s: float, item: Item, *, priority: int = 0) -> None:
        """Schedule an item; an instant in the past means now."""
        self._sequence += 1
        heapq.heappush(self._heap, (max(at_s, self.now_s), priority, self._sequence, item))

    def peek_s(self) -> float | None:
        """Return the instant of the next item."""
        return self._heap[0][0] if self._heap else None

    def pop(self) -> Item:
        """Go to the next item's instant and return it."""
        at_s, _, _, item = heapq.heappop(self._heap)
        self.now_s = at_s
        return item

    def drop(self, unwanted: Callable[[Item], bool]) -> None:
        """Remove scheduled items."""
        self._heap = [entry for entry in self._heap if not unwanted(entry[3])]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)
