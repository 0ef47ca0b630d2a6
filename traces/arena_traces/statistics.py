"""What a trace is like: arrivals, GPUs, durations, and the load it offers. Pure: no I/O, no clock.

Definitions: an hour is a clock hour of the trace's own time; percentiles interpolate linearly between order
statistics; the coefficient of variation of inter-arrival times has the sample's standard deviation (n - 1), a Poisson
process has 1; the mean of busy GPUs is the GPU time of all jobs over the span from the first submission to the last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arena.domain.trace import TraceOutcome
from arena.units import DAY_S, HOUR_S
from arena_traces.trace import Trace

_PERCENTS = (10.0, 50.0, 90.0, 99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Of durations, in seconds."""

    p10_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStatistics:
    """What a trace is like; what it does not say, or what too few jobs do not tell, is None.

    Args:
        span_s: From the first submission to the last.
        jobs_per_hour: Over the span.
        peak_jobs_per_hour: In the fullest clock hour.
        arrival_cv: Coefficient of variation of the times between submissions.
        job_count_by_gpu_count: How many jobs ask for how many GPUs.
        multi_gpu_share: Of the jobs.
        duration: Of the jobs that state one.
        gpu_hours: Of the jobs that state a duration.
        busy_gpus_mean: GPUs that the jobs would keep busy over the span.
        offered_load: The same as a share of a cluster's GPUs, where those are given.
        too_large_count: Jobs that ask for more GPUs than the cluster has, where those are given.
        job_count_by_outcome: How they ended.
        step_job_count: Jobs that state optimizer steps.
    """

    job_count: int
    span_s: float
    jobs_per_hour: float | None
    peak_jobs_per_hour: int
    arrival_cv: float | None
    gpu_count_mean: float | None
    job_count_by_gpu_count: Mapping[int, int]
    multi_gpu_share: float | None
    duration: Percentiles | None
    duration_job_count: int
    step_job_count: int
    gpu_hours: float | None
    busy_gpus_mean: float | None
    offered_load: float | None
    too_large_count: int | None
    job_count_by_outcome: Mapping[TraceOutcome, int]

    @property
    def span_days(self) -> float:
        """The span in days."""
        return self.span_s / DAY_S


def statistics(trace: Trace, *, gpu_count: int | None = None) -> TraceStatistics:
    """Return what a trace is like.

    Args:
        gpu_count: GPUs of the cluster that it is offered to.
    """
    submitted = np.array([job.submitted_at_s for job in trace.jobs], dtype=np.float64)
    gpus = np.array([job.gpu_count for job in trace.jobs], dtype=np.int64)
    durations = np.array([job.duration_s for job in trace.jobs if job.duration_s is not None], dtype=np.float64)
    span_s = float(submitted[-1] - submitted[0]) if len(submitted) else 0.0
    gpu_seconds = gpu_seconds_of(trace)
    busy = gpu_seconds / span_s if gpu_seconds is not None and span_s else None
    return TraceStatistics(
        job_count=len(trace.jobs),
        span_s=span_s,
        jobs_per_hour=len(submitted) / span_s * HOUR_S if span_s else None,
        peak_jobs_per_hour=_peak(submitted),
        arrival_cv=_cv(np.diff(submitted)),
        gpu_count_mean=float(gpus.mean()) if len(gpus) else None,
        job_count_by_gpu_count=dict(sorted(Counter(gpus.tolist()).items())),
        multi_gpu_share=float((gpus > 1).mean()) if len(gpus) else None,
        duration=_percentiles(durations),
        duration_job_count=len(durations),
        step_job_count=sum(job.step_count is not None for job in trace.jobs),
        gpu_hours=None if gpu_seconds is None else gpu_seconds / HOUR_S,
        busy_gpus_mean=busy,
        offered_load=None if busy is None or gpu_count is None else busy / gpu_count,
        too_large_count=None if gpu_count is None else int((gpus > gpu_count).sum()),
        job_count_by_outcome=dict(sorted(Counter(job.outcome for job in trace.jobs).items())),
    )


def gpu_seconds_of(trace: Trace) -> float | None:
    """Return the GPU time of all jobs that state a duration, None where none does."""
    stated = [job.duration_s * job.gpu_count for job in trace.jobs if job.duration_s is not None]
    return math.fsum(stated) if stated else None  # the same on every machine


def _peak(submitted: npt.NDArray[np.float64]) -> int:
    if not len(submitted):
        return 0
    return int(np.unique(submitted // HOUR_S, return_counts=True)[1].max())


def _cv(gaps: npt.NDArray[np.float64]) -> float | None:
    if len(gaps) < 2 or not gaps.mean():
        return None
    return float(gaps.std(ddof=1) / gaps.mean())


def _percentiles(durations: npt.NDArray[np.float64]) -> Percentiles | None:
    if not len(durations):
        return None
    p10, p50, p90, p99 = (float(value) for value in np.percentile(durations, _PERCENTS))
    return Percentiles(p10_s=p10, p50_s=p50, p90_s=p90, p99_s=p99, max_s=float(durations.max()))
