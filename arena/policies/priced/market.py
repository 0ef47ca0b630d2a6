"""What a decision is about: the jobs that compete, what each could be given, what there is. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product

import numpy as np
from numpy.typing import NDArray

from arena.domain.allocation import Allocation, GpuGroup
from arena.domain.cluster import ClusterShape
from arena.domain.grid import Cell, Grid
from arena.domain.job import JobId, JobKind
from arena.domain.launch import NodeId
from arena.domain.records import JobRecord
from arena.domain.replacing import quickly_made
from arena.policies.base import Holding, Snapshot
from arena.policies.capacity import Capacity, Pool
from arena.policies.priced.columns import NONE, Floats, Ints
from arena.policies.priced.pace import paces

TABLES_REMEMBERED = 10_000
SHAPES_REMEMBERED = 8
MOVES_MAX = 4
MOVES_S = 3_600.0
"""No job is launched again more often than this in so long, but for a share or for a block of time (``deadlines``)."""

ROW_NAMES_MAX = 8
HALVED_SIZE_MIN = 8
"""Halves of nodes from this size on are rows of their own."""


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """What is scarce: the GPUs of a pool, or its whole nodes.

    Args:
        chunk: 1 for single GPUs; else so many on one node, of which only what is free together counts.
        kept_for: Projects that claim a part of it, whose jobs need none of this row: it is what others may have.
        kept_count: What they claim.
        is_lasting: Whether it is of jobs that may not be stopped only.
    """

    pool: Pool
    chunk: int
    kept_for: tuple[str, ...] = ()
    kept_count: float = 0.0
    is_lasting: bool = False

    def __str__(self) -> str:
        name = "/".join(filter(None, self.pool))
        chunk = "" if self.chunk == 1 else f" by {self.chunk}"
        lasting = " for good" if self.is_lasting else ""
        more = len(self.kept_for) - ROW_NAMES_MAX
        names = ", ".join(self.kept_for[:ROW_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
        beside = f" beside {names}" if self.kept_for else ""
        return f"{name}{chunk}{lasting}{beside}"

    def taken(self, count: int) -> int:
        """Return what so many GPUs on one node take of this row at least.

        Fewer than a chunk may all lie in what is left of broken ones, and take none.
        """
        return count // self.chunk * self.chunk


def rows_of(shape: ClusterShape, *, is_fine: bool = False) -> tuple[Row, ...]:
    """Return the rows of a cluster: for each pool its GPUs, its nodes by their sizes, and halves of the large ones.

    Args:
        is_fine: Whether all other parts of nodes are rows as well.
    """
    found: set[Row] = set()
    for pool in shape.pools:
        size = pool.gpus_per_node
        chunks = {1, size, size // 2} if size >= HALVED_SIZE_MIN else {1, size}
        chunks |= set(range(1, size + 1)) if is_fine else set()
        found |= {Row((pool.gpu_type, pool.zone), chunk) for chunk in chunks}
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The columns of a grid: each cell, in each choice of zones for its parts.

    Args:
        cells: Cell of each column.
        zones: Zone of each part of the cell, by column.
        speed: Steps per second; shape (columns,).
        usage: What it takes of each row; shape (columns, rows).
    """

    grid: Grid
    cells: tuple[Cell, ...]
    zones: tuple[tuple[str, ...], ...]
    speed: Floats
    usage: Floats
    gpu_count: Floats


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A job that competes for GPUs.

    Args:
        table: What it could be given.
        holding: What it has, None while it waits.
        kept: What would be free of each row without it; shape (rows,).
        kept_speed: Steps per second on what it has.
        is_shapeable: Whether it may be given something else than it has.
        recent_moves: How often it has been launched again in the last ``MOVES_S``.
    """

    job_id: JobId
    table: Table
    holding: Holding | None = None
    kept: Floats | None = None
    kept_speed: float = 0.0
    is_shapeable: bool = True
    recent_moves: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kept:
    """Nodes that are kept for a contender.

    Args:
        nodes: Where no column that is kept out finds devices, until the contender has found its own.
        served_by: Columns with which it has.
        keeps_out: By column.
    """

    at: int
    nodes: tuple[NodeId, ...]
    served_by: frozenset[int]
    keeps_out: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """All contenders with their columns as arrays; the last column of a job that has something is to keep it.

    Args:
        rows: What is scarce.
        supply: What of each row is free or held by contenders; shape (rows,).
        job: Contender of each column; shape (columns,).
        entry: Position in the contender's table, -1 for what it has; shape (columns,).
        speed: Steps per second; shape (columns,).
        gpu_count: GPUs; shape (columns,).
        usage: What each takes of each row; shape (columns, rows).
        keeping: By contender: the column of what it has, -1 where it has nothing.
        entitled: Contenders that find devices before others (see ``shares``).
        claims: Columns that tenants claim: a choice in which one of them finds no devices is not looked at further.
        kept: Nodes that are kept for contenders that cannot start yet (see ``reservations``).
        outside: Jobs with deadlines that start or change at present and could be stopped afterwards: nothing of
            theirs is chosen now, but what they will need must be left to them (see ``deadlines``).
    """

    rows: tuple[Row, ...]
    supply: Floats
    contenders: tuple[Contender, ...]
    job: Ints
    entry: Ints
    speed: Floats
    gpu_count: Floats
    usage: Floats
    keeping: Ints
    entitled: frozenset[int] = frozenset()
    claims: frozenset[int] = frozenset()
    kept: tuple[Kept, ...] = ()
    outside: tuple[Contender, ...] = ()

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
class RowTables:
    """Tables of grids over some rows, made once for each grid.

    A grid is kept beside its table, so that its identity stays its own.
    """

    rows: tuple[Row, ...]
    _made: dict[tuple[int, bool], Table] = field(default_factory=dict, repr=False, compare=False)

    def of(self, grid: Grid, *, same_zone: bool) -> Table:
        """Return the table of a grid."""
        key = (id(grid), same_zone)
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= TABLES_REMEMBERED:
                self._made.clear()
            found = self._made[key] = _table(grid, self.rows, same_zone=same_zone)
        return found


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of grids for each set of rows."""

    _made: dict[tuple[Row, ...], RowTables] = field(default_factory=dict, repr=False, compare=False)

    def over(self, rows: tuple[Row, ...]) -> RowTables:
        """Return the tables over some rows; those of earlier shapes of the cluster are forgotten in time."""
        found = self._made.get(rows)
        if found is None:
            if len(self._made) >= SHAPES_REMEMBERED:
                self._made.clear()
            found = self._made[rows] = RowTables(rows)
        return found


