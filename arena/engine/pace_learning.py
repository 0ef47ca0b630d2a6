"""What a run that ends has measured of its estimate. Pure: no I/O, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arena.domain.grid import Estimate, Grid
from arena.domain.paces import (
    TRUST_S_MIN,
    PaceHistory,
    PaceKind,
    estimator,
    possible_step_s,
    types_name,
    work_name,
)
from arena.domain.records import AttemptRecord, JobRecord

if TYPE_CHECKING:
    from arena.engine.state import ClusterState


def paces_after(state: ClusterState, attempt: AttemptRecord, now_s: float) -> PaceHistory:
    """Return what is known of paces now that an attempt is over; a short one, or one without steps, adds nothing."""
    job, grid, estimate = state.jobs.get(attempt.job_id), state.grids.get(attempt.job_id), attempt.estimate
    begun_s = attempt.first_step_at_s
    if job is None or grid is None or estimate is None or begun_s is None or now_s - begun_s < TRUST_S_MIN:
        return state.paces
    step_s = _step_s(job, attempt)
    if step_s is None or not _is_of(grid, attempt, estimate):
        return state.paces
    user = job.user if job.spec.command is not None else ""
    kind = PaceKind(estimator(grid), work_name(job.spec, job.user), types_name(attempt.group), user)
    return state.paces.after(kind, estimate.iter_time_s / step_s, now_s)


def _step_s(job: JobRecord, attempt: AttemptRecord) -> float | None:
    """Return the mean time of an attempt's steps but the first, or of that where it told of no other; None if odd."""
    told_s = attempt.timed_s / attempt.timed_steps if attempt.timed_steps else job.progress.step_time_s
    return possible_step_s(told_s)


def _is_of(grid: Grid, attempt: AttemptRecord, estimate: Estimate) -> bool:
    """Tell whether an estimate is from this grid: a job may have been planned anew, by another planner, since."""
    cell = grid.cell(attempt.group)
    plans = () if cell is None else (cell.best, *cell.others)
    return any(one.estimate.iter_time_s == estimate.iter_time_s for one in plans)
