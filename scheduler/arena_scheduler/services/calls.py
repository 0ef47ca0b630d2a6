"""The frame around each call: protocol version, caller, errors as statuses, answers to who asks again."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import grpc.aio

from arena.errors import ArenaError, InternalError
from arena.rpc.status import abort
from arena.rpc.v1 import common_pb2
from arena.rpc.version import check_protocol
from arena_scheduler.access import Access, Caller
from arena_scheduler.once import Once

_log = logging.getLogger(__name__)

ANSWERS_KEPT = 4_096
"""Of each service; whoever asks again does so within a minute."""

Context = grpc.aio.ServicerContext[Any, Any]


class Request(Protocol):
    """What every request carries."""

    @property
    def hello(self) -> common_pb2.Hello:
        """The caller's greeting."""
        ...


class Service(Protocol):
    """What the frame needs of a service."""

    access: Access


class Change(Request, Protocol):
    """What a request carries besides that is to change something."""

    @property
    def request_id(self) -> str:
        """Made by the client, the same whenever it makes this request again; empty where it never does."""
        ...

    def SerializeToString(self, *, deterministic: bool) -> bytes:  # noqa: N802
        """Return the request as bytes."""
        ...


class ChangingService(Service, Protocol):
    """What the frame needs of a service that changes something."""

    answers: Once[Any]


S = TypeVar("S", bound=Service)
C = TypeVar("C", bound=ChangingService)
Req = TypeVar("Req", bound=Request)
ChangeReq = TypeVar("ChangeReq", bound=Change)
Resp = TypeVar("Resp")


def _enter(service: Service, request: Request, context: Context) -> Caller:
    check_protocol(request.hello, "the client")
    return service.access.caller(context.invocation_metadata() or ())


def _as_arena_error(error: Exception, name: str) -> ArenaError:
    if isinstance(error, ArenaError):
        return error
    _log.exception("%s failed", name)
    return InternalError(f"{name} failed", why=repr(error), fix="see the scheduler's log")


def unary(method: Callable[[S, Req, Caller], Awaitable[Resp]]) -> Callable[[S, Req, Context], Awaitable[Resp]]:
    """Frame a method that answers once."""

    @functools.wraps(method)
    async def call(service: S, request: Req, context: Context) -> Resp:
        try:
            return await method(service, request, _enter(service, request, context))
        except Exception as error:  # noqa: BLE001 - the outermost frame of a call
            await abort(context, _as_arena_error(error, method.__name__))

    return call


def kept_answers() -> Once[Any]:
    """Return a memory for the answers of a service's changes."""
    return Once(kept_max=ANSWERS_KEPT)


def change(
    method: Callable[[C, ChangeReq, Caller], Coroutine[Any, Any, Resp]],
) -> Callable[[C, ChangeReq, Context], Awaitable[Resp]]:
    """Frame a method that changes something and answers once: the same request again is answered, and not done again.

    A client repeats a request when its connection breaks, and then cannot know whether it was done. While the first is
    under way, which goes on though its caller is gone, the second waits for the same answer. What failed is done when
    it is said again. The memory of answers is this process's: a request that one before it did, and whose answer was
    lost, is done again. (Submissions are remembered in the store: see ``Submission``.) The same id with other words is
    another request.
    """

    @functools.wraps(method)
    async def once(service: C, request: ChangeReq, caller: Caller) -> Resp:
        if not request.request_id:
            return await method(service, request, caller)
        digest = hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
        key = (caller, method.__name__, digest)
        answer, _ = await service.answers.of(key, lambda: method(service, request, caller))
        return answer  # type: ignore[no-any-return]  # by its key it is this method's

    return unary(once)


def streaming(
    method: Callable[[S, Req, Caller], AsyncIterator[Resp]],
) -> Callable[[S, Req, Context], AsyncIterator[Resp]]:
    """Frame a method that answers with a stream."""

    @functools.wraps(method)
    async def call(service: S, request: Req, context: Context) -> AsyncIterator[Resp]:
        try:
            async for response in method(service, request, _enter(service, request, context)):
                yield response
        except Exception as error:  # noqa: BLE001 - the outermost frame of a call
            await abort(context, _as_arena_error(error, method.__name__))

    return call
