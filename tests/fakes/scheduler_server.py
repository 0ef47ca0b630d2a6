"""A scheduler that serves what a test put into it, over real gRPC on a free port of this machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import grpc

from arena.client import LogChunk
from arena.domain.job import JobId
from arena.domain.launch import AttemptId, DeviceId
from arena.domain.reason import Reason
from arena.domain.records import AttemptRecord, Drain, HistoryEntry, JobRecord, NodeRecord, Wish
from arena.errors import ArenaError, NotFoundError
from arena.rpc import codec
from arena.rpc.codec.enums import JOB_STATE
from arena.rpc.status import error_metadata, status_code
from arena.rpc.v1 import (
    admin_service_pb2 as admin_pb,
)
from arena.rpc.v1 import (
    admin_service_pb2_grpc,
    job_service_pb2_grpc,
)
from arena.rpc.v1 import (
    job_service_pb2 as job_pb,
)
from arena.rpc.version import check_protocol
from arena.rpc.views import DecisionView, StatusView

PAGE_SIZE = 2


@dataclass(slots=True)
class FakeScheduler:
    """What the server serves, and what it was asked.

    Args:
        decisions: The latest first.
        explanation: What the policy says of any job, if it is asked.
        now_s: When it says so; None as an older one, which does not say.
        deadline: What is answered to a submission with a deadline.
        warnings: What is doubtful about every submission.
        knows_within: Whether it is new enough to have a node empty by a time.
        knows_budgets: Whether it is new enough to give a released job another budget.
        failures: Errors to raise, by method name, the next one first; a string raises a bare UNAVAILABLE status.
        requests: Every request with its method's name and metadata, in order.
        credentials: Makes it speak TLS.
    """

    jobs: dict[str, JobRecord] = field(default_factory=dict)
    attempts: list[AttemptRecord] = field(default_factory=list)
    nodes: list[NodeRecord] = field(default_factory=list)
    entries: list[HistoryEntry] = field(default_factory=list)
    logs: list[LogChunk] = field(default_factory=list)
    status: StatusView | None = None
    decisions: list[DecisionView] = field(default_factory=list)
    explanation: list[Reason] = field(default_factory=list)
    now_s: float | None = None
    deadline: job_pb.DeadlineAnswer | None = None
    warnings: list[Reason] = field(default_factory=list)
    knows_within: bool = True
    knows_budgets: bool = True
    failures: dict[str, list[ArenaError | str]] = field(default_factory=dict)
    requests: list[tuple[str, Any, dict[str, Any]]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    address: str = ""
    credentials: grpc.ServerCredentials | None = None
    _server: Any = None

    def __enter__(self) -> FakeScheduler:
        self._server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        service = _Service(self)
        job_service_pb2_grpc.add_JobServiceServicer_to_server(service, self._server)
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(service, self._server)
        port = (
            self._server.add_secure_port("127.0.0.1:0", self.credentials)
            if self.credentials
            else self._server.add_insecure_port("127.0.0.1:0")
        )
        self.address = f"127.0.0.1:{port}"
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(None).wait()

    def add_job(self, job: JobRecord) -> None:
        """Serve a job."""
        self.jobs[job.job_id] = job

    def append(self, entry: HistoryEntry) -> None:
        """Let something happen: those that follow the history see it."""
        with self.changed:
            self.entries.append(entry)
            self.changed.notify_all()

    def asked(self, method: str) -> list[Any]:
        """The requests of one method, in order."""
        return [request for name, request, _ in self.requests if name == method]


class _Service:
    """Serves both services; the methods with a leading underscore answer, framed by what every call needs."""

    def __init__(self, fake: FakeScheduler) -> None:
        self._fake = fake
        for name in ("SubmitJob", "GetJob", "ListJobs", "CancelJobs", "HoldJob", "ReleaseJob"):
            setattr(self, name, self._framed(name))
        for name in ("GetStatus", "ListNodes", "DrainNode", "UndrainNode", "ListDecisions"):
            setattr(self, name, self._framed(name))
        for name in ("StreamEvents", "StreamLogs", "ExportJobs"):
            setattr(self, name, self._framed_stream(name))

    def _enter(self, name: str, request: Any, context: Any) -> None:
        metadata = dict(context.invocation_metadata())
        self._fake.requests.append((name, request, metadata))
        check_protocol(request.hello, "the client")
        planned = self._fake.failures.get(name)
        if planned:
            failure = planned.pop(0)
            if isinstance(failure, str):
                context.abort(grpc.StatusCode.UNAVAILABLE, failure)
            raise failure

    def _framed(self, name: str) -> Callable[[Any, Any], Any]:
        def call(request: Any, context: Any) -> Any:
            try:
                self._enter(name, request, context)
                return getattr(self, f"_{name}")(request)
            except ArenaError as error:
                _abort(context, error)

        return call

    def _framed_stream(self, name: str) -> Callable[[Any, Any], Iterator[Any]]:
        def call(request: Any, context: Any) -> Iterator[Any]:
            try:
                self._enter(name, request, context)
                yield from getattr(self, f"_{name}")(request, context)
            except ArenaError as error:
                _abort(context, error)

        return call

    def _job(self, job_id: str) -> JobRecord:
        if job_id not in self._fake.jobs:
            raise NotFoundError(f"there is no job {job_id!r}", details={"job_id": job_id})
        return self._fake.jobs[job_id]

    def _attempt(self, job: JobRecord) -> AttemptRecord | None:
        return next((item for item in self._fake.attempts if item.attempt_id == job.attempt_id), None)

    def _shown(self, job: JobRecord) -> Any:
        return codec.job_to_proto(job, self._attempt(job), private=True)

    def _SubmitJob(self, request: Any) -> Any:
        for job in self._fake.jobs.values():
            if job.request_id == request.request_id:
                return job_pb.SubmitJobResponse(job_id=job.job_id, is_new=False)
        job_id = JobId(f"j-{len(self._fake.jobs) + 1}")
        spec = codec.spec_from_proto(request.spec)
        self._fake.add_job(
            JobRecord(job_id=job_id, spec=spec, user="ann", request_id=request.request_id, submitted_at_s=1000.0)
        )
        deadline = self._fake.deadline if spec.deadline_s is not None else None
        warnings = [codec.reason_to_proto(item) for item in self._fake.warnings]
        return job_pb.SubmitJobResponse(job_id=job_id, is_new=True, deadline=deadline, warnings=warnings)

    def _GetJob(self, request: Any) -> Any:
        job = self._job(request.job_id)
        attempts = [item for item in self._fake.attempts if item.job_id == job.job_id]
        return job_pb.GetJobResponse(
            job=self._shown(job),
            attempts=[codec.attempt_to_proto(item, private=True) for item in attempts],
            explanation=[codec.reason_to_proto(item) for item in self._fake.explanation if request.explain],
            now_s=self._fake.now_s,
        )

    def _ListJobs(self, request: Any) -> Any:
        states = {JOB_STATE.from_proto(number, "states") for number in request.states}
        found = [
            job
            for job in reversed(self._fake.jobs.values())
            if (not states or job.state in states)
            and (not request.HasField("user") or job.user == request.user)
            and (not request.HasField("project") or job.spec.project == request.project)
        ]
        page, token = _page(found, request.page_token)
        return job_pb.ListJobsResponse(
            jobs=[self._shown(job) for job in page], next_page_token=token, total_count=len(found)
        )

    def _ExportJobs(self, request: Any, context: Any) -> Iterator[Any]:
        """One job a message; a planned failure of ``ExportedJob`` breaks off before the next."""
        states = {JOB_STATE.from_proto(number, "states") for number in request.states}
        for job in reversed(list(self._fake.jobs.values())):
            if states and job.state not in states:
                continue
            for failure in self._fake.failures.get("ExportedJob", [])[:1]:
                context.abort(grpc.StatusCode.INTERNAL, str(failure))
            mine = [one for one in self._fake.attempts if one.job_id == job.job_id]
            attempts = [codec.attempt_to_proto(one, private=False) for one in mine]
            shown = codec.job_to_proto(job, None, private=True)
            yield job_pb.ExportJobsResponse(jobs=[job_pb.ExportedJob(job=shown, attempts=attempts)])
        yield job_pb.ExportJobsResponse(hidden_count=3)

    def _CancelJobs(self, request: Any) -> Any:
        wanted = list(self._fake.jobs) if request.all_mine else request.job_ids
        jobs = [self._job(job_id) for job_id in wanted]
        return job_pb.CancelJobsResponse(
            cancelled_job_ids=[job.job_id for job in jobs if not job.state.is_terminal],
            ended_job_ids=[job.job_id for job in jobs if job.state.is_terminal],
        )

    def _HoldJob(self, request: Any) -> Any:
        job = replace(self._job(request.job_id), wish=Wish.HOLD)
        self._fake.add_job(job)
        return job_pb.HoldJobResponse(job=self._shown(job))

    def _ReleaseJob(self, request: Any) -> Any:
        job = replace(self._job(request.job_id), wish=Wish.RUN)
        if request.HasField("budget_usd") and self._fake.knows_budgets:
            job = replace(job, spec=job.spec.model_copy(update={"budget_usd": request.budget_usd}))
        self._fake.add_job(job)
        return job_pb.ReleaseJobResponse(job=self._shown(job))

    def _GetStatus(self, request: Any) -> Any:
        assert self._fake.status is not None
        return codec.status_to_proto(self._fake.status)

    def _ListDecisions(self, request: Any) -> Any:
        shown = self._fake.decisions[: request.count_max or None]
        return admin_pb.ListDecisionsResponse(decisions=[codec.decision_to_proto(item) for item in shown])

    def _holders(self) -> dict[DeviceId, AttemptId]:
        return {
            device: item.attempt_id
            for item in self._fake.attempts
            if item.is_live
            for device in item.allocation.device_ids
        }

    def _ListNodes(self, request: Any) -> Any:
        holders = self._holders()
        page, token = _page(self._fake.nodes, request.page_token)
        return admin_pb.ListNodesResponse(
            nodes=[codec.node_to_proto(node, holders) for node in page],
            next_page_token=token,
            total_count=len(self._fake.nodes),
        )

    def _DrainNode(self, request: Any) -> Any:
        until_s = request.within_s if request.HasField("within_s") and self._fake.knows_within else None
        node = replace(self._node(request.node_id), drain=Drain(by="ann", at_s=0.0, why=request.why, until_s=until_s))
        return admin_pb.DrainNodeResponse(node=codec.node_to_proto(node, self._holders()))

    def _UndrainNode(self, request: Any) -> Any:
        return admin_pb.UndrainNodeResponse(node=codec.node_to_proto(self._node(request.node_id), {}))

    def _node(self, node_id: str) -> NodeRecord:
        for node in self._fake.nodes:
            if node.node_id == node_id:
                return node
        raise NotFoundError(f"there is no node {node_id!r}")

    def _StreamEvents(self, request: Any, context: Any) -> Iterator[Any]:
        index = request.after_index
        while context.is_active():
            with self._fake.changed:
                fresh = [entry for entry in self._fake.entries if entry.index > index]
                if not fresh and request.follow:
                    self._fake.changed.wait(0.05)
            wanted = [entry for entry in fresh if _matches(entry, request)]
            if wanted:
                yield job_pb.StreamEventsResponse(entries=[codec.entry_to_proto(entry) for entry in wanted])
            index = fresh[-1].index if fresh else index
            if not request.follow:
                return
            planned = self._fake.failures.get("StreamEvents")
            if wanted and planned:
                context.abort(grpc.StatusCode.UNAVAILABLE, str(planned.pop(0)))

    def _StreamLogs(self, request: Any, context: Any) -> Iterator[Any]:
        for chunk in self._fake.logs:
            if not request.HasField("rank") or request.rank == chunk.rank:
                yield job_pb.StreamLogsResponse(
                    attempt_id=chunk.attempt_id,
                    rank=chunk.rank,
                    offset_bytes=chunk.offset_bytes,
                    data=chunk.data,
                    dropped_bytes=chunk.dropped_bytes,
                )


def _page(items: list[Any], token: str) -> tuple[list[Any], str]:
    start = int(token or 0)
    end = start + PAGE_SIZE
    return items[start:end], str(end) if end < len(items) else ""


def _matches(entry: HistoryEntry, request: Any) -> bool:
    return (
        (not request.HasField("job_id") or entry.job_id == request.job_id)
        and (not request.HasField("node_id") or entry.node_id == request.node_id)
        and (not request.kinds or entry.kind.value in request.kinds)
        and (not request.kinds_understood or entry.kind.value in request.kinds_understood)
    )


def _abort(context: Any, error: ArenaError) -> None:
    context.set_trailing_metadata(error_metadata(error))
    context.abort(status_code(error), error.message)
