"""Where training jobs write their models: two that are not over never write to one place."""

from __future__ import annotations

import contextlib
import os.path
from collections.abc import Callable, Iterator, Mapping

from arena.domain.job import JobId, JobSpec
from arena.domain.records import JobRecord
from arena.errors import RefusedError

PLACES_KEPT = 64
"""Places of former jobs that are remembered besides as many as there are jobs."""


class Outputs:
    """Whose place is whose; used from the event loop alone.

    A model replaces the one before it at its end. That is what a user wants who trains again, and not what anybody
    wants of two jobs that run beside each other: the later one would take the place of the first, or both would write
    one file. What a user's program does with its place is its own affair. Checkpoints need no such care: each job has a
    directory of its own, whatever place it names.

    Args:
        root: Under which jobs that name no place have one of their own.
        jobs: The jobs that are not over.
    """

    def __init__(self, root: str, jobs: Callable[[], Mapping[JobId, JobRecord]]) -> None:
        self._root = root
        self._jobs = jobs
        self._under_way: set[JobId] = set()
        self._owners: dict[str, JobId] = {}
        for job in jobs().values():
            place = _named(job.spec)
            if place is not None:
                self._owners[place] = job.job_id

    def owner(self, spec: JobSpec) -> JobId | None:
        """Return the job whose place a new one would write to, None where it is free."""
        place = _named(spec)
        if place is None:
            return None
        owner = self._owners.get(place)
        if owner is None and os.path.dirname(place) == os.path.normpath(self._root):  # noqa: PTH120 - of no file system here
            owner = JobId(os.path.basename(place))  # noqa: PTH119 - as above
        is_there = owner is not None and (owner in self._jobs() or owner in self._under_way)
        return owner if is_there else None

    def refuse_taken(self, spec: JobSpec) -> None:
        """Refuse a job that would write to another's place.

        Raises:
            RefusedError: That is so.
        """
        owner = self.owner(spec)
        if owner is not None:
            raise RefusedError(
                f"job {spec.name!r} would write its model to {spec.output_dir}",
                why=f"job {owner} does, and is not over: one would replace the other's",
                fix="give another output_dir, or none: each job then has its own; or wait for that job's end",
                details={"job_id": owner, "output_dir": spec.output_dir or ""},
            )

    @contextlib.contextmanager
    def taken(self, spec: JobSpec, job_id: JobId) -> Iterator[None]:
        """Take a new job's place while it is being submitted; it keeps it until it is over, unless that fails.

        Raises:
            RefusedError: Another job has it.
        """
        self.refuse_taken(spec)
        place = _named(spec)
        if place is None:
            yield
            return
        self._forget_former()
        self._owners[place] = job_id
        self._under_way.add(job_id)
        try:
            yield
        finally:
            self._under_way.discard(job_id)

    def _forget_former(self) -> None:
        jobs = self._jobs()
        if len(self._owners) > 2 * len(jobs) + len(self._under_way) + PLACES_KEPT:
            kept = {place: owner for place, owner in self._owners.items() if owner in jobs or owner in self._under_way}
            self._owners = kept


def _named(spec: JobSpec) -> str | None:
    """Return the place that a training job names for its model; links are not followed, since it is another host's."""
    if spec.train is None or spec.output_dir is None:
        return None
    return os.path.normpath(spec.output_dir)
