"""The simulator's clock: a heap of future events ordered by (time, priority, sequence). Pure: no I/O, no clock."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Scheduled(list[object], Generic[Item]):
    """A place in the queue: instant, priority, sequence number, item; None once it was taken or called off.

    A list, because lists compare without running Python code and the sequence number decides before the item.
    """

    __slots__ = ()


@dataclass(slots=True)
class Kernel(Generic[Item]):
    """Virtual time. Items at the same instant come out by priority (lower first), then as they were put in.

    Args:
        now_s: The present instant; it moves only forward, with ``pop``.
    """

    now_s: float = 0.0
    _heap: list[Scheduled[Item]] = field(default_factory=list)
    _sequence: int = 0
    _live_count: int = 0

    def push(self, at_s: float, item: Item, *, priority: int = 0) -> Scheduled[Item]:
        """Schedule an item; an instant in the past means now. What is returned can be cancelled."""
        self._sequence += 1
        self._live_count += 1
        entry: Scheduled[Item] = Scheduled((max(at_s, self.now_s), priority, self._sequence, item))
        heapq.heappush(self._heap, entry)
        return entry

    def cancel(self, entry: Scheduled[Item]) -> None:
        """Call an item off; nothing happens if it was taken or called off before."""
        if entry[3] is not None:
            entry[3] = None
            self._live_count -= 1

    def peek_s(self) -> float | None:
        """Return the instant of the next item."""
        while self._heap and self._heap[0][3] is None:
            heapq.heappop(self._heap)
        return float(self._heap[0][0]) if self._heap else None  # type: ignore[arg-type]

    def pop(self) -> Item:
        """Go to the next item's instant and return it.

        Raises:
            IndexError: Nothing is scheduled.
        """
        at_s = self.peek_s()
        entry = heapq.heappop(self._heap)
        assert at_s is not None
        self.now_s = at_s
        item, entry[3] = entry[3], None
        self._live_count -= 1
        return item  # type: ignore[return-value]

    def __len__(self) -> int:
        return self._live_count
