"""A scheduler that an agent can talk to: it records what it hears and says what a test tells it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from arena.domain.commands import StopAttempt
from arena.domain.events import AttemptEnded, DevicesChanged, NodeRegistered, WorkerReported
from arena.domain.launch import AttemptId, Launch, NodeId, WorkerReport
from arena.domain.records import NodeEnd
from arena.errors import ArenaError
from arena.rpc import codec
from arena.rpc.status import abort
from arena.rpc.v1 import agent_service_pb2 as pb
from arena.rpc.v1 import agent_service_pb2_grpc

WAIT_S = 60.0


@dataclass(slots=True, eq=False)
class FakeSession:
    """One stream of an agent, with all that came in it."""

    context: Any
    registered: NodeRegistered
    messages: list[pb.OpenSessionRequest] = field(default_factory=list)

    @property
    def token(self) -> str | None:
        """What the agent sent as its authorization."""
        return dict(self.context.invocation_metadata()).get("authorization")

    @property
    def node_id(self) -> NodeId:
        return self.registered.info.node_id


class FakeScheduler(agent_service_pb2_grpc.AgentServiceServicer):
    """Keeps every attempt it is told to keep, acknowledges ends unless told otherwise."""

    def __init__(self) -> None:
        self.sessions: list[FakeSession] = []
        self.refusal: ArenaError | None = None
        self.kill: tuple[AttemptId, ...] = ()
        self.acknowledges = True
        self.heartbeat_interval_s = 0.2
        self._news = asyncio.Condition()

    async def OpenSession(self, _requests: Any, context: Any) -> None:
        if self.refusal is not None:
            await abort(context, self.refusal)
        first = await context.read()
        session = FakeSession(context, codec.register_from_proto(first.register, now_s=0.0))
        held = {item.attempt_id for item in session.registered.held}
        verdict = pb.Verdict(
            keep_attempt_ids=sorted(held - set(self.kill)),
            kill_attempt_ids=sorted(held & set(self.kill)),
            heartbeat_interval_s=self.heartbeat_interval_s,
            node_grace_s=10.0,
        )
        await context.write(pb.OpenSessionResponse(verdict=verdict))
        self.sessions.append(session)
        for item in session.registered.ended:
            await self._acknowledge(session, item.attempt_id)
        await self._tell()
        while isinstance(message := await context.read(), pb.OpenSessionRequest):
            session.messages.append(message)
            if message.WhichOneof("message") == "attempt_ended":
                await self._acknowledge(session, AttemptId(message.attempt_ended.attempt_id))
            await self._tell()

    async def _acknowledge(self, session: FakeSession, attempt_id: AttemptId) -> None:
        if self.acknowledges:
            acknowledge = pb.AcknowledgeEnd(attempt_id=attempt_id)
            await session.context.write(pb.OpenSessionResponse(acknowledge_end=acknowledge))

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def until(self, condition: Callable[[], bool], limit_s: float = WAIT_S) -> None:
        """Wait for a condition over what was heard."""
        async with self._news:
            try:
                await asyncio.wait_for(self._news.wait_for(condition), limit_s)
            except TimeoutError:
                heard = [[m for m in s.messages if m.WhichOneof("message") != "heartbeat"] for s in self.sessions]
                raise AssertionError(f"did not come true in {limit_s} s; heard: {heard}") from None

    async def connected(self, count: int = 1) -> FakeSession:
        """Wait for the given number of streams; return the latest."""
        await self.until(lambda: len(self.sessions) >= count)
        return self.sessions[-1]

    async def launch(self, launch: Launch) -> None:
        await self._say(pb.OpenSessionResponse(launch=codec.launch_to_proto(launch)))

    async def try_launch(self, launch: Launch) -> None:
        """Launch on the latest stream, which may be broken by now."""
        with contextlib.suppress(grpc.aio.UsageError, grpc.aio.AbortError, asyncio.InvalidStateError):
            await self.launch(launch)

    async def stop(self, attempt_id: AttemptId, mode: Any = "save", grace_s: float = 10.0) -> None:
        command = StopAttempt(node_id=self.sessions[-1].node_id, attempt_id=attempt_id, mode=mode, grace_s=grace_s)
        await self._say(pb.OpenSessionResponse(stop_attempt=codec.stop_attempt_to_proto(command)))

    async def read_log(self, attempt_id: AttemptId, **options: Any) -> bytes:
        """Return an attempt's log as the agent sends it, gaps marked."""
        read_id = f"read-{len(self.log_chunks)}-{attempt_id}"
        request = pb.ReadLog(read_id=read_id, attempt_id=attempt_id, **options)
        await self._say(pb.OpenSessionResponse(read_log=request))
        await self.until(lambda: any(m.log_end.read_id == read_id for m in self.heard("log_end")))
        chunks = [chunk for chunk in self.log_chunks if chunk.read_id == read_id]
        return b"".join(
            (b"[%d dropped]" % chunk.dropped_bytes if chunk.dropped_bytes else b"") + chunk.data for chunk in chunks
        )

    async def log_shows(self, attempt_id: AttemptId, text: bytes) -> None:
        """Wait until an attempt's log holds a text."""
        async with asyncio.timeout(WAIT_S):
            while text not in await self.read_log(attempt_id):
                await asyncio.sleep(0.05)

    async def _say(self, message: pb.OpenSessionResponse) -> None:
        await self.sessions[-1].context.write(message)

    def heard(self, kind: str) -> list[pb.OpenSessionRequest]:
        """All messages of a kind over all streams."""
        return [m for session in self.sessions for m in session.messages if m.WhichOneof("message") == kind]

    @property
    def log_chunks(self) -> list[pb.LogChunk]:
        return [message.log_chunk for message in self.heard("log_chunk")]

    def is_started(self, attempt_id: AttemptId) -> bool:
        return any(m.attempt_started.attempt_id == attempt_id for m in self.heard("attempt_started"))

    def ends(self, attempt_id: AttemptId) -> list[NodeEnd]:
        """All ends heard of an attempt, in messages and registrations."""
        found: list[NodeEnd] = []
        for session in self.sessions:
            found += [item.end for item in session.registered.ended if item.attempt_id == attempt_id]
            events: list[AttemptEnded] = [
                codec.attempt_ended_from_proto(m.attempt_ended, session.node_id)
                for m in session.messages
                if m.WhichOneof("message") == "attempt_ended"
            ]
            found += [event.end for event in events if event.attempt_id == attempt_id]
        return found

    async def end(self, attempt_id: AttemptId) -> NodeEnd:
        """Wait for an attempt's end."""
        await self.until(lambda: bool(self.ends(attempt_id)))
        return self.ends(attempt_id)[0]

    def reports(self, attempt_id: AttemptId) -> list[WorkerReport]:
        events: list[WorkerReported] = [
            codec.worker_report_from_proto(m.worker_report, NodeId("n")) for m in self.heard("worker_report")
        ]
        return [event.report for event in events if event.attempt_id == attempt_id]

    def device_changes(self) -> list[DevicesChanged]:
        return [codec.devices_changed_from_proto(m.devices_changed, NodeId("n")) for m in self.heard("devices_changed")]


@asynccontextmanager
async def serving(
    scheduler: FakeScheduler, port: int = 0, credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[str]:
    """Serve a fake scheduler on loopback; yield its address."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0), ("grpc.http2.min_ping_interval_without_data_ms", 5000)))
    agent_service_pb2_grpc.add_AgentServiceServicer_to_server(scheduler, server)
    address = f"127.0.0.1:{port}"
    bound = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    await server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        await server.stop(grace=0)
