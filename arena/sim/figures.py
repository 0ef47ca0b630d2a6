"""Figures of a replay over ALL its jobs, and over those of its steady window. Pure: no I/O, no clock.

The steady window is set by the trace alone, so that it is the same for every policy: from the instant at which a tenth
of the jobs has been submitted to the one at which nine tenths have. Its jobs are those that were submitted in it,
whenever they ended; its utilisation is that of its time.

Finish-time fairness is rho = JCT / (alone * max(1, c)): ``alone`` is how long the job takes on what it asked for, with
one start, and c is the mean, over its stay, of the GPUs that the jobs then present ask for, as a share of the cluster
(Themis, NSDI'20, with the contention of Shockwave, NSDI'23). A job with rho > 1 got less than its share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from arena.domain.job import JobId
from arena.domain.records import JobState
from arena.sim.ledger import JobOutcome, Ledger
from arena.sim.metrics import Summary, summarise

STEADY_FROM, STEADY_TO = 0.1, 0.9
"""Shares of the submissions between which a trace is taken as steady."""

SIZE_BOUNDS = (1, 4, 8, 16, 64)
"""Largest GPU counts of the classes of jobs; the last class has no bound."""

RHO_TOLERANCE = 1e-6
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What figures must know of a job beyond how it went.

    Args:
        gpu_count: GPUs that it asked for.
        alone_s: How long it takes on them, start included.
        deadline_s: Wished end, after its submission.
        is_longer: Whether it has more to do than it declared: what it is promised holds for what it declared.
        is_cancelled: Whether its user cancels it: it meets no deadline, whatever the policy does.
    """

    gpu_count: int
    alone_s: float
    deadline_s: float | None = None
    is_longer: bool = False
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A part of a run: from one instant to before another; the last submission belongs to it."""

    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a table of policies shows of a run or of its steady window.

    Args:
        p99_jct_s_by_size: By class of GPUs asked for, e.g. ``5-8``; only classes that have jobs.
        deadline_count: Jobs with a deadline.
        deadline_met_count: Of those, the ones that succeeded in time.
        deadline_overrun_count: Of the others, those that had more to do than they declared: late by themselves.
        deadline_cancelled_count: Of those with a deadline, the ones that their users cancelled: neither met nor missed.
        rho_p50, rho_max: Finish-time fairness, of the jobs that ended.
        unfair_share: Share of those with rho above 1.
    """

    summary: Summary
    cancelled_count: int
    p99_jct_s_by_size: Mapping[str, float]
    deadline_count: int
    deadline_met_count: int
    deadline_overrun_count: int
    deadline_cancelled_count: int
    rho_p50: float
    rho_max: float
    unfair_share: float


def steady_window(submitted_at_s: Sequence[float]) -> Window | None:
    """Return the steady window of jobs submitted at these instants; None where it has no length."""
    if not submitted_at_s:
        return None
    ordered = sorted(submitted_at_s)
    last = len(ordered) - 1
    from_s, to_s = ordered[int(STEADY_FROM * last)], ordered[int(STEADY_TO * last)]
    return Window(from_s=from_s, to_s=to_s) if from_s < to_s else None


def figures(ledger: Ledger, needs: Mapping[JobId, Need], *, gpu_count: int, rhos: Mapping[JobId, float]) -> Figures:
    """Return the figures of a whole run.

    Args:
        needs: Of every job that was submitted.
        gpu_count: GPUs of the cluster.
        rhos: Finish-time fairness of the jobs that ended (``finish_time_fairness``).
    """
    summary = summarise(ledger, submitted_count=len(needs), gpu_count=gpu_count, alone_s=_alone_s(needs))
    return _figures(summary, ledger.outcomes, needs, rhos)


def window_figures(
    ledger: Ledger, needs: Mapping[JobId, Need], window: Window, *, gpu_count: int, rhos: Mapping[JobId, float]
) -> Figures:
    """Return the figures of the jobs of a window; ``needs`` are those of its jobs."""
    outcomes = [one for one in ledger.outcomes if one.job_id in needs]
    part = Ledger(outcomes=outcomes, busy=ledger.busy, decision_count=ledger.decision_count)
    summary = summarise(part, submitted_count=len(needs), gpu_count=gpu_count, alone_s=_alone_s(needs))
    held = held_gpu_seconds(ledger.busy, window)
    summary = replace(summary, utilisation=held / (gpu_count * (window.to_s - window.from_s)))
    return _figures(summary, outcomes, needs, rhos)


