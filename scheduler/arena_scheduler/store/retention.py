"""Drops what is kept of jobs that ended long ago, a little at a time: each call is one short transaction.

A job goes whole, its row last. What hangs on no job (the engine's inputs, its decisions, the history of nodes) goes by
its age. The last row of each of these tables stays, since numbers go on from it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Column, Connection, Table, delete, exists, func, select
from sqlalchemy.dialects.sqlite import insert

from arena.domain.records import ENDED_JOB_STATES, JobState
from arena_scheduler.reading import Dropped, DroppedBatch, number_of
from arena_scheduler.store.schema import ATTEMPTS, DECISIONS, GRIDS, HISTORY, INPUTS, JOB_GRIDS, JOBS, META

JOBS_MAX = 50
ROWS_MAX = 2_000
"""Of each table in one call: commits wait for it, so it is over in some hundredths of a second."""

_DROPPED = "dropped"
_GRIDS_LOOKED_AT = "grids_looked_at"
_LEAPT_AT_S = "leapt_at_s"


def dropped(connection: Connection, identity: str) -> Dropped:
    """Return what has been dropped so far."""
    text = connection.scalar(select(META.c.value).where(META.c.key == _DROPPED))
    return Dropped(identity=identity, **json.loads(text)) if text is not None else Dropped(identity=identity)


def last_leap_at_s(connection: Connection) -> float:
    """Return when the clock last went on by so much between two starts that it is in doubt, 0 if it never did."""
    return float(connection.scalar(select(META.c.value).where(META.c.key == _LEAPT_AT_S)) or 0.0)


def note_leap(connection: Connection, at_s: float) -> None:
    """Remember that the clock leapt to an instant."""
    _put(connection, _LEAPT_AT_S, repr(at_s))


def drop_before(connection: Connection, before_s: float, identity: str) -> DroppedBatch:
    """Drop some of what is older than an instant; see the module."""
    rest = [
        _drop_first(connection, HISTORY, HISTORY.c.entry_index, before_s),
        _drop_first(connection, DECISIONS, DECISIONS.c.seq, before_s),
        _drop_first(connection, INPUTS, INPUTS.c.seq, before_s),
    ]
    ended = _ended(connection, before_s)
    is_long = _drop_history(connection, list(ended))
    gone = {job_id: ended[job_id] for job_id in _without_history(connection, list(ended))}
    _drop_jobs(connection, list(gone))
    _drop_grids(connection)
    if gone:
        _note(connection, before_s, identity, list(gone))
    return DroppedBatch(
        job_count_by_state=Counter(gone.values()),
        total=dropped(connection, identity),
        is_more=any(rest) or is_long or (bool(gone) and len(ended) == JOBS_MAX),
    )


def _ended(connection: Connection, before_s: float) -> dict[str, JobState]:
    """Return some jobs that ended before an instant, with their states."""
    lives = exists().where(ATTEMPTS.c.job_id == JOBS.c.job_id, ATTEMPTS.c.is_live == 1)
    statement = (
        select(JOBS.c.job_id, JOBS.c.state)
        .where(JOBS.c.state.in_(ENDED_JOB_STATES), JOBS.c.ended_at_s < before_s, ~lives)
        .limit(JOBS_MAX)
    )
    return {job_id: JobState(state) for job_id, state in connection.execute(statement)}


def _drop_history(connection: Connection, job_ids: Sequence[str]) -> bool:
    """Drop history of jobs; return whether there is so much that more may be left."""
    last = select(func.max(HISTORY.c.entry_index)).scalar_subquery()
    some = (
        select(HISTORY.c.entry_index).where(HISTORY.c.job_id.in_(job_ids), HISTORY.c.entry_index < last).limit(ROWS_MAX)
    )
    return connection.execute(delete(HISTORY).where(HISTORY.c.entry_index.in_(some))).rowcount >= ROWS_MAX


def _without_history(connection: Connection, job_ids: Sequence[str]) -> list[str]:
    """Return the jobs of which no history is left."""
    left = connection.scalars(select(HISTORY.c.job_id).where(HISTORY.c.job_id.in_(job_ids)).distinct())
    return sorted(set(job_ids) - set(left))


def _drop_jobs(connection: Connection, job_ids: Sequence[str]) -> None:
    for table in (JOB_GRIDS, ATTEMPTS, JOBS):
        connection.execute(delete(table).where(table.c.job_id.in_(job_ids)))


def _drop_first(connection: Connection, table: Table, key: Column[int], before_s: float) -> bool:
    """Drop the first rows of a table that hang on no job; return whether more may be left.

    They were written in order of time, so that only the first need be looked at.
    """
    of_none = [HISTORY.c.job_id.is_(None)] if table is HISTORY else []
    first = select(key, table.c.at_s).where(*of_none).order_by(key).limit(ROWS_MAX)
    last = connection.scalar(select(func.max(key)))
    old = [number for number, at_s in connection.execute(first) if at_s < before_s and number != last]
    if old:
        connection.execute(delete(table).where(key.in_(old)))
    return len(old) == ROWS_MAX


def _drop_grids(connection: Connection) -> None:
    """Drop those of the next grids, in the order of their digests, that no input had made and no job has.

    Looked at in turns: the last use of one may be a job that ended, or got another, long after the input was dropped.
    """
    after = connection.scalar(select(META.c.value).where(META.c.key == _GRIDS_LOOKED_AT)) or ""
    following = select(GRIDS.c.digest).where(GRIDS.c.digest > after).order_by(GRIDS.c.digest).limit(ROWS_MAX)
    digests = list(connection.scalars(following))
    if digests:
        used = [exists().where(table.c.digest == GRIDS.c.digest) for table in (INPUTS, JOB_GRIDS)]
        of_these = GRIDS.c.digest.between(digests[0], digests[-1])
        connection.execute(delete(GRIDS).where(of_these, ~used[0], ~used[1]))
    last = digests[-1] if len(digests) == ROWS_MAX else ""
    if last != after:
        _put(connection, _GRIDS_LOOKED_AT, last)


def _put(connection: Connection, key: str, value: str) -> None:
    statement = insert(META).values(key=key, value=value)
    connection.execute(statement.on_conflict_do_update(index_elements=["key"], set_={"value": value}))


def _note(connection: Connection, before_s: float, identity: str, job_ids: Sequence[str]) -> None:
    """Remember that jobs were dropped: their numbers are not given again, and who asks for one is told."""
    known = dropped(connection, identity)
    number = max(map(number_of, job_ids), default=0)
    now = replace(
        known,
        job_count=known.job_count + len(job_ids),
        before_s=max(known.before_s, before_s),
        job_number=max(known.job_number, number),
    )
    value = json.dumps({"job_count": now.job_count, "before_s": now.before_s, "job_number": now.job_number})
    _put(connection, _DROPPED, value)
