"""What services read from a store, as a protocol with its values; SQL stays behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.records import AttemptRecord, EntryKind, HistoryEntry, JobRecord, JobState
from arena.engine.ports import Store
from arena.policies.base import Decision

_DIGITS_MAX = 18
"""No number of a job is longer; Python refuses to read those of thousands of digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Which jobs: all conditions hold; an empty set of states means every state."""

    states: frozenset[JobState] = frozenset()
    user: str | None = None
    project: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCursor:
    """Where a page ended: the last job on it."""

    submitted_at_s: float
    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """Jobs, newest first; ``after`` is None on the last page."""

    jobs: tuple[JobRecord, ...]
    after: JobCursor | None
    total_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery:
    """Which history entries; an empty set of kinds means every kind."""

    job_id: JobId | None = None
    node_id: NodeId | None = None
    kinds: frozenset[EntryKind] = frozenset()

    def matches(self, entry: HistoryEntry) -> bool:
        """Tell whether an entry is asked for."""
        return (
            (self.job_id is None or entry.job_id == self.job_id)
            and (self.node_id is None or entry.node_id == self.node_id)
            and (not self.kinds or entry.kind in self.kinds)
        )


def number_of(job_id: str) -> int:
    """Return the number that a job's id ends with, 0 where there is none: people write anything for an id."""
    text = job_id.rpartition("-")[2]
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """What is not kept any more, because it was over long ago.

    Args:
        identity: Of the database, which job ids carry.
        job_count: Jobs that were dropped, with all that was known of them.
        before_s: They had ended before this instant.
        job_number: The greatest number that any of them had.
    """

    identity: str
    job_count: int = 0
    before_s: float = 0.0
    job_number: int = 0

    @property
    def told(self) -> str:
        """What people are told of it."""
        before = datetime.fromtimestamp(self.before_s, tz=UTC)
        jobs = f"{self.job_count:,} jobs" if self.job_count > 1 else "1 job"
        return f"{jobs} that ended before {before:%Y-%m-%d %H:%M} UTC are not kept any more (--keep-history)"

    def may_have(self, text: str) -> bool:
        """Tell whether a job that is not known here may be one of them, by its id or by a name, which nobody keeps."""
        if text.startswith(f"{self.identity}-"):
            return text.rpartition("-")[0] == self.identity and 0 < number_of(text) <= self.job_number
        return self.job_number > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedBatch:
    """What one transaction dropped.

    Args:
        total: All that was dropped so far.
        is_more: Whether there is more to drop at once.
    """

    job_count_by_state: Mapping[JobState, int]
    total: Dropped
    is_more: bool


class Reader(Protocol):
    """Durable state as others may see it; safe from any thread."""

    def get_job(self, job_id: JobId) -> JobRecord | None:
        """Return a job by id."""
        ...

    def get_jobs(self, job_ids: Sequence[JobId]) -> Mapping[JobId, JobRecord]:
        """Return the known ones of these jobs."""
        ...

    def job_of_request(self, request_id: str) -> JobRecord | None:
        """Return the job that a submit request made."""
        ...

    def list_jobs(self, query: JobQuery, after: JobCursor | None, count_max: int) -> JobPage:
        """Return a page of jobs."""
        ...

    def has_succeeded_in(self, project: str) -> bool:
        """Tell whether a job of a project has succeeded, ever; it costs nothing to ask."""
        ...

    def attempts_of(self, job_id: JobId) -> tuple[AttemptRecord, ...]:
        """Return a job's attempts, oldest first."""
        ...

    def attempts_of_jobs(self, job_ids: Sequence[JobId]) -> Mapping[JobId, tuple[AttemptRecord, ...]]:
        """Return the attempts of each of these jobs that has any, oldest first."""
        ...

    def history(self, after_index: int, query: HistoryQuery, count_max: int) -> tuple[HistoryEntry, ...]:
        """Return entries with a greater index, in order."""
        ...

    def decisions(self, count_max: int) -> tuple[tuple[float, Decision], ...]:
        """Return the latest decisions with their instants, newest first; one that cannot be read is left out."""
        ...

    def count_by_state(self) -> Mapping[JobState, int]:
        """Return the number of jobs in each state."""
        ...


class LiveStore(Store, Protocol):
    """A store that a service runs on."""

    @property
    def reader(self) -> Reader:
        """Reads of what is durable."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """What ``load`` could not read."""
        ...

    @property
    def identity(self) -> str:
        """A short word made with the database: job ids carry it, since places outlive databases."""
        ...

    def last_job_number(self) -> int:
        """Return the greatest number any job id carries."""
        ...

    def dropped(self) -> Dropped:
        """Return what is not kept any more."""
        ...

    def last_leap_at_s(self) -> float:
        """Return when the clock last went on by so much between two starts that it is in doubt, 0 if it never did."""
        ...

    def note_leap(self, at_s: float) -> None:
        """Remember that the clock leapt to an instant.

        Raises:
            ResourceExhaustedError: The disk is full.
            UnavailableError: The database is busy or broken.
        """
        ...

    def drop_before(self, before_s: float) -> DroppedBatch:
        """Drop, in one short transaction, some of what is known of jobs that ended before an instant, and older inputs.

        Raises:
            ResourceExhaustedError: The disk is full; nothing was dropped.
            UnavailableError: The database is busy or broken; nothing was dropped.
        """
        ...

    def keep_room(self) -> None:
        """See, now and then, that there will be enough room to write again after the disk was full; raises nothing."""
        ...

    def probe(self) -> None:
        """Write something and sync it.

        Raises:
            ResourceExhaustedError: The disk is still full.
        """
        ...
