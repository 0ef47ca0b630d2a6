"""Calls to a scheduler under test, with the fields a test does not care about filled in."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from typing import Any

import grpc.aio

from arena.domain.job import JobSpec
from arena.errors import ArenaError
from arena.rpc import codec
from arena.rpc.status import error_from_rpc
from arena.rpc.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    common_pb2,
    job_service_pb2,
    job_service_pb2_grpc,
)
from arena.rpc.version import hello

REQUESTS = {
    name: getattr(module, f"{name}Request")
    for module, names in (
        (
            job_service_pb2,
            "SubmitJob GetJob ListJobs CancelJobs HoldJob ReleaseJob StreamEvents StreamLogs ExportJobs",
        ),
        (admin_service_pb2, "GetStatus ListNodes DrainNode UndrainNode"),
    )
    for name in names.split()
}


class SchedulerClient:
    """One connection; failures are raised as the errors they stand for."""

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        user: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        protocol: int | None = None,
    ) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.address = address
        self._channel = (
            grpc.aio.secure_channel(address, credentials, options=options)
            if credentials
            else grpc.aio.insecure_channel(address, options=options)
        )
        self._stubs = (
            job_service_pb2_grpc.JobServiceStub(self._channel),
            admin_service_pb2_grpc.AdminServiceStub(self._channel),
        )
        self._hello = hello()
        if protocol is not None:
            self._hello.protocol_version = protocol
        self._metadata = tuple(
            (key, value)
            for key, value in (("authorization", f"Bearer {token}" if token else None), ("x-arena-user", user))
            if value
        )

    def _method(self, name: str) -> Any:
        return next(getattr(stub, name) for stub in self._stubs if hasattr(stub, name))

    async def call(self, name: str, **fields: Any) -> Any:
        """Call a unary method."""
        try:
            return await self._method(name)(
                REQUESTS[name](hello=self._hello, **fields), metadata=self._metadata, timeout=30
            )
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure, self.address) from failure

    async def stream(self, name: str, *, count_max: int | None = None, **fields: Any) -> list[Any]:
        """Call a streaming method; return its messages, at most so many."""
        call = self._method(name)(REQUESTS[name](hello=self._hello, **fields), metadata=self._metadata, timeout=30)
        messages: list[Any] = []
        try:
            async for message in call:
                messages.append(message)
                if count_max is not None and len(messages) >= count_max:
                    break
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure, self.address) from failure
        finally:
            call.cancel()
        return messages

    def start_stream(self, name: str, **fields: Any) -> asyncio.Task[list[Any]]:
        """Call a streaming method and return at once; the task returns its messages."""
        return asyncio.create_task(self.stream(name, **fields))

    async def submit(self, spec: JobSpec, *, request_id: str | None = None, **fields: Any) -> str:
        """Submit a job; return its id."""
        response = await self.call(
            "SubmitJob", spec=codec.spec_to_proto(spec), request_id=request_id or uuid.uuid4().hex, **fields
        )
        return str(response.job_id)

    async def job(self, job_id: str) -> Any:
        """Return a job."""
        return (await self.call("GetJob", job_id=job_id)).job

    async def entries(self, **fields: Any) -> list[common_pb2.HistoryEntry]:
        """Return the history so far."""
        messages = await self.stream("StreamEvents", **fields)
        return list(itertools.chain.from_iterable(message.entries for message in messages))

    async def failure(self, name: str, **fields: Any) -> ArenaError:
        """Return the error of a unary call that must fail."""
        try:
            await self.call(name, **fields)
        except ArenaError as error:
            return error
        raise AssertionError(f"{name} did not fail")

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()
