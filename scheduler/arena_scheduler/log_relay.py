"""Relays ranks' logs from agents to readers, with bounded buffers and without ever holding up an agent's session.

A reader that falls behind makes the relay cancel the read and, once it has caught up, ask again from where it is; what
an older agent sends again nevertheless, from the beginning, is skipped by its offsets.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from arena.domain.launch import AttemptId, NodeId
from arena.errors import UnavailableError
from arena.rpc.v1 import agent_service_pb2 as pb
from arena_scheduler.sessions import Sessions

CHUNKS_BUFFERED_MAX = 64
CHUNK_BYTES_MAX = 48 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """What a reader wants of an attempt's logs on one node."""

    node_id: NodeId
    attempt_id: AttemptId
    rank: int | None
    follow: bool
    tail_bytes: int | None


@dataclass(slots=True, kw_only=True, eq=False)
class _Read:
    """One read at one agent.

    Args:
        read_id: Name of the read under way; a paused read has an old one, so late chunks of it are dropped.
        position_by_rank: End of what was delivered.
    """

    request: LogRequest
    read_id: str
    chunks: deque[pb.LogChunk] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    position_by_rank: dict[int, int] = field(default_factory=dict)
    is_paused: bool = False
    is_ended: bool = False
    error: str | None = None


class LogRelay:
    """All reads under way."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._reads: dict[str, _Read] = {}
        self._numbers = itertools.count(1)

    async def read(self, request: LogRequest) -> AsyncIterator[pb.LogChunk]:
        """Yield an attempt's log chunks of one node, in order for each rank.

        Raises:
            UnavailableError: The node is out of reach, or its agent cannot read the log.
        """
        read = _Read(request=request, read_id="")
        self._start(read)
        try:
            while True:
                while read.chunks:
                    yield read.chunks.popleft()
                if read.is_paused:
                    self._start(read)
                elif read.is_ended:
                    break
                read.filled.clear()
                if not read.chunks and not read.is_ended:
                    await read.filled.wait()
            if read.error:
                raise UnavailableError(
                    f"the log of attempt {request.attempt_id} on node {request.node_id} cannot be read",
                    why=read.error,
                )
        finally:
            self._stop(read)

    def _start(self, read: _Read) -> None:
        request = read.request
        read.read_id = f"r{next(self._numbers)}"
        read.is_paused = False
        message = pb.ReadLog(
            read_id=read.read_id,
            attempt_id=request.attempt_id,
            rank=request.rank,
            follow=request.follow,
            tail_bytes=None if read.position_by_rank else request.tail_bytes,
            offset_bytes_by_rank=read.position_by_rank,
        )
        if not self._sessions.send(request.node_id, pb.OpenSessionResponse(read_log=message)):
            raise UnavailableError(
                f"node {request.node_id} is out of reach", why="its logs live there", fix="try again later"
            )
        self._reads[read.read_id] = read

    def _stop(self, read: _Read) -> None:
        if self._reads.pop(read.read_id, None) is not None and not read.is_ended:
            cancel = pb.OpenSessionResponse(cancel_read=pb.CancelRead(read_id=read.read_id))
            self._sessions.send(read.request.node_id, cancel)

    def take_chunk(self, chunk: pb.LogChunk) -> None:
        """Take what an agent sent; never blocks."""
        read = self._reads.get(chunk.read_id)
        if read is None:
            return
        if len(read.chunks) >= CHUNKS_BUFFERED_MAX:
            self._stop(read)
            read.is_paused = True
            return
        position = read.position_by_rank.get(chunk.rank, 0)
        end = chunk.offset_bytes + len(chunk.data)
        if end <= position and chunk.data:
            return
        skip = max(0, position - chunk.offset_bytes)
        read.position_by_rank[chunk.rank] = max(position, end)
        for part in _parts(chunk, skip):
            read.chunks.append(part)
        read.filled.set()

    def take_end(self, end: pb.LogEnd) -> None:
        """Take the word that a read is complete, or why it cannot be."""
        read = self._reads.pop(end.read_id, None)
        if read is not None:
            self._end(read, end.error if end.HasField("error") else None)

    def node_gone(self, node_id: NodeId, why: str) -> None:
        """End the reads at a node whose stream is down."""
        for read_id, read in list(self._reads.items()):
            if read.request.node_id == node_id:
                del self._reads[read_id]
                self._end(read, f"node {node_id} is out of reach: {why}")

    def _end(self, read: _Read, error: str | None) -> None:
        read.is_ended = True
        read.error = error
        read.filled.set()


def _parts(chunk: pb.LogChunk, skip: int) -> list[pb.LogChunk]:
    """Split a chunk so that every message stays below 64 KiB, without its first ``skip`` bytes."""
    return [
        pb.LogChunk(
            attempt_id=chunk.attempt_id,
            rank=chunk.rank,
            offset_bytes=chunk.offset_bytes + start,
            data=chunk.data[start : start + CHUNK_BYTES_MAX],
            dropped_bytes=chunk.dropped_bytes if start == skip else 0,
        )
        for start in range(skip, max(len(chunk.data), skip + 1), CHUNK_BYTES_MAX)
    ]
