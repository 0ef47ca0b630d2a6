"""Asking the policy and carrying out what it says. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arena.domain.allocation import splits_tensor_parallel_group
from arena.domain.job import JobId
from arena.domain.launch import DeviceId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import EntryKind, JobRecord, JobState, Target
from arena.domain.replacing import replace
from arena.engine.attempts import launch, stop_attempt, try_launch
from arena.engine.blame import Blamed, to_blame
from arena.engine.config import EngineConfig
from arena.engine.draft import Draft
from arena.engine.jobs import count_evaluation_failure, tell_broken
from arena.engine.state import ClusterState
from arena.errors import InternalError
from arena.policies.base import Choice, Decision, Explaining, Policy, Snapshot


class PolicyFault(InternalError):  # noqa: N818 - a fault of the policy, which is what is being studied
    """A decision that cannot be carried out.

    Attributes:
        snapshot: What the policy saw; with it the decision can be asked for again.
    """

    def __init__(self, what: str, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        super().__init__(what)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.what, self.snapshot))


_LATE = frozenset({ReasonCode.DEADLINE_LATE, ReasonCode.DEADLINE_OPEN, ReasonCode.DEADLINE_PASSED})

ASKS_MAX = 64
"""Decisions that are asked for, each without other jobs, to find those that a policy fails on."""


def decide(draft: Draft, policy: Policy) -> None:
    """Ask the policy about the present state and carry out its decision.

    A policy that fails on some job does not stop the others: the job is found by leaving it out, and one that waits is
    held after repeated failures.
    """
    index = draft.state.decision_index + 1
    draft.update(decision_due=False, due_since_s=None, decision_index=index)
    state = draft.state
    if not state.queue and not state.holding:
        draft.update(decided_at_s=draft.now_s)
        rest(draft)
        return
    decision = _ask(draft, policy, index)
    draft.decision = decision
    draft.update(
        decided_at_s=draft.now_s,
        rest=decision.rest,
        reasons=decision.reasons,
        look_again_at_s=decision.look_again_at_s,
    )
    _tell_broken(draft, decision)
    if decision.choices:
        _carry_out(draft, decision, index)
    draft.update(decision_due=False)  # what the decision itself changed is no news


def rest(draft: Draft) -> None:
    """Take note that there is nothing to decide at present."""
    draft.update(decision_due=False, due_since_s=None, rest=None, reasons={}, look_again_at_s=None)


def _tell_broken(draft: Draft, decision: Decision) -> None:
    """Note of which jobs the decision says that the deadlines that they were promised cannot be kept."""
    for job_id, told in decision.reasons.items():
        job = draft.state.jobs.get(job_id)
        if job is None or not job.is_deadline_promised:
            continue
        why = next((one for one in told if one.code in _LATE), None)
        if why is not None:
            tell_broken(draft, job, why)


def explanation(
    state: ClusterState, config: EngineConfig, now_s: float, policy: Policy, job_id: JobId
) -> tuple[Reason, ...]:
    """Return which plans a job has lost, and what the policy says of it beyond its decisions."""
    job = state.jobs.get(job_id)
    struck = tuple(one.reason for one in job.struck) if job is not None else ()
    if not isinstance(policy, Explaining):
        return struck
    return struck + policy.explain(snapshot_of(state, config, now_s, state.decision_index), job_id)


def _snapshot(draft: Draft, index: int, without: frozenset[JobId] = frozenset()) -> Snapshot:
    snapshot = snapshot_of(draft.state, draft.config, draft.now_s, index)
    if not without:
        return snapshot
    holding = draft.state.holding
    for job_id in sorted(job_id for job_id in without if job_id in holding):
        holding = holding.delete(job_id)
    waiting = tuple(job_id for job_id in snapshot.waiting if job_id not in without)
    return replace(snapshot, waiting=waiting, holding=holding)


def snapshot_of(state: ClusterState, config: EngineConfig, now_s: float, index: int) -> Snapshot:
    """Return what a policy may look at."""
    return Snapshot(
        now_s=now_s,
        decision_index=index,
        jobs=state.jobs,
        waiting=state.queue,
        holding=state.holding,
        grids=state.grids,
        capacity=state.capacity,
        shape=state.shape,
        nodes=state.nodes,
        places=state.places,
        checkpoint_root=config.checkpoint_root,
        restart_s=state.restart_s,
        history=state.lengths,
        paces=state.paces,
        usd_per_hour=config.usd_per_hour,
        tenants=config.tenants,
    )


def _ask(draft: Draft, policy: Policy, index: int) -> Decision:
    snapshot = _snapshot(draft, index)
    try:
        return _checked(draft.state, policy.decide(snapshot))
    except Exception as error:
        if draft.config.is_strict:
            raise PolicyFault(f"policy {policy.name} failed at {draft.now_s:.3f} s: {error}", snapshot) from error
        # One poisoned job must not stop the scheduling of all others.
        return _ask_without_culprits(draft, policy, index, f"{type(error).__name__}: {error}")


def _ask_without_culprits(draft: Draft, policy: Policy, index: int, error: str) -> Decision:
    """Return the decision without the jobs that the policy fails on, which are found by leaving some out.

    Those that run come first: left out, they run on. Of those that wait the newest comes first. Where nobody can be
    left out, or only all of several that wait, it is the policy that fails, and nobody is blamed.
    """
    state = draft.state

    def without(left_out: frozenset[JobId]) -> Decision | None:
        return _without(draft, policy, index, left_out)

    suspects = [*sorted(state.holding), *state.queue[::-1]]
    known = [job_id for job_id in suspects if state.jobs[job_id].evaluation_failure_count]
    # One that runs is not held and fails each decision: those of the last time are mostly those of this one.
    found: Blamed[Decision] = to_blame(known, without, tries_max=ASKS_MAX) if known else Blamed()
    if found.answer is None:
        found = to_blame(suspects, without, tries_max=ASKS_MAX)
    waiting = set(state.queue)
    if found.answer is None or (len(waiting) > 1 and waiting <= found.guilty):
        draft.record(EntryKind.DECISION, f"the policy failed: {error}", error=error)
        return Decision(rest=reason(ReasonCode.INTERNAL_ERROR, error=error))
    told = (reason(ReasonCode.INTERNAL_ERROR, error=error),)
    for job_id in sorted(found.guilty):
        job = state.jobs[job_id]
        if job_id in waiting or job.reasons != told:
            count_evaluation_failure(draft, job, error)
    return found.answer


def _without(draft: Draft, policy: Policy, index: int, without: frozenset[JobId]) -> Decision | None:
    """Return the decision without some jobs, which keep what they have; None where it fails as well."""
    try:
        return _checked(draft.state, policy.decide(_snapshot(draft, index, without)))
    except Exception:  # noqa: BLE001 - what it fails on is being looked for
        return None


def _checked(state: ClusterState, decision: Decision) -> Decision:
    """Return the decision if it can be carried out.

    Raises:
        InternalError: It gives a device twice, one that is not to be had, or moves a job that may not be moved.
    """
    given: dict[DeviceId, JobId] = {}
    holders, reserved = state.holders, state.reserved
    for job_id, choice in sorted(decision.choices.items()):
        _check_movable(state, job_id, choice)
        if choice is None:
            continue
        _check_shape(job_id, choice)
        for share in choice.allocation.shares:
            for device in share.device_ids:
                if device in given:
                    raise InternalError(f"the policy gives device {device} to both {given[device]} and {job_id}")
                given[device] = job_id
                if device in holders or device in reserved:
                    _check_device(state, decision.choices, device, job_id)
    return decision


def _check_movable(state: ClusterState, job_id: JobId, choice: Choice | None) -> None:
    job = state.jobs.get(job_id)
    if job is None:
        raise InternalError(f"the policy names job {job_id}, which is unknown or over")
    holding = state.holding.get(job_id)
    if holding is None and (choice is None or job.state is not JobState.QUEUED):
        raise InternalError(f"the policy changes job {job_id}, which has nothing and is {job.state.value}")
    if holding is not None and not holding.movable:
        raise InternalError(f"the policy moves job {job_id}, which may not be moved now")


def _check_shape(job_id: JobId, choice: Choice) -> None:
    allocation, plan = choice.allocation, choice.plan
    counts = [len(share.device_ids) for share in allocation.shares]
    gpu_count = sum(counts)
    if gpu_count != choice.group.gpu_count or len(allocation.device_ids) != gpu_count:
        raise InternalError(f"job {job_id}: {gpu_count} devices do not make the group {choice.group}")
    if plan is not None and plan.gpu_count != gpu_count:
        raise InternalError(f"job {job_id}: plan {plan} needs {plan.gpu_count} GPUs, gets {gpu_count}")
    if plan is not None and splits_tensor_parallel_group(plan, counts):
        raise InternalError(f"job {job_id}: plan {plan} would split a tensor-parallel group over nodes {counts}")


def _check_device(state: ClusterState, choices: Mapping[JobId, Choice | None], device: DeviceId, job_id: JobId) -> None:
    keeper = state.reserved.get(device)
    if keeper is not None and keeper != job_id:
        raise InternalError(f"the policy gives device {device} to {job_id}, but it is kept for {keeper}")
    holder = state.holders.get(device)
    if holder is None:
        return
    owner = state.attempts[holder].job_id
    if owner != job_id and owner not in choices:
        raise InternalError(f"the policy gives device {device} to {job_id}, but {owner} has it and keeps it")


def _carry_out(draft: Draft, decision: Decision, index: int) -> None:
    choices, ready = sorted(decision.choices.items()), {}
    takers = _takers(decision) if any(choice is None for _, choice in choices) else {}
    for job_id, choice in choices:
        job = draft.state.jobs[job_id]
        if choice is None:
            _preempt(draft, job, decision, takers)
        elif job.attempt_id is not None:
            _reconfigure(draft, job, choice, index)
        elif draft.take_free(job, choice.allocation):
            ready[job_id] = _target(draft, choice, index)
        else:
            _set_target(draft, job, choice, index, job.state)
    for job_id, choice in choices:
        if job_id in ready:
            launch(draft, draft.state.jobs[job_id], ready[job_id], evaluated_at_s=draft.now_s)
        elif choice is not None:
            try_launch(draft, draft.state.jobs[job_id])


def _preempt(draft: Draft, job: JobRecord, decision: Decision, taker_by_device: Mapping[DeviceId, JobId]) -> None:
    assert job.attempt_id is not None
    causes = decision.reasons.get(job.job_id, ())
    cause = causes[0] if causes else reason(ReasonCode.PREEMPTED, job="others")
    draft.put_job(replace(job, state=JobState.PREEMPTING, preemption_count=job.preemption_count + 1, reasons=(cause,)))
    attempt = draft.state.attempts[job.attempt_id]
    takers = sorted({taker_by_device[one] for one in attempt.allocation.device_ids if one in taker_by_device})
    draft.record(
        EntryKind.JOB_PREEMPTED,
        f"{cause}; its GPUs go to {', '.join(takers)}" if takers else str(cause),
        job_id=job.job_id,
        attempt_id=job.attempt_id,
        decision_index=draft.state.decision_index,
        preemption_count=job.preemption_count + 1,
        by=", ".join(takers) or cause.names.get("job"),
    )
    stop_attempt(draft, attempt, "save", cause)


def _takers(decision: Decision) -> dict[DeviceId, JobId]:
    """Return who is given each device that a decision gives away."""
    given = ((job_id, choice) for job_id, choice in decision.choices.items() if choice is not None)
    return {device: job_id for job_id, choice in given for device in choice.allocation.device_ids}


def _set_target(draft: Draft, job: JobRecord, choice: Choice, index: int, state: JobState) -> None:
    draft.reserve(job.job_id, choice.allocation.node_ids, choice.allocation.device_ids)
    target = _target(draft, choice, index)
    draft.put_job(replace(job, state=state, target=target, reasons=(choice.cause,), evaluated_at_s=draft.now_s))


def _target(draft: Draft, choice: Choice, index: int) -> Target:
    return Target(
        group=choice.group,
        plan=choice.plan,
        estimate=choice.estimate,
        allocation=choice.allocation,
        decided_at_s=draft.now_s,
        decision_index=index,
        cause=choice.cause,
    )


def _reconfigure(draft: Draft, job: JobRecord, choice: Choice, index: int) -> None:
    assert job.attempt_id is not None
    attempt = draft.state.attempts[job.attempt_id]
    if attempt.allocation == choice.allocation and attempt.plan == choice.plan:
        return
    _set_target(
        draft,
        replace(job, reconfiguration_count=job.reconfiguration_count + 1),
        choice,
        index,
        JobState.RECONFIGURING,
    )
    stop_attempt(draft, attempt, "save", choice.cause)
