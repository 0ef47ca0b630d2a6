"""The inbox of the scheduler's loop: who waits there returns at once when there is something to do."""

from __future__ import annotations

import asyncio

import pytest

from arena.domain.events import Tick
from arena.errors import UnavailableError
from arena_scheduler.inbox import Inbox

HOUR_S = 3600.0
LIMIT_S = 60.0


async def test_who_waits_returns_for_an_item_and_for_an_end_without_one() -> None:
    inbox = Inbox()
    for rouse in (inbox.wake, lambda: inbox.post(Tick())):
        waiting = asyncio.create_task(inbox.wait(HOUR_S))
        await asyncio.sleep(0)
        assert not waiting.done()
        rouse()
        await asyncio.wait_for(waiting, LIMIT_S)
    assert len(inbox.take(10)) == 1


async def test_after_its_end_nobody_waits_for_an_answer_that_will_not_come() -> None:
    inbox = Inbox()
    before = asyncio.create_task(inbox.request(Tick()))
    await asyncio.sleep(0)
    inbox.close(UnavailableError("the scheduler is stopping"))
    for waiting in (before, inbox.request(Tick())):
        with pytest.raises(UnavailableError, match="stopping"):
            await asyncio.wait_for(waiting, LIMIT_S)