def _table(grid: Grid, rows: tuple[Row, ...], *, same_zone: bool) -> Table:
    """Return a grid's columns; of those with one group and equal usage the fastest.

    Groups of equal usage stay beside each other: where one finds no devices another may.
    """
    best: dict[tuple[tuple[float, ...], GpuGroup], tuple[Cell, tuple[str, ...]]] = {}
    for cell in (*grid.cells, *grid.mixed):
        for zones, usage in _usages(cell.group, rows, same_zone=same_zone):
            known = best.get((usage, cell.group))
            if known is None or cell.steps_per_s > known[0].steps_per_s:
                best[usage, cell.group] = (cell, zones)
    found = [(usage, *best[usage, group]) for usage, group in sorted(best, key=lambda key: key[0])]
    return Table(
        grid=grid,
        cells=tuple(cell for _, cell, _ in found),
        zones=tuple(zones for _, _, zones in found),
        speed=np.array([cell.steps_per_s for _, cell, _ in found]),
        usage=np.array([usage for usage, _, _ in found], dtype=np.float64).reshape(len(found), len(rows)),
        gpu_count=np.array([cell.group.gpu_count for _, cell, _ in found], dtype=np.float64),
    )


def _usages(
    group: GpuGroup, rows: Sequence[Row], *, same_zone: bool
) -> Iterator[tuple[tuple[str, ...], tuple[float, ...]]]:
    """Yield each choice of zones with what it takes of each row."""
    pools = sorted({row.pool for row in rows})
    zones = [
        [zone for gpu_type, zone in pools if gpu_type == part.gpu_type and part.zone in {None, zone}]
        for part in group.parts
    ]
    for choice in product(*zones):
        if same_zone and len(set(choice)) > 1:
            continue
        usage = dict.fromkeys(rows, 0.0)
        for part, zone in zip(group.parts, choice, strict=True):
            for row in rows:
                if row.pool == (part.gpu_type, zone):
                    usage[row] += sum(row.taken(count) for count in part.node_counts)
        yield choice, tuple(usage.values())


def market_of(snapshot: Snapshot, tables: Tables, *, is_fine: bool = False) -> Market:
    """Return what a snapshot's decision is about; jobs that may not be touched are left out with what they have.

    Args:
        is_fine: Whether there is a row for so many GPUs together on one node, whatever the number.
    """
    rows = rows_of(snapshot.shape, is_fine=is_fine)
    made = tables.over(rows)
    movable = dict(_movable(snapshot))
    supply, kept = _supply(snapshot.capacity, rows, [one.allocation for one in movable.values()])
    contenders = [*_running(snapshot, made, movable, kept), *_waiting(snapshot, made)]
    market = _columns(rows, supply, contenders, kept)
    outside = tuple(_outside(snapshot, made, movable))
    market = replace(market, outside=outside) if outside else market
    pace = np.array(paces(snapshot, [(contender.job_id, id(contender.table)) for contender in contenders]))
    return replace(market, speed=market.speed * pace[market.job]) if (pace != 1.0).any() else market


