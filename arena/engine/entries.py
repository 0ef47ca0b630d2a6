"""What one step adds to the history, written out when somebody reads it. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import overload

from arena.domain.job import JobId
from arena.domain.launch import AttemptId, NodeId
from arena.domain.records import EntryKind, HistoryEntry

Entry = tuple[EntryKind, str, JobId | None, AttemptId | None, NodeId | None, Mapping[str, object]]
"""Kind, message, whom it is about, and facts; those that are None are left out."""


def entry(
    kind: EntryKind,
    message: str,
    /,
    *,
    job_id: JobId | None = None,
    attempt_id: AttemptId | None = None,
    node_id: NodeId | None = None,
    **data: object,
) -> Entry:
    """Return an entry; data that are None are left out when it is written."""
    return kind, message, job_id, attempt_id, node_id, data


class Entries(Sequence[HistoryEntry]):
    """The entries of a step; a store reads them once, most replays never.

    Args:
        before: Index of the entry before the first.
        at_s: When the step was.
        entries: Each as it is, or what makes it of values that do not change.
    """

    __slots__ = ("_at_s", "_before", "_entries")

    def __init__(self, before: int, at_s: float, entries: Sequence[Entry | Callable[[], Entry]]) -> None:
        self._before = before
        self._at_s = at_s
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[HistoryEntry]:
        for index, one in enumerate(self._entries, start=self._before + 1):
            yield self._written(index, one)

    @overload
    def __getitem__(self, index: int) -> HistoryEntry: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[HistoryEntry, ...]: ...

    def __getitem__(self, index: int | slice) -> HistoryEntry | tuple[HistoryEntry, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entries | tuple) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))  # as that of the tuple that it equals

    def __repr__(self) -> str:
        return repr(tuple(self))

    def _written(self, index: int, one: Entry | Callable[[], Entry]) -> HistoryEntry:
        kind, message, job_id, attempt_id, node_id, data = one() if callable(one) else one
        return HistoryEntry(
            index=index,
            at_s=self._at_s,
            kind=kind,
            message=message,
            job_id=job_id,
            attempt_id=attempt_id,
            node_id=node_id,
            data={key: value for key, value in data.items() if value is not None},
        )
