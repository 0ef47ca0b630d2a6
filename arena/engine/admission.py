"""Whether a job's deadline can be promised, asked once when its first grid is there. Pure: no I/O, no clock."""

from __future__ import annotations

from arena.domain.grid import Grid
from arena.domain.job import JobId, JobSpec
from arena.domain.reason import ReasonCode, reason
from arena.domain.records import EntryKind, JobRecord
from arena.domain.replacing import replace
from arena.engine.config import EngineConfig
from arena.engine.decide import PolicyFault, snapshot_of
from arena.engine.draft import Draft
from arena.engine.state import ClusterState, shape_of, wants_devices
from arena.policies.base import Admission, Admitting, Policy

UNBORN = JobId("")
"""Stands for a job that has no id yet; it sorts before all others."""


def admit(draft: Draft, policy: Policy, job_id: JobId) -> None:
    """Promise a waiting job its deadline, or note why not; a policy that fails promises nothing."""
    job, state = draft.state.jobs.get(job_id), draft.state
    if job is None or job.spec.deadline_s is None or not wants_devices(job, draft.now_s):
        return
    if not isinstance(policy, Admitting):
        draft.put_job(replace(job, deadline_cause=reason(ReasonCode.DEADLINE_NOT_WEIGHED, policy=policy.name)))
        return
    snapshot = snapshot_of(state, draft.config, draft.now_s, state.decision_index)
    try:
        answer = policy.admission(snapshot, job_id)
    except Exception as error:
        told = f"policy {policy.name} failed when it was asked for a promise: {error}"
        if draft.config.is_strict:
            raise PolicyFault(told, snapshot) from error
        # What is not promised is served all the same, and the grid must not be lost with the step.
        draft.record(EntryKind.DECISION, told, job_id=job_id, error=f"{type(error).__name__}: {error}")
        return
    if answer is None:
        return
    if answer.is_promised:
        draft.put_job(replace(job, is_deadline_promised=True))
    else:
        draft.put_job(replace(job, deadline_cause=answer.reason, deadline_earliest_at_s=answer.earliest_end_s))


def admission_of_new(
    state: ClusterState, config: EngineConfig, now_s: float, policy: Policy, asked: tuple[JobSpec, Grid]
) -> Admission | None:
    """Return whether the deadline of a job that is not submitted yet could be promised at this instant.

    Returns:
        None where nothing can be said of this job. A policy that fails gives a promise to nobody.
    """
    spec, grid = asked
    if spec.deadline_s is None:
        return None
    if not isinstance(policy, Admitting):
        cause = reason(ReasonCode.DEADLINE_NOT_WEIGHED, policy=policy.name)
        return Admission(is_promised=False, earliest_end_s=None, reason=cause)
    job = JobRecord(job_id=UNBORN, spec=spec, user=spec.user or "", request_id="", submitted_at_s=now_s)
    snapshot = snapshot_of(state, config, now_s, state.decision_index)
    with_it = replace(
        snapshot,
        shape=state.shape if state.shape_dirty_at_s is None else shape_of(state.nodes),  # that of the grid
        jobs=state.jobs.set(UNBORN, job),
        grids=state.grids.set(UNBORN, grid),
        waiting=(*snapshot.waiting, UNBORN),
    )
    try:
        return policy.admission(with_it, UNBORN)
    except Exception as error:  # noqa: BLE001 - as when the grid of a job is there: it only gets no promise
        told = f"{type(error).__name__}: {error}"
        return Admission(is_promised=False, earliest_end_s=None, reason=reason(ReasonCode.INTERNAL_ERROR, error=told))
