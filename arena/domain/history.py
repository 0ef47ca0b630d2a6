"""What jobs that ended have taught about lengths, by user and kind of work. Pure: no I/O, no clock.

A history is a value made of the latest jobs that ended by themselves. It depends on which jobs those are and on nothing
else: logarithms are kept as whole numbers, whose sums are exact in any order, so that a history rebuilt from stored
records after a restart equals the one that grew while they ended.

A job that was cancelled or failed teaches nothing here. All that is known of its length is that it would have been
longer, and when its user gave up may depend on how it was served: counted as an end, it would have a policy learn its
own doings. The same holds for one that was cut by its time limit before it had done what it declared.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from immutables import Map

from arena.domain.job import JobSpec
from arena.domain.records import JobRecord, JobState
from arena.domain.replacing import quickly_made, replace

LengthKey = tuple[str, ...]
"""Of whom something is known: everybody ``()``, a user ``(user,)``, a user's kind of work ``(user, workload)``."""

ENDED_JOBS_MAX = 4096
"""Jobs that a history remembers, so that it stays small and follows the times."""

NAME_MAX = 256
"""Characters of a program's name; some bring their whole text as an argument."""

CUT_SHARE = 0.95
"""A job that ran for this share of its time limit was cut by it: worker and scheduler measure from different steps."""

LOG_UNIT = 2.0**20
"""Units of a logarithm; a millionth is far below what declarations are worth."""


class LogMoments(NamedTuple):
    """Count, sums and sums of products of logarithms, in whole units: of a value, and of what was declared with it."""

    job_count: int = 0
    total: int = 0
    square_total: int = 0
    declared_total: int = 0
    declared_square_total: int = 0
    product_total: int = 0

    def plus(self, values: Iterable[_Counted]) -> LogMoments:
        """Return the moments with values counted so many times more; -1 takes away one that is among them."""
        count, total, square_total, declared_total, declared_square_total, product_total = self
        for value, declared, times in values:
            count += times
            total += times * value
            square_total += times * value * value
            if declared:
                declared_total += times * declared
                declared_square_total += times * declared * declared
                product_total += times * value * declared
        return LogMoments(count, total, square_total, declared_total, declared_square_total, product_total)

    @property
    def mean(self) -> float:
        """Mean of the logarithms themselves; 0 of none."""
        return self.total / (self.job_count * LOG_UNIT) if self.job_count else 0.0

    @property
    def variance(self) -> float:
        """Their mean squared distance from it."""
        count, total, square_total = self[:3]
        return (count * square_total - total * total) / (count * LOG_UNIT) ** 2 if count else 0.0


Moments = Map[LengthKey, LogMoments]
NO_MOMENTS = LogMoments()

_Counted = tuple[int, int, int]
"""A logarithm, that of what was declared, and how many times more it counts."""

_Change = tuple["EndedJob", int]
_Changes = tuple["EndedJob", int, "_Changes | None"]
"""Jobs and how many times more each counts, as a chain, so that one more costs nothing."""

