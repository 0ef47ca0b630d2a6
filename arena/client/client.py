"""The typed client of a scheduler: values in, values out; proto stays behind the codec."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc

from arena.client.channel import Connection, is_unavailable, retrying
from arena.client.settings import ClientSettings
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import AttemptId
from arena.domain.reason import Reason
from arena.domain.records import EntryKind, HistoryEntry, JobState
from arena.rpc import codec
from arena.rpc.codec.enums import JOB_STATE
from arena.rpc.status import error_from_rpc
from arena.rpc.v1 import admin_service_pb2 as admin_pb
from arena.rpc.v1 import job_service_pb2 as job_pb
from arena.rpc.version import hello
from arena.rpc.views import AttemptView, DecisionView, JobView, NodeView, StatusView

_PAGE_SIZE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineAnswer:
    """Whether a deadline is promised.

    Args:
        earliest_end_at_s: The earliest end that can be promised, None where nobody can tell.
        cause: What is in the way of the deadline, as far as the scheduler can say.
    """

    is_promised: bool
    deadline_at_s: float
    earliest_end_at_s: float | None = None
    cause: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The answer to a submission.

    Args:
        job_id: Empty after a dry run.
        is_new: False when the request had been accepted before, and after a dry run.
        deadline: None where the job has no deadline.
        warnings: What its user may not have meant.
    """

    job_id: JobId
    is_new: bool
    deadline: DeadlineAnswer | None = None
    warnings: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail:
    """A job with all its attempts, oldest first, and what the policy said of it if it was asked.

    Attributes:
        now_s: When this was so, by the scheduler's clock; None where an older scheduler does not say.
    """

    job: JobView
    attempts: tuple[AttemptView, ...]
    explanation: tuple[Reason, ...] = ()
    now_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedJobs:
    """Some jobs in full, how many of others were passed over beside them, and how many are not kept any more."""

    jobs: tuple[JobDetail, ...]
    hidden_count: int
    dropped_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The jobs that will be cancelled, and those that were over already."""

    cancelled: tuple[JobId, ...]
    ended: tuple[JobId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A piece of one rank's log.

    Args:
        offset_bytes: Where it starts in what the rank wrote.
        dropped_bytes: What the log's cap dropped just before it.
    """

    attempt_id: AttemptId
    rank: int
    offset_bytes: int
    data: bytes
    dropped_bytes: int


