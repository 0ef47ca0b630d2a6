"""The agent's own history: append-only JSON lines, synced, from which it knows after a restart what it holds.

A line is one record with ``wall_s`` and ``boot_s``: instants of this host's wall and boot clock. A crash can tear only
the last line, which is then ignored and cut off: what it recorded had not been acted upon. A file that has grown to
several times what still counts is compacted, while the agent runs too.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from arena.domain.job import JobId
from arena.domain.launch import AttemptId, DeviceId, NodeId
from arena.domain.records import NodeEnd
from arena.errors import InternalError, ResourceExhaustedError
from arena_agent.epochs import SpentEpochs
from arena_agent.files import sync_directory

COMPACT_ABOVE_BYTES = 1 << 20
"""Size of a journal that is not worth compacting: a few thousand records, read in a fraction of a second."""
_GROWTH = 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStarted:
    """An agent process took the directory over; ``boot_id`` says in which boot its instants count."""

    kind: Literal["agent_started"] = "agent_started"
    node_id: NodeId
    incarnation: str
    boot_id: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchIntent:
    """From here on the devices belong to the attempt, whether or not its processes come to be."""

    kind: Literal["launch_intent"] = "launch_intent"
    attempt_id: AttemptId
    job_id: JobId
    epoch: int
    devices: tuple[DeviceId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """The attempt's supervisor lives."""

    kind: Literal["launched"] = "launched"
    attempt_id: AttemptId
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """All local ranks are up."""

    kind: Literal["started"] = "started"
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSent:
    """The attempt is asked to stop (``save``) or killed.

    Args:
        left_for: Where the agent does it by itself, what is said of the node's being taken away.
    """

    kind: Literal["stop_sent"] = "stop_sent"
    attempt_id: AttemptId
    mode: Literal["save", "kill"]
    grace_s: float
    left_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Nothing of the attempt is left: its devices are free again, but for the dirty ones.

    Args:
        gone_boot_s: When its last process was seen gone, on the host's boot clock.
    """

    kind: Literal["ended"] = "ended"
    attempt_id: AttemptId
    end: NodeEnd
    gone_boot_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An attempt that never had a process here; its epoch is spent all the same."""

    kind: Literal["refused"] = "refused"
    attempt_id: AttemptId
    job_id: JobId
    epoch: int
    end: NodeEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """The scheduler has the attempt's end on disk."""

    kind: Literal["acked"] = "acked"
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The highest epoch seen of a job whose attempts were compacted away."""

    kind: Literal["fence"] = "fence"
    job_id: JobId
    epoch: int


Record = Annotated[
    AgentStarted | LaunchIntent | Launched | Started | StopSent | Ended | Refused | Acked | Fence,
    Field(discriminator="kind"),
]
AttemptRecord = LaunchIntent | Launched | Started | StopSent | Ended | Refused | Acked

_RECORD_JSON: TypeAdapter[Record] = TypeAdapter(Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A record with the instants at which it was written."""

    wall_s: float
    boot_s: float
    record: Record

    def to_json(self) -> str:
        """Return the entry as one line of JSON."""
        value = _RECORD_JSON.dump_python(self.record, mode="json")
        return json.dumps({"wall_s": self.wall_s, "boot_s": self.boot_s, **value}, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str | bytes) -> Entry:
        """Return the entry of one line."""
        value = json.loads(line)
        wall_s, boot_s = value.pop("wall_s"), value.pop("boot_s")
        return cls(wall_s=wall_s, boot_s=boot_s, record=_RECORD_JSON.validate_python(value))


