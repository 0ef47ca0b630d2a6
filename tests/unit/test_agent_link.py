"""Sending on the agent's stream: senders come and go, the stream stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from arena.errors import UnavailableError
from arena.rpc.v1 import agent_service_pb2 as pb
from arena_agent.app import end_all
from arena_agent.link import OpenSession


class SlowCall:
    """A stream that takes messages only when told to, and that ends, as gRPC's does, when a write is cancelled."""

    def __init__(self) -> None:
        self.takes = asyncio.Event()
        self.is_ended = False
        self.sent: list[int] = []

    async def write(self, message: pb.OpenSessionRequest) -> None:
        if self.is_ended:
            raise asyncio.InvalidStateError
        try:
            await self.takes.wait()
        except asyncio.CancelledError:
            self.is_ended = True
            raise
        self.sent.append(message.heartbeat.sequence)


def message(number: int) -> pb.OpenSessionRequest:
    return pb.OpenSessionRequest(heartbeat=pb.Heartbeat(sequence=number))


async def begun(session: OpenSession, number: int) -> asyncio.Task[None]:
    """Return a sender that has got as far as it can."""
    sender = asyncio.create_task(session.send(message(number)))
    for _ in range(5):
        await asyncio.sleep(0)
    return sender


@pytest.mark.parametrize("cancelled", [0, 1], ids=["while it writes", "while it waits for its turn"])
async def test_a_sender_that_is_cancelled_does_not_end_the_stream(cancelled: int) -> None:
    call: Any = SlowCall()
    session = OpenSession(call)
    senders = [await begun(session, number) for number in (1, 2)]
    senders[cancelled].cancel()
    await asyncio.gather(*senders[cancelled : cancelled + 1], return_exceptions=True)
    call.takes.set()
    await session.send(message(3))
    assert call.sent == [1, 2, 3]
    assert not call.is_ended


async def test_a_sender_on_a_stream_that_has_ended_is_told() -> None:
    call: Any = SlowCall()
    call.is_ended = True
    with pytest.raises(UnavailableError):
        await OpenSession(call).send(message(1))


async def test_a_part_that_misses_its_cancellation_is_cancelled_again() -> None:
    missed: list[int] = []

    async def connect_for_ever() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if missed:
                    raise
                missed.append(1)

    task: asyncio.Task[object] = asyncio.create_task(connect_for_ever())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await end_all({task})
    assert task.cancelled()
