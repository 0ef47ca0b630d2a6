"""What a decision is about: the jobs that compete, what each could be given, what there is. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from arena.domain.allocation import Allocation, GpuGroup
from arena.domain.grid import Cell, Grid
from arena.domain.job import JobId, JobKind
from arena.policies.base import Holding, Snapshot
from arena.policies.capacity import Pool
from arena.policies.priced.columns import Floats, Ints

TABLES_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The columns of a grid: each cell, in each choice of zones for its parts.

    Args:
        cells: Cell of each column.
        zones: Zone of each part of the cell, by column.
        speed: Steps per second; shape (columns,).
        usage: GPUs of each pool; shape (columns, pools).
    """

    grid: Grid
    cells: tuple[Cell, ...]
    zones: tuple[tuple[str, ...], ...]
    speed: Floats
    usage: Floats
    gpu_count: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A job that competes for GPUs.

    Args:
        table: What it could be given.
        holding: What it has, None while it waits.
        kept: GPUs of each pool that it has and that would be free without it; shape (pools,).
        kept_speed: Steps per second on what it has.
        is_shapeable: Whether it may be given something else than it has.
    """

    job_id: JobId
    table: Table
    holding: Holding | None = None
    kept: Floats | None = None
    kept_speed: float = 0.0
    is_shapeable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """All contenders with their columns as arrays; the last column of a job that has something is to keep it.

    Args:
        pools: What there is, in order of rows.
        supply: GPUs of each pool that are free or held by contenders; shape (pools,).
        job: Contender of each column; shape (columns,).
        entry: Position in the contender's table, -1 for what it has; shape (columns,).
        speed: Steps per second; shape (columns,).
        gpu_count: GPUs; shape (columns,).
        usage: GPUs of each pool; shape (columns, pools).
        keeping: By contender: the column of what it has, -1 where it has nothing.
    """

    pools: tuple[Pool, ...]
    supply: Floats
    contenders: tuple[Contender, ...]
    job: Ints
    entry: Ints
    speed: Floats
    gpu_count: Floats
    usage: Floats
    keeping: Ints

    def cell(self, column: int) -> Cell:
        """Return the cell of a column that is not to keep what is there."""
        return self.contenders[int(self.job[column])].table.cells[int(self.entry[column])]

    def group(self, column: int) -> GpuGroup:
        """Return the group of a column."""
        entry = int(self.entry[column])
        if entry >= 0:
            return self.cell(column).group
        holding = self.contenders[int(self.job[column])].holding
        assert holding is not None
        return holding.group


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of grids, made once for each grid and set of pools.

    A grid is kept beside its table, so that its identity stays its own.
    """

    _made: dict[tuple[int, bool, tuple[Pool, ...]], Table] = field(default_factory=dict, repr=False, compare=False)

    def of(self, grid: Grid, pools: tuple[Pool, ...], *, same_zone: bool) -> Table:
        """Return the table of a grid."""
        key = (id(grid), same_zone, pools)
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= TABLES_REMEMBERED:
                self._made.clear()
            found = self._made[key] = _table(grid, pools, same_zone=same_zone)
        return found


def _table(grid: Grid, pools: tuple[Pool, ...], *, same_zone: bool) -> Table:
    """Return a grid's columns; of those with equal usage the fastest."""
    best: dict[tuple[float, ...], tuple[Cell, tuple[str, ...]]] = {}
    for cell in grid.cells:
        for zones, usage in _usages(cell.group, pools, same_zone=same_zone):
            known = best.get(usage)
            if known is None or cell.steps_per_s > known[0].steps_per_s:
                best[usage] = (cell, zones)
    usages = sorted(best)
    return Table(
        grid=grid,
        cells=tuple(best[usage][0] for usage in usages),
        zones=tuple(best[usage][1] for usage in usages),
        speed=np.array([best[usage][0].steps_per_s for usage in usages]),
        usage=np.array(usages, dtype=np.float64).reshape(len(usages), len(pools)),
        gpu_count=np.array([best[usage][0].group.gpu_count for usage in usages], dtype=np.float64),
    )


