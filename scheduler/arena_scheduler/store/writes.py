"""The writer: steps of the engine become durable in one transaction; what they wrote is what a restart begins with."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, Integer, Table, bindparam, cast, delete, func, select
from sqlalchemy.dialects.sqlite import dialect, insert

from arena.domain.cluster import ClusterShape
from arena.domain.events import built_grid
from arena.domain.grid import Grid
from arena.domain.history import ENDED_JOBS_MAX, LengthHistory
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.paces import PaceHistory
from arena.domain.records import ENDED_JOB_STATES, AttemptRecord, HistoryEntry, JobRecord, JobState, NodeRecord
from arena.engine.ports import Restored, Step
from arena_scheduler.reading import Dropped, DroppedBatch
from arena_scheduler.store import retention
from arena_scheduler.store.connection import (
    DATABASE_ERRORS,
    check_file,
    optimize,
    reader_engine,
    translated,
    writer_engine,
)
from arena_scheduler.store.lock import FileLock, refuse_network_file_system
from arena_scheduler.store.migrate import migrate
from arena_scheduler.store.reads import SqliteReader
from arena_scheduler.store.records import (
    ATTEMPT_JSON,
    GRID_JSON,
    HISTORY_JSON,
    JOB_JSON,
    NODE_JSON,
    PACES_JSON,
    RESTART_COST_JSON,
    SHAPE_JSON,
    GridTexts,
    decision_text,
    event_text,
)
from arena_scheduler.store.room import Reserve, empty_log
from arena_scheduler.store.schema import (
    ATTEMPTS,
    DECISIONS,
    GRIDS,
    HISTORY,
    HOLDINGS,
    INPUTS,
    JOB_GRIDS,
    JOBS,
    META,
    NODES,
    PROJECTS,
)

_log = logging.getLogger(__name__)
Record = TypeVar("Record")
Row = dict[str, Any]
_ID_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"  # none that look alike
_ID_LENGTH = 4
_PROBE_BYTES = 65_536
RESTART_COST = "restart_cost"
"""Under which what restarts were measured to cost stands in the table of single values."""
PACES = "paces"
"""Under which it stands how fast runs that ended were; as one value, of at most ``KINDS_KEPT`` kinds."""
EPOCH_FLOOR = "epoch_floor"
"""Under which a copy says up to which number there may have been attempts since it was made."""


def _upsert(table: Table) -> Any:
    """Return an insert that replaces the row with the same key."""
    statement = insert(table)
    keys = [column.name for column in table.primary_key]
    changed = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


def _sql(statement: Any, *, without: str = "") -> str:
    """Return a statement as SQL with its parameters by name; made once, since commits are many and small.

    Args:
        without: Column whose values the database makes.
    """
    keys = [column.name for column in statement.table.columns if column.name != without]
    return str(statement.compile(dialect=dialect(paramstyle="named"), column_keys=keys))


_PUT_META = _upsert(META)
_PUT_JOB = _sql(_upsert(JOBS))
_PUT_ATTEMPT = _sql(_upsert(ATTEMPTS))
_PUT_NODE = _sql(_upsert(NODES))
_PUT_JOB_GRID = _sql(_upsert(JOB_GRIDS))
_PUT_PROJECT = _sql(insert(PROJECTS).on_conflict_do_nothing())
_PUT_GRID = _sql(insert(GRIDS).on_conflict_do_nothing())
_PUT_HOLDING = _sql(insert(HOLDINGS))
_PUT_INPUT = _sql(insert(INPUTS), without="seq")
_PUT_HISTORY = _sql(insert(HISTORY))
_PUT_DECISION = _sql(insert(DECISIONS), without="seq")
_DROP_NODE = _sql(delete(NODES).where(NODES.c.node_id == bindparam("of_node")))
_DROP_HOLDINGS = _sql(delete(HOLDINGS).where(HOLDINGS.c.attempt_id == bindparam("held_by")))
_LATEST_ENDS = (
    select(JOBS.c.job_id, JOBS.c.record)
    .where(JOBS.c.state == JobState.SUCCEEDED.value)
    .order_by(JOBS.c.ended_at_s.desc(), JOBS.c.job_id.desc())
    .limit(ENDED_JOBS_MAX)
)
_DROP_JOB_GRID = _sql(delete(JOB_GRIDS).where(JOB_GRIDS.c.job_id == bindparam("of_job")))


class SqliteStore:
    """Durable state in one SQLite file; commits come from one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: tuple[str, ...] = ()
        self.identity = ""
        self._lock = FileLock(path)
        self._reserve = Reserve(path)
        self._engine = writer_engine(path)
        self._reader_engine = reader_engine(path)
        self._grids = GridTexts()
        self.reader = SqliteReader(self._reader_engine)

    @classmethod
    def open(cls, path: Path) -> SqliteStore:
        """Open or create a database: refuse a bad place, take the lock, check the file, migrate.

        Raises:
            AlreadyRunningError: Another scheduler has it.
            UnavailableError: The file is damaged, newer than this program, or on a network file system.
            ResourceExhaustedError: The disk is full.
        """
        # SQLite puts its log beside the file that a link leads to; there the lock and the room must be too.
        path = path.expanduser().resolve()
        refuse_network_file_system(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        store = cls(path)
        store._lock.acquire()
        try:
            _create_private(path)
            # Whoever closes a database empties its log, which a killed scheduler left full.
            held_bytes = store._reserve.give_up()
            check_file(path)
            migrate(store._engine, path)
            optimize(store._engine)
            store.identity = store._make_identity()
            store._reserve.take(held_bytes)
        except DATABASE_ERRORS as error:
            store.close()
            raise translated(error, path) from error
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close all connections and give the lock back."""
        with contextlib.suppress(*DATABASE_ERRORS):  # a broken database is closed all the same
            optimize(self._engine)
        self._reader_engine.dispose()
        self._engine.dispose()
        self._lock.release()

    def _make_identity(self) -> str:
        made = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
        with self._engine.begin() as connection:
            connection.execute(insert(META).on_conflict_do_nothing(), {"key": "identity", "value": made})
            return str(connection.scalar(select(META.c.value).where(META.c.key == "identity")))

    def last_job_number(self) -> int:
        """Return the greatest number any job id carries."""
        number = cast(func.substr(JOBS.c.job_id, len(self.identity) + 2), Integer)
        with self._engine.begin() as connection:
            here = int(connection.scalar(select(func.max(number))) or 0)
            return max(here, retention.dropped(connection, self.identity).job_number)

    def dropped(self) -> Dropped:
        """Return what is not kept any more."""
        with self._reader_engine.begin() as connection:
            return retention.dropped(connection, self.identity)

    def last_leap_at_s(self) -> float:
        """Return when the clock last leapt, 0 if it never did."""
        with self._reader_engine.begin() as connection:
            return retention.last_leap_at_s(connection)

    def note_leap(self, at_s: float) -> None:
        """Remember that the clock leapt to an instant.

        Raises:
            ResourceExhaustedError: The disk is full.
            UnavailableError: The database is busy or broken.
        """
        try:
            with self._engine.begin() as connection:
                retention.note_leap(connection, at_s)
        except DATABASE_ERRORS as error:
            raise translated(error, self.path) from error

    def drop_before(self, before_s: float) -> DroppedBatch:
        """Drop some of what is known of jobs that ended before an instant; see ``arena_scheduler.store.retention``.

        Raises:
            ResourceExhaustedError: The disk is full; nothing was dropped.
            UnavailableError: The database is busy or broken; nothing was dropped.
        """
        try:
            with self._engine.begin() as connection:
                return retention.drop_before(connection, before_s, self.identity)
        except DATABASE_ERRORS as error:
            raise translated(error, self.path) from error

    def probe(self) -> None:
        """Make room, if the database's own log is what fills the disk, and write a row of some size, which stays.

        Raises:
            ResourceExhaustedError: The disk is still full.
        """
        empty_log(self._engine, self._reserve)
        try:
            with self._engine.begin() as connection:
                connection.execute(_PUT_META, {"key": "probe", "value": secrets.token_hex(_PROBE_BYTES // 2)})
        except DATABASE_ERRORS as error:
            raise translated(error, self.path) from error

    def keep_room(self) -> None:
        """Take more of the room that emptying a full log needs, where there was too little of it before."""
        self._reserve.grow()

    def commit(self, steps: Sequence[Step]) -> None:
        """Make steps durable in one transaction; of several versions of a record the last is written.

        Raises:
            ResourceExhaustedError: The disk is full; nothing was written.
            UnavailableError: The database is busy or broken; nothing was written.
            InternalError: A record breaks a rule of the schema (a device held twice); nothing was written.
        """
        rows = _Rows(self._grids, steps)
        try:
            with self._engine.begin() as connection:
                rows.write(connection)
        except DATABASE_ERRORS as error:
            raise translated(error, self.path) from error

    def load(self) -> Restored:
        """Return what a new engine starts from; rows that cannot be read are left out and warned of."""
        try:
            with self._engine.begin() as connection:
                return self._load(connection)
        except DATABASE_ERRORS as error:
            raise translated(error, self.path) from error

    def _load(self, connection: Connection) -> Restored:
        warnings: list[str] = []
        restart_costs = _parsed(connection, _value_of(RESTART_COST), RESTART_COST_JSON)
        paces = _parsed(connection, _value_of(PACES), PACES_JSON)
        jobs = _parsed(
            connection, select(JOBS.c.job_id, JOBS.c.record).where(JOBS.c.state.not_in(ENDED_JOB_STATES)), JOB_JSON
        )
        attempts = _parsed(
            connection, select(ATTEMPTS.c.attempt_id, ATTEMPTS.c.record).where(ATTEMPTS.c.is_live == 1), ATTEMPT_JSON
        )
        nodes = _parsed(connection, select(NODES.c.node_id, NODES.c.record), NODE_JSON)
        ended = _parsed(connection, _LATEST_ENDS, JOB_JSON)
        for kind, (_, bad) in (("job", jobs), ("job", ended), ("attempt", attempts), ("node", nodes)):
            warnings += [f"the stored record of {kind} {key} cannot be read and is left alone" for key in bad]
        if restart_costs[1]:
            warnings.append("what restarts were measured to cost cannot be read and is measured anew")
        if paces[1]:
            warnings.append("how fast jobs were measured to run cannot be read and is measured anew")
        known = {job.job_id for job in jobs[0]}
        live = tuple(attempt for attempt in attempts[0] if attempt.job_id in known)
        self.warnings = tuple(warnings)
        for warning in warnings:
            _log.error("%s", warning)
        return Restored(
            jobs=tuple(jobs[0]),
            attempts=live,
            nodes=tuple(nodes[0]),
            grids=_load_grids(connection, known),
            history_index=connection.scalar(select(func.max(HISTORY.c.entry_index))) or 0,
            decision_index=connection.scalar(select(func.max(DECISIONS.c.seq))) or 0,
            last_at_s=connection.scalar(select(func.max(INPUTS.c.at_s))) or 0.0,
            lengths=LengthHistory.of(ended[0]),
            restart_cost=next(iter(restart_costs[0]), None),
            paces=PaceHistory.of(one for known in paces[0] for one in known),
            epoch_floor=int(connection.scalar(select(META.c.value).where(META.c.key == EPOCH_FLOOR)) or 0),
        )


def _value_of(key: str) -> Any:
    """Return a query of a single value."""
    return select(META.c.key, META.c.value).where(META.c.key == key)


def _create_private(path: Path) -> None:
    """Make a missing database file, for its owner alone: it holds everybody's specifications; its log files follow."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _parsed(connection: Connection, statement: Any, adapter: TypeAdapter[Record]) -> tuple[list[Record], list[str]]:
    found: list[Record] = []
    bad: list[str] = []
    for key, text in connection.execute(statement):
        try:
            found.append(adapter.validate_json(text))
        except ValidationError:
            bad.append(str(key))
    return found, bad


def _load_grids(connection: Connection, job_ids: set[JobId]) -> dict[JobId, tuple[ClusterShape, Grid]]:
    statement = select(JOB_GRIDS.c.job_id, JOB_GRIDS.c.shape, JOB_GRIDS.c.digest, GRIDS.c.grid).join(GRIDS)
    grid_by_digest: dict[str, Grid] = {}
    grids: dict[JobId, tuple[ClusterShape, Grid]] = {}
    for job_id, shape, digest, text in connection.execute(statement):
        if job_id in job_ids:
            if digest not in grid_by_digest:
                grid_by_digest[digest] = GRID_JSON.validate_json(text)
            grids[JobId(job_id)] = (SHAPE_JSON.validate_json(shape), grid_by_digest[digest])
    return grids


def _nodes_of(steps: Sequence[Step]) -> tuple[dict[NodeId, NodeRecord], list[Row]]:
    """Return the nodes to be written, and those to be dropped before."""
    nodes: dict[NodeId, NodeRecord] = {}
    forgotten: dict[NodeId, Row] = {}
    for step in steps:
        nodes |= {node.node_id: node for node in step.nodes}
        for node_id in step.forgotten_nodes:
            nodes.pop(node_id, None)
            forgotten[node_id] = {"of_node": node_id}
    return nodes, list(forgotten.values())


class _Rows:
    """The rows of a batch of steps, made before the transaction begins so that it stays short."""

    def __init__(self, grids: GridTexts, steps: Sequence[Step]) -> None:
        self._jobs = {job.job_id: job for step in steps for job in step.jobs}
        self._attempts = {attempt.attempt_id: attempt for step in steps for attempt in step.attempts}
        nodes, self._forgotten_rows = _nodes_of(steps)
        self._job_rows = [_job_row(job) for job in self._jobs.values()]
        done = {job.spec.project for job in self._jobs.values() if job.state is JobState.SUCCEEDED}
        self._project_rows = [{"project": project} for project in sorted(done)]
        self._attempt_rows = [_attempt_row(attempt) for attempt in self._attempts.values()]
        self._node_rows = [_node_row(node) for node in nodes.values()]
        self._history_rows = [_history_row(entry) for step in steps for entry in step.history]
        self._decision_rows = [
            {"at_s": step.at_s, "decision": decision_text(step.decision)} for step in steps if step.decision is not None
        ]
        costs = [step.restart_cost for step in steps if step.restart_cost is not None]
        self._meta_rows = [
            {"key": RESTART_COST, "value": RESTART_COST_JSON.dump_json(cost).decode()} for cost in costs[-1:]
        ]
        paces = [step.paces for step in steps if step.paces is not None]
        self._meta_rows += [{"key": PACES, "value": PACES_JSON.dump_json(one.all).decode()} for one in paces[-1:]]
        self._grid_rows: dict[str, Row] = {}
        self._job_grid_rows: dict[str, Row] = {}
        self._input_rows = [self._input_row(grids, step) for step in steps]

    def _input_row(self, grids: GridTexts, step: Step) -> Row:
        digest, built = None, built_grid(step.event)
        if built is not None:
            text = grids.text_of(built.grid)
            digest = text.digest
            self._grid_rows[digest] = {"digest": digest, "grid": text.text}
            shape = SHAPE_JSON.dump_json(built.shape).decode()
            self._job_grid_rows[built.job_id] = {"job_id": built.job_id, "digest": digest, "shape": shape}
        return {"at_s": step.at_s, "event": event_text(step.event).decode(), "digest": digest}

    def write(self, connection: Connection) -> None:
        """Write all rows, referenced ones first."""
        _execute(connection, _PUT_JOB, self._job_rows)
        _execute(connection, _PUT_PROJECT, self._project_rows)
        _execute(connection, _DROP_NODE, self._forgotten_rows)
        _execute(connection, _PUT_NODE, self._node_rows)
        _execute(connection, _PUT_ATTEMPT, self._attempt_rows)
        self._write_holdings(connection)
        _execute(connection, _PUT_GRID, self._grid_rows.values())
        self._write_job_grids(connection)
        _execute(connection, _PUT_INPUT, self._input_rows)
        _execute(connection, _PUT_HISTORY, self._history_rows)
        _execute(connection, _PUT_DECISION, self._decision_rows)
        for row in self._meta_rows:
            connection.execute(_PUT_META, row)

    def _write_holdings(self, connection: Connection) -> None:
        _execute(connection, _DROP_HOLDINGS, [{"held_by": attempt_id} for attempt_id in self._attempts])
        held = [
            {"node_id": share.node_id, "device_id": device, "attempt_id": attempt.attempt_id}
            for attempt in self._attempts.values()
            if attempt.is_live
            for share in attempt.allocation.shares
            if share.node_id not in attempt.ended_nodes
            for device in share.device_ids
        ]
        _execute(connection, _PUT_HOLDING, held)

    def _write_job_grids(self, connection: Connection) -> None:
        ended = {job_id for job_id, job in self._jobs.items() if job.state.is_terminal}
        _execute(connection, _DROP_JOB_GRID, [{"of_job": job_id} for job_id in sorted(ended)])
        rows = [row for job_id, row in self._job_grid_rows.items() if job_id not in ended]
        if not rows:
            return
        wanted = [row["job_id"] for row in rows]
        known = set(connection.scalars(select(JOBS.c.job_id).where(JOBS.c.job_id.in_(wanted))))
        _execute(connection, _PUT_JOB_GRID, [row for row in rows if row["job_id"] in known])


def _execute(connection: Connection, sql: str, rows: Iterable[Row]) -> None:
    rows = list(rows)
    if rows:
        connection.exec_driver_sql(sql, rows)


def _job_row(job: JobRecord) -> Row:
    return {
        "job_id": job.job_id,
        "state": job.state.value,
        "user": job.user,
        "project": job.spec.project,
        "submitted_at_s": job.submitted_at_s,
        "request_id": job.request_id,
        "record": JOB_JSON.dump_json(job).decode(),
        "ended_at_s": job.ended_at_s,
    }


def _attempt_row(attempt: AttemptRecord) -> Row:
    return {
        "attempt_id": attempt.attempt_id,
        "job_id": attempt.job_id,
        "epoch": attempt.epoch,
        "is_live": int(attempt.is_live),
        "record": ATTEMPT_JSON.dump_json(attempt).decode(),
    }


def _node_row(node: NodeRecord) -> Row:
    return {"node_id": node.node_id, "state": node.state.value, "record": NODE_JSON.dump_json(node).decode()}


def _history_row(entry: HistoryEntry) -> Row:
    return {
        "entry_index": entry.index,
        "at_s": entry.at_s,
        "kind": entry.kind.value,
        "message": entry.message,
        "job_id": entry.job_id,
        "attempt_id": entry.attempt_id,
        "node_id": entry.node_id,
        "data": HISTORY_JSON.dump_json(entry).decode(),
    }
