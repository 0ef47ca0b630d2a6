"""What must hold of every state, as a function that says what does not. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator

from arena.domain.records import AttemptRecord, JobState, Wish
from arena.engine.counts import gpu_counts
from arena.engine.state import ClusterState, pool_of

_LIVE_STATES = frozenset(
    {JobState.STARTING, JobState.RUNNING, JobState.PREEMPTING, JobState.FINISHING, JobState.CANCELLING}
)


def violations(state: ClusterState) -> list[str]:
    """Return every broken invariant of a state as a sentence; an empty list is what should be."""
    return [*_jobs(state), *_attempts(state), *_devices(state), *_capacity(state), *_queue(state), *_holding(state)]


def _jobs(state: ClusterState) -> Iterator[str]:
    for job in state.jobs.values():
        if job.state.is_terminal:
            yield f"job {job.job_id} is over and still in the state"
        if job.state in _LIVE_STATES and job.attempt_id is None:
            yield f"job {job.job_id} is {job.state.value} without a live attempt"
        if job.state in {JobState.QUEUED, JobState.HELD} and job.attempt_id is not None:
            yield f"job {job.job_id} is {job.state.value} and has the live attempt {job.attempt_id}"
        if job.state is JobState.RECONFIGURING and job.target is None:
            yield f"job {job.job_id} is reconfiguring to nothing"
        if job.attempt_id is not None and job.attempt_id not in state.attempts:
            yield f"job {job.job_id} names attempt {job.attempt_id}, which is not live"
        if job.wish is not Wish.RUN and job.target is not None:
            yield f"job {job.job_id} is wished to {job.wish.value} and has a target"


def _attempts(state: ClusterState) -> Iterator[str]:
    for attempt in state.attempts.values():
        job = state.jobs.get(attempt.job_id)
        if job is None or job.attempt_id != attempt.attempt_id:
            yield f"attempt {attempt.attempt_id} lives, but its job knows {job.attempt_id if job else 'nothing'}"
        elif job.epoch != attempt.epoch:
            yield f"attempt {attempt.attempt_id} lives, but its job is at epoch {job.epoch}"
        elif any((one.group, one.plan) == (attempt.group, attempt.plan) for one in job.struck):
            yield f"attempt {attempt.attempt_id} runs {attempt.plan} on {attempt.group}, which ran out of memory before"
        yield from _gang(state, attempt)


def _gang(state: ClusterState, attempt: AttemptRecord) -> Iterator[str]:
    """A gang holds all devices of every node that has not ended, and none of the others."""
    for share in attempt.allocation.shares:
        ended = share.node_id in attempt.ended_nodes
        for device in share.device_ids:
            holds = state.holders.get(device) == attempt.attempt_id
            if holds == ended:
                yield f"attempt {attempt.attempt_id} {'still holds' if holds else 'does not hold'} device {device}"


def _devices(state: ClusterState) -> Iterator[str]:
    listed = {device.device_id for node in state.nodes.values() for device in node.info.devices}
    for device, name in state.holders.items():
        if device not in listed:
            yield f"device {device} is held by {name}, and no node has it"
        if name not in state.attempts:
            yield f"device {device} is held by {name}, which is not live"
    for device, job_id in state.reserved.items():
        job = state.jobs.get(job_id)
        if job is None or job.target is None or device not in job.target.allocation.device_ids:
            yield f"device {device} is kept for job {job_id}, which does not want it"
    for job in state.jobs.values():
        for device in sorted(job.target.allocation.device_ids) if job.target is not None else ():
            if state.reserved.get(device) != job.job_id:
                yield f"job {job.job_id} wants device {device}, which is not kept for it"


def _capacity(state: ClusterState) -> Iterator[str]:
    for counts in gpu_counts(state):
        if counts.free + counts.used + counts.draining + counts.dirty != counts.total:
            yield f"GPUs of type {counts.gpu_type} do not add up: {counts}"
    holes = {(pool, size): nodes for pool, size, nodes in state.capacity.holes()}
    for node in state.nodes.values():
        expected = {
            device.device_id
            for device in node.info.devices
            if node.is_usable
            and device.dirty is None
            and device.device_id not in state.holders
            and device.device_id not in state.reserved
        }
        room = state.capacity.rooms.get(node.node_id)
        free = [device for _, device in room.free] if room is not None else []
        if set(free) != expected or len(free) != len(expected):
            yield f"node {node.node_id} should have {sorted(expected)} free, capacity says {free}"
        if free and node.node_id not in holes.get((pool_of(node), len(free)), ()):
            yield f"node {node.node_id} is not among the holes of size {len(free)}"


def _queue(state: ClusterState) -> Iterator[str]:
    keys = list(state.queue.keys)
    if keys != sorted(set(keys)):
        yield "the queue is not sorted, or holds a job twice"
    for job_id in state.queue:
        job = state.jobs.get(job_id)
        if job is None or job.state is not JobState.QUEUED or job.target is not None or job.wish is not Wish.RUN:
            yield f"job {job_id} is in the queue and should not be"


def _holding(state: ClusterState) -> Iterator[str]:
    """What a policy may take from a job and give to another, the job has, and nobody has been promised it."""
    for job_id, holding in state.holding.items():
        for device in sorted(holding.allocation.device_ids) if holding.movable else ():
            if state.holders.get(device) != state.jobs[job_id].attempt_id or device in state.reserved:
                yield f"job {job_id} may be moved from device {device}, which it does not have"
