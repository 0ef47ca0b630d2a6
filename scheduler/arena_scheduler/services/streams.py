"""Event and log streams: bounded in number, so that followers cannot starve heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from arena.domain.job import CommandSpec, JobId
from arena.domain.launch import NodeId
from arena.domain.records import AttemptRecord, HistoryEntry, JobRecord
from arena.engine.attempts import ranks_by_node
from arena.errors import NotFoundError, ResourceExhaustedError
from arena.rpc import codec
from arena.rpc.v1 import agent_service_pb2, common_pb2
from arena_scheduler.access import Caller
from arena_scheduler.cluster_view import ClusterView
from arena_scheduler.log_relay import LogRelay, LogRequest
from arena_scheduler.loop import Driver
from arena_scheduler.reading import HistoryQuery, Reader
from arena_scheduler.services.paging import chunked

STREAMS_MAX = 1_000
ENTRIES_PER_READ = 500
FOLLOW_INTERVAL_S = 0.05
CHUNKS_MERGED_MAX = 16
USERS_REMEMBERED = 10_000
PRIVATE_FACTS = frozenset(
    {"error", "result", "output", "message", "log_tail", "argv", "command", "spec", "skipped", "why"}
)


class StreamSlots:
    """A bound on open streams, over all kinds."""

    def __init__(self, count_max: int = STREAMS_MAX) -> None:
        self._count_max = count_max
        self._count = 0

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Hold a slot.

        Raises:
            ResourceExhaustedError: All are taken.
        """
        if self._count >= self._count_max:
            raise ResourceExhaustedError(
                "too many open streams", why=f"{self._count} of {self._count_max}", fix="try again in a while"
            )
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1


class EventStreams:
    """The history, to its end or for ever."""

    def __init__(self, *, driver: Driver, reader: Reader, view: ClusterView, slots: StreamSlots) -> None:
        self._driver = driver
        self._reader = reader
        self._view = view
        self._slots = slots
        self._user_by_job: dict[JobId, str] = {}

    async def stream(
        self, query: HistoryQuery, after_index: int, caller: Caller, *, follow: bool
    ) -> AsyncIterator[list[common_pb2.HistoryEntry]]:
        """Yield entries in chunks, in order, each once."""
        with self._slots.taken():
            while True:
                end = self._view.state.history_index
                entries = await asyncio.to_thread(self._reader.history, after_index, query, ENTRIES_PER_READ)
                visible = [await self._visible(entry, caller) for entry in entries]
                for chunk in chunked(codec.entry_to_proto(entry) for entry in visible):
                    yield chunk
                if entries:
                    after_index = entries[-1].index
                if len(entries) == ENTRIES_PER_READ:
                    continue
                if not follow:
                    return
                after_index = max(after_index, end)
                await self._wait_beyond(after_index)

    async def _wait_beyond(self, index: int) -> None:
        while self._view.state.history_index <= index:
            await self._driver.changed()
        await asyncio.sleep(FOLLOW_INTERVAL_S)  # several batches, one read

    async def _visible(self, entry: HistoryEntry, caller: Caller) -> HistoryEntry:
        if entry.job_id is None or caller.is_admin or caller.owns(await self._user_of(entry.job_id)):
            return entry
        data = {key: value for key, value in entry.data.items() if key not in PRIVATE_FACTS}
        # What follows the colon is a cause, which may be a text that the job's program wrote.
        return replace(entry, data=data, message=entry.message.partition(":")[0])

    async def _user_of(self, job_id: JobId) -> str:
        user = self._user_by_job.get(job_id)
        if user is None:
            record = await asyncio.to_thread(self._reader.get_job, job_id)
            user = record.user if record is not None else ""
            if len(self._user_by_job) >= USERS_REMEMBERED:
                self._user_by_job.clear()
            self._user_by_job[job_id] = user
        return user


class LogStreams:
    """The logs of an attempt's ranks, from the agents that have them."""

    def __init__(self, *, reader: Reader, relay: LogRelay, slots: StreamSlots) -> None:
        self._reader = reader
        self._relay = relay
        self._slots = slots

    async def stream(
        self, record: JobRecord, *, epoch: int | None, rank: int | None, tail_bytes: int | None, follow: bool
    ) -> AsyncIterator[agent_service_pb2.LogChunk]:
        """Yield chunks as they come; those of one rank are in order.

        Raises:
            NotFoundError: There is no such attempt or rank.
            UnavailableError: A node that has a part is out of reach.
        """
        attempt = await self._attempt(record, epoch)
        requests = [
            LogRequest(node_id=node_id, attempt_id=attempt.attempt_id, rank=rank, follow=follow, tail_bytes=tail_bytes)
            for node_id in _nodes_of(attempt, rank, record.spec.command)
        ]
        with self._slots.taken():
            async for chunk in self._merged(requests):
                yield chunk

    async def _attempt(self, record: JobRecord, epoch: int | None) -> AttemptRecord:
        attempts = await asyncio.to_thread(self._reader.attempts_of, record.job_id)
        if not attempts:
            raise NotFoundError(f"job {record.job_id} has no log", why="it was never started")
        if epoch is None:
            return attempts[-1]
        found = next((attempt for attempt in attempts if attempt.epoch == epoch), None)
        if found is None:
            raise NotFoundError(f"job {record.job_id} has no attempt {epoch}", why=f"it has {len(attempts)}")
        return found

    async def _merged(self, requests: list[LogRequest]) -> AsyncIterator[agent_service_pb2.LogChunk]:
        queue: asyncio.Queue[agent_service_pb2.LogChunk | Exception | None] = asyncio.Queue(CHUNKS_MERGED_MAX)

        async def pump(request: LogRequest) -> None:
            try:
                async for chunk in self._relay.read(request):
                    await queue.put(chunk)
            except Exception as error:  # noqa: BLE001 - handed to the reader
                await queue.put(error)
            else:
                await queue.put(None)

        tasks = [asyncio.create_task(pump(request)) for request in requests]
        error: Exception | None = None
        try:
            for _ in tasks:
                while (item := await queue.get()) is not None:
                    if isinstance(item, Exception):
                        error = item  # the other nodes' parts are still worth having
                        break
                    yield item
        finally:
            for task in tasks:
                task.cancel()
        if error is not None:
            raise error


def _nodes_of(attempt: AttemptRecord, rank: int | None, command: CommandSpec | None) -> tuple[NodeId, ...]:
    node_ids = attempt.allocation.node_ids
    if rank is None:
        return node_ids
    ranks = ranks_by_node(attempt.allocation, command)
    for node_id, node_ranks in zip(node_ids, ranks, strict=True):
        if rank in node_ranks:
            return (node_id,)
    count = sum(map(len, ranks))
    raise NotFoundError(f"attempt {attempt.attempt_id} has no rank {rank}", why=f"it has {count}")
