"""Work that several callers may wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")


class UnderWay(Generic[Answer]):
    """Pieces of work by their keys, each a task of its own: a caller whose connection breaks ends it for nobody."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[Answer]] = {}

    async def of(self, key: Hashable, begin: Callable[[], Coroutine[Any, Any, Answer]]) -> tuple[Answer, bool]:
        """Return what the work of a key comes to, and whether it was begun by this call; raise what it raises.

        Args:
            begin: Makes the work, where none of this key is under way.
        """
        task = self._tasks.get(key)
        is_first = task is None
        if task is None:
            task = asyncio.create_task(begin())
            self._tasks[key] = task
            task.add_done_callback(partial(self._forget, key))
        return await asyncio.shield(task), is_first

    def _forget(self, key: Hashable, task: asyncio.Task[Answer]) -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # seen, even if nobody waits any more
