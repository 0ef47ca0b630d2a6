"""The epochs that are spent on a node: which attempts of a job it no longer launches. Pure: no I/O, no clock.

An attempt is its own fence until its end is acknowledged, however long that takes. After that no scheduler that keeps
its records can launch it, or an older one of its job, on this node:

- the engine has the end on record before it acknowledges it, and commands launches only of attempts that have no end
  on the node; an attempt begins only when the one before it has ended everywhere;
- commands are sent in the order in which the engine gave them, and an agent reads one stream at a time: what it hears
  after the acknowledgement was commanded after it.

What is remembered beyond that is for a scheduler that forgot (a database put back from a copy). It cannot be complete,
as such a scheduler may just as well turn to a node that never saw the job; so the latest jobs are enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from immutables import Map

from arena.domain.job import JobId

REMEMBERED_COUNT_MIN = 1_000
"""Jobs with acknowledged attempts that are remembered at least; at most twice as many are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentEpochs:
    """The highest acknowledged epoch of each of the latest jobs, in two generations.

    When the newer generation is full it becomes the older one, and that is forgotten: nothing is ever sorted or copied.
    """

    newer: Map[JobId, int] = field(default_factory=Map)
    older: Map[JobId, int] = field(default_factory=Map)

    def __len__(self) -> int:
        return len(self.newer) + len(self.older)

    def __iter__(self) -> Iterator[tuple[JobId, int]]:
        """Yield jobs and epochs such that spending them in this order gives this value again."""
        yield from sorted(self.older.items())
        yield from sorted(self.newer.items())

    def of(self, job_id: JobId) -> int:
        """Return the highest epoch of a job that is spent, 0 if none is known."""
        return max(self.newer.get(job_id, 0), self.older.get(job_id, 0))

    def spend(self, job_id: JobId, epoch: int) -> SpentEpochs:
        """Return the epochs with one more spent."""
        newer = self.newer.set(job_id, max(epoch, self.of(job_id)))
        if len(newer) < REMEMBERED_COUNT_MIN:
            return replace(self, newer=newer)
        return SpentEpochs(older=newer)
