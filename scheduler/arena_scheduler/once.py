"""Work that is done once, however many ask for it."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")


class Once(Generic[Answer]):
    """Pieces of work by their keys, each a task of its own: a caller whose connection breaks ends it for no other.

    Args:
        kept_max: So many answers are kept for who asks after the work is done, the latest; what failed is none.
        ends_alone: Whether work goes on for which nobody waits any more; else it is ended then, unless it has said
            that it goes on, and begun anew for who asks again.
    """

    def __init__(self, *, kept_max: int = 0, ends_alone: bool = True) -> None:
        self._kept_max = kept_max
        self._ends_alone = ends_alone
        self._tasks: dict[Hashable, asyncio.Task[Answer]] = {}
        self._for_good: set[Hashable] = set()
        self._waiting: Counter[asyncio.Task[Answer]] = Counter()
        self._kept: OrderedDict[Hashable, Answer] = OrderedDict()

    async def of(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, Answer]]) -> tuple[Answer, bool]:
        """Return what the work of a key comes to, and whether it was begun by this call; raise what it raises.

        Args:
            begin: Makes the work, where none of this key is under way or kept.
        """
        if key in self._kept:
            return self._kept[key], False
        task = self._tasks.get(key)
        is_first = task is None
        if task is None:
            task = asyncio.create_task(begin())
            self._tasks[key] = task
            task.add_done_callback(partial(self._ended, key))
        self._waiting[task] += 1
        try:
            return await asyncio.shield(task), is_first
        finally:
            self._left(key, task)

    def goes_on(self, key: Hashable) -> None:
        """Have work go on from here, whoever waits for it."""
        self._for_good.add(key)

    def _left(self, key: Hashable, task: asyncio.Task[Answer]) -> None:
        self._waiting[task] -= 1
        if self._waiting[task]:
            return
        del self._waiting[task]
        if not self._ends_alone and key not in self._for_good and not task.done():
            self._forget(key, task)  # now: who asks from here on must not join what is ending
            task.cancel()

    def _forget(self, key: Hashable, task: asyncio.Task[Answer]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
            self._for_good.discard(key)

    def _ended(self, key: Hashable, task: asyncio.Task[Answer]) -> None:
        self._forget(key, task)
        if task.cancelled() or task.exception() is not None:  # seen now, even if nobody waits any more
            return
        self._kept[key] = task.result()
        if len(self._kept) > self._kept_max:
            self._kept.popitem(last=False)
