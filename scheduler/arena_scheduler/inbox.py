"""The queue between everything that hears something and the loop that owns the engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from arena.domain.events import Event
from arena.engine.ports import Step
from arena.errors import ArenaError


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An event; what is asked for at once is one, so that no request has the engine decide many times.

    Args:
        answer: Resolved once the step is durable, or failed; None where nobody waits.
    """

    event: Event
    answer: asyncio.Future[Step] | None = None


class Inbox:
    """Events in order of arrival; used from the loop's own thread only."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self.arrived_count = 0
        self._filled = asyncio.Event()
        self._closed_for: ArenaError | None = None

    def post(self, event: Event) -> None:
        """Add an event for whose effect nobody waits."""
        self._put(Item(event=event))

    async def request(self, event: Event) -> Step:
        """Add an event and return its step once that is durable.

        Raises:
            ArenaError: The engine refused it, the store failed, or nobody takes events any more; it did not happen.
        """
        if self._closed_for is not None:
            raise self._closed_for
        answer: asyncio.Future[Step] = asyncio.get_running_loop().create_future()
        self._put(Item(event=event, answer=answer))
        return await answer

    def _put(self, item: Item) -> None:
        self._items.append(item)
        self.arrived_count += 1
        self._filled.set()

    def wake(self) -> None:
        """Have who waits return, though there may be nothing."""
        self._filled.set()

    async def wait(self, timeout_s: float) -> None:
        """Return when there is an item, somebody wakes it, or the time is over."""
        if self._items:
            return
        self._filled.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._filled.wait()
        except TimeoutError:
            return

    @property
    def taken_count(self) -> int:
        """How many of all that arrived are not here any more."""
        return self.arrived_count - len(self._items)

    @property
    def waiting_count(self) -> int:
        """How many are here; safe from any thread."""
        return len(self._items)

    def take(self, count_max: int) -> list[Item]:
        """Return the next items, oldest first."""
        return [self._items.popleft() for _ in range(min(count_max, len(self._items)))]

    def put_back(self, items: Sequence[Item]) -> None:
        """Return items that were taken to the front, in their order."""
        self._items.extendleft(reversed(items))

    def close(self, error: ArenaError) -> None:
        """Fail everybody who waits, and who asks from now on: nobody takes events any more."""
        self._closed_for = error
        for item in self.take(len(self._items)):
            if item.answer is not None and not item.answer.done():
                item.answer.set_exception(error)