def _figures(
    summary: Summary, outcomes: Sequence[JobOutcome], needs: Mapping[JobId, Need], rhos: Mapping[JobId, float]
) -> Figures:
    rho = np.array([rhos[one.job_id] for one in outcomes] or [np.nan])
    due = {job_id: need for job_id, need in needs.items() if need.deadline_s is not None}
    met = {one.job_id for one in outcomes if one.job_id in due and _is_in_time(one, due[one.job_id])}
    return Figures(
        summary=summary,
        cancelled_count=sum(one.state is JobState.CANCELLED for one in outcomes),
        p99_jct_s_by_size=_p99_by_size(outcomes, needs),
        deadline_count=len(due),
        deadline_met_count=len(met),
        deadline_overrun_count=sum(need.is_longer for job_id, need in due.items() if job_id not in met),
        deadline_cancelled_count=sum(need.is_cancelled for need in due.values()),
        rho_p50=float(np.median(rho)),
        rho_max=float(rho.max()),
        unfair_share=float((rho > 1 + RHO_TOLERANCE).mean()) if outcomes else 0.0,
    )


def _alone_s(needs: Mapping[JobId, Need]) -> dict[JobId, float]:
    return {job_id: need.alone_s for job_id, need in needs.items()}


def _is_in_time(outcome: JobOutcome, need: Need) -> bool:
    assert need.deadline_s is not None
    return outcome.state is JobState.SUCCEEDED and outcome.completion_s <= need.deadline_s


def size_class(gpu_count: int) -> str:
    """Return the class of a job by the GPUs that it asked for: ``size_class(6) == '5-8'``."""
    low = 1
    for high in SIZE_BOUNDS:
        if gpu_count <= high:
            return str(high) if low == high else f"{low}-{high}"
        low = high + 1
    return f"{low}+"


def _p99_by_size(outcomes: Sequence[JobOutcome], needs: Mapping[JobId, Need]) -> dict[str, float]:
    times: dict[int, list[float]] = {}
    for one in outcomes:
        count = needs[one.job_id].gpu_count
        bound = next((high for high in SIZE_BOUNDS if count <= high), SIZE_BOUNDS[-1] + 1)
        times.setdefault(bound, []).append(one.completion_s)
    return {size_class(bound): float(np.percentile(times[bound], 99)) for bound in sorted(times)}


def finish_time_fairness(
    outcomes: Sequence[JobOutcome], needs: Mapping[JobId, Need], *, gpu_count: int
) -> dict[JobId, float]:
    """Return rho of each job that ended (see the module)."""
    if not outcomes:
        return {}
    begins = np.array([one.submitted_at_s for one in outcomes])
    ends = np.array([one.ended_at_s for one in outcomes])
    asked = np.array([float(needs[one.job_id].gpu_count) for one in outcomes])
    alone_s = np.array([needs[one.job_id].alone_s for one in outcomes])
    at_s, integral = _integral(np.concatenate([begins, ends]), np.concatenate([asked, -asked]))
    stay_s = ends - begins
    wanted = np.interp(ends, at_s, integral) - np.interp(begins, at_s, integral)
    contention = np.divide(wanted, stay_s * gpu_count, out=np.ones_like(stay_s), where=stay_s > 0)
    rho = stay_s / (alone_s * np.maximum(contention, 1.0))
    return {one.job_id: float(value) for one, value in zip(outcomes, rho, strict=True)}


def _integral(at_s: Floats, changes: Floats) -> tuple[Floats, Floats]:
    """Return instants, and the integral up to them of what the changes add up to."""
    order = np.argsort(at_s, kind="stable")
    instants, level = at_s[order], np.cumsum(changes[order])
    return instants, np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(instants))])


def held_gpu_seconds(busy: Sequence[tuple[float, int]], window: Window) -> float:
    """Return the GPU time that was held in a window."""
    return float(np.diff(integral_at(busy, np.array([window.from_s, window.to_s])))[0])


def integral_at(steps: Sequence[tuple[float, float]], instants: Floats) -> Floats:
    """Return the integral of a step function up to some instants; it is 0 before its first change."""
    if not steps:
        return np.zeros_like(instants)
    at_s = np.array([at for at, _ in steps])
    level = np.array([value for _, value in steps], dtype=np.float64)
    before = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at_s))])
    index = np.searchsorted(at_s, instants, side="right") - 1
    inside = before[index] + level[index] * (instants - at_s[index])
    return np.where(index < 0, 0.0, inside)


def binned(steps: Sequence[tuple[float, float]], edges: Floats) -> Floats:
    """Return the mean of a step function between each two edges."""
    widths = np.diff(edges)
    return np.divide(np.diff(integral_at(steps, edges)), widths, out=np.zeros_like(widths), where=widths > 0)
