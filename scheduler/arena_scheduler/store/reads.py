"""Reads on connections of their own, which never wait for the writer."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Engine, Select, and_, func, or_, select

from arena.domain.events import EVENT_JSON, Event
from arena.domain.job import JobId
from arena.domain.records import AttemptRecord, HistoryEntry, JobRecord, JobState
from arena.policies.base import Decision
from arena_scheduler.reading import HistoryQuery, JobCursor, JobPage, JobQuery
from arena_scheduler.store.records import ATTEMPT_JSON, DECISION_JSON, GRID_JSON, HISTORY_JSON, JOB_JSON, with_grid
from arena_scheduler.store.schema import ATTEMPTS, DECISIONS, GRIDS, HISTORY, INPUTS, JOBS, PROJECTS

_IDS_AT_ONCE = 500


class SqliteReader:
    """Read functions over read-only connections; safe from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get_job(self, job_id: JobId) -> JobRecord | None:
        """Return a job by id."""
        return self._job(select(JOBS.c.record).where(JOBS.c.job_id == job_id))

    def job_of_request(self, request_id: str) -> JobRecord | None:
        """Return the job that a submit request made."""
        return self._job(select(JOBS.c.record).where(JOBS.c.request_id == request_id))

    def _job(self, statement: Select[Any]) -> JobRecord | None:
        with self._engine.begin() as connection:
            text = connection.scalar(statement)
        return None if text is None else JOB_JSON.validate_json(text)

    def get_jobs(self, job_ids: Sequence[JobId]) -> Mapping[JobId, JobRecord]:
        """Return the known ones of these jobs."""
        found: dict[JobId, JobRecord] = {}
        with self._engine.begin() as connection:
            for first in range(0, len(job_ids), _IDS_AT_ONCE):
                some = job_ids[first : first + _IDS_AT_ONCE]
                for text in connection.scalars(select(JOBS.c.record).where(JOBS.c.job_id.in_(some))):
                    job = JOB_JSON.validate_json(text)
                    found[job.job_id] = job
        return found

    def list_jobs(self, query: JobQuery, after: JobCursor | None, count_max: int) -> JobPage:
        """Return a page of jobs, newest first."""
        conditions = _conditions(query)
        page = [*conditions, _older_than(after)] if after else conditions
        order = (JOBS.c.submitted_at_s.desc(), JOBS.c.job_id.desc())
        with self._engine.begin() as connection:
            total = connection.scalar(select(func.count()).select_from(JOBS).where(*conditions)) or 0
            rows = list(connection.scalars(select(JOBS.c.record).where(*page).order_by(*order).limit(count_max + 1)))
        jobs = tuple(JOB_JSON.validate_json(text) for text in rows[:count_max])
        last = jobs[-1] if len(rows) > count_max else None
        cursor = JobCursor(submitted_at_s=last.submitted_at_s, job_id=last.job_id) if last else None
        return JobPage(jobs=jobs, after=cursor, total_count=total)

    def has_succeeded_in(self, project: str) -> bool:
        """Tell whether a job of a project has succeeded, ever."""
        with self._engine.begin() as connection:
            found = connection.scalar(select(PROJECTS.c.project).where(PROJECTS.c.project == project))
        return found is not None

    def attempts_of(self, job_id: JobId) -> tuple[AttemptRecord, ...]:
        """Return a job's attempts, oldest first."""
        statement = select(ATTEMPTS.c.record).where(ATTEMPTS.c.job_id == job_id).order_by(ATTEMPTS.c.epoch)
        with self._engine.begin() as connection:
            return tuple(ATTEMPT_JSON.validate_json(text) for text in connection.scalars(statement))

    def attempts_of_jobs(self, job_ids: Sequence[JobId]) -> Mapping[JobId, tuple[AttemptRecord, ...]]:
        """Return the attempts of each of these jobs that has any, oldest first."""
        found: dict[JobId, list[AttemptRecord]] = {}
        with self._engine.begin() as connection:
            for first in range(0, len(job_ids), _IDS_AT_ONCE):
                some = ATTEMPTS.c.job_id.in_(job_ids[first : first + _IDS_AT_ONCE])
                statement = select(ATTEMPTS.c.record).where(some).order_by(ATTEMPTS.c.job_id, ATTEMPTS.c.epoch)
                for text in connection.scalars(statement):
                    attempt = ATTEMPT_JSON.validate_json(text)
                    found.setdefault(attempt.job_id, []).append(attempt)
        return {job_id: tuple(attempts) for job_id, attempts in found.items()}

    def history(self, after_index: int, query: HistoryQuery, count_max: int) -> tuple[HistoryEntry, ...]:
        """Return entries with a greater index, in order."""
        conditions = [HISTORY.c.entry_index > after_index]
        if query.job_id is not None:
            conditions.append(HISTORY.c.job_id == query.job_id)
        if query.node_id is not None:
            conditions.append(HISTORY.c.node_id == query.node_id)
        if query.kinds:
            conditions.append(HISTORY.c.kind.in_(sorted(kind.value for kind in query.kinds)))
        statement = select(HISTORY.c.data).where(*conditions).order_by(HISTORY.c.entry_index).limit(count_max)
        with self._engine.begin() as connection:
            return tuple(HISTORY_JSON.validate_json(text) for text in connection.scalars(statement))

    def decisions(self, count_max: int) -> tuple[tuple[float, Decision], ...]:
        """Return the latest decisions with their instants, newest first; one that cannot be read is left out."""
        statement = select(DECISIONS.c.at_s, DECISIONS.c.decision).order_by(DECISIONS.c.seq.desc()).limit(count_max)
        found = []
        with self._engine.begin() as connection:
            for at_s, text in connection.execute(statement):
                with contextlib.suppress(ValidationError):  # of a version that knew other reasons
                    found.append((at_s, DECISION_JSON.validate_json(text)))
        return tuple(found)

    def count_by_state(self) -> Mapping[JobState, int]:
        """Return the number of jobs in each state."""
        statement = select(JOBS.c.state, func.count()).group_by(JOBS.c.state)
        with self._engine.begin() as connection:
            return {JobState(state): count for state, count in connection.execute(statement)}

    def inputs(self, after_seq: int, count_max: int) -> tuple[tuple[int, float, Event], ...]:
        """Return logged inputs of the engine as (sequence, instant, event), in order, grids put back.

        No command reads the log: this is for whoever looks into what a scheduler did, by ``arena.engine.engine.replay``
        from a copy of its database. What is written for that is of use only as long as it can be read, so it is here.
        """
        statement = (
            select(INPUTS.c.seq, INPUTS.c.at_s, INPUTS.c.event, GRIDS.c.grid)
            .outerjoin(GRIDS, GRIDS.c.digest == INPUTS.c.digest)
            .where(INPUTS.c.seq > after_seq)
            .order_by(INPUTS.c.seq)
            .limit(count_max)
        )
        with self._engine.begin() as connection:
            return tuple((seq, at_s, _event(text, grid)) for seq, at_s, text, grid in connection.execute(statement))


def _event(text: str, grid: bytes | None) -> Event:
    event = EVENT_JSON.validate_json(text)
    return event if grid is None else with_grid(event, GRID_JSON.validate_json(grid))


def _conditions(query: JobQuery) -> list[Any]:
    conditions: list[Any] = []
    if query.states:
        conditions.append(JOBS.c.state.in_(sorted(state.value for state in query.states)))
    if query.user is not None:
        conditions.append(JOBS.c.user == query.user)
    if query.project is not None:
        conditions.append(JOBS.c.project == query.project)
    return conditions


def _older_than(cursor: JobCursor) -> Any:
    return or_(
        JOBS.c.submitted_at_s < cursor.submitted_at_s,
        and_(JOBS.c.submitted_at_s == cursor.submitted_at_s, JOBS.c.job_id < cursor.job_id),
    )