def waiting_market(snapshot: Snapshot, tables: Tables) -> Market:
    """Return what those compete for that wait, if nobody gives up anything for them."""
    rows = rows_of(snapshot.shape)
    supply, kept = _supply(snapshot.capacity, rows, ())
    return _columns(rows, supply, [*_waiting(snapshot, tables.over(rows))], kept)


def _outside(snapshot: Snapshot, tables: RowTables, movable: Mapping[JobId, Holding]) -> Iterator[Contender]:
    """Yield the jobs with deadlines that have something which may not be touched now."""
    for job_id, holding in snapshot.holding.items():
        job = snapshot.jobs[job_id]
        spec = job.spec
        if not is_due(job, snapshot.now_s) or job_id in movable or not spec.preemptible or job_id not in snapshot.grids:
            continue
        table = tables.of(snapshot.grids[job_id], same_zone=spec.gpus.same_zone)
        yield Contender(job_id=job_id, table=table, holding=holding)


def is_due(job: JobRecord, now_s: float) -> bool:
    """Tell whether a job has a deadline that has not passed."""
    deadline_s = job.spec.deadline_s
    return deadline_s is not None and job.submitted_at_s + deadline_s > now_s


def _movable(snapshot: Snapshot) -> Iterator[tuple[JobId, Holding]]:
    """Yield what may be taken from running jobs.

    Where there are shares, or jobs that can have a block of time, those that were moved too often are among them: they
    stay for all but these (``steadied``).
    """
    has_claims = bool(snapshot.tenants) or any(
        _can_have_block(snapshot, job_id) for job_id in chain(snapshot.holding, snapshot.waiting)
    )
    for job_id, holding in sorted(snapshot.holding.items()):
        job, grid = snapshot.jobs[job_id], snapshot.grids.get(job_id)
        if not holding.movable or not job.spec.preemptible or grid is None:
            continue
        is_quiet = _recent_moves(job, snapshot.now_s) < MOVES_MAX or has_claims  # they come before rest
        if _speed_of(grid, holding) is not None and is_quiet:
            yield job_id, holding


def _can_have_block(snapshot: Snapshot, job_id: JobId) -> bool:
    """Tell whether a job's deadline can take something from others: it has not passed, and the job could be moved."""
    job = snapshot.jobs[job_id]
    if job_id not in snapshot.grids or not is_due(job, snapshot.now_s):
        return False
    return job.spec.preemptible or job_id not in snapshot.holding


def _recent_moves(job: JobRecord, now_s: float) -> int:
    """Return how often a job has been launched again of late, as far as its record goes back."""
    again = job.launched_at_s[1:] if job.epoch <= len(job.launched_at_s) else job.launched_at_s
    if not again:
        return 0
    return sum(now_s - at_s < MOVES_S for at_s in again)


def rested_at_s(snapshot: Snapshot) -> float | None:
    """Return when the first job that was launched too often of late may be moved again, None where there is none.

    Nothing else may happen until then, and what it could have would lie idle.
    """
    return rested_among_s([snapshot.jobs[job_id] for job_id in snapshot.holding], snapshot.now_s)


def rested_among_s(running: Iterable[JobRecord], now_s: float) -> float | None:
    """Return the same of some of the jobs that have something."""
    instants: list[float] = []
    for job in running:
        launched_at_s = job.launched_at_s
        if len(launched_at_s) >= MOVES_MAX and job.spec.preemptible and _recent_moves(job, now_s) >= MOVES_MAX:
            instants.append(launched_at_s[-MOVES_MAX] + MOVES_S + 1.0)  # not a rounding error too early
    return min(instants, default=None)


def _supply(capacity: Capacity, rows: Sequence[Row], allocations: Sequence[Allocation]) -> tuple[Floats, Floats]:
    """Return what there is of each row if all of these were given up, and the part of it that each of them holds.

    Of a whole node, those that share it hold parts in proportion to their GPUs: one that is alone on it holds all.
    """
    supply = np.array([_free_chunks(capacity, row) for row in rows])
    kept = np.zeros((len(allocations), len(rows)))
    number: dict[NodeId, int] = {}
    shares = [
        (at, number.setdefault(share.node_id, len(number)), len(share.device_ids))
        for at, allocation in enumerate(allocations)
        for share in allocation.shares
        if share.node_id in capacity.devices
    ]
    if not shares:
        return supply, kept
    owner, node, count = np.array(shares, dtype=np.intp).T
    held = np.bincount(node, weights=count).astype(np.float64)
    free = np.array([len(capacity.free_items(node_id)) for node_id in number], dtype=np.float64)
    gained = _gained(capacity, rows, tuple(number), free, held)
    np.add.at(kept, owner, gained[node] * (count / held[node])[:, None])
    return supply + gained.sum(axis=0), kept


