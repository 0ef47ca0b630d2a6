"""Performance grids off the event loop, each made once for jobs that differ in nothing that matters to it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

from arena.domain.cluster import ClusterShape
from arena.domain.events import GridBuilt
from arena.domain.grid import Grid, GridSource
from arena.domain.job import GpuLimits, JobId, JobKind, JobSpec, ParallelLimits
from arena.planner.mixed import MixedCells

GRIDS_REMEMBERED = 256
WIDENINGS_MAX = 64
"""Kinds of jobs whose groups over several GPU types are looked for at a time; further ones go without."""
_IRRELEVANT = {
    "name", "user", "project", "priority", "weight", "deadline_s", "is_deadline_strict", "budget_usd", "preemptible",
    "stop", "checkpoint",
    "output_dir", "grace_s", "stall_timeout_s", "retry",
}  # fmt: skip
_IRRELEVANT_TO_COMMANDS = {"argv", "cwd", "env"}
_IRRELEVANT_TO_TRAINING = {"data", "seed"}

Key = tuple[str, ClusterShape]
Make = Callable[[JobSpec, ClusterShape], Awaitable[Grid]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A grid and the seconds it took (0 when it was known already)."""

    grid: Grid
    build_s: float

    def told(self, job_id: JobId, shape: ClusterShape) -> GridBuilt:
        """Return the word of it for a job and the shape that it was made for."""
        return GridBuilt(job_id=job_id, shape=shape, grid=self.grid, build_s=round(self.build_s, 6))


def grid_key(spec: JobSpec, shape: ClusterShape) -> Key:
    """Return what a grid depends on; specifications with equal keys share a grid."""
    text = spec.model_dump_json(
        exclude={
            **dict.fromkeys(_IRRELEVANT, True),
            "command": _IRRELEVANT_TO_COMMANDS,
            "train": _IRRELEVANT_TO_TRAINING,
        }
    )
    return text, shape


class _Memo:
    """Grids that are made once each: what was made of late is known, what is under way is waited for.

    Args:
        make: Makes a grid.
    """

    def __init__(self, make: Make, monotonic_s: Callable[[], float]) -> None:
        self._make = make
        self._monotonic_s = monotonic_s
        self._known: OrderedDict[Key, Grid] = OrderedDict()
        self._under_way: dict[Key, asyncio.Task[Built]] = {}

    def __contains__(self, key: Key) -> bool:
        """Whether it costs nothing more to have this one."""
        return key in self._known or key in self._under_way

    @property
    def under_way_count(self) -> int:
        """Grids that are being made."""
        return len(self._under_way)

    async def get(self, spec: JobSpec, shape: ClusterShape) -> Built:
        """Return the grid of a specification on a shape; whoever asks and goes away does not stop others' grid."""
        key = grid_key(spec, shape)
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return Built(grid=known, build_s=0.0)
        task = self._under_way.get(key)
        if task is None:
            task = asyncio.create_task(self._build(key, spec, shape))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return await asyncio.shield(task)

    async def _build(self, key: Key, spec: JobSpec, shape: ClusterShape) -> Built:
        started_s = self._monotonic_s()
        grid = await self._make(spec, shape)
        self._known[key] = grid
        if len(self._known) > GRIDS_REMEMBERED:
            self._known.popitem(last=False)
        return Built(grid=grid, build_s=self._monotonic_s() - started_s)

    def cancel(self) -> None:
        """Give up what is under way."""
        for task in self._under_way.values():
            task.cancel()


class GridCache:
    """Builds grids in one thread and remembers them: who asks for one that is not known waits for those before it.

    The planner is Python and small arrays, so that a second thread would hardly make any sooner, and would take more of
    the interpreter from the event loop, which answers agents.

    Args:
        source: The planner.
        monotonic_s: Measures how long a build took.
        mixed: Finds cells over several GPU types, in a thread of its own: a grid is there long before them.
    """

    def __init__(
        self, source: GridSource, monotonic_s: Callable[[], float], *, mixed: MixedCells | None = None
    ) -> None:
        self._source = source
        self._mixed = mixed
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="arena-planner")
        self._mixed_pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="arena-mixed")
        self._grids = _Memo(self._planned, monotonic_s)
        self._wide = _Memo(self._widened, monotonic_s)

    async def get(self, spec: JobSpec, shape: ClusterShape) -> Built:
        """Return the grid of a specification on a shape.

        Raises:
            ArenaError: The planner refuses the specification.
        """
        return await self._grids.get(spec, shape)

    def may_widen(self, spec: JobSpec, shape: ClusterShape) -> bool:
        """Tell quickly whether there could be cells over several GPU types, and few enough are being looked for."""
        if self._mixed is None or not self._mixed.may_widen(spec, shape):
            return False
        return self._wide.under_way_count < WIDENINGS_MAX or grid_key(spec, shape) in self._wide

    async def widened(self, spec: JobSpec, shape: ClusterShape) -> Built:
        """Return the grid with its cells over several GPU types.

        Raises:
            ArenaError: The planner refuses the specification.
        """
        return await self._wide.get(spec, shape)

    async def _planned(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._source.grid, spec, shape)

    async def _widened(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        plain = (await self.get(spec, shape)).grid
        if self._mixed is None:
            return plain
        steps, grid = self._mixed.steps(spec, shape, plain), None
        while grid is None:  # one search at a time, so that an end of the scheduler waits for one at most
            grid = await asyncio.get_running_loop().run_in_executor(self._mixed_pool, _after_a_step, steps)
        return grid

    def close(self) -> None:
        """Start no further builds."""
        self._wide.cancel()
        for pool in (self._pool, self._mixed_pool):
            pool.shutdown(wait=False, cancel_futures=True)


def _after_a_step(steps: Generator[None, None, Grid]) -> Grid | None:
    """Go one step on; return the grid once it is done."""
    try:
        next(steps)
    except StopIteration as done:
        return cast("Grid", done.value)
    return None


async def largest_feasible(grids: GridCache, spec: JobSpec, shape: ClusterShape) -> int:
    """Return the most GPUs that a job like this one could use now, its own count and plan left aside; 0 for none."""
    if spec.command is not None:
        return _largest_pool(spec, shape)
    limits = GpuLimits(types=spec.gpus.types, nodes_max=spec.gpus.nodes_max, same_zone=spec.gpus.same_zone)
    relaxed = spec.model_copy(
        update={
            "kind": JobKind.MALLEABLE,
            "gpus": limits,
            "parallel": ParallelLimits(**{**spec.parallel.model_dump(), "plan": None}),
        }
    )
    grid = (await grids.get(relaxed, shape)).grid
    return max((cell.group.gpu_count for cell in grid.cells), default=0)


def _largest_pool(spec: JobSpec, shape: ClusterShape) -> int:
    counts: dict[tuple[str, str], int] = {}
    for pool in shape.pools:
        if not spec.gpus.types or pool.gpu_type in spec.gpus.types:
            key = (pool.gpu_type, pool.zone if spec.gpus.same_zone else "")
            nodes = min(pool.node_count, spec.gpus.nodes_max or pool.node_count)
            counts[key] = counts.get(key, 0) + nodes * pool.gpus_per_node
    return max(counts.values(), default=0)