CHANGES_KEPT = 64
"""Jobs that may end before they are summed up: together they cost what one of them would cost alone."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """What one job has taught.

    Args:
        name: When it ended and its id, by which ended jobs are ordered.
        key: Its user and kind of work.
        log_declared: Of the steps it had declared; None where it declared none or made none.
        log_ratio: Of the steps it made to those; None likewise.
        log_steps: Of the steps it made, one a second for a program that tells of none; None where it made none.
        log_gpu_s: Of its GPU-seconds; None where it had none.
        submitted_at_s: When it came.
    """

    name: tuple[float, str]
    key: tuple[str, str]
    log_declared: int | None
    log_ratio: int | None
    log_steps: int | None
    log_gpu_s: int | None
    submitted_at_s: float

    @property
    def flow_ms(self) -> int:
        """Milliseconds from its submission to its end, a whole number: sums do not depend on the order."""
        return round(1e3 * (self.name[0] - self.submitted_at_s))


class _Sums(NamedTuple):
    """The moments of ``LengthHistory``, and the sum of flow times."""

    ratios: Moments = Map()
    steps: Moments = Map()
    gpu_s: Moments = Map()
    flow_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LengthHistory:
    """What the latest jobs that ended by themselves have taught of lengths; two are equal that have taught the same.

    Args:
        window: Those jobs, at most ``ENDED_JOBS_MAX``, numbered in order of their ends from ``oldest_index``.
    """

    window: Map[int, EndedJob] = field(default_factory=Map)
    oldest_index: int = 0
    # Moments of earlier jobs, and what came since, latest first. Summed up when somebody asks, and kept then.
    _summed: tuple[_Sums, _Changes | None] = field(default=(_Sums(), None), init=False, repr=False)

    @property
    def ratios(self) -> Moments:
        """Logarithms of actual to declared steps and of declared ones: everybody's, by user, by user and workload."""
        return self._sums().ratios

    @property
    def steps(self) -> Moments:
        """Logarithms of actual steps, by user and workload only: elsewhere steps cannot be compared."""
        return self._sums().steps

    @property
    def gpu_s(self) -> Moments:
        """Logarithms of GPU-seconds: everybody's, by user, by user and workload."""
        return self._sums().gpu_s

    @property
    def flow_s(self) -> float:
        """The sum of the times from submission to end."""
        return self._sums().flow_ms / 1e3

    @property
    def begun_at_s(self) -> float | None:
        """When the one that ended first came; None where none has ended."""
        return self.window[self.oldest_index].submitted_at_s if self.window else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LengthHistory) and self._sums() == other._sums()

    def __hash__(self) -> int:
        return hash(self._sums())

    def _sums(self) -> _Sums:
        sums, changes = self._summed
        if changes is not None:
            sums = _with_changes(sums, _unchained(changes))
            object.__setattr__(self, "_summed", (sums, None))
        return sums

    def after(self, job: JobRecord) -> LengthHistory:
        """Return the history after a job has ended; one whose length did not become known changes nothing."""
        new = _ended_job(job)
        if new is None:
            return self
        window, index = _inserted(self.window, self.oldest_index, new), self.oldest_index
        sums, changes = self._summed
        changes = (new, 1, changes)
        if len(window) > ENDED_JOBS_MAX:
            changes = (window[index], -1, changes)
            window, index = window.delete(index), index + 1
        after = replace(self, window=window, oldest_index=index, _summed=(sums, changes))
        if (index + len(window)) % CHANGES_KEPT == 0:
            after._sums()
        return after

    @property
    def ended(self) -> tuple[EndedJob, ...]:
        """The remembered jobs in order of their ends."""
        return tuple(self.window[self.oldest_index + index] for index in range(len(self.window)))

    @classmethod
    def of(cls, jobs: Iterable[JobRecord]) -> LengthHistory:
        """Return the history after these jobs have ended, in whatever order they come."""
        found = (ended for ended in map(_ended_job, jobs) if ended is not None)
        latest = heapq.nlargest(ENDED_JOBS_MAX, found, key=lambda ended: ended.name)
        sums = _with_changes(_Sums(), [(ended, 1) for ended in latest])
        return replace(cls(), window=Map(enumerate(reversed(latest))), _summed=(sums, None))


def workload_name(spec: JobSpec) -> str:
    """Return what jobs have in common whose steps can be compared: the model and batch, or the program."""
    if spec.workload is not None:
        return spec.workload.name
    if spec.train is not None:
        model = spec.train.model
        return f"{model.family} {model.layers}x{model.hidden} seq {model.seq_len} batch {spec.train.global_batch}"
    return _program(spec.command.argv) if spec.command is not None else ""


