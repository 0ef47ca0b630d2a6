"""Jobs, for the people who submit them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from typing import Literal

from arena.domain.events import JobsCancelled, JobWishChanged
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.records import EntryKind, JobRecord, Wish
from arena.engine.spending import is_spent
from arena.errors import IllegalTransitionError, NotFoundError, SpecError, UserError
from arena.rpc import codec
from arena.rpc.codec import enums
from arena.rpc.v1 import job_service_pb2 as pb
from arena.rpc.v1 import job_service_pb2_grpc
from arena.units import format_bytes
from arena_scheduler.access import Access, Caller
from arena_scheduler.cluster_view import ClusterView
from arena_scheduler.inbox import Inbox
from arena_scheduler.reading import HistoryQuery, JobQuery, Reader
from arena_scheduler.services.calls import change, kept_answers, streaming, unary
from arena_scheduler.services.exports import JobExports
from arena_scheduler.services.paging import cursor_of, token_of
from arena_scheduler.services.streams import EventStreams, LogStreams
from arena_scheduler.submission import DeadlineAnswer, Submission

SPEC_BYTES_MAX = 1_000_000
# A client that is older than these cannot read an entry of such a kind.
_LATER_KINDS = frozenset(
    {EntryKind.JOB_EVALUATED, EntryKind.PLAN_STRUCK, EntryKind.PROMISE_BROKEN, EntryKind.JOB_BUDGET}
)
JOBS_PER_PAGE = 100
JOBS_PER_PAGE_MAX = 500


class JobService(job_service_pb2_grpc.JobServiceServicer):
    """Submit, look, change, follow."""

    def __init__(
        self,
        *,
        access: Access,
        reader: Reader,
        view: ClusterView,
        inbox: Inbox,
        submission: Submission,
        events: EventStreams,
        logs: LogStreams,
        exports: JobExports,
    ) -> None:
        self.access = access
        self.answers = kept_answers()
        self._reader = reader
        self._view = view
        self._inbox = inbox
        self._submission = submission
        self._events = events
        self._logs = logs
        self._exports = exports

    @unary
    async def SubmitJob(self, request: pb.SubmitJobRequest, caller: Caller) -> pb.SubmitJobResponse:  # noqa: N802
        """Take a job, or say what would be answered; returns once it is on disk."""
        size_bytes = request.spec.ByteSize()
        if size_bytes > SPEC_BYTES_MAX:
            raise SpecError(
                "the job specification is too large",
                why=f"spec {format_bytes(size_bytes)} > {format_bytes(SPEC_BYTES_MAX)}",
                fix="put data into files and name them",
                details={"size_bytes": str(size_bytes), "size_bytes_max": str(SPEC_BYTES_MAX)},
            )
        spec = codec.spec_from_proto(request.spec)
        allow_infeasible = request.allow_infeasible
        if request.dry_run:
            submitted = await self._submission.try_out(spec, caller, allow_infeasible=allow_infeasible)
        else:
            submitted = await self._submission.submit(
                spec, caller, request.request_id, allow_infeasible=allow_infeasible
            )
        return pb.SubmitJobResponse(
            job_id=submitted.job_id or "",
            is_new=submitted.is_new,
            deadline=None if submitted.deadline is None else _deadline_to_proto(submitted.deadline),
            warnings=[codec.reason_to_proto(item) for item in submitted.warnings],
        )

    async def _job(self, name: str) -> JobRecord:
        job_id = JobId(name)
        live = self._view.state.jobs.get(job_id)
        record = live if live is not None else await asyncio.to_thread(self._reader.get_job, job_id)
        if record is None:
            raise self._no_job(name)
        return record

    def _no_job(self, name: str) -> NotFoundError:
        dropped = self._view.dropped
        why = dropped.told if dropped.may_have(name) else ""
        return NotFoundError(f"there is no job {name}", why=why, fix="see `arena jobs`", details={"job_id": name})

    async def _jobs(self, job_ids: list[JobId]) -> list[JobRecord]:
        live = self._view.state.jobs
        others = [job_id for job_id in job_ids if job_id not in live]
        ended = await asyncio.to_thread(self._reader.get_jobs, others) if others else {}
        missing = next((job_id for job_id in others if job_id not in ended), None)
        if missing is not None:
            raise self._no_job(missing)
        return [live[job_id] if job_id in live else ended[job_id] for job_id in job_ids]

    @unary
    async def GetJob(self, request: pb.GetJobRequest, caller: Caller) -> pb.GetJobResponse:  # noqa: N802
        """Return a job with the history of its attempts."""
        record = await self._job(request.job_id)
        attempts = await asyncio.to_thread(self._reader.attempts_of, record.job_id)
        private = caller.owns(record.user)
        explanation = await asyncio.to_thread(self._view.explanation, record.job_id) if request.explain else ()
        return pb.GetJobResponse(
            job=codec.job_view_to_proto(self._view.job_view(record, caller, with_spec=True)),
            attempts=[codec.attempt_to_proto(attempt, private=private) for attempt in attempts],
            explanation=[codec.reason_to_proto(item) for item in explanation],
            now_s=self._view.now_s,
        )

    @unary
    async def ListJobs(self, request: pb.ListJobsRequest, caller: Caller) -> pb.ListJobsResponse:  # noqa: N802
        """Return a page of jobs, newest first."""
        query = _query_of(request)
        count_max = min(request.page_size or JOBS_PER_PAGE, JOBS_PER_PAGE_MAX)
        page = await asyncio.to_thread(self._reader.list_jobs, query, cursor_of(request.page_token), count_max)
        views = [self._view.job_view(job, caller, with_spec=False) for job in page.jobs]
        return pb.ListJobsResponse(
            jobs=[codec.job_view_to_proto(view) for view in views],
            next_page_token=token_of(page.after),
            total_count=page.total_count,
        )

    @change
    async def CancelJobs(self, request: pb.CancelJobsRequest, caller: Caller) -> pb.CancelJobsResponse:  # noqa: N802
        """Cancel any number of jobs in one transaction; returns once it is recorded."""
        names = dict.fromkeys(JobId(name) for name in request.job_ids)
        if request.all_mine:
            mine = (job.job_id for job in self._view.state.jobs.values() if job.user == caller.user)
            names.update(dict.fromkeys(sorted(mine)))
        elif not names:
            raise UserError("no job is named", fix="name jobs, or ask for all of yours")
        jobs = await self._jobs(list(names))
        for job in jobs:
            caller.require_owner(job.user, f"job {job.job_id}")
        open_ids = [job.job_id for job in jobs if not job.state.is_terminal]
        if open_ids:
            await self._inbox.request(JobsCancelled(job_ids=tuple(open_ids), by=caller.user))
        ended = [job.job_id for job in jobs if job.state.is_terminal]
        return pb.CancelJobsResponse(cancelled_job_ids=open_ids, ended_job_ids=ended)

    @change
    async def HoldJob(self, request: pb.HoldJobRequest, caller: Caller) -> pb.HoldJobResponse:  # noqa: N802
        """Take a job off its GPUs and keep it from being started."""
        record = await self._wish(request.job_id, "hold", caller)
        return pb.HoldJobResponse(job=codec.job_view_to_proto(self._view.job_view(record, caller, with_spec=False)))

    @change
    async def ReleaseJob(self, request: pb.ReleaseJobRequest, caller: Caller) -> pb.ReleaseJobResponse:  # noqa: N802
        """Let a held job be started, under another budget if one is given."""
        budget_usd = request.budget_usd if request.HasField("budget_usd") else None
        record = await self._wish(request.job_id, "run", caller, budget_usd)
        return pb.ReleaseJobResponse(job=codec.job_view_to_proto(self._view.job_view(record, caller, with_spec=False)))

    async def _wish(
        self, name: str, wish: Literal["hold", "run"], caller: Caller, budget_usd: float | None = None
    ) -> JobRecord:
        job = await self._job(name)
        caller.require_owner(job.user, f"job {name}")
        if budget_usd is not None:
            _check_budget(budget_usd, job, self._view.spent_usd(job))
        elif wish == "run" and is_spent(job):
            raise _spent(job)
        if job.state.is_terminal or job.wish is Wish.CANCEL:
            verb = "held" if wish == "hold" else "released"
            raise IllegalTransitionError(f"job {name} cannot be {verb}", why=f"it is {job.state.value}")
        await self._inbox.request(JobWishChanged(job_id=job.job_id, wish=wish, by=caller.user, budget_usd=budget_usd))
        job = await self._job(name)
        if wish == "run" and job.wish is Wish.HOLD and is_spent(job):
            raise _spent(job)  # what was left went between the question and the answer
        return job

    @streaming
    async def StreamEvents(  # noqa: N802
        self, request: pb.StreamEventsRequest, caller: Caller
    ) -> AsyncIterator[pb.StreamEventsResponse]:
        """Yield history entries, and go on as they appear if asked to."""
        try:
            kinds = frozenset(EntryKind(kind) for kind in request.kinds)
        except ValueError as error:
            raise UserError(f"{error}", fix=f"use {', '.join(kind.value for kind in EntryKind)}") from error
        query = HistoryQuery(
            job_id=JobId(request.job_id) if request.HasField("job_id") else None,
            node_id=NodeId(request.node_id) if request.HasField("node_id") else None,
            kinds=kinds or _kinds_for(request.kinds_understood),
        )
        if query.job_id is not None:
            await self._job(query.job_id)
        async for entries in self._events.stream(query, request.after_index, caller, follow=request.follow):
            yield pb.StreamEventsResponse(entries=entries)

    @streaming
    async def StreamLogs(  # noqa: N802
        self, request: pb.StreamLogsRequest, caller: Caller
    ) -> AsyncIterator[pb.StreamLogsResponse]:
        """Yield the logs of one attempt's ranks."""
        record = await self._job(request.job_id)
        caller.require_owner(record.user, f"the log of job {request.job_id}")
        async for chunk in self._logs.stream(
            record,
            epoch=request.epoch if request.HasField("epoch") else None,
            rank=request.rank if request.HasField("rank") else None,
            tail_bytes=request.tail_bytes if request.HasField("tail_bytes") else None,
            follow=request.follow,
        ):
            yield pb.StreamLogsResponse(
                attempt_id=chunk.attempt_id,
                rank=chunk.rank,
                offset_bytes=chunk.offset_bytes,
                data=chunk.data,
                dropped_bytes=chunk.dropped_bytes,
            )

    @streaming
    async def ExportJobs(  # noqa: N802
        self, request: pb.ExportJobsRequest, caller: Caller
    ) -> AsyncIterator[pb.ExportJobsResponse]:
        """Yield jobs with their specifications and attempts."""
        async for response in self._exports.stream(_query_of(request), caller):
            yield response


