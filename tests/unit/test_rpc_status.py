"""Errors keep their class and words over gRPC; statuses of others become errors that say what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import arena.errors
from arena.errors import (
    ArenaError,
    InfeasibleError,
    InternalError,
    NotFoundError,
    ProtocolVersionError,
    SpecError,
    UnavailableError,
)
from arena.rpc import status


def all_errors() -> Iterator[type[ArenaError]]:
    for item in vars(arena.errors).values():
        if isinstance(item, type) and issubclass(item, ArenaError):
            yield item


class Failure:
    """A failed call as a gRPC client sees it."""

    def __init__(self, code: grpc.StatusCode, details: str = "", metadata: Any = ()) -> None:
        self._status = (code, details, metadata)

    def code(self) -> grpc.StatusCode:
        return self._status[0]

    def details(self) -> str:
        return self._status[1]

    def trailing_metadata(self) -> Any:
        return self._status[2]


class Context:
    """A server's side of a call that records how it was ended."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Any) -> None:
        self.failure = Failure(code, details, trailing_metadata)


def carried(error: ArenaError) -> Failure:
    context = Context()
    asyncio.run(status.abort(context, error))
    return context.failure


@pytest.mark.parametrize("kind", list(all_errors()))
def test_an_error_arrives_as_the_class_it_was_raised_as(kind: type[ArenaError]) -> None:
    error = kind("it broke", why="7 of 8 left", fix="buy another", details={"left": "7"})
    received = status.error_from_rpc(carried(error), "127.0.0.1:1")
    assert type(received) is kind
    assert (received.what, received.why, received.fix) == (error.what, error.why, error.fix)
    assert received.details == error.details


def test_every_error_class_has_a_code_of_its_own_on_the_wire() -> None:
    kinds = list(all_errors())
    assert set(status.CODE_BY_ERROR) == set(kinds)
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_a_class_that_is_not_listed_has_the_code_of_its_nearest_ancestor() -> None:
    class TornSpecError(SpecError):
        code = "torn"

    assert status.status_code(TornSpecError("torn")) is grpc.StatusCode.INVALID_ARGUMENT


def test_an_error_too_long_for_the_trailers_keeps_its_class_and_its_beginning() -> None:
    details = {f"field-{index}": "é" * 500 for index in range(50)}
    failure = carried(InfeasibleError("é" * 5000, why="é" * 5000, fix="é" * 5000, details=details))
    size_bytes = sum(len(value) for _, value in failure.trailing_metadata())
    received = status.error_from_rpc(failure, "127.0.0.1:1")
    assert size_bytes < 4500
    assert len(failure.details()) <= 1024
    assert type(received) is InfeasibleError
    assert received.what.startswith("ééé")


def test_a_missing_scheduler_is_named_with_what_to_do() -> None:
    error = status.error_from_rpc(Failure(grpc.StatusCode.UNAVAILABLE, "connection refused"), "127.0.0.1:7713")
    assert type(error) is UnavailableError
    assert error.message == (
        "no scheduler answers at 127.0.0.1:7713: connection refused. "
        "Start one with `arena up`, or name the right one with --scheduler HOST:PORT"
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, ProtocolVersionError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, UnavailableError),
        (grpc.StatusCode.NOT_FOUND, NotFoundError),
        (grpc.StatusCode.DATA_LOSS, InternalError),
        (grpc.StatusCode.UNKNOWN, InternalError),
    ],
)
def test_a_status_without_an_error_of_ours_still_has_a_class_and_an_address(
    code: grpc.StatusCode, kind: type[ArenaError]
) -> None:
    error = status.error_from_rpc(Failure(code, "odd"), "10.0.0.1:1")
    assert type(error) is kind
    assert "10.0.0.1:1" in error.message
    assert "odd" in error.message


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b'{"code": "gone"}', b'{"code": "spec", "details": 3}'])
def test_metadata_of_another_form_is_not_trusted(data: bytes) -> None:
    failure = Failure(grpc.StatusCode.NOT_FOUND, "no job", ((status.ERROR_METADATA_KEY, data),))
    assert type(status.error_from_rpc(failure, "x:1")) is NotFoundError
