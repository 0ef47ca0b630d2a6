"""A store in memory that keeps the promises of the durable one, for tests that are about something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from arena.domain.cluster import ClusterShape
from arena.domain.events import Event, built_grid
from arena.domain.grid import Grid
from arena.domain.history import LengthHistory
from arena.domain.job import JobId
from arena.domain.launch import AttemptId, DeviceId, NodeId
from arena.domain.paces import PaceHistory
from arena.domain.records import AttemptRecord, HistoryEntry, JobRecord, JobState, NodeRecord
from arena.engine.ports import RestartCost, Restored, Step
from arena.errors import ArenaError, InternalError
from arena.policies.base import Decision
from arena_scheduler.reading import Dropped, DroppedBatch, HistoryQuery, JobCursor, JobPage, JobQuery, number_of


class MemoryStore:
    """Also its own reader. ``fail_next`` makes the next writes fail, with nothing written."""

    identity = "mem"
    warnings: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.failures: list[ArenaError] = []
        self.inputs_logged: list[tuple[float, Event]] = []
        self._jobs: dict[JobId, JobRecord] = {}
        self._attempts: dict[AttemptId, AttemptRecord] = {}
        self._nodes: dict[NodeId, NodeRecord] = {}
        self._grids: dict[JobId, tuple[ClusterShape, Grid]] = {}
        self._history: list[HistoryEntry] = []
        self._decisions: list[tuple[float, Decision]] = []
        self._dropped = Dropped(identity=self.identity)
        self._leapt_at_s = 0.0
        self._restart_cost: RestartCost | None = None
        self._paces = PaceHistory()

    @property
    def reader(self) -> MemoryStore:
        """Itself."""
        return self

    def fail_next(self, *errors: ArenaError) -> None:
        """Have the next writes raise these."""
        self.failures.extend(errors)

    def probe(self) -> None:
        """Raise the next failure, if one is due."""
        if self.failures:
            raise self.failures.pop(0)

    def keep_room(self) -> None:
        """Do nothing: it needs no room."""

    def commit(self, steps: Sequence[Step]) -> None:
        """Take all steps, or none."""
        self.probe()
        jobs = {**self._jobs, **{job.job_id: job for step in steps for job in step.jobs}}
        attempts = {**self._attempts, **{item.attempt_id: item for step in steps for item in step.attempts}}
        _refuse_doubles(jobs, attempts)
        self._jobs, self._attempts = jobs, attempts
        for step in steps:
            self._nodes.update({node.node_id: node for node in step.nodes})
            for node_id in step.forgotten_nodes:
                self._nodes.pop(node_id, None)
            self._history.extend(step.history)
            self._restart_cost = step.restart_cost or self._restart_cost
            self._paces = step.paces or self._paces
            if step.decision is not None:
                self._decisions.append((step.at_s, step.decision))
            self.inputs_logged.append((step.at_s, step.event))
            built = built_grid(step.event)
            if built is not None and built.job_id in self._jobs:
                self._grids[built.job_id] = (built.shape, built.grid)

    def load(self) -> Restored:
        """Return what a new engine starts from."""
        jobs = tuple(job for job in self._jobs.values() if not job.state.is_terminal)
        open_ids = {job.job_id for job in jobs}
        return Restored(
            jobs=jobs,
            attempts=tuple(item for item in self._attempts.values() if item.is_live and item.job_id in open_ids),
            nodes=tuple(self._nodes.values()),
            grids={job_id: grid for job_id, grid in self._grids.items() if job_id in open_ids},
            history_index=self._history[-1].index if self._history else 0,
            decision_index=len(self._decisions),
            last_at_s=max((at_s for at_s, _ in self.inputs_logged), default=0.0),
            lengths=LengthHistory.of(self._jobs.values()),
            restart_cost=self._restart_cost,
            paces=self._paces,
        )

    def last_job_number(self) -> int:
        """Return the greatest number any job id carries."""
        return max(_number(self._jobs), self._dropped.job_number)

    def dropped(self) -> Dropped:
        """Return what is not kept any more."""
        return self._dropped

    def last_leap_at_s(self) -> float:
        """Return when the clock last leapt."""
        return self._leapt_at_s

    def note_leap(self, at_s: float) -> None:
        """Remember that the clock leapt."""
        self.probe()
        self._leapt_at_s = at_s

    def drop_before(self, before_s: float) -> DroppedBatch:
        """Drop all that is known of jobs that ended before an instant, and older inputs and decisions."""
        self.probe()
        over = [job for job in self._jobs.values() if job.ended_at_s is not None and job.ended_at_s < before_s]
        last = self._history[-1:]
        gone = {job.job_id for job in over if job.state.is_terminal} - {entry.job_id for entry in last}
        self._history = [
            entry
            for entry in self._history
            if entry in last or (entry.job_id not in gone if entry.job_id else entry.at_s >= before_s)
        ]
        self.inputs_logged = [one for one in self.inputs_logged if one[0] >= before_s] or self.inputs_logged[-1:]
        counts = Counter(job.state for job in over if job.job_id in gone)
        self._jobs = {job_id: job for job_id, job in self._jobs.items() if job_id not in gone}
        self._attempts = {name: one for name, one in self._attempts.items() if one.job_id not in gone}
        if gone:
            self._dropped = Dropped(
                identity=self.identity,
                job_count=self._dropped.job_count + len(gone),
                before_s=max(self._dropped.before_s, before_s),
                job_number=max(self._dropped.job_number, _number(gone)),
            )
        return DroppedBatch(job_count_by_state=counts, total=self._dropped, is_more=False)

    def get_job(self, job_id: JobId) -> JobRecord | None:
        """Return a job by id."""
        return self._jobs.get(job_id)

    def get_jobs(self, job_ids: Sequence[JobId]) -> Mapping[JobId, JobRecord]:
        """Return the known ones of these jobs."""
        return {job_id: self._jobs[job_id] for job_id in job_ids if job_id in self._jobs}

    def job_of_request(self, request_id: str) -> JobRecord | None:
        """Return the job that a submit request made."""
        return next((job for job in self._jobs.values() if job.request_id == request_id), None)

    def list_jobs(self, query: JobQuery, after: JobCursor | None, count_max: int) -> JobPage:
        """Return a page of jobs, newest first."""
        found = sorted(
            (
                job
                for job in self._jobs.values()
                if (not query.states or job.state in query.states)
                and query.user in {None, job.user}
                and query.project in {None, job.spec.project}
            ),
            key=lambda job: (job.submitted_at_s, job.job_id),
            reverse=True,
        )
        start = (after.submitted_at_s, after.job_id) if after else None
        rest = [job for job in found if start is None or (job.submitted_at_s, job.job_id) < start]
        page = tuple(rest[:count_max])
        last = page[-1] if len(rest) > count_max else None
        cursor = JobCursor(submitted_at_s=last.submitted_at_s, job_id=last.job_id) if last else None
        return JobPage(jobs=page, after=cursor, total_count=len(found))

    def has_succeeded_in(self, project: str) -> bool:
        """Tell whether a job of a project has succeeded, ever."""
        return any(job.spec.project == project and job.state is JobState.SUCCEEDED for job in self._jobs.values())

    def attempts_of(self, job_id: JobId) -> tuple[AttemptRecord, ...]:
        """Return a job's attempts, oldest first."""
        mine = (attempt for attempt in self._attempts.values() if attempt.job_id == job_id)
        return tuple(sorted(mine, key=lambda attempt: attempt.epoch))

    def attempts_of_jobs(self, job_ids: Sequence[JobId]) -> Mapping[JobId, tuple[AttemptRecord, ...]]:
        """Return the attempts of each of these jobs that has any, oldest first."""
        return {job_id: found for job_id in job_ids if (found := self.attempts_of(job_id))}

    def history(self, after_index: int, query: HistoryQuery, count_max: int) -> tuple[HistoryEntry, ...]:
        """Return entries with a greater index, in order."""
        found = (entry for entry in self._history if entry.index > after_index and query.matches(entry))
        return tuple(found)[:count_max]

    def decisions(self, count_max: int) -> tuple[tuple[float, Decision], ...]:
        """Return the latest decisions, newest first."""
        return tuple(reversed(self._decisions))[:count_max]

    def count_by_state(self) -> Mapping[JobState, int]:
        """Return the number of jobs in each state."""
        return dict(Counter(job.state for job in self._jobs.values()))


def _number(job_ids: Iterable[JobId]) -> int:
    return max(map(number_of, job_ids), default=0)


def _refuse_doubles(jobs: Mapping[JobId, JobRecord], attempts: Mapping[AttemptId, AttemptRecord]) -> None:
    requests = Counter(job.request_id for job in jobs.values())
    holdings: Counter[tuple[NodeId, DeviceId]] = Counter(
        (share.node_id, device)
        for attempt in attempts.values()
        if attempt.is_live
        for share in attempt.allocation.shares
        if share.node_id not in attempt.ended_nodes
        for device in share.device_ids
    )
    if any(count > 1 for count in (*requests.values(), *holdings.values())):
        raise InternalError("the store refused a record", why="a device or a request id is used twice")
