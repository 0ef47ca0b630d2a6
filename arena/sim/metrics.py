"""Figures of a run over ALL its jobs. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from arena.domain.job import JobId
from arena.domain.records import JobState
from arena.sim.ledger import JobOutcome, Ledger

SLOWDOWN_BOUND_S = 10.0
"""Shorter jobs count as long as this in the bounded slowdown (Feitelson et al. 1997)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a table of policies shows; times in seconds, over every job that was submitted.

    Args:
        unfinished_count: Jobs that had not ended when the run did; they have no completion time.
        avg_bounded_slowdown: Mean of max(1, JCT / max(alone, 10 s)), where ``alone`` is how long the job takes by
            itself, the same under every policy (Feitelson et al. 1997); how long it had GPUs, where that is not known.
        queue_s: Mean time without GPUs: before the first launch, while suspended and between attempts.
        lost_share: Share of the GPU-hours that went to starting, loading, saving and repeated steps.
        utilisation: Held GPU-seconds over capacity, from the first submission to the last end.
    """

    job_count: int
    unfinished_count: int
    failed_count: int
    avg_jct_s: float
    p50_jct_s: float
    p99_jct_s: float
    max_jct_s: float
    avg_bounded_slowdown: float
    queue_s: float
    makespan_s: float
    gpu_hours: float
    lost_gpu_hours: float
    lost_share: float
    utilisation: float
    restarts_per_job: float
    decision_count: int


def summarise(
    ledger: Ledger, *, submitted_count: int, gpu_count: int, alone_s: Mapping[JobId, float] | None = None
) -> Summary:
    """Return the figures of a run.

    Args:
        submitted_count: Jobs that were submitted.
        gpu_count: GPUs of the cluster.
        alone_s: How long jobs take by themselves on what they ask for.
    """
    outcomes = ledger.outcomes
    jct_s = np.array([one.completion_s for one in outcomes] or [np.nan])
    p50_s, p99_s = np.percentile(jct_s, [50, 99])
    first_s = min((one.submitted_at_s for one in outcomes), default=0.0)
    makespan_s = max((one.ended_at_s for one in outcomes), default=0.0) - first_s
    held_s = sum(one.gpu_seconds for one in outcomes)
    lost_s = sum(one.lost_gpu_seconds for one in outcomes)
    return Summary(
        job_count=submitted_count,
        unfinished_count=submitted_count - len(outcomes),
        failed_count=sum(one.state is JobState.FAILED for one in outcomes),
        avg_jct_s=float(jct_s.mean()),
        p50_jct_s=float(p50_s),
        p99_jct_s=float(p99_s),
        max_jct_s=float(jct_s.max()),
        avg_bounded_slowdown=_mean([_bounded_slowdown(one, alone_s or {}) for one in outcomes]),
        queue_s=_mean([one.waiting_s for one in outcomes]),
        makespan_s=makespan_s,
        gpu_hours=held_s / 3600,
        lost_gpu_hours=lost_s / 3600,
        lost_share=lost_s / held_s if held_s else 0.0,
        utilisation=held_s / (gpu_count * makespan_s) if makespan_s else 0.0,
        restarts_per_job=_mean([one.restart_count for one in outcomes]),
        decision_count=ledger.decision_count,
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _bounded_slowdown(outcome: JobOutcome, alone_s: Mapping[JobId, float]) -> float:
    run_s = alone_s.get(outcome.job_id, outcome.held_s)
    return max(outcome.completion_s / max(run_s, SLOWDOWN_BOUND_S), 1.0)
