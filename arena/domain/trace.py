"""Jobs of a cluster's trace: who asked for what, when, and how it went. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from arena.domain.job import JobId, WorkloadSpec


class TraceOutcome(StrEnum):
    """How a job of a trace ended; ``running`` was still at it when the trace ends."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RUNNING = "running"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """A job of a trace, in the trace's own terms.

    Args:
        job_id: Unique within the trace.
        row: Line of the source that it was read from, counted from 1 as an editor does.
        submitted_at_s: After the trace's beginning, or after whatever instant its times count from.
        gpu_count: GPUs asked for, over all workers; a share of a GPU is rounded up to a whole one.
        duration_s: Time it ran on them, without queueing; None where the trace does not say.
        step_count: Optimizer steps; None where the trace knows no steps.
        workload: What it trains, where the trace names it.
        gpu_type: GPU type asked for or used, as the trace calls it.
        deadline_s: Wished end, after submission.
    """

    job_id: JobId
    row: int
    submitted_at_s: float
    gpu_count: int
    duration_s: float | None = None
    step_count: int | None = None
    workload: WorkloadSpec | None = None
    gpu_type: str | None = None
    deadline_s: float | None = None
    user: str = ""
    project: str = ""
    outcome: TraceOutcome = TraceOutcome.UNKNOWN