def _gained(capacity: Capacity, rows: Sequence[Row], nodes: Sequence[NodeId], free: Floats, held: Floats) -> Floats:
    """Return by how much more each node has of each row when it gets back what is held of it; shape (nodes, rows)."""
    pools = sorted({row.pool for row in rows})
    index = {pool: at for at, pool in enumerate(pools)}
    pool_of_node = np.array([index.get(capacity.devices[node_id].pool, -1) for node_id in nodes])
    chunk = np.array([float(row.chunk) for row in rows])
    pool_of_row = np.array([index[row.pool] for row in rows])
    gained = ((free + held)[:, None] // chunk - free[:, None] // chunk) * chunk
    return np.where(pool_of_node[:, None] == pool_of_row, gained, 0.0)


def _free_chunks(capacity: Capacity, row: Row) -> float:
    return float(
        sum(
            size // row.chunk * row.chunk * len(nodes)
            for (pool, size), nodes in capacity.holes.items()
            if pool == row.pool
        )
    )


def _waiting(snapshot: Snapshot, tables: RowTables) -> Iterator[Contender]:
    for job_id in snapshot.waiting:
        grid = snapshot.grids.get(job_id)
        if grid is None:
            continue
        table = tables.of(grid, same_zone=snapshot.jobs[job_id].spec.gpus.same_zone)
        if table.cells:
            yield Contender(job_id=job_id, table=table)


def _running(
    snapshot: Snapshot, tables: RowTables, movable: Mapping[JobId, Holding], kept: Floats
) -> Iterator[Contender]:
    """Yield the jobs that run and may be stopped."""
    for at, (job_id, holding) in enumerate(movable.items()):
        job, grid = snapshot.jobs[job_id], snapshot.grids[job_id]
        moves = _recent_moves(job, snapshot.now_s)
        yield Contender(
            job_id=job_id,
            table=tables.of(grid, same_zone=job.spec.gpus.same_zone),
            holding=holding,
            kept=kept[at],
            kept_speed=_speed_of(grid, holding) or 0.0,
            is_shapeable=job.spec.kind is JobKind.MALLEABLE and (moves < MOVES_MAX or is_due(job, snapshot.now_s)),
            recent_moves=moves,
        )


def _speed_of(grid: Grid, holding: Holding) -> float | None:
    if holding.estimate is not None:
        return 1.0 / holding.estimate.iter_time_s
    cell = grid.cell(holding.group)
    return None if cell is None else cell.steps_per_s


def _columns(rows: tuple[Row, ...], supply: Floats, contenders: Sequence[Contender], kept: Floats) -> Market:
    """Lay the contenders' columns side by side: those of their tables, then what they have.

    Args:
        kept: ``Contender.kept`` of those that have something; shape (holders, rows).
    """
    tables = list({id(contender.table): contender.table for contender in contenders}.values())
    holders = [contender for contender in contenders if contender.holding is not None]
    offsets = dict(zip(map(id, tables), _before([len(table.speed) for table in tables]).tolist(), strict=True))
    size = np.array([len(one.table.speed) if one.is_shapeable else 0 for one in contenders], dtype=np.intp)
    has = np.array([one.holding is not None for one in contenders], dtype=bool)
    starts, total = _before(size + has), int((size + has).sum())
    job = np.repeat(np.arange(len(contenders)), size + has)
    entry = np.arange(total) - starts[job]
    keeping = np.where(has, starts + size, NONE)
    first = np.array([offsets[id(one.table)] for one in contenders], dtype=np.intp)
    source = first[job] + entry
    source[keeping[has]] = sum(len(table.speed) for table in tables) + np.arange(len(holders))
    entry[keeping[has]] = NONE
    kept_count = [float(one.holding.group.gpu_count) for one in holders if one.holding is not None]
    return Market(
        rows=rows,
        supply=supply,
        contenders=tuple(contenders),
        job=job,
        entry=entry,
        speed=np.concatenate([*(one.speed for one in tables), [one.kept_speed for one in holders]])[source],
        gpu_count=np.concatenate([*(one.gpu_count for one in tables), kept_count])[source],
        usage=np.concatenate([*(one.usage for one in tables), kept])[source],
        keeping=keeping,
    )


def _before(counts: Sequence[int] | Ints) -> Ints:
    """Return how many come before each of them."""
    ends = np.cumsum(np.asarray(counts, dtype=np.intp))
    return np.asarray(ends - counts, dtype=np.intp)
