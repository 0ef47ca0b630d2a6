"""The jobs that wait, in order of service, as a persistent sorted sequence. Pure: no I/O, no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import overload

from arena.domain.job import JobId

QueueKey = tuple[int, float, JobId]

_CHUNK_MAX = 256
"""A change copies one piece and the list of pieces: of 20,000 jobs about as much each."""


class JobQueue(Sequence[JobId]):
    """Ids of waiting jobs in the order of their keys; a change gives a new value that shares nearly all with the old.

    Args:
        keys: Sorted, none twice.
    """

    __slots__ = ("_chunks", "_count")

    def __init__(self, keys: Iterable[QueueKey] = ()) -> None:
        found = tuple(keys)
        self._chunks = tuple(found[at : at + _CHUNK_MAX // 2] for at in range(0, len(found), _CHUNK_MAX // 2))
        self._count = len(found)

    @property
    def keys(self) -> Iterator[QueueKey]:
        """The keys, in order."""
        return chain.from_iterable(self._chunks)

    def has(self, key: QueueKey) -> bool:
        """Tell whether a key is there."""
        if not self._count:
            return False
        chunk = self._chunks[self._place_of(key)]
        position = bisect_left(chunk, key)
        return position < len(chunk) and chunk[position] == key

    def with_key(self, key: QueueKey) -> JobQueue:
        """Return the queue with one more key."""
        if not self._count:
            return JobQueue((key,))
        place = self._place_of(key)
        chunk = self._chunks[place]
        position = bisect_left(chunk, key)
        chunk = (*chunk[:position], key, *chunk[position:])
        half = len(chunk) // 2
        return self._replaced(place, (chunk,) if len(chunk) <= _CHUNK_MAX else (chunk[:half], chunk[half:]), 1)

    def without(self, key: QueueKey) -> JobQueue:
        """Return the queue without a key that is there."""
        place = self._place_of(key)
        chunk = self._chunks[place]
        position = bisect_left(chunk, key)
        chunk = chunk[:position] + chunk[position + 1 :]
        return self._replaced(place, (chunk,) if chunk else (), -1)

    def _place_of(self, key: QueueKey) -> int:
        """Return the index of the first piece that ends at or after a key, the last piece where none does."""
        if len(self._chunks) == 1:
            return 0
        return min(bisect_left(self._chunks, key, key=_last_of), len(self._chunks) - 1)

    def _replaced(self, place: int, chunks: tuple[tuple[QueueKey, ...], ...], change: int) -> JobQueue:
        new = JobQueue.__new__(JobQueue)
        new._chunks = self._chunks[:place] + chunks + self._chunks[place + 1 :]
        new._count = self._count + change
        return new

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[JobId]:
        for chunk in self._chunks:
            for key in chunk:
                yield key[2]

    @overload
    def __getitem__(self, index: int) -> JobId: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[JobId, ...]: ...

    def __getitem__(self, index: int | slice) -> JobId | tuple[JobId, ...]:
        if isinstance(index, int) and index == 0 and self._count:
            return self._chunks[0][0][2]
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobQueue) and tuple(self.keys) == tuple(other.keys)

    def __hash__(self) -> int:
        return hash(tuple(self.keys))

    def __repr__(self) -> str:
        return f"JobQueue({tuple(self.keys)})"


def _last_of(chunk: tuple[QueueKey, ...]) -> QueueKey:
    return chunk[-1]
