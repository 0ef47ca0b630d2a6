"""The link to the scheduler: one stream, made anew for ever, with a full registration at its start."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import grpc
import grpc.aio

from arena.domain.events import (
    AttemptEnded,
    AttemptStarted,
    DevicesChanged,
    NodeNoticeChanged,
    NodeRegistered,
    WorkerReported,
)
from arena.errors import (
    AlreadyRunningError,
    ArenaError,
    AuthenticationError,
    PermissionDeniedError,
    ProtocolVersionError,
    UnavailableError,
    UserError,
)
from arena.rpc.codec import (
    Verdict,
    attempt_ended_to_proto,
    attempt_started_to_proto,
    devices_changed_to_proto,
    notice_changed_to_proto,
    register_to_proto,
    verdict_from_proto,
    worker_report_to_proto,
)
from arena.rpc.status import error_from_rpc
from arena.rpc.v1 import agent_service_pb2 as pb
from arena.rpc.v1.agent_service_pb2_grpc import AgentServiceStub
from arena_agent.clock import wall_s
from arena_agent.config import AgentConfig

News = AttemptStarted | WorkerReported | AttemptEnded | DevicesChanged | NodeNoticeChanged
Call = grpc.aio.StreamStreamCall[pb.OpenSessionRequest, pb.OpenSessionResponse]

_BACKOFF_S_MIN = 0.2
_BACKOFF_S_MAX = 5.0
_VERDICT_LIMIT_S = 30.0
_NEWS_INTERVAL_S = 0.1
_HEARTBEAT_INTERVAL_S_DEFAULT = 1.0
_FINAL = (AuthenticationError, PermissionDeniedError, ProtocolVersionError)
# The stream's own heartbeats decide who lives; these pings only find a route that swallows everything. The scheduler
# permits them every 10 s.
_CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

_log = logging.getLogger(__name__)


class Session(Protocol):
    """Sends messages within one life of the stream."""

    async def send(self, message: pb.OpenSessionRequest) -> None:
        """Send a message.

        Raises:
            UnavailableError: The stream is broken.
        """


class LinkOwner(Protocol):
    """Whose link it is: what it has to say and what it does about what it hears."""

    def registration(self) -> NodeRegistered:
        """Return the full inventory, for a stream that begins."""

    def news(self) -> Iterable[News]:
        """Return what was not yet said on this stream, in order."""

    def take_verdict(self, verdict: Verdict) -> None:
        """Act on the answer to the registration."""

    def take_message(self, message: pb.OpenSessionResponse, session: Session) -> None:
        """Act on a command."""

    def session_ended(self) -> None:
        """Stop what belonged to the stream."""

    async def wait_for_news(self, limit_s: float) -> None:
        """Return when there may be news, or after the limit."""


class OpenSession:
    """One life of the stream.

    Args:
        call: The stream.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._turn = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()

    async def send(self, message: pb.OpenSessionRequest) -> None:
        """Send a message; a sender that is cancelled meanwhile leaves it to be sent.

        gRPC ends the whole stream when a write to it is cancelled: a reader of a log who goes away must not do that.
        """
        write = asyncio.create_task(self._write(message))
        self._writes.add(write)
        write.add_done_callback(self._forget)
        await asyncio.shield(write)

    def _forget(self, write: asyncio.Task[None]) -> None:
        self._writes.discard(write)
        if not write.cancelled():
            write.exception()  # seen, even if the sender is gone

    async def _write(self, message: pb.OpenSessionRequest) -> None:
        """Write a message; writers take turns."""
        async with self._turn:
            try:
                await self._call.write(message)
            except asyncio.InvalidStateError as error:
                raise UnavailableError("the stream to the scheduler is closed") from error


