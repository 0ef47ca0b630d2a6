"""Reading /proc: who lives, whose child it is, what it was started for.

Only the standard library: the supervisor of an attempt imports this and must start fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ProcessIdentity:
    """A process beyond doubt: a pid is used again, a pid with its start time is not.

    Args:
        start_ticks: Clock ticks from the host's boot to the start of the process.
    """

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEntry:
    """One row of the process table."""

    identity: ProcessIdentity
    parent_pid: int
    group_id: int
    session_id: int
    is_zombie: bool

    @property
    def pid(self) -> int:
        """Its pid."""
        return self.identity.pid


def process_entry(pid: int) -> ProcessEntry | None:
    """Return the row of a process, None when it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name in parentheses may hold spaces and parentheses itself.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessEntry(
        identity=ProcessIdentity(pid=pid, start_ticks=int(fields[19])),
        parent_pid=int(fields[1]),
        group_id=int(fields[2]),
        session_id=int(fields[3]),
        is_zombie=fields[0] in {"Z", "X"},
    )


def process_table() -> tuple[ProcessEntry, ...]:
    """Return all processes of the host (of this pid namespace), by pid."""
    pids = sorted(int(path.name) for path in _PROC.iterdir() if path.name.isdigit())
    entries = (process_entry(pid) for pid in pids)
    return tuple(entry for entry in entries if entry is not None)


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether this very process still runs; a zombie does not."""
    entry = process_entry(identity.pid)
    return entry is not None and entry.identity == identity and not entry.is_zombie


def environment(pid: int) -> dict[bytes, bytes]:
    """Return the environment a process was started with; empty when it is gone or not ours to read."""
    try:
        block = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in block.split(b"\0") if b"=" in item)
    return {name: value for name, _, value in pairs}


def descendants(root_pid: int, table: Iterable[ProcessEntry]) -> tuple[ProcessEntry, ...]:
    """Return the living processes below a root, parents before children."""
    children: dict[int, list[ProcessEntry]] = {}
    for entry in table:
        children.setdefault(entry.parent_pid, []).append(entry)
    found: list[ProcessEntry] = []
    queue = [root_pid]
    while queue:
        below = children.get(queue.pop(0), [])
        found.extend(entry for entry in below if not entry.is_zombie)
        queue.extend(entry.pid for entry in below)
    return tuple(found)
