"""The simulator's clock: a heap of future events ordered by (time, priority, sequence). Pure: no I/O, no clock."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")

_PRIORITY_UNIT = 1 << 48
"""Sequence numbers of one priority; an order is one number, since numbers are compared fastest."""


Scheduled = tuple[float, int]
"""A place in the queue: the instant, and the order among what happens at that instant."""


@dataclass(slots=True)
class Kernel(Generic[Item]):
    """Virtual time. Items at the same instant come out by priority (lower first), then as they were put in.

    Args:
        now_s: The present instant; it moves only forward, with ``pop``.
    """

    now_s: float = 0.0
    _heap: list[Scheduled] = field(default_factory=list)
    _items: dict[int, Item] = field(default_factory=dict)
    _sequence: int = 0

    def push(self, at_s: float, item: Item, *, priority: int = 0) -> Scheduled:
        """Schedule an item; an instant in the past means now. What is returned can be cancelled."""
        self._sequence += 1
        order = priority * _PRIORITY_UNIT + self._sequence
        entry = (max(at_s, self.now_s), order)
        self._items[order] = item
        heapq.heappush(self._heap, entry)
        return entry

    def cancel(self, entry: Scheduled) -> None:
        """Call an item off; nothing happens if it was taken or called off before."""
        self._items.pop(entry[1], None)

    def peek_s(self) -> float | None:
        """Return the instant of the next item."""
        heap = self._heap
        while heap:
            at_s, order = heap[0]
            if order in self._items:
                return at_s
            heapq.heappop(heap)
        return None

    def pop(self) -> Item:
        """Go to the next item's instant and return it.

        Raises:
            IndexError: Nothing is scheduled.
        """
        while True:
            at_s, order = heapq.heappop(self._heap)
            if order in self._items:
                self.now_s = at_s
                return self._items.pop(order)

    def __len__(self) -> int:
        return len(self._items)
