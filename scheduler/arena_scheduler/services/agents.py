"""The agents' session: registration and verdict, heartbeats and reports in, commands out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import grpc.aio

from arena.domain.events import Event, NodeDisconnected
from arena.domain.launch import NodeId
from arena.errors import ArenaError, InternalError, UnavailableError, UserError
from arena.rpc import codec
from arena.rpc.status import abort
from arena.rpc.v1 import agent_service_pb2 as pb
from arena.rpc.v1 import agent_service_pb2_grpc
from arena.rpc.version import check_protocol
from arena_scheduler.access import Access
from arena_scheduler.clock import LiveClock
from arena_scheduler.inbox import Inbox
from arena_scheduler.log_relay import LogRelay
from arena_scheduler.sessions import Session, Sessions

_log = logging.getLogger(__name__)

REGISTER_DEADLINE_S = 10.0

Stream = grpc.aio.ServicerContext[pb.OpenSessionRequest, pb.OpenSessionResponse]


class AgentService(agent_service_pb2_grpc.AgentServiceServicer):
    """One stream per agent."""

    def __init__(self, *, access: Access, sessions: Sessions, inbox: Inbox, clock: LiveClock, logs: LogRelay) -> None:
        self.access = access
        self._sessions = sessions
        self._inbox = inbox
        self._clock = clock
        self._logs = logs

    async def OpenSession(  # noqa: N802 - gRPC's name
        self, _requests: Any, context: Stream
    ) -> None:
        """Serve one agent for as long as its stream lasts."""
        try:
            await self._serve(context)
        except ArenaError as error:
            _log.warning("agent at %s: %s", context.peer(), error)
            await abort(context, error)
        except Exception as error:  # noqa: BLE001 - the outermost frame of a stream
            _log.exception("the session of the agent at %s failed", context.peer())
            await abort(context, InternalError("the session failed", why=repr(error)))

    async def _serve(self, context: Stream) -> None:
        register = await self._read_register(context)
        event = codec.register_from_proto(register, now_s=self._clock.now_s())
        session = await self._sessions.open(event.info.node_id, event.info.incarnation, context.peer())
        tasks: list[asyncio.Task[str]] = []
        why = "the registration was not stored"
        try:
            await self._inbox.request(event)  # its verdict is queued as the session's first message
            why = "the stream broke"
            tasks = [asyncio.create_task(self._read(context, session)), asyncio.create_task(_write(context, session))]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            why = done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            self._leave(session, why)
        if session.closed_why is not None and why == session.closed_why:
            raise UnavailableError(f"the session of node {session.node_id} was closed", why=why)

    async def _read_register(self, context: Stream) -> pb.Register:
        self.access.caller(context.invocation_metadata() or ()).require_agent()
        try:
            async with asyncio.timeout(REGISTER_DEADLINE_S):
                first: object = await context.read()  # may be the end of the stream
        except TimeoutError:
            # It may have come during a stall of our own, after which the limit is over before we have looked.
            raise UnavailableError(
                "no registration was read in time", why=f"waited {REGISTER_DEADLINE_S:g} s", fix="send it again"
            ) from None
        if not isinstance(first, pb.OpenSessionRequest) or first.WhichOneof("message") != "register":
            raise UserError("the first message of a session must be a registration")
        check_protocol(first.register.hello, f"agent {first.register.node_id}")
        return first.register

    def _leave(self, session: Session, why: str) -> None:
        """Tell the engine that a node is out of reach, unless another stream of it has taken over."""
        if self._sessions.remove(session):
            self._logs.node_gone(session.node_id, why)
            self._inbox.post(NodeDisconnected(node_id=session.node_id, incarnation=session.incarnation, why=why))

    async def _read(self, context: Stream, session: Session) -> str:
        while True:
            message = await context.read()
            if not isinstance(message, pb.OpenSessionRequest):
                return "the stream ended"
            if session.closed_why is not None:
                return session.closed_why  # what an older stream says no longer counts
            self._sessions.note_heard(session)
            try:
                self._take(message, session.node_id)
            except UserError as error:
                _log.warning("node %s sent what cannot be read: %s", session.node_id, error)

    def _take(self, message: pb.OpenSessionRequest, node_id: NodeId) -> None:
        match message.WhichOneof("message"):
            case "log_chunk":
                self._logs.take_chunk(message.log_chunk)
            case "log_end":
                self._logs.take_end(message.log_end)
            case "heartbeat":
                return
            case "register":
                raise UserError("a session has one registration", fix="open a new stream")
            case _:
                self._inbox.post(_event(message, node_id))


def _event(message: pb.OpenSessionRequest, node_id: NodeId) -> Event:
    match message.WhichOneof("message"):
        case "attempt_started":
            return codec.attempt_started_from_proto(message.attempt_started, node_id)
        case "worker_report":
            return codec.worker_report_from_proto(message.worker_report, node_id)
        case "attempt_ended":
            return codec.attempt_ended_from_proto(message.attempt_ended, node_id)
        case "devices_changed":
            return codec.devices_changed_from_proto(message.devices_changed, node_id)
        case "notice_changed":
            return codec.notice_changed_from_proto(message.notice_changed, node_id)
        case other:
            raise UserError(f"a message of kind {other} is not known here")


async def _write(context: Stream, session: Session) -> str:
    with contextlib.suppress(grpc.aio.BaseError):
        while (message := await session.outgoing.get()) is not None:
            await context.write(message)
    return session.closed_why or "the stream broke"
