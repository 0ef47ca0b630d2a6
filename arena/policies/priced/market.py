"""What a decision is about: the jobs that compete, what each could be given, what there is. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape
from arena.domain.grid import Cell, Grid
from arena.domain.job import JobId, JobKind
from arena.domain.launch import NodeId
from arena.domain.records import JobRecord
from arena.domain.replacing import quickly_made
from arena.policies.base import Holding, Snapshot
from arena.policies.capacity import Pool
from arena.policies.length_estimates import JobKey
from arena.policies.priced.columns import NONE, Floats, Ints
from arena.policies.priced.moves import MOVES_MAX, MOVES_S, recent_moves, rested_among_s
from arena.policies.priced.pace import at_their_paces
from arena.policies.priced.roster import Roster, roster_of
from arena.policies.priced.supply import supply_of

TABLES_KEPT = 64
"""Tables of grids of former jobs that are kept besides as many as there are jobs."""
SHAPES_REMEMBERED = 8

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
        widest: The most GPUs that it takes on one node of the pool of each row; shape (columns, rows).
        power: What a GPU of each row does in groups of its pool alone, against that of the best row; shape (rows,).
        fastest: The most steps per second.
    """

    grid: Grid
    cells: tuple[Cell, ...]
    zones: tuple[tuple[str, ...], ...]
    speed: Floats
    usage: Floats
    widest: Floats
    gpu_count: Floats
    power: Floats
    fastest: float


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A job that competes for GPUs.

    Args:
        table: What it could be given.
        holding: What it has, None while it waits.
        kept_speed: Steps per second on what it has.
        is_shapeable: Whether it may be given something else than it has.
        recent_moves: How often it has been launched again in the last ``MOVES_S``.
    """

    job_id: JobId
    table: Table
    holding: Holding | None = None
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
        is_due: Whether it is for a deadline, not for a wait that was too long.
    """

    at: int
    nodes: tuple[NodeId, ...]
    served_by: frozenset[int]
    keeps_out: NDArray[np.bool_]
    is_due: bool = False


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
        facts: By contender, see ``roster``.
        keys: Users and kinds of work by the numbers that facts have of them.
        entitled: Contenders that find devices before others (see ``shares``).
        claims: Columns that tenants claim: a choice in which one of them finds no devices is not looked at further.
        kept: Nodes that are kept for contenders that cannot start yet (see ``reservations``).
        rested_at_s: When the first job that was launched too often of late may be moved again, None where none was.
            Nothing else may happen until then, and what it could have would lie idle.
        outside: Jobs with deadlines that start or change at present and could be stopped afterwards: nothing of
            theirs is chosen now, but what they will need must be left to them (see ``deadlines``).
        has_typed_paces: Whether jobs of one grid may differ in pace otherwise than by one factor.
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
    facts: NDArray[Any]
    keys: Sequence[JobKey]
    entitled: frozenset[int] = frozenset()
    claims: frozenset[int] = frozenset()
    kept: tuple[Kept, ...] = ()
    rested_at_s: float | None = None
    outside: tuple[Contender, ...] = ()
    has_typed_paces: bool = False

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
    """Tables of grids over some rows, made once for each grid, and the latest roster of those that have them.

    A grid is kept beside its table, so that its identity stays its own. Questions are answered beside decisions, in
    threads of their own: each change is one step of the interpreter, and what one has forgotten another may.
    """

    rows: tuple[Row, ...]
    _made: dict[tuple[int, bool], Table] = field(default_factory=dict, repr=False, compare=False)
    _rosters: dict[bool, Roster] = field(default_factory=dict, repr=False, compare=False)

    def of(self, grid: Grid, *, same_zone: bool) -> Table:
        """Return the table of a grid."""
        key = (id(grid), same_zone)
        found = self._made.get(key)
        if found is None:
            found = self._made.setdefault(key, _table(grid, self.rows, same_zone=same_zone))
        return found

    def roster(self, snapshot: Snapshot, *, is_all: bool = True) -> Roster:
        """Return the roster of a snapshot; what has not changed since the latest one is taken from there.

        Args:
            is_all: Whether those that have something are in it, or only those that wait.
        """
        seen = snapshot if is_all else replace(snapshot, holding={})
        found = self._rosters[is_all] = roster_of(seen, self._rosters.get(is_all), self._contending)
        return found

    def _contending(self, job: JobRecord, holding: Holding | None, grid: Grid | None) -> Contender | None:
        """Return as which a job competes if it may, None where it has no cells, or no speed is known of what it has."""
        speed = None if grid is None or holding is None else _speed_of(grid, holding)
        if grid is None or (holding is not None and speed is None):
            return None
        table = self.of(grid, same_zone=job.spec.gpus.same_zone)
        if holding is None:
            return Contender(job_id=job.job_id, table=table) if table.cells else None
        is_shapeable = job.spec.kind is JobKind.MALLEABLE
        return Contender(
            job_id=job.job_id, table=table, holding=holding, kept_speed=speed or 0.0, is_shapeable=is_shapeable
        )

    def __len__(self) -> int:
        """Return how many tables are kept."""
        return len(self._made)

    def forget(self, grids: Collection[Grid]) -> None:
        """Forget the tables of grids that no job has any more, once they are the larger part.

        Between decisions: those of the present one keep theirs, since within one a grid has one table.
        """
        if len(self._made) > 2 * len(grids) + TABLES_KEPT:
            present = set(map(id, grids))
            for key in [key for key in tuple(self._made) if key[0] not in present]:
                self._made.pop(key, None)


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of grids for each set of rows."""

    _made: dict[tuple[Row, ...], RowTables] = field(default_factory=dict, repr=False, compare=False)

    def over(self, rows: tuple[Row, ...], grids: Collection[Grid]) -> RowTables:
        """Return the tables over some rows; those of earlier shapes of the cluster are forgotten in time.

        Args:
            grids: Those that jobs have at present: what belongs to others may be forgotten.
        """
        found = self._made.get(rows)
        if found is None:
            if len(self._made) >= SHAPES_REMEMBERED:
                self._made.clear()
            found = self._made[rows] = RowTables(rows)
        found.forget(grids)
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
    speed = np.array([cell.steps_per_s for _, cell, _ in found])
    usage_of = np.array([usage for usage, _, _ in found], dtype=np.float64).reshape(len(found), len(rows))
    gpu_count = np.array([cell.group.gpu_count for _, cell, _ in found], dtype=np.float64)
    return Table(
        grid=grid,
        cells=tuple(cell for _, cell, _ in found),
        zones=tuple(zones for _, _, zones in found),
        speed=speed,
        usage=usage_of,
        widest=_widest(found, rows),
        gpu_count=gpu_count,
        power=_best_by_pool(usage_of, speed, gpu_count),
        fastest=float(speed.max(initial=0.0)),
    )


def _widest(found: Sequence[tuple[tuple[float, ...], Cell, tuple[str, ...]]], rows: Sequence[Row]) -> Floats:
    widest = np.zeros((len(found), len(rows)))
    for at, (_, cell, zones) in enumerate(found):
        for part, zone in zip(cell.group.parts, zones, strict=True):
            pool, most = (part.gpu_type, zone), part.node_counts[0]
            widest[at] = np.maximum(widest[at], [most if row.pool == pool else 0 for row in rows])
    return widest


def _best_by_pool(usage: Floats, speed: Floats, gpu_count: Floats) -> Floats:
    """Return the speed of a GPU of each pool in groups of that pool alone, against the largest of them.

    A job that runs on several pools together only does not tell them apart.
    """
    is_alone = usage >= gpu_count[:, None]
    if not is_alone.any():
        return np.ones(usage.shape[1])
    per_gpu = np.where(is_alone, (speed / gpu_count)[:, None], 0.0).max(axis=0)
    return np.asarray(per_gpu / per_gpu.max())


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
    rows, now_s = rows_of(snapshot.shape, is_fine=is_fine), snapshot.now_s
    made = tables.over(rows, snapshot.grids.values())
    roster = made.roster(snapshot)
    moves = _moves(roster, now_s)
    movable = _movable(snapshot, roster, moves)
    competing = np.r_[movable, _waiting(roster)]
    supply, kept = supply_of(roster, snapshot.capacity, rows, movable)
    contenders = _contenders(roster, competing, moves, now_s)
    market = _columns(rows, supply, (roster, competing, contenders), kept)
    outside = tuple(_outside(snapshot, made, roster, movable))
    often = np.flatnonzero(moves[: roster.held_count] >= MOVES_MAX).tolist()
    rested_s = rested_among_s([roster.members[at].record for at in often], now_s)
    market = market if rested_s is None and not outside else replace(market, outside=outside, rested_at_s=rested_s)
    return at_their_paces(market, snapshot, roster.works)


def waiting_market(snapshot: Snapshot, tables: Tables) -> Market:
    """Return what those compete for that wait, if nobody gives up anything for them."""
    rows = rows_of(snapshot.shape)
    roster = tables.over(rows, snapshot.grids.values()).roster(snapshot, is_all=False)
    competing = _waiting(roster)
    contenders = _contenders(roster, competing, np.zeros(len(roster.ids), dtype=np.intp), snapshot.now_s)
    supply, kept = supply_of(roster, snapshot.capacity, rows, competing[:0])
    return _columns(rows, supply, (roster, competing, contenders), kept)


def _waiting(roster: Roster) -> Ints:
    """Return the members that wait and could be given something."""
    return np.flatnonzero(roster.facts["table"][roster.held_count :] >= 0) + roster.held_count


def _movable(snapshot: Snapshot, roster: Roster, moves: Ints) -> Ints:
    """Return the members that have something that may be taken from them.

    Where there are shares, or jobs that can have a block of time, those that were moved too often are among them: they
    stay for all but these (``steadied``).
    """
    facts, waits = roster.facts, np.arange(len(roster.ids)) >= roster.held_count
    # A deadline can take something from others that has not passed, of a job that could be moved.
    can_have_block = facts["has_grid"] & (facts["due_s"] > snapshot.now_s) & (facts["is_preemptible"] | waits)
    has_claims = bool(snapshot.tenants) or bool(can_have_block.any())  # they come before rest
    return np.flatnonzero(facts["may_move"] & ((moves < MOVES_MAX) | has_claims))


def _moves(roster: Roster, now_s: float) -> Ints:
    """Return how often each member has been launched again of late, as far as its record goes back."""
    found = np.zeros(len(roster.ids), dtype=np.intp)
    recent = np.flatnonzero(now_s - roster.facts["again_s"] < MOVES_S)
    found[recent] = [recent_moves(roster.members[at].record, now_s) for at in recent.tolist()]
    return found


def _contenders(roster: Roster, competing: Ints, moves: Ints, now_s: float) -> list[Contender]:
    """Return as which some members compete, how often they were moved of late counted in."""
    found: list[Contender] = []
    for member in [roster.members[at] for at in competing.tolist()]:
        assert member.contender is not None
        found.append(member.contender)
    for place in np.flatnonzero((moves[competing] > 0) & ~np.isnan(roster.facts["since_s"][competing])).tolist():
        at = int(competing[place])
        is_shapeable = found[place].is_shapeable and (moves[at] < MOVES_MAX or is_due(roster.members[at].record, now_s))
        found[place] = replace(found[place], is_shapeable=is_shapeable, recent_moves=int(moves[at]))
    return found


def _outside(snapshot: Snapshot, tables: RowTables, roster: Roster, movable: Ints) -> Iterator[Contender]:
    """Yield the jobs with deadlines that have something which may not be touched now."""
    facts = roster.facts[: roster.held_count]
    is_outside = (facts["due_s"] > snapshot.now_s) & facts["is_preemptible"] & facts["has_grid"]
    is_outside[movable] = False
    for at in np.flatnonzero(is_outside).tolist():  # by id: blocks of equal deadlines are laid out in this order
        member = roster.members[at]
        if member.grid is not None:
            table = tables.of(member.grid, same_zone=member.record.spec.gpus.same_zone)
            yield Contender(job_id=roster.ids[at], table=table, holding=member.holding)


def is_due(job: JobRecord, now_s: float) -> bool:
    """Tell whether a job has a deadline that has not passed."""
    deadline_s = job.spec.deadline_s
    return deadline_s is not None and job.submitted_at_s + deadline_s > now_s


def _speed_of(grid: Grid, holding: Holding) -> float | None:
    if holding.estimate is not None:
        return 1.0 / holding.estimate.iter_time_s
    cell = grid.cell(holding.group)
    return None if cell is None else cell.steps_per_s


def _columns(
    rows: tuple[Row, ...],
    supply: Floats,
    who: tuple[Roster, Ints, Sequence[Contender]],
    kept: Floats,
) -> Market:
    """Lay the contenders' columns side by side: those of their tables, then what they have.

    Args:
        who: The roster, which of its members compete, and as which contenders.
        kept: What would be free of each row without them, of those that have something; shape (holders, rows).
    """
    roster, competing, contenders = who
    tables, facts = roster.tables.items, roster.facts[competing]
    table, has = facts["table"], ~np.isnan(facts["since_s"])
    sizes = np.array([len(one.speed) for one in tables], dtype=np.intp)
    is_shapeable = np.array([one.is_shapeable for one in contenders], dtype=bool)
    size = np.where(is_shapeable, sizes[table], 0) if len(tables) else np.zeros(0, dtype=np.intp)
    starts, total = _before(size + has), int((size + has).sum())
    job = np.repeat(np.arange(len(contenders)), size + has)
    entry = np.arange(total) - starts[job]
    keeping = np.where(has, starts + size, NONE)
    source = (_before(sizes)[table] if len(tables) else size)[job] + entry
    source[keeping[has]] = sizes.sum() + np.arange(len(kept))
    entry[keeping[has]] = NONE
    return Market(
        rows=rows,
        supply=supply,
        contenders=tuple(contenders),
        job=job,
        entry=entry,
        speed=np.concatenate([*(one.speed for one in tables), facts["kept_speed"][has]])[source],
        gpu_count=np.concatenate([*(one.gpu_count for one in tables), facts["held_count"][has]])[source],
        usage=np.concatenate([*(one.usage for one in tables), kept])[source],
        keeping=keeping,
        facts=facts,
        keys=roster.keys.items,
    )


def _before(counts: Ints) -> Ints:
    """Return how many come before each of them."""
    return np.asarray(np.cumsum(counts) - counts, dtype=np.intp)