def _usages(
    group: GpuGroup, pools: Sequence[Pool], *, same_zone: bool
) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
    """Yield each choice of zones with what it takes of each pool."""
    zones = [
        [zone for gpu_type, zone in pools if gpu_type == part.gpu_type and part.zone in {None, zone}]
        for part in group.parts
    ]
    for choice in product(*zones):
        if same_zone and len(set(choice)) > 1:
            continue
        usage = dict.fromkeys(pools, 0.0)
        for part, zone in zip(group.parts, choice, strict=True):
            usage[part.gpu_type, zone] += part.gpu_count
        yield choice, tuple(usage.values())


def market_of(snapshot: Snapshot, tables: Tables) -> Market:
    """Return what a snapshot's decision is about; jobs that may not be touched are left out with what they have."""
    pools = tuple(sorted({(pool.gpu_type, pool.zone) for pool in snapshot.shape.pools}))
    index = {pool: at for at, pool in enumerate(pools)}
    contenders = [*_running(snapshot, tables, pools, index), *_waiting(snapshot, tables, pools)]
    supply = np.array([float(snapshot.capacity.free_count(*pool)) for pool in pools])
    for contender in contenders:
        if contender.kept is not None:
            supply = supply + contender.kept
    return _columns(pools, supply, contenders)


def _waiting(snapshot: Snapshot, tables: Tables, pools: tuple[Pool, ...]) -> Iterator[Contender]:
    for job_id in snapshot.waiting:
        grid = snapshot.grids.get(job_id)
        if grid is None:
            continue
        table = tables.of(grid, pools, same_zone=snapshot.jobs[job_id].spec.gpus.same_zone)
        if table.cells:
            yield Contender(job_id=job_id, table=table)


def _running(
    snapshot: Snapshot, tables: Tables, pools: tuple[Pool, ...], index: Mapping[Pool, int]
) -> Iterator[Contender]:
    """Yield the jobs that run and may be stopped."""
    for job_id, holding in sorted(snapshot.holding.items()):
        spec = snapshot.jobs[job_id].spec
        grid = snapshot.grids.get(job_id)
        if not holding.movable or not spec.preemptible or grid is None:
            continue
        speed = _speed_of(grid, holding)
        if speed is None:
            continue
        yield Contender(
            job_id=job_id,
            table=tables.of(grid, pools, same_zone=spec.gpus.same_zone),
            holding=holding,
            kept=_restorable(snapshot, holding.allocation, index),
            kept_speed=speed,
            is_shapeable=spec.kind is JobKind.MALLEABLE,
        )


def _speed_of(grid: Grid, holding: Holding) -> float | None:
    if holding.estimate is not None:
        return 1.0 / holding.estimate.iter_time_s
    cell = grid.cell(holding.group)
    return None if cell is None else cell.steps_per_s


def _restorable(snapshot: Snapshot, allocation: Allocation, index: Mapping[Pool, int]) -> Floats:
    """Return how many devices of each pool others could have if an allocation were given up."""
    kept = np.zeros(len(index))
    known = snapshot.capacity.devices
    for share in allocation.shares:
        room = known.get(share.node_id)
        if room is not None and room.pool in index:
            kept[index[room.pool]] += len(share.device_ids)
    return kept


def _columns(pools: tuple[Pool, ...], supply: Floats, contenders: Sequence[Contender]) -> Market:
    job, entry, speed, count, usage, keeping, at = [], [], [], [], [], [], 0
    for number, contender in enumerate(contenders):
        table, holding = contender.table, contender.holding
        size = len(table.speed) if contender.is_shapeable else 0
        entry.append(np.arange(size))
        speed.append(table.speed[:size])
        count.append(table.gpu_count[:size])
        usage.append(table.usage[:size])
        if holding is not None:
            entry.append(np.array([-1]))
            speed.append(np.array([contender.kept_speed]))
            count.append(np.array([float(holding.group.gpu_count)]))
            assert contender.kept is not None
            usage.append(contender.kept[None, :])
            size += 1
        job.append(np.full(size, number))
        at += size
        keeping.append(at - 1 if holding is not None else -1)
    width = len(pools)
    return Market(
        pools=pools,
        supply=supply,
        contenders=tuple(contenders),
        job=np.concatenate([np.arange(0), *job]),
        entry=np.concatenate([np.arange(0), *entry]),
        speed=np.concatenate([np.zeros(0), *speed]),
        gpu_count=np.concatenate([np.zeros(0), *count]),
        usage=np.concatenate([np.zeros((0, width)), *usage]),
        keeping=np.array(keeping, dtype=np.intp),
    )
