"""Grids are made once for all that ask, and a failure or an impatient client spoils nothing for the others."""

from __future__ import annotations

import asyncio
from itertools import count
from threading import Event

import pytest

from arena.domain.cluster import ClusterShape
from arena.domain.grid import Grid
from arena.domain.job import JobSpec
from arena.errors import UserError
from arena_scheduler import grids
from arena_scheduler.grids import GridCache
from tests.builders import scaling_grid, shape, train_spec

SHAPE = shape(("cpu", 2, 1))
WAIT_S = 20.0


class CountingSource:
    """A planner that waits until it may answer, and counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.may_answer = Event()
        self.may_answer.set()
        self.failures = 0
        self.version = "counting"

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        assert self.may_answer.wait(WAIT_S)
        self.asked.append(spec.train.global_batch if spec.train is not None else 0)
        if self.failures:
            self.failures -= 1
            raise UserError("no")
        return scaling_grid("cpu", [(1,)])


def job(batch: int = 8) -> JobSpec:
    return train_spec("x", train={"global_batch": batch})


def cache_of(source: CountingSource) -> GridCache:
    ticks = count()
    return GridCache(source, lambda: float(next(ticks)))


async def test_all_who_ask_for_the_same_get_the_one_grid_that_is_made() -> None:
    source = CountingSource()
    source.may_answer.clear()
    cache = cache_of(source)
    asking = [asyncio.create_task(cache.get(job(), SHAPE)) for _ in range(3)]
    impatient = asyncio.create_task(cache.get(job(), SHAPE))
    await asyncio.sleep(0)  # all have asked
    impatient.cancel()
    await asyncio.sleep(0)  # and one has gone
    source.may_answer.set()
    built = await asyncio.gather(*asking)
    assert len({id(one.grid) for one in built}) == len(source.asked) == 1
    assert built[0].build_s > 0
    assert (await cache.get(job(), SHAPE)).build_s == 0
    cache.close()


async def test_a_failure_is_told_to_those_who_wait_and_tried_again_by_the_next() -> None:
    source = CountingSource()
    source.failures = 1
    cache = cache_of(source)
    with pytest.raises(UserError):
        await cache.get(job(), SHAPE)
    assert (await cache.get(job(), SHAPE)).grid.cells
    assert len(source.asked) == 2
    cache.close()


async def test_the_grid_that_nobody_asked_for_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "GRIDS_REMEMBERED", 2)
    source = CountingSource()
    cache = cache_of(source)
    for batch in (8, 16, 8, 24, 8, 16):
        await cache.get(job(batch), SHAPE)
    assert source.asked == [8, 16, 24, 16]
    cache.close()
