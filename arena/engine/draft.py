"""One step under construction: records are replaced, indexes follow, commands and history collect. Pure.

A ``Draft`` is the only way the engine changes a state. It lives for one event and is then frozen into a ``Step`` and
the next ``ClusterState``; if a handler raises, the draft is dropped and nothing has happened.
"""

from __future__ import annotations

from bisect import bisect_left

from arena.domain.cluster import NodeState
from arena.domain.commands import Command
from arena.domain.events import Event
from arena.domain.job import JobId
from arena.domain.launch import AttemptId, DeviceId, NodeId
from arena.domain.records import (
    AttemptRecord,
    AttemptState,
    EntryKind,
    HistoryEntry,
    JobRecord,
    JobState,
    NodeRecord,
)
from arena.domain.replacing import replace
from arena.domain.transitions import ATTEMPT_TRANSITIONS, JOB_TRANSITIONS, NODE_TRANSITIONS, check_transition
from arena.engine.config import EngineConfig
from arena.engine.ports import Step
from arena.engine.state import ClusterState, pool_of, wants_devices
from arena.errors import InternalError
from arena.policies.base import Decision, Holding


class Draft:
    """A state being changed by one event at one instant."""

    def __init__(self, state: ClusterState, event: Event, now_s: float, config: EngineConfig) -> None:
        self.now_s = now_s
        self.config = config
        self.decision: Decision | None = None
        self._event = event
        # A private copy, changed in place until the step is finished: a new one for each change took most of the time.
        self._state = replace(state)
        self._commands: list[Command] = []
        self._history: list[HistoryEntry] = []
        self._jobs: dict[JobId, JobRecord] = {}
        self._attempts: dict[AttemptId, AttemptRecord] = {}
        self._nodes: dict[NodeId, NodeRecord] = {}

    @property
    def state(self) -> ClusterState:
        """The state so far."""
        return self._state

    def update(self, **changes: object) -> None:
        """Replace fields of the state; handlers outside this module replace only those that are not indexes."""
        for name, value in changes.items():
            object.__setattr__(self._state, name, value)  # frozen for everybody else

    def command(self, command: Command) -> None:
        """Add a command, to be sent once this step is durable."""
        self._commands.append(command)

    def record(
        self,
        kind: EntryKind,
        message: str,
        /,
        *,
        job_id: JobId | None = None,
        attempt_id: AttemptId | None = None,
        node_id: NodeId | None = None,
        **data: object,
    ) -> None:
        """Add a history entry."""
        index = self._state.history_index + 1
        self._history.append(
            HistoryEntry(
                index=index,
                at_s=self.now_s,
                kind=kind,
                message=message,
                job_id=job_id,
                attempt_id=attempt_id,
                node_id=node_id,
                data={key: value for key, value in data.items() if value is not None},
            )
        )
        self.update(history_index=index)

    # Records

    def put_job(self, job: JobRecord) -> None:
        """Store a job; its queue entry and holding follow. A terminal job leaves the state.

        Raises:
            InternalError: The change of state is not legal.
        """
        before = self._state.jobs.get(job.job_id)
        if before is not None and before.state is not job.state:
            check_transition(JOB_TRANSITIONS, before.state, job.state, f"job {job.job_id}")
            job = replace(job, changed_at_s=self.now_s)
            self._record_job_state(job, before.state)
        self._jobs[job.job_id] = job
        jobs = self._state.jobs
        self.update(jobs=jobs.delete(job.job_id) if job.state.is_terminal else jobs.set(job.job_id, job))
        if job.state.is_terminal:
            self._forget_job(job.job_id)
            self.update(lengths=self._state.lengths.after(job))
        self.refresh_queue(job, before)
        self.refresh_holding(job.job_id)

    def _record_job_state(self, job: JobRecord, before: JobState) -> None:
        self.record(
            EntryKind.JOB_STATE,
            f"{before.value} -> {job.state.value}" + (f": {job.error}" if job.error and job.state.is_terminal else ""),
            job_id=job.job_id,
            before=before.value,
            after=job.state.value,
            error=job.error or None,
            result=job.result or None,
        )

    def _forget_job(self, job_id: JobId) -> None:
        state = self._state
        if job_id in state.grids:
            self.update(grids=state.grids.delete(job_id), grid_shapes=state.grid_shapes.delete(job_id))

    def refresh_queue(self, job: JobRecord, before: JobRecord | None = None) -> None:
        """Put a job into the queue, or take it out, as its record says."""
        queue, waiting = self._state.queue, self._state.waiting
        old_key = before.queue_key if before is not None else job.queue_key
        position = bisect_left(queue, old_key)
        is_queued = position < len(queue) and queue[position] == old_key
        wanted = wants_devices(job, self.now_s) and job.job_id in self._state.grids
        if is_queued and not wanted:
            queue = (*queue[:position], *queue[position + 1 :])
            waiting = (*waiting[:position], *waiting[position + 1 :])
        elif wanted and not is_queued:
            queue = (*queue[:position], job.queue_key, *queue[position:])
            waiting = (*waiting[:position], job.job_id, *waiting[position:])
        else:
            return
        self.update(queue=queue, waiting=waiting, decision_due=True)

    def refresh_holding(self, job_id: JobId) -> None:
        """Recompute what a job has or is about to have."""
        holding = self._holding(self._state.jobs.get(job_id))
        known = self._state.holding
        if holding is None:
            if job_id in known:
                self.update(holding=known.delete(job_id))
        elif known.get(job_id) != holding:
            self.update(holding=known.set(job_id, holding))

    def _holding(self, job: JobRecord | None) -> Holding | None:
        if job is None:
            return None
        if job.target is not None:
            target = job.target
            return Holding(
                group=target.group,
                plan=target.plan,
                estimate=target.estimate,
                allocation=target.allocation,
                movable=False,
                since_s=target.decided_at_s,
            )
        attempt = self._state.attempts.get(job.attempt_id) if job.attempt_id else None
        if attempt is None:
            return None
        return Holding(
            group=attempt.group,
            plan=attempt.plan,
            estimate=attempt.estimate,
            allocation=attempt.allocation,
            movable=job.state is JobState.RUNNING and attempt.state is AttemptState.RUNNING and job.spec.preemptible,
            since_s=attempt.launched_at_s,
        )

    def put_attempt(self, attempt: AttemptRecord) -> None:
        """Store an attempt; an ended one leaves the state.

        Raises:
            InternalError: The change of state is not legal.
        """
        before = self._state.attempts.get(attempt.attempt_id)
        if before is not None:
            check_transition(ATTEMPT_TRANSITIONS, before.state, attempt.state, f"attempt {attempt.attempt_id}")
        self._attempts[attempt.attempt_id] = attempt
        attempts = self._state.attempts
        self.update(
            attempts=attempts.set(attempt.attempt_id, attempt)
            if attempt.is_live
            else attempts.delete(attempt.attempt_id),
        )
        if before is None or before.state is not attempt.state:
            self.refresh_holding(attempt.job_id)

    def put_node(self, node: NodeRecord) -> None:
        """Store a node; capacity follows. A change of state is recorded in the history."""
        before = self._state.nodes.get(node.node_id)
        if before is not None:
            check_transition(NODE_TRANSITIONS, before.state, node.state, f"node {node.node_id}")
        self._nodes[node.node_id] = node
        self.update(nodes=self._state.nodes.set(node.node_id, node))
        if _share_of_shape(before) != _share_of_shape(node):
            self.update(shape_dirty_at_s=self.now_s)
        if before is None or before.state is not node.state:
            cause = f": {node.state_cause}" if node.state_cause else ""
            self.record(
                EntryKind.NODE_STATE,
                f"{before.state.value if before else 'new'} -> {node.state.value}{cause}",
                node_id=node.node_id,
                before=before.state.value if before else None,
                after=node.state.value,
                cause=node.state_cause or None,
            )
        self.refresh_node(node.node_id)

    # Devices

    def refresh_node(self, node_id: NodeId) -> None:
        """Recompute what a node has to give: clean, not held, not reserved, and only if the node is usable."""
        state = self._state
        node = state.nodes[node_id]
        clean = tuple(
            (device.index, device.device_id)
            for device in (node.info.devices if node.is_usable else ())
            if device.dirty is None
        )
        free = tuple(item for item in clean if item[1] not in state.holders and item[1] not in state.reserved)
        capacity = state.capacity.with_devices(node_id, pool_of(node), clean)
        room = capacity.rooms.get(node_id)
        if (room.free if room else ()) != free:
            capacity = capacity.with_node(node_id, pool_of(node), free)
        if capacity is not state.capacity:
            self.update(capacity=capacity, decision_due=True)

    def hold(self, attempt: AttemptRecord) -> None:
        """Give an attempt its devices.

        Raises:
            InternalError: A device is held by another attempt.
        """
        holders = self._state.holders
        for device in sorted(attempt.allocation.device_ids):
            if device in holders:
                raise InternalError(f"device {device} is held by {holders[device]}, not free for {attempt.attempt_id}")
            holders = holders.set(device, attempt.attempt_id)
        self.update(holders=holders)
        self._refresh_nodes(attempt.allocation.node_ids)

    def release(self, attempt: AttemptRecord, node_id: NodeId) -> None:
        """Take back an attempt's devices of one node, whose process group is gone."""
        holders = self._state.holders
        for share in attempt.allocation.shares:
            for device in share.device_ids if share.node_id == node_id else ():
                if holders.get(device) == attempt.attempt_id:
                    holders = holders.delete(device)
        self.update(holders=holders)
        self.refresh_node(node_id)

    def reserve(self, job_id: JobId, node_ids: tuple[NodeId, ...], device_ids: frozenset[DeviceId]) -> None:
        """Keep devices for a job's target.

        Raises:
            InternalError: A device is kept for another job.
        """
        reserved = self._state.reserved
        for device in sorted(device_ids):
            if reserved.get(device, job_id) != job_id:
                raise InternalError(f"device {device} is kept for {reserved[device]}, not free for {job_id}")
            reserved = reserved.set(device, job_id)
        self.update(reserved=reserved)
        self._refresh_nodes(node_ids)

    def unreserve(self, node_ids: tuple[NodeId, ...], device_ids: frozenset[DeviceId]) -> None:
        """Give up devices that were kept for a target."""
        reserved = self._state.reserved
        for device in device_ids:
            if device in reserved:
                reserved = reserved.delete(device)
        self.update(reserved=reserved)
        self._refresh_nodes(node_ids)

    def _refresh_nodes(self, node_ids: tuple[NodeId, ...]) -> None:
        for node_id in node_ids:
            if node_id in self._state.nodes:
                self.refresh_node(node_id)

    # The end of it

    def finish(self) -> tuple[ClusterState, Step]:
        """Return the next state and the step that leads to it."""
        return self._state, Step(
            event=self._event,
            at_s=self.now_s,
            commands=tuple(self._commands),
            jobs=tuple(self._jobs.values()),
            attempts=tuple(self._attempts.values()),
            nodes=tuple(self._nodes.values()),
            history=tuple(self._history),
            decision=self.decision,
            decision_index=self._state.decision_index,
        )

    def changed_since_start(self) -> tuple[tuple[JobRecord, ...], tuple[AttemptRecord, ...], tuple[NodeRecord, ...]]:
        """Return the records put so far, for whoever keeps deadlines."""
        return tuple(self._jobs.values()), tuple(self._attempts.values()), tuple(self._nodes.values())


def _share_of_shape(node: NodeRecord | None) -> tuple[str, str, int] | None:
    """Return what a node adds to the cluster's shape."""
    if node is None or node.state is NodeState.LOST or not node.info.devices:
        return None
    return (node.info.gpu_type, node.info.zone, len(node.info.devices))