def _query_of(request: pb.ListJobsRequest | pb.ExportJobsRequest) -> JobQuery:
    return JobQuery(
        states=frozenset(enums.JOB_STATE.from_proto(state, "states") for state in request.states),
        user=request.user if request.HasField("user") else None,
        project=request.project if request.HasField("project") else None,
    )


def _deadline_to_proto(answer: DeadlineAnswer) -> pb.DeadlineAnswer:
    return pb.DeadlineAnswer(
        is_promised=answer.is_promised,
        deadline_at_s=answer.deadline_at_s,
        earliest_end_at_s=answer.earliest_end_at_s,
        cause=None if answer.cause is None else codec.reason_to_proto(answer.cause),
    )


def _check_budget(budget_usd: float, job: JobRecord, spent_usd: float) -> None:
    """Refuse a budget that a job has used up already, or that is none."""
    if not spent_usd < budget_usd < math.inf:
        raise UserError(
            f"job {job.job_id} cannot go on with a budget of {budget_usd:.6g} USD",
            why=f"it has cost {spent_usd:.6g} USD",
            fix="give more, what it has cost included",
        )


def _spent(job: JobRecord) -> IllegalTransitionError:
    budget_usd = job.spec.budget_usd or 0.0
    return IllegalTransitionError(
        f"job {job.job_id} cannot be released",
        why=f"it has cost {job.spent_usd:.6g} USD, its budget of {budget_usd:.6g} USD leaves no time to run",
        fix=f"have it go on where it was, with more: arena release {job.job_id} --budget {2.0 * budget_usd:.6g}",
        details={"budget_usd": f"{budget_usd:.6g}", "spent_usd": f"{job.spent_usd:.6g}"},
    )


def _kinds_for(understood: Iterable[str]) -> frozenset[EntryKind]:
    """Return the kinds that a client gets that asked for none in particular."""
    words = frozenset(understood)
    known = frozenset(kind for kind in EntryKind if kind.value in words)
    return known or frozenset(EntryKind) - _LATER_KINDS