class ArenaClient:
    """A client of one scheduler; use it as a context manager.

    Every method raises an ``ArenaError``: the one that the scheduler raised, or ``UnavailableError`` with the address
    when nobody answers.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._connection = Connection(settings)

    def __enter__(self) -> ArenaClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def submit(
        self, spec: JobSpec, *, allow_infeasible: bool = False, request_id: str | None = None, dry_run: bool = False
    ) -> Submitted:
        """Submit a job; returns once it is on disk.

        Args:
            spec: The job.
            allow_infeasible: Queue it even if no group of the present cluster can hold it.
            request_id: Repeating a submission with the same id gives the same job; made here by default.
            dry_run: Ask what would be answered, and submit nothing.
        """
        request = job_pb.SubmitJobRequest(
            hello=hello(),
            request_id=request_id or _request_id(),
            spec=codec.spec_to_proto(spec),
            allow_infeasible=allow_infeasible,
            dry_run=dry_run,
        )
        response = self._connection.call(self._connection.jobs.SubmitJob, request)
        answer = response.deadline
        deadline = DeadlineAnswer(
            is_promised=answer.is_promised,
            deadline_at_s=answer.deadline_at_s,
            earliest_end_at_s=answer.earliest_end_at_s if answer.HasField("earliest_end_at_s") else None,
            cause=codec.reason_from_proto(answer.cause) if answer.HasField("cause") else None,
        )
        return Submitted(
            job_id=JobId(response.job_id),
            is_new=response.is_new,
            deadline=deadline if response.HasField("deadline") else None,
            warnings=tuple(codec.reason_from_proto(item) for item in response.warnings),
        )

    def job(self, job_id: str, *, explain: bool = False) -> JobDetail:
        """Return a job and its attempts; with ``explain`` the policy is asked about it as well."""
        request = job_pb.GetJobRequest(hello=hello(), job_id=job_id, explain=explain)
        response = self._connection.call(self._connection.jobs.GetJob, request)
        return JobDetail(
            job=codec.job_from_proto(response.job),
            attempts=tuple(codec.attempt_from_proto(attempt) for attempt in response.attempts),
            explanation=tuple(codec.reason_from_proto(item) for item in response.explanation),
            now_s=response.now_s if response.HasField("now_s") else None,
        )

    def decisions(self, *, count_max: int = 0) -> tuple[DecisionView, ...]:
        """Return the latest decisions, newest first (0: as many as the server likes)."""
        request = admin_pb.ListDecisionsRequest(hello=hello(), count_max=count_max)
        response = self._connection.call(self._connection.admin.ListDecisions, request)
        return tuple(codec.decision_from_proto(item) for item in response.decisions)

    def jobs(
        self, *, states: Iterable[JobState] = (), user: str | None = None, project: str | None = None
    ) -> Iterator[JobView]:
        """Yield jobs, newest first, page by page as they are consumed.

        Args:
            states: Only jobs in these states; empty means all.
            user: Only jobs of this user.
            project: Only jobs of this project.
        """
        request = job_pb.ListJobsRequest(
            hello=hello(),
            states=[JOB_STATE.to_proto(state) for state in states],
            user=user,
            project=project,
            page_size=_PAGE_SIZE,
        )
        for page in self._pages(self._connection.jobs.ListJobs, request):
            yield from (codec.job_from_proto(job) for job in page.jobs)

    def export_jobs(
        self, *, states: Iterable[JobState] = (), user: str | None = None, project: str | None = None
    ) -> Iterator[ExportedJobs]:
        """Yield jobs, newest first, with their specifications and attempts; jobs of others are only counted.

        Args:
            states: Only jobs in these states; empty means all.
            user: Only jobs of this user.
            project: Only jobs of this project.
        """
        request = job_pb.ExportJobsRequest(
            hello=hello(), states=[JOB_STATE.to_proto(state) for state in states], user=user, project=project
        )
        for response in self._stream(self._connection.jobs.ExportJobs, request):
            jobs = tuple(
                JobDetail(
                    job=codec.job_from_proto(one.job),
                    attempts=tuple(codec.attempt_from_proto(attempt) for attempt in one.attempts),
                )
                for one in response.jobs
            )
            yield ExportedJobs(jobs=jobs, hidden_count=response.hidden_count, dropped_count=response.dropped_count)

    def cancel(self, job_ids: Iterable[str] = (), *, all_mine: bool = False) -> Cancelled:
        """Cancel jobs in one transaction; returns once that is recorded, not once they are gone."""
        request = job_pb.CancelJobsRequest(
            hello=hello(), request_id=_request_id(), job_ids=list(job_ids), all_mine=all_mine
        )
        response = self._connection.call(self._connection.jobs.CancelJobs, request)
        return Cancelled(
            cancelled=tuple(JobId(job_id) for job_id in response.cancelled_job_ids),
            ended=tuple(JobId(job_id) for job_id in response.ended_job_ids),
        )

    def hold(self, job_id: str) -> JobView:
        """Keep a job from running until it is released."""
        request = job_pb.HoldJobRequest(hello=hello(), request_id=_request_id(), job_id=job_id)
        return codec.job_from_proto(self._connection.call(self._connection.jobs.HoldJob, request).job)

    def release(self, job_id: str, *, budget_usd: float | None = None) -> JobView:
        """Let a held job run again.

        Args:
            budget_usd: Its budget from now on, more than it has cost; None leaves it as it is.
        """
        request = job_pb.ReleaseJobRequest(
            hello=hello(), request_id=_request_id(), job_id=job_id, budget_usd=budget_usd
        )
        return codec.job_from_proto(self._connection.call(self._connection.jobs.ReleaseJob, request).job)

    def status(self, *, job_count_max: int = 0) -> StatusView:
        """Return the cluster at a glance; ``job_count_max`` bounds each list of jobs (0: the server's default)."""
        request = admin_pb.GetStatusRequest(hello=hello(), job_count_max=job_count_max)
        return codec.status_from_proto(self._connection.call(self._connection.admin.GetStatus, request))

    def nodes(self) -> Iterator[NodeView]:
        """Yield the nodes, page by page as they are consumed."""
        request = admin_pb.ListNodesRequest(hello=hello(), page_size=_PAGE_SIZE)
        for page in self._pages(self._connection.admin.ListNodes, request):
            yield from (codec.node_from_proto(node) for node in page.nodes)

    def drain(self, node_id: str, *, why: str, within_s: float | None = None) -> NodeView:
        """Take a node out of use: nothing new starts there.

        Args:
            within_s: After so long it is empty, its jobs saved and moved in time; None lets them run to their end.
        """
        request = admin_pb.DrainNodeRequest(
            hello=hello(), request_id=_request_id(), node_id=node_id, why=why, within_s=within_s
        )
        return codec.node_from_proto(self._connection.call(self._connection.admin.DrainNode, request).node)

    def undrain(self, node_id: str) -> NodeView:
        """Take a drained node back into use."""
        request = admin_pb.UndrainNodeRequest(hello=hello(), request_id=_request_id(), node_id=node_id)
        return codec.node_from_proto(self._connection.call(self._connection.admin.UndrainNode, request).node)

    def stream_events(
        self,
        *,
        after_index: int = 0,
        job_id: str | None = None,
        node_id: str | None = None,
        kinds: Iterable[EntryKind] = (),
        kinds_left_out: Iterable[EntryKind] = (),
        follow: bool = False,
        deadline_s: float | None = None,
    ) -> Iterator[HistoryEntry]:
        """Yield history entries in order, without gaps also across a restart of the scheduler.

        Args:
            after_index: Only entries with a greater index.
            job_id: Only entries of this job.
            node_id: Only entries of this node.
            kinds: Only entries of these kinds; empty means all.
            kinds_left_out: No entries of these kinds.
            follow: Go on as entries appear instead of ending with the present.
            deadline_s: End after this time; None means no limit.
        """
        left_out = frozenset(kinds_left_out)
        request = job_pb.StreamEventsRequest(
            hello=hello(),
            after_index=after_index,
            job_id=job_id,
            node_id=node_id,
            kinds=[kind.value for kind in kinds],
            kinds_understood=[kind.value for kind in EntryKind if kind not in left_out],
            follow=follow,
        )
        for response in self._resumed(request, deadline_s):
            for message in response.entries:
                if message.kind not in left_out:  # an older scheduler leaves nothing out
                    yield codec.entry_from_proto(message)

    def stream_logs(
        self,
        job_id: str,
        *,
        rank: int | None = None,
        epoch: int | None = None,
        follow: bool = False,
        tail_bytes: int | None = None,
    ) -> Iterator[LogChunk]:
        """Yield a job's output in pieces.

        Args:
            job_id: The job.
            rank: Only this rank; all by default.
            epoch: The attempt; the latest by default.
            follow: Go on as the ranks write.
            tail_bytes: Only so many bytes from the end of each rank's log.
        """
        request = job_pb.StreamLogsRequest(
            hello=hello(), job_id=job_id, rank=rank, epoch=epoch, follow=follow, tail_bytes=tail_bytes
        )
        for chunk in self._stream(self._connection.jobs.StreamLogs, request):
            yield LogChunk(
                attempt_id=AttemptId(chunk.attempt_id),
                rank=chunk.rank,
                offset_bytes=chunk.offset_bytes,
                data=chunk.data,
                dropped_bytes=chunk.dropped_bytes,
            )

    def _pages(self, method: Any, request: Any) -> Iterator[Any]:
        while True:
            response = self._connection.call(method, request)
            yield response
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    def _resumed(
        self, request: job_pb.StreamEventsRequest, deadline_s: float | None
    ) -> Iterator[job_pb.StreamEventsResponse]:
        """Yield batches of events; a broken stream is opened again behind the last entry, for a bounded time."""
        connection = self._connection
        stream: Iterator[Any] | None = None
        ends_at_s = None if deadline_s is None else time.monotonic() + deadline_s

        def next_batch() -> Any:
            nonlocal stream
            if stream is None:
                left_s = None if ends_at_s is None else max(0.0, ends_at_s - time.monotonic())
                stream = connection.jobs.StreamEvents(request, metadata=connection.metadata, timeout=left_s)
            try:
                return next(stream, None)
            except grpc.RpcError as failure:
                if is_unavailable(failure):
                    stream = None
                raise

        try:
            while (batch := retrying(connection.settings.retry_s)(next_batch)) is not None:
                if batch.entries:
                    request.after_index = batch.entries[-1].index
                yield batch
        except grpc.RpcError as failure:
            if deadline_s is None or failure.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise error_from_rpc(failure, connection.settings.address) from failure
        finally:
            if stream is not None:
                stream.cancel()  # type: ignore[attr-defined]

    def _stream(self, method: Any, request: Any) -> Iterator[Any]:
        call = method(request, metadata=self._connection.metadata)
        with closing(_Cancelling(call)):
            try:
                yield from call
            except grpc.RpcError as failure:
                raise error_from_rpc(failure, self._connection.settings.address) from failure


class _Cancelling:
    """Ends a streaming call when its reader stops early."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def close(self) -> None:
        self._call.cancel()


def _request_id() -> str:
    return uuid.uuid4().hex
