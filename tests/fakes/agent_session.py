"""An agent as the scheduler sees one: a stream that a test drives message by message."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from arena.domain.cluster import NodeInfo
from arena.domain.events import EndedAttempt, HeldAttempt, NodeRegistered
from arena.rpc import codec
from arena.rpc.v1 import agent_service_pb2 as pb
from arena.rpc.v1 import agent_service_pb2_grpc


class AgentSession:
    """One open stream; what the scheduler sends waits in ``received`` to be asked for, its kind stays in ``kinds``."""

    def __init__(self, address: str, info: NodeInfo, *, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self.info = info
        self.received: list[pb.OpenSessionResponse] = []
        self.kinds: list[str | None] = []
        self.failure: grpc.aio.AioRpcError | None = None
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        stub = agent_service_pb2_grpc.AgentServiceStub(self._channel)
        self._call: Any = stub.OpenSession(metadata=metadata)
        self._tasks: list[asyncio.Task[None]] = []
        self._beating: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._arrived = asyncio.Condition()

    async def register(
        self, *, held: tuple[HeldAttempt, ...] = (), ended: tuple[EndedAttempt, ...] = (), protocol: int | None = None
    ) -> None:
        """Send the registration; the answer is the first message received."""
        event = NodeRegistered(info=self.info, held=held, ended=ended)
        register = codec.register_to_proto(event, agent_now_s=0.0)
        if protocol is not None:
            register.hello.protocol_version = protocol
        try:
            await self.send(pb.OpenSessionRequest(register=register))
        finally:
            self.listen()  # a stream that is refused at once ends before all is written

    def listen(self) -> None:
        """Read what the scheduler sends from now on."""
        self._tasks.append(asyncio.create_task(self._read()))

    async def send(self, message: pb.OpenSessionRequest) -> None:
        """Send a message; gRPC takes one write at a time."""
        async with self._writing:
            await self._call.write(message)

    async def heartbeats(self, interval_s: float) -> None:
        """Send heartbeats from now on."""

        async def beat() -> None:
            while True:
                await self.send(pb.OpenSessionRequest(heartbeat=pb.Heartbeat()))
                await asyncio.sleep(interval_s)

        self._beating = asyncio.create_task(beat())
        self._tasks.append(self._beating)

    def fall_silent(self) -> None:
        """Send no further heartbeats; the stream stays open."""
        if self._beating is not None:
            self._beating.cancel()

    async def _read(self) -> None:
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                async with self._arrived:
                    self.received.append(message)
                    self.kinds.append(message.WhichOneof("message"))
                    self._arrived.notify_all()
        except grpc.aio.AioRpcError as failure:
            self.failure = failure
        async with self._arrived:
            self._arrived.notify_all()

    async def next_of(self, kind: str, *, timeout_s: float = 20.0) -> Any:
        """Return the first message of a kind, waiting for it; earlier ones of other kinds stay."""

        def found() -> pb.OpenSessionResponse | None:
            return next((message for message in self.received if message.WhichOneof("message") == kind), None)

        async with asyncio.timeout(timeout_s), self._arrived:
            await self._arrived.wait_for(lambda: found() is not None or self.failure is not None)
        message = found()
        if message is None:
            assert self.failure is not None
            raise self.failure
        self.received.remove(message)
        return getattr(message, kind)

    async def ended(self, *, timeout_s: float = 20.0) -> grpc.aio.AioRpcError:
        """Return how the scheduler ended the stream, waiting for it."""
        async with asyncio.timeout(timeout_s), self._arrived:
            await self._arrived.wait_for(lambda: self.failure is not None)
        assert self.failure is not None
        return self.failure

    async def close(self) -> None:
        """Cut the stream."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._call.cancel()
        await self._channel.close()
