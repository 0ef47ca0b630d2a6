"""Sending ranks' logs to whoever reads them, in chunks, without ever holding up the stream's other messages."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

from arena.errors import UnavailableError
from arena.rpc.v1 import agent_service_pb2 as pb
from arena_agent.files import AttemptFiles, StateFiles
from arena_agent.link import Session
from arena_agent.rank_log import log_ranks, read_piece, tail_offset

CHUNK_BYTES_MAX = 32 * 1024
_FOLLOW_INTERVAL_S = 0.2


class LogSender:
    """The log reads under way on the present stream.

    Args:
        files: The agent's files.
    """

    def __init__(self, files: StateFiles) -> None:
        self._files = files
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, request: pb.ReadLog, session: Session) -> None:
        """Begin to answer a request."""
        task = asyncio.create_task(self._answer(request, session))
        self._tasks[request.read_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(request.read_id, None))

    def cancel(self, read_id: str) -> None:
        """Stop answering a request."""
        task = self._tasks.pop(read_id, None)
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        """Stop answering: the stream is gone."""
        for read_id in tuple(self._tasks):
            self.cancel(read_id)

    async def _answer(self, request: pb.ReadLog, session: Session) -> None:
        with contextlib.suppress(UnavailableError):
            error = await self._send_all(request, session)
            end = pb.LogEnd(read_id=request.read_id, error=error)
            await session.send(pb.OpenSessionRequest(log_end=end))

    async def _send_all(self, request: pb.ReadLog, session: Session) -> str | None:
        """Send what there is, and what comes if asked to follow; return why there is nothing."""
        try:
            files = self._files.attempt(request.attempt_id)
        except ValueError as error:
            return str(error)
        if not files.directory.is_dir():
            return f"this node keeps no log of attempt {request.attempt_id}"
        offsets: dict[int, int] = {}
        while True:
            is_over = files.exit.exists()  # asked before reading: what was written before it is then read
            sent = False
            for rank in _wanted_ranks(request, files):
                if rank not in offsets:
                    offsets[rank] = _first_offset(request, files.directory, rank)
                sent = await self._send_piece(request, session, rank, offsets) or sent
            if not sent and (is_over or not request.follow):
                return None
            if not sent:
                await asyncio.sleep(_FOLLOW_INTERVAL_S)

    async def _send_piece(self, request: pb.ReadLog, session: Session, rank: int, offsets: dict[int, int]) -> bool:
        directory = self._files.attempt(request.attempt_id).directory
        piece = await asyncio.to_thread(read_piece, directory, rank, offsets[rank], CHUNK_BYTES_MAX)
        if piece is None:
            return False
        offsets[rank] = piece.end_bytes
        chunk = pb.LogChunk(
            read_id=request.read_id,
            attempt_id=request.attempt_id,
            rank=rank,
            offset_bytes=piece.offset_bytes,
            data=piece.data,
            dropped_bytes=piece.dropped_bytes,
        )
        await session.send(pb.OpenSessionRequest(log_chunk=chunk))
        return True


def _wanted_ranks(request: pb.ReadLog, files: AttemptFiles) -> tuple[int, ...]:
    ranks = log_ranks(files.directory)
    return tuple(rank for rank in ranks if rank == request.rank) if request.HasField("rank") else ranks


def _first_offset(request: pb.ReadLog, directory: Path, rank: int) -> int:
    if rank in request.offset_bytes_by_rank:
        return request.offset_bytes_by_rank[rank]
    return tail_offset(directory, rank, request.tail_bytes) if request.HasField("tail_bytes") else 0


def prune(files: StateFiles, kept_max: int, needed: frozenset[str]) -> None:
    """Remove the oldest attempts' files beyond a count; never those that are ``needed``."""
    directories = [path for path in files.attempts.iterdir() if path.is_dir() and path.name not in needed]
    directories.sort(key=lambda path: (path.stat().st_mtime, path.name))
    for path in directories[: max(0, len(directories) - kept_max)]:
        shutil.rmtree(path, ignore_errors=True)
