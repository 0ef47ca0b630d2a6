"""What a policy may know of how far a job is and how long it still takes. Pure: no I/O, no clock."""

from __future__ import annotations

from arena.domain.grid import Estimate
from arena.domain.job import JobId
from arena.domain.paces import possible_step_s
from arena.domain.records import JobRecord, JobState
from arena.policies.base import Snapshot


def measured_step_s(job: JobRecord) -> float | None:
    """Return how long a step of a job takes as it last told, None where it told nothing that can be.

    Records of former versions may have such numbers; they are no reason not to decide.
    """
    return possible_step_s(job.progress.step_time_s)


def steps_done(snapshot: Snapshot, job_id: JobId) -> float:
    """Return the steps a job has done by now: the last it reported, and what it did since then at its pace.

    A program that tells of none makes one a second, as its grid says, from when its processes are up.
    """
    job = snapshot.jobs[job_id]
    progress = job.progress
    if job.spec.command is not None and not progress.step:
        return job.run_time_s + (snapshot.now_s - job.changed_at_s if job.state is JobState.RUNNING else 0.0)
    step_s = measured_step_s(job)
    if job.state is not JobState.RUNNING or progress.reported_at_s is None or step_s is None:
        return float(progress.step)
    return progress.step + (snapshot.now_s - progress.reported_at_s) / step_s


def remaining_s(snapshot: Snapshot, job_id: JobId, estimate: Estimate | None) -> float | None:
    """Return how long a job still needs at an estimate's pace, by its declared steps; None where it declares none.

    A job that has gone past what it declared needs no more time, as far as anybody can tell.
    """
    limit = snapshot.jobs[job_id].spec.step_limit
    if limit is None or estimate is None:
        return None
    return max(limit - steps_done(snapshot, job_id), 0.0) * estimate.iter_time_s


def attained_gpu_s(snapshot: Snapshot, job_id: JobId) -> float:
    """Return the GPU-seconds a job has had, those of its running attempt included."""
    holding = snapshot.holding.get(job_id)
    running_s = 0.0 if holding is None else (snapshot.now_s - holding.since_s) * holding.group.gpu_count
    return snapshot.jobs[job_id].gpu_seconds + running_s
