"""The frame around each call: protocol version, caller, errors as statuses."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

import grpc.aio

from arena.errors import ArenaError, InternalError
from arena.rpc.status import abort
from arena.rpc.v1 import common_pb2
from arena.rpc.version import check_protocol
from arena_scheduler.access import Access, Caller

_log = logging.getLogger(__name__)

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


S = TypeVar("S", bound=Service)
Req = TypeVar("Req", bound=Request)
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
