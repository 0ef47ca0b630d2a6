"""How much work a job that has a deadline or a budget is taken to have left. Pure: no I/O, no clock.

Here a job is held to what its user declared: who declares too little gets a promise that is worth nothing, and cannot
take anything from others for it. Where nothing is declared it is its time limit, else what the history says four jobs
in five like it do not exceed; where that is silent too nobody knows.
"""

from __future__ import annotations

from arena.domain.job import JobId
from arena.domain.records import JobState
from arena.policies.base import Holding, Snapshot
from arena.policies.length_beliefs import STEPS_MIN, belief
from arena.policies.lengths import measured_step_s, steps_done
from arena.policies.priced.moves import MOVES_MAX, MOVES_S
from arena.policies.priced.pace import remembered_paces

SURE_SHARE = 0.8
"""Of the jobs like one that declares nothing, so many are not longer than it is taken to be."""


def steps_left(snapshot: Snapshot, job_id: JobId, gpu_s_per_step: float) -> float | None:
    """Return the steps a job is taken to have left, None where nobody knows.

    Args:
        gpu_s_per_step: Least GPU-seconds that a step of it costs.
    """
    spec, done = snapshot.jobs[job_id].spec, steps_done(snapshot, job_id)
    declared = spec.step_limit
    if declared is not None and spec.stop.time_limit_s is None:
        return max(declared - done, STEPS_MIN)
    believed = belief(snapshot, job_id, gpu_s_per_step)
    ends = [believed.limit_steps - done] if spec.stop.time_limit_s is not None else []
    if declared is not None:
        ends.append(declared - done)
    if not ends and believed.median_steps is not None:
        ends.append(believed.quantile_remaining_steps(done, SURE_SHARE))
    return max(min(ends), STEPS_MIN) if ends else None


def runs_until_s(snapshot: Snapshot, job_id: JobId, holding: Holding, *, margin: float = 1.0) -> float | None:
    """Return when a job ends if it keeps what it has, None where nobody knows.

    Args:
        margin: Multiple of the work that it is taken to have left.
    """
    speed = speed_there(snapshot, job_id, holding)
    left = None if speed is None else steps_left(snapshot, job_id, holding.group.gpu_count / speed)
    if left is None or speed is None:
        return None
    start_s = 0.0 if snapshot.jobs[job_id].state is JobState.RUNNING else snapshot.restart_s
    return snapshot.now_s + start_s + margin * left / speed


def holding_ends_at_s(snapshot: Snapshot, job_id: JobId, holding: Holding, *, is_limited: bool = True) -> float | None:
    """Return when what a job has can be had, by when it ends or when it may be stopped; None where nobody knows.

    For jobs that this decision may not touch.

    Args:
        is_limited: Whether a job that was moved too often of late may not be moved, whoever needs what it has.
    """
    job = snapshot.jobs[job_id]
    if not job.spec.preemptible:
        return runs_until_s(snapshot, job_id, holding)
    if not is_limited:
        return snapshot.now_s + snapshot.restart_s
    recent = [at_s for at_s in job.launched_at_s[-MOVES_MAX:] if snapshot.now_s - at_s < MOVES_S]
    if len(recent) == MOVES_MAX:
        return recent[0] + MOVES_S
    return snapshot.now_s + snapshot.restart_s


def speed_there(snapshot: Snapshot, job_id: JobId, holding: Holding, *, is_measured: bool = True) -> float | None:
    """Return the steps per second of what a job has: as measured, else as expected of its estimate.

    Args:
        is_measured: Whether what was measured last was measured there.
    """
    measured_s = measured_step_s(snapshot.jobs[job_id])
    if measured_s and is_measured:
        return 1.0 / measured_s
    speed = _estimated_there(snapshot, job_id, holding)
    return None if speed is None else speed * float(remembered_paces(snapshot, job_id, [holding.group])[0])


def _estimated_there(snapshot: Snapshot, job_id: JobId, holding: Holding) -> float | None:
    if holding.estimate is not None:
        return 1.0 / holding.estimate.iter_time_s
    grid = snapshot.grids.get(job_id)
    cell = None if grid is None else grid.cell(holding.group)
    return None if cell is None else cell.steps_per_s