class Journal:
    """Appends records to a file, reads it back, and keeps it from growing without end.

    Args:
        path: The file.
        wall_s, boot_s: The host's clocks.
    """

    def __init__(self, path: Path, *, wall_s: Callable[[], float], boot_s: Callable[[], float]) -> None:
        self._path = path
        self._wall_s = wall_s
        self._boot_s = boot_s
        self._descriptor: int | None = None
        self._size_bytes = 0
        self._compact_above_bytes = COMPACT_ABOVE_BYTES
        self._is_name_durable = True

    def open(self) -> tuple[Entry, ...]:
        """Return what the file holds, cut a torn last line off, and make it ready for appending.

        Raises:
            InternalError: A line other than the last cannot be read.
        """
        entries, good_bytes = read_entries(self._path)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._descriptor, good_bytes)
        os.fsync(self._descriptor)
        self._size_bytes = good_bytes
        if self._compact_if_grown():
            entries, _ = read_entries(self._path)
        return entries

    def append(self, *records: Record) -> None:
        """Write records and return when they are on disk.

        Raises:
            ResourceExhaustedError: They could not be written; the journal is as before.
        """
        if self._descriptor is None:
            raise InternalError("the journal is not open")
        if not records:
            return
        data = _lines(Entry(wall_s=self._wall_s(), boot_s=self._boot_s(), record=record) for record in records)
        try:
            if not self._is_name_durable:
                sync_directory(self._path.parent)
                self._is_name_durable = True
            _write_all(self._descriptor, data)
        except OSError as error:
            os.ftruncate(self._descriptor, self._size_bytes)
            raise ResourceExhaustedError(
                f"the journal {self._path} cannot be written", why=str(error), fix="free space there"
            ) from error
        self._size_bytes += len(data)
        self._compact_if_grown()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _compact_if_grown(self) -> bool:
        """Compact the file when it is several times as large as it was after the last time; return whether it was.

        What is in it is on disk already: where that fails, the journal works on and is compacted later.
        """
        if self._size_bytes <= self._compact_above_bytes:
            return False
        is_compacted = False
        try:
            entries, _ = read_entries(self._path)
            self._replace(_lines(compacted(entries)))
            is_compacted = True
        except (OSError, InternalError) as error:
            _log.warning("the journal %s could not be compacted and grows on: %s", self._path, error)
        self._compact_above_bytes = max(COMPACT_ABOVE_BYTES, _GROWTH * self._size_bytes)
        return is_compacted

    def _replace(self, data: bytes) -> None:
        """Put another file in the place of this one; a crash leaves the old or the new.

        All that can fail is done before the new one gets its name, but for making the name durable: until that is
        done, nothing more may be said to be on disk.
        """
        temporary = self._path.with_name(f".{self._path.name}.new")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600)
        try:
            _write_all(descriptor, data)
            os.replace(temporary, self._path)  # noqa: PTH105 - one name beside os.open, os.write and os.fsync
        except BaseException:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)
            raise
        self.close()
        self._descriptor, self._size_bytes, self._is_name_durable = descriptor, len(data), False
        sync_directory(self._path.parent)
        self._is_name_durable = True


def _lines(entries: Iterable[Entry]) -> bytes:
    return "".join(entry.to_json() + "\n" for entry in entries).encode()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.fdatasync(descriptor)


def read_entries(path: Path) -> tuple[tuple[Entry, ...], int]:
    """Return a journal's entries and how many bytes of the file they make up.

    Raises:
        InternalError: A line other than the last cannot be read.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return (), 0
    entries, good_bytes = [], 0
    for index, line in enumerate(lines):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("the line is torn")
            entries.append(Entry.from_json(line))
        except (ValueError, KeyError, AttributeError) as error:
            if index == len(lines) - 1:
                break
            raise InternalError(
                f"journal {path} cannot be read", why=f"line {index + 1}: {error}", fix="restore it from a backup"
            ) from error
        good_bytes += len(line)
    return tuple(entries), good_bytes


def compacted(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return entries that lead to the same state, without the attempts whose ends were acknowledged.

    Their epochs are kept as fences, written as of the last entry. They come last, so that a reader of the history sees
    the launch of an attempt before the fence that an attempt acknowledged before it has left.
    """
    acknowledged_at, spent = _acknowledged(entries)
    kept = [
        entry
        for index, entry in enumerate(entries)
        if not isinstance(entry.record, Fence | AgentStarted)
        and index > acknowledged_at.get(entry.record.attempt_id, -1)
    ]
    starts = [entry for entry in entries if isinstance(entry.record, AgentStarted)]
    fences = [replace(entries[-1], record=Fence(job_id=job_id, epoch=epoch)) for job_id, epoch in spent]
    return (*starts[-1:], *kept, *fences)


def _acknowledged(entries: Sequence[Entry]) -> tuple[Mapping[AttemptId, int], SpentEpochs]:
    """Return where attempts were last acknowledged, and the epochs spent by it."""
    spent, epochs, indices = SpentEpochs(), dict[AttemptId, tuple[JobId, int]](), dict[AttemptId, int]()
    for index, entry in enumerate(entries):
        match entry.record:
            case (
                LaunchIntent(attempt_id=attempt_id, job_id=job_id, epoch=epoch)
                | Refused(attempt_id=attempt_id, job_id=job_id, epoch=epoch)
            ):
                epochs[attempt_id] = job_id, epoch
            case Fence(job_id=job_id, epoch=epoch):
                spent = spent.spend(job_id, epoch)
            case Acked(attempt_id=attempt_id):
                indices[attempt_id] = index
                if attempt_id in epochs:
                    spent = spent.spend(*epochs.pop(attempt_id))
            case _:
                pass
    return indices, spent
