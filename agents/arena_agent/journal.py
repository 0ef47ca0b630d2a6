"""The agent's own history: append-only JSON lines, synced, from which it knows after a restart what it holds.

A line is one record with ``wall_s`` and ``boot_s``: instants of this host's wall and boot clock. A crash can tear only
the last line, which is then ignored and cut off: what it recorded had not been acted upon.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from arena.domain.job import JobId
from arena.domain.launch import AttemptId, DeviceId, NodeId
from arena.domain.records import NodeEnd
from arena.errors import InternalError, ResourceExhaustedError
from arena_agent.files import write_durably


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
    """Appends records to a file and reads it back.

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
        entries = [Entry(wall_s=self._wall_s(), boot_s=self._boot_s(), record=record) for record in records]
        data = "".join(entry.to_json() + "\n" for entry in entries).encode()
        try:
            _write_all(self._descriptor, data)
        except OSError as error:
            os.ftruncate(self._descriptor, self._size_bytes)
            raise ResourceExhaustedError(
                f"the journal {self._path} cannot be written", why=str(error), fix="free space there"
            ) from error
        self._size_bytes += len(data)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


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


def compacted(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return the entries without acknowledged attempts, with each job's highest epoch kept as a fence."""
    acked = {entry.record.attempt_id for entry in entries if isinstance(entry.record, Acked)}
    fences: dict[JobId, Entry] = {}
    kept = []
    for entry in entries:
        record = entry.record
        if isinstance(record, LaunchIntent | Refused | Fence):
            before = fences.get(record.job_id)
            epoch = max(record.epoch, before.record.epoch if before and isinstance(before.record, Fence) else 0)
            fence = Fence(job_id=record.job_id, epoch=epoch)
            fences[record.job_id] = Entry(wall_s=entry.wall_s, boot_s=entry.boot_s, record=fence)
        if isinstance(record, Fence | AgentStarted) or record.attempt_id in acked:
            continue
        kept.append(entry)
    starts = [entry for entry in entries if isinstance(entry.record, AgentStarted)]
    return (*starts[-1:], *(fences[job_id] for job_id in sorted(fences)), *kept)


def rewrite(path: Path, entries: tuple[Entry, ...]) -> None:
    """Replace a journal by the given entries, all or nothing."""
    write_durably(path, "".join(entry.to_json() + "\n" for entry in entries))
