"""Arena's errors as gRPC statuses and back, so that the client raises the class that the server raised."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn, Protocol

import grpc

from arena.errors import (
    AlreadyRunningError,
    ArenaError,
    AuthenticationError,
    IllegalTransitionError,
    InfeasibleError,
    InternalError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolVersionError,
    RefusedError,
    ResourceExhaustedError,
    SpecError,
    UnavailableError,
    UserError,
)

ERROR_METADATA_KEY: Final = "arena-error-bin"
ADDRESS_DETAIL: Final = "scheduler"
"""Detail of an ``UnavailableError`` that has the address at which nobody answers."""
# gRPC drops trailers above 8 KiB; both the message and the binary form must fit beside each other.
_MESSAGE_CHARS_MAX = 1024
_METADATA_BYTES_MAX = 4096
_FIELD_CHARS_MAX = 900
_SHORT_CHARS_MAX = 220

_Code = grpc.StatusCode
CODE_BY_ERROR: Final[dict[type[ArenaError], grpc.StatusCode]] = {
    ArenaError: _Code.UNKNOWN,
    UserError: _Code.INVALID_ARGUMENT,
    SpecError: _Code.INVALID_ARGUMENT,
    NotFoundError: _Code.NOT_FOUND,
    IllegalTransitionError: _Code.FAILED_PRECONDITION,
    AuthenticationError: _Code.UNAUTHENTICATED,
    PermissionDeniedError: _Code.PERMISSION_DENIED,
    ProtocolVersionError: _Code.FAILED_PRECONDITION,
    RefusedError: _Code.FAILED_PRECONDITION,
    InfeasibleError: _Code.FAILED_PRECONDITION,
    ResourceExhaustedError: _Code.RESOURCE_EXHAUSTED,
    UnavailableError: _Code.UNAVAILABLE,
    AlreadyRunningError: _Code.UNAVAILABLE,
    InternalError: _Code.INTERNAL,
}

# What a status means that carries no error of ours: it came from gRPC itself, a proxy or another server.
_ERROR_BY_CODE: Final[dict[grpc.StatusCode, type[ArenaError]]] = {
    _Code.INVALID_ARGUMENT: UserError,
    _Code.NOT_FOUND: NotFoundError,
    _Code.FAILED_PRECONDITION: RefusedError,
    _Code.UNAUTHENTICATED: AuthenticationError,
    _Code.PERMISSION_DENIED: PermissionDeniedError,
    _Code.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    _Code.UNAVAILABLE: UnavailableError,
    _Code.DEADLINE_EXCEEDED: UnavailableError,
    _Code.CANCELLED: UnavailableError,
    _Code.ABORTED: UnavailableError,
}

Metadata = tuple[tuple[str, bytes], ...]


class RpcFailure(Protocol):
    """What both kinds of gRPC client errors have (``grpc.Call`` and ``grpc.aio.AioRpcError``)."""

    def code(self) -> grpc.StatusCode:
        """The status code."""
        ...

    def details(self) -> str | None:
        """The status message."""
        ...

    def trailing_metadata(self) -> Any:
        """Pairs of key and value sent with the status."""
        ...


class _AbortableContext(Protocol):
    """The part of ``grpc.aio.ServicerContext`` that ends a call with a status."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Any) -> NoReturn: ...


def status_code(error: ArenaError) -> grpc.StatusCode:
    """Return the gRPC code of an error: that of its class, or of the nearest listed ancestor."""
    return next(CODE_BY_ERROR[kind] for kind in type(error).__mro__ if kind in CODE_BY_ERROR)


def error_metadata(error: ArenaError) -> Metadata:
    """Return the trailing metadata that carries an error's class and fields, cut to what gRPC lets through."""
    fields: dict[str, Any] = {
        "code": error.code,
        "what": _cut(error.what),
        "why": _cut(error.why),
        "fix": _cut(error.fix),
        "details": error.details,
    }
    data = json.dumps(fields).encode()
    if len(data) > _METADATA_BYTES_MAX:
        short = {key: _cut(fields[key], _SHORT_CHARS_MAX) for key in ("what", "why", "fix")}
        data = json.dumps({"code": error.code, **short, "details": {}}).encode()
    return ((ERROR_METADATA_KEY, data),)


async def abort(context: _AbortableContext, error: ArenaError) -> NoReturn:
    """End an asynchronous call with an error's status."""
    await context.abort(status_code(error), _cut(error.message, _MESSAGE_CHARS_MAX), error_metadata(error))


def _cut(text: str, chars_max: int = _FIELD_CHARS_MAX) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 4] + " ..."


def error_from_rpc(failure: RpcFailure, address: str) -> ArenaError:
    """Return the error that a failed call stands for.

    Args:
        failure: The exception of a gRPC client.
        address: The scheduler that was called, for the message.
    """
    carried = _carried_error(failure.trailing_metadata() or ())
    return carried if carried is not None else _foreign_error(failure.code(), failure.details() or "", address)


def _carried_error(metadata: Sequence[tuple[str, str | bytes]]) -> ArenaError | None:
    for key, value in metadata:
        if key == ERROR_METADATA_KEY:
            try:
                fields = json.loads(value)
                kind = _error_classes()[fields["code"]]
                details = {str(name): str(item) for name, item in fields["details"].items()}
                return kind(fields["what"], why=fields["why"], fix=fields["fix"], details=details)
            except (ValueError, KeyError, TypeError, AttributeError):
                return None  # another version's form: the status itself still tells the tale
    return None


def _foreign_error(code: grpc.StatusCode, details: str, address: str) -> ArenaError:
    if code is _Code.UNAVAILABLE:
        return UnavailableError(
            f"no scheduler answers at {address}",
            why=_cut(details),
            fix="start one with `arena up`, or name the right one with --scheduler HOST:PORT",
            details={ADDRESS_DETAIL: address},
        )
    if code is _Code.DEADLINE_EXCEEDED:
        return UnavailableError(
            f"the scheduler at {address} did not answer in time", why=_cut(details), fix="try again, or see its log"
        )
    if code is _Code.UNIMPLEMENTED:
        return ProtocolVersionError(
            f"the server at {address} does not know this call",
            why=_cut(details),
            fix="use the same arena-sched version on both sides, and check that the address is a scheduler's",
        )
    kind = _ERROR_BY_CODE.get(code, InternalError)
    return kind(f"the call to the scheduler at {address} failed", why=f"{code.name}: {_cut(details)}")


def _error_classes() -> dict[str, type[ArenaError]]:
    # A class without a code of its own arrives as the nearest that has one: only that one's making is known.
    return {kind.code: kind for kind in _descendants(ArenaError) if "code" in vars(kind)}


def _descendants(kind: type[ArenaError]) -> Iterator[type[ArenaError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _descendants(child)
