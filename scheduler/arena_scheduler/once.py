"""Work that is done once, however many ask for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")


class Once(Generic[Answer]):
    """Pieces of work by their keys, each a task of its own: a caller whose connection breaks ends it for nobody.

    Args:
        kept_max: So many answers are kept for who asks after the work is done, the latest; what failed is none.
    """

    def __init__(self, *, kept_max: int = 0) -> None:
        self._kept_max = kept_max
        self._tasks: dict[Hashable, asyncio.Task[Answer]] = {}
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
        return await asyncio.shield(task), is_first

    def _ended(self, key: Hashable, task: asyncio.Task[Answer]) -> None:
        del self._tasks[key]
        if task.cancelled() or task.exception() is not None:  # seen now, even if nobody waits any more
            return
        self._kept[key] = task.result()
        if len(self._kept) > self._kept_max:
            self._kept.popitem(last=False)
