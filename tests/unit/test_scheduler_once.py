"""Work that is done once: who joins it, who goes away, what is kept of it."""

from __future__ import annotations

import asyncio

import pytest

from arena_scheduler.once import Once


class Work:
    """Goes on once it is let go; counts how often it was begun."""

    def __init__(self) -> None:
        self.is_let_go = asyncio.Event()
        self.begun_count = 0
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.begun_count += 1
        number = self.begun_count
        await self.is_let_go.wait()
        if self.error is not None:
            raise self.error
        return number


async def test_all_who_ask_wait_for_one_piece_of_work_whoever_of_them_goes_away() -> None:
    once, work = Once[int](), Work()
    calls = [asyncio.create_task(once.of("a", work)) for _ in range(3)]
    await asyncio.sleep(0)
    calls[0].cancel()
    work.is_let_go.set()
    assert await asyncio.gather(*calls[1:]) == [(1, False), (1, False)]
    assert calls[0].cancelled()
    assert await once.of("a", work) == (2, True)  # nothing is kept


async def test_of_the_answers_the_latest_are_kept() -> None:
    once, work = Once[int](kept_max=2), Work()
    work.is_let_go.set()
    assert [await once.of(key, work) for key in "abcba"] == [(1, True), (2, True), (3, True), (2, False), (4, True)]


async def test_what_fails_fails_for_all_and_is_not_kept() -> None:
    once, work = Once[int](kept_max=2), Work()
    work.error = ValueError("no")
    calls = [asyncio.create_task(once.of("a", work)) for _ in range(2)]
    work.is_let_go.set()
    assert [str(error) for error in await asyncio.gather(*calls, return_exceptions=True)] == ["no", "no"]
    work.error = None
    with pytest.raises(asyncio.CancelledError):
        await _cancelled(once)
    assert await once.of("a", work) == (2, True)


async def _cancelled(once: Once[int]) -> None:
    async def cancels_itself() -> int:
        raise asyncio.CancelledError

    await once.of("a", cancels_itself)


@pytest.mark.parametrize(
    ("ends_alone", "says_so", "again"),
    [(True, False, (1, False)), (False, True, (1, False)), (False, False, (2, True))],
)
async def test_work_that_nobody_waits_for_goes_on_or_ends(
    ends_alone: bool, says_so: bool, again: tuple[int, bool]
) -> None:
    once, work = Once[int](ends_alone=ends_alone), Work()
    calls = [asyncio.create_task(once.of("a", work)) for _ in range(2)]
    await asyncio.sleep(0)
    calls[0].cancel()
    await asyncio.sleep(0)
    calls.append(asyncio.create_task(once.of("a", work)))
    await asyncio.sleep(0)
    if says_so:
        once.goes_on("a")
    for call in calls[1:]:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert work.begun_count == 1  # until now somebody waited
    late = asyncio.create_task(once.of("a", work))
    await asyncio.sleep(0)
    work.is_let_go.set()
    assert await late == again