@lru_cache(maxsize=1024)
def _program(argv: tuple[str, ...]) -> str:
    """Return a program without its options: ``python train.py``, ``python -m tool.train``; a long one by its digest."""
    count = next((index for index, word in enumerate(argv) if word.startswith("--")), len(argv))
    name = " ".join(argv[: max(count, 1)])
    if len(name) <= NAME_MAX:
        return name
    return f"{name[: NAME_MAX // 2]}... {hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()}"


def _ended_job(job: JobRecord) -> EndedJob | None:
    """Return what a job has taught, or None where its length did not become known."""
    if job.state is not JobState.SUCCEEDED or job.ended_at_s is None:
        return None
    steps, declared = _steps_made(job), job.spec.step_limit
    if _was_cut(job) and (declared is None or steps < declared):
        return None
    log_steps = _logarithm(steps) if steps > 0 else None
    log_declared = None if log_steps is None or declared is None else _logarithm(declared)
    return EndedJob(
        name=(job.ended_at_s, job.job_id),
        key=(job.user, workload_name(job.spec)),
        log_declared=log_declared,
        log_ratio=None if log_steps is None or log_declared is None else log_steps - log_declared,
        log_steps=log_steps,
        log_gpu_s=_logarithm(job.gpu_seconds) if job.gpu_seconds > 0 else None,
        submitted_at_s=job.submitted_at_s,
    )


def _steps_made(job: JobRecord) -> int:
    """Return the last step of a job that is over; what was reported on the way may be older."""
    if job.spec.command is not None and not job.progress.step:
        return round(job.run_time_s)
    return max(job.progress.step, job.predecessor.last_step if job.predecessor is not None else 0)


def _was_cut(job: JobRecord) -> bool:
    limit_s = job.spec.stop.time_limit_s
    return limit_s is not None and job.run_time_s >= CUT_SHARE * limit_s


def _logarithm(value: float) -> int:
    return round(math.log(value) * LOG_UNIT)


def _inserted(window: Map[int, EndedJob], oldest_index: int, new: EndedJob) -> Map[int, EndedJob]:
    """Return the window with one more job; it belongs at the end, or among those that ended at the same instant."""
    index = oldest_index + len(window)
    while index > oldest_index and window[index - 1].name > new.name:
        window = window.set(index, window[index - 1])
        index -= 1
    return window.set(index, new)


def _unchained(changes: _Changes | None) -> Iterator[_Change]:
    while changes is not None:
        job, times, changes = changes
        yield job, times


def _with_changes(sums: _Sums, changes: Iterable[_Change]) -> _Sums:
    """Return the sums with jobs counted so many times more."""
    by_key: dict[tuple[str, str], list[_Change]] = {}
    ratios, steps, gpu_s, flow_ms = sums
    for change in changes:
        by_key.setdefault(change[0].key, []).append(change)
        flow_ms += change[0].flow_ms * change[1]
    for key, jobs in by_key.items():
        levels: tuple[LengthKey, ...] = ((), key[:1], key)
        with_ratio = [(job.log_ratio, job.log_declared or 0, times) for job, times in jobs if job.log_ratio is not None]
        ratios = _with_values(ratios, levels, with_ratio)
        with_steps = [(job.log_steps, 0, times) for job, times in jobs if job.log_steps is not None]
        steps = _with_values(steps, levels[-1:], with_steps)
        gpu_s = _with_values(
            gpu_s, levels, [(job.log_gpu_s, 0, times) for job, times in jobs if job.log_gpu_s is not None]
        )
    return _Sums(ratios, steps, gpu_s, flow_ms)


def _with_values(moments: Moments, keys: tuple[LengthKey, ...], values: list[_Counted]) -> Moments:
    for key in keys if values else ():
        new = moments.get(key, NO_MOMENTS).plus(values)
        if new.job_count:
            moments = moments.set(key, new)
        elif key in moments:  # else it came and went within these
            moments = moments.delete(key)
    return moments
