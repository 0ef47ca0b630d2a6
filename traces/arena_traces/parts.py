"""Parts of a trace, and its arrivals closer together or further apart. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from arena.domain.trace import TraceJob
from arena.errors import UserError
from arena.units import format_count
from arena_traces.trace import Trace, order


def first_jobs(trace: Trace, count: int) -> Trace:
    """Return a trace's first so many jobs.

    Raises:
        UserError: ``count`` is not positive.
    """
    if count < 1:
        raise UserError(f"{count} jobs are no trace", fix="take at least one")
    return _part(trace, trace.jobs[:count], f"the first {format_count(count, 'job')}")


def window(trace: Trace, *, from_s: float, to_s: float) -> Trace:
    """Return the jobs that were submitted from one instant to before another, on the trace's own clock.

    Raises:
        UserError: There are none.
    """
    jobs = tuple(job for job in trace.jobs if from_s <= job.submitted_at_s < to_s)
    if not jobs:
        raise UserError(f"no job was submitted from {from_s:g} to {to_s:g} s", why=_span_text(trace))
    return _part(trace, jobs, f"submitted from {from_s:g} to before {to_s:g} s")


def from_zero(trace: Trace) -> Trace:
    """Return a trace whose first job is submitted at 0."""
    if not trace.jobs or not trace.jobs[0].submitted_at_s:
        return trace
    first_s = trace.jobs[0].submitted_at_s
    text = f"time 0 is that of the first submission, {first_s:,.0f} s in the trace"
    return _moved(trace, lambda at_s: at_s - first_s, text)


def with_offered_load(
    trace: Trace,
    load: float,
    *,
    gpu_count: int,
    gpu_seconds: Callable[[TraceJob], float | None] | None = None,
) -> Trace:
    """Return a trace whose arrivals are compressed or stretched until it offers a wished load.

    The offered load is the GPU time of all jobs over the time from the first submission to the last and all GPUs. Gaps
    between submissions keep their proportions; the jobs are left as they are.

    Args:
        load: Wished, as a share of the GPUs.
        gpu_count: GPUs of the cluster.
        gpu_seconds: GPU time of a job; by default its duration on its GPUs. A trace that states steps only needs one.

    Raises:
        UserError: The wish is not positive, a job's GPU time is not known, or all jobs are submitted at once.
    """
    if not 0 < load < math.inf or gpu_count < 1:
        raise UserError(f"a load of {load:g} on {gpu_count} GPUs cannot be offered", fix="both must be above 0")
    if not trace.jobs:
        raise UserError("a trace without jobs offers no load")
    first_s, last_s = trace.jobs[0].submitted_at_s, trace.jobs[-1].submitted_at_s
    if first_s == last_s:
        raise UserError("the load of a trace whose jobs are all submitted at once cannot be changed")
    total = math.fsum(_gpu_seconds(trace.jobs, gpu_seconds or _stated))
    factor = total / (load * gpu_count) / (last_s - first_s)
    if not 0 < factor * (last_s - first_s) < math.inf:
        raise UserError(f"a load of {load:g} on {gpu_count} GPUs is out of reach", why=f"the jobs take {total:g} GPU-s")
    change = f"arrivals scaled by {factor:.6g} to offer {load:g} of {gpu_count:,} GPUs"
    return _moved(trace, lambda at_s: first_s + (at_s - first_s) * factor, change)


def _stated(job: TraceJob) -> float | None:
    return None if job.duration_s is None else job.duration_s * job.gpu_count


def _gpu_seconds(jobs: Iterable[TraceJob], gpu_seconds: Callable[[TraceJob], float | None]) -> Iterable[float]:
    for job in jobs:
        value = gpu_seconds(job)
        if value is None:
            raise UserError(f"the GPU time of job {job.job_id} (line {job.row}) is not known, nor the load it offers")
        yield value


def _moved(trace: Trace, move: Callable[[float], float], change: str) -> Trace:
    moved = (replace(job, submitted_at_s=move(job.submitted_at_s)) for job in trace.jobs)
    # Rounding may make instants equal, and then the row decides.
    return _with_jobs(trace, sorted(moved, key=order), change)


def _part(trace: Trace, jobs: tuple[TraceJob, ...], change: str) -> Trace:
    kept = {job.job_id for job in jobs}
    accounting = trace.accounting
    left_out_count = accounting.left_out_count + len(trace.jobs) - len(jobs)
    return replace(
        trace,
        jobs=jobs,
        accounting=replace(accounting, job_count=len(jobs), left_out_count=left_out_count),
        draws=tuple(draw for draw in trace.draws if draw.job_id in kept),
        spec_by_job={job_id: spec for job_id, spec in trace.spec_by_job.items() if job_id in kept},
        changes=(*trace.changes, change),
    )


def _with_jobs(trace: Trace, jobs: Iterable[TraceJob], change: str) -> Trace:
    made = tuple(jobs)
    draw_by_job = {draw.job_id: draw for draw in trace.draws}
    draws = tuple(draw_by_job[job.job_id] for job in made if job.job_id in draw_by_job)
    return replace(trace, jobs=made, draws=draws, changes=(*trace.changes, change))


def _span_text(trace: Trace) -> str:
    if not trace.jobs:
        return "the trace has no jobs"
    return f"the trace goes from {trace.jobs[0].submitted_at_s:g} to {trace.jobs[-1].submitted_at_s:g} s"
