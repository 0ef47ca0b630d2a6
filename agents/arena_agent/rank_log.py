"""The log of a rank as segments on disk: head and tail are kept, the middle goes, offsets stay true to the stream.

A segment's file name carries the offset of its first byte in what the rank wrote, so a gap between two segments is
exactly what was dropped. Only the standard library: the supervisor of an attempt imports this.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"rank-(\d+)\.(\d+)\.log")
# One segment of head and three of tail make up the cap.
_SEGMENT_COUNT_MAX = 4
_SEGMENT_BYTES_MIN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSegment:
    """A stretch of a rank's log."""

    path: Path
    offset_bytes: int
    size_bytes: int

    @property
    def end_bytes(self) -> int:
        """Offset after its last byte."""
        return self.offset_bytes + self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """Some bytes of a rank's log.

    Args:
        offset_bytes: Where ``data`` starts in what the rank wrote.
        dropped_bytes: How much was dropped between the offset asked for and ``offset_bytes``.
    """

    offset_bytes: int
    data: bytes
    dropped_bytes: int = 0

    @property
    def end_bytes(self) -> int:
        """Offset after the last byte."""
        return self.offset_bytes + len(self.data)


def log_ranks(directory: Path) -> tuple[int, ...]:
    """Return the ranks that have a log in a directory."""
    matches = (_NAME.fullmatch(path.name) for path in directory.glob("rank-*.log"))
    return tuple(sorted({int(match.group(1)) for match in matches if match}))


def log_segments(directory: Path, rank: int) -> tuple[LogSegment, ...]:
    """Return what is kept of a rank's log, in order."""
    found = []
    for path in directory.glob(f"rank-{rank}.*.log"):
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        try:
            size_bytes = path.stat().st_size
        except FileNotFoundError:  # rotated away just now
            continue
        found.append(LogSegment(path=path, offset_bytes=int(match.group(2)), size_bytes=size_bytes))
    return tuple(sorted(found, key=lambda segment: segment.offset_bytes))


def read_piece(directory: Path, rank: int, offset_bytes: int, limit_bytes: int) -> LogPiece | None:
    """Return the first bytes kept at or after an offset, None when there are none (yet)."""
    for segment in log_segments(directory, rank):
        if segment.end_bytes <= offset_bytes:
            continue
        start = max(segment.offset_bytes, offset_bytes)
        try:
            with segment.path.open("rb") as stream:
                stream.seek(start - segment.offset_bytes)
                data = stream.read(limit_bytes)
        except FileNotFoundError:  # rotated away just now: what follows it is the answer
            continue
        if data:
            return LogPiece(offset_bytes=start, data=data, dropped_bytes=start - offset_bytes)
    return None


def tail_offset(directory: Path, rank: int, tail_bytes: int) -> int:
    """Return the offset from which the last ``tail_bytes`` can be read."""
    segments = log_segments(directory, rank)
    return max(0, segments[-1].end_bytes - tail_bytes) if segments else 0


def read_tail(directory: Path, rank: int, tail_bytes: int) -> str:
    """Return the last bytes of a rank's log as text, from the start of a line where there is one."""
    offset, text = tail_offset(directory, rank, tail_bytes), b""
    is_cut = offset > 0
    while (piece := read_piece(directory, rank, offset, tail_bytes)) is not None:
        text += piece.data
        offset = piece.end_bytes
    if is_cut and b"\n" in text[:-1]:
        text = text[text.index(b"\n") + 1 :]
    return text.decode("utf-8", errors="replace")


class RankLog:
    """Writer of one rank's log; never raises on a full disk, it drops and goes on.

    Args:
        cap_bytes: Most that is kept on disk.
    """

    def __init__(self, directory: Path, rank: int, cap_bytes: int) -> None:
        self._directory = directory
        self._rank = rank
        self._segment_bytes = max(_SEGMENT_BYTES_MIN, cap_bytes // _SEGMENT_COUNT_MAX)
        self._offset_bytes = 0
        self._room_bytes = 0
        self._descriptor: int | None = None

    def write(self, data: bytes) -> None:
        """Append what the rank wrote."""
        view = memoryview(data)
        while view:
            if self._room_bytes == 0:
                self._roll()
            part = view[: self._room_bytes or self._segment_bytes]
            written = self._write_part(part)
            self._offset_bytes += written
            view = view[written:]

    def close(self) -> None:
        """Close the current segment."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._room_bytes = 0

    def _write_part(self, part: memoryview) -> int:
        """Write to the current segment; on a full disk count the part as gone and start anew at the true offset."""
        if self._descriptor is not None:
            try:
                written = os.write(self._descriptor, part)
            except OSError:
                self.close()
            else:
                self._room_bytes -= written
                return written
        return len(part)

    def _roll(self) -> None:
        self.close()
        kept = log_segments(self._directory, self._rank)
        for segment in kept[1 : max(1, len(kept) - (_SEGMENT_COUNT_MAX - 2))]:
            segment.path.unlink(missing_ok=True)
        path = self._directory / f"rank-{self._rank}.{self._offset_bytes}.log"
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        self._room_bytes = self._segment_bytes