class Link:
    """Keeps the stream.

    Args:
        config: Where the scheduler is, and our token.
        owner: The agent.
    """

    def __init__(self, config: AgentConfig, owner: LinkOwner) -> None:
        self._config = config
        self._owner = owner
        self._was_registered = False
        self._had_session = False
        self._credentials: grpc.ChannelCredentials | None = None
        self._random = random.Random(config.node_id)

    async def run(self) -> None:
        """Hold a stream until the scheduler refuses us for good.

        Raises:
            ArenaError: It refuses us (token, protocol version, a node id that is taken) and said why.
            UserError: The certificate authority cannot be read.
        """
        backoff_s = _BACKOFF_S_MIN
        while True:
            channel = self._channel()
            try:
                await self._hold_session(channel)
            except grpc.aio.AioRpcError as rpc_error:
                error = error_from_rpc(rpc_error, self._config.scheduler)
                if self._is_final(error):
                    raise error from rpc_error
                _log.warning("no session with the scheduler at %s: %s", self._config.scheduler, error.message)
            except UnavailableError as error:
                _log.warning("the session with the scheduler ended: %s", error.message)
            except Exception:  # noqa: BLE001 - the outermost frame of a session: jobs must not lose their agent
                _log.exception("the session with the scheduler failed here")
            finally:
                self._owner.session_ended()
                await channel.close()
            backoff_s = _BACKOFF_S_MIN if self._was_registered else min(_BACKOFF_S_MAX, backoff_s * 2)
            self._was_registered = False
            await asyncio.sleep(backoff_s * self._random.uniform(0.5, 1.5))

    def _is_final(self, error: ArenaError) -> bool:
        """Whether trying again cannot help; a node id that is taken may be our own old stream, if we had one.

        All else may be the scheduler's own trouble, or a word of something on the way: an agent that ended over it
        would take its jobs with it.
        """
        return isinstance(error, _FINAL) or (isinstance(error, AlreadyRunningError) and not self._had_session)

    def _channel(self) -> grpc.aio.Channel:
        target = self._config.scheduler
        if self._config.tls_ca is None:
            return grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(target, self._present_credentials(self._config.tls_ca), options=_CHANNEL_OPTIONS)

    def _present_credentials(self, authority: Path) -> grpc.ChannelCredentials:
        """Return what the scheduler's certificate is checked with; it may have been renewed since the last stream."""
        try:
            self._credentials = grpc.ssl_channel_credentials(authority.read_bytes())
        except OSError as error:
            if self._credentials is None:
                raise UserError(
                    f"the certificate authority {authority} cannot be read", why=str(error), fix="give another one"
                ) from error
            _log.warning("the certificate authority %s cannot be read, the last one is used: %s", authority, error)
        return self._credentials

    async def _hold_session(self, channel: grpc.aio.Channel) -> None:
        token = self._config.token
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        call: Call = AgentServiceStub(channel).OpenSession(metadata=metadata)  # type: ignore[no-untyped-call]
        session = OpenSession(call)
        try:
            register = register_to_proto(self._owner.registration(), agent_now_s=wall_s())
            await session.send(pb.OpenSessionRequest(register=register))
            verdict = await _read_verdict(call)
            self._was_registered = self._had_session = True
            _log.info("registered with the scheduler at %s", self._config.scheduler)
            self._owner.take_verdict(verdict)
            await self._talk(call, session, verdict.heartbeat_interval_s or _HEARTBEAT_INTERVAL_S_DEFAULT)
        finally:
            call.cancel()

    async def _talk(self, call: Call, session: OpenSession, heartbeat_interval_s: float) -> None:
        """Read, tell news and send heartbeats until one of them fails."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(call, session))
                group.create_task(self._tell_news(session))
                group.create_task(_beat(session, heartbeat_interval_s))
        except* (grpc.aio.AioRpcError, UnavailableError) as errors:
            first: BaseException = errors
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first from None

    async def _read(self, call: Call, session: OpenSession) -> None:
        while isinstance(message := await call.read(), pb.OpenSessionResponse):
            self._owner.take_message(message, session)
        raise await _end_of(call)

    async def _tell_news(self, session: OpenSession) -> None:
        while True:
            for item in self._owner.news():
                await session.send(_news_to_proto(item))
            await self._owner.wait_for_news(_NEWS_INTERVAL_S)


async def _read_verdict(call: Call) -> Verdict:
    try:
        async with asyncio.timeout(_VERDICT_LIMIT_S):
            message = await call.read()
    except TimeoutError as error:
        raise UnavailableError("the scheduler does not answer the registration") from error
    if not isinstance(message, pb.OpenSessionResponse):
        raise await _end_of(call)
    if message.WhichOneof("message") != "verdict":
        raise UnavailableError("the scheduler does not answer the registration with a verdict")
    return verdict_from_proto(message.verdict)


async def _end_of(call: Call) -> Exception:
    """Return the error a stream ended with."""
    code, details = await call.code(), await call.details()
    if code is grpc.StatusCode.OK:
        return UnavailableError("the scheduler closed the stream")
    return grpc.aio.AioRpcError(code, await call.initial_metadata(), await call.trailing_metadata(), details=details)


async def _beat(session: OpenSession, interval_s: float) -> None:
    sequence = 0
    while True:
        await asyncio.sleep(interval_s)
        sequence += 1
        await session.send(pb.OpenSessionRequest(heartbeat=pb.Heartbeat(sequence=sequence)))


def _news_to_proto(item: News) -> pb.OpenSessionRequest:
    match item:
        case AttemptStarted():
            return pb.OpenSessionRequest(attempt_started=attempt_started_to_proto(item))
        case WorkerReported():
            return pb.OpenSessionRequest(worker_report=worker_report_to_proto(item))
        case AttemptEnded():
            return pb.OpenSessionRequest(attempt_ended=attempt_ended_to_proto(item.attempt_id, item.end))
        case DevicesChanged():
            return pb.OpenSessionRequest(devices_changed=devices_changed_to_proto(item))
        case NodeNoticeChanged():
            return pb.OpenSessionRequest(notice_changed=notice_changed_to_proto(item))
