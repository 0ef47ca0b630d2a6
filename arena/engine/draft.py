"""One step under construction: records are replaced, indexes follow, commands and history collect. Pure.

A ``Draft`` is the only way the engine changes a state. It lives for one event and is then frozen into a ``Step`` and
the next ``ClusterState``; if a handler raises, the draft is dropped and nothing has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from immutables import Map

from arena.domain.allocation import Allocation
from arena.domain.cluster import NodeState
from arena.domain.commands import UNANSWERED, Command
from arena.domain.events import Event
from arena.domain.job import JobId
from arena.domain.launch import AttemptId, DeviceId, NodeId, attempt_id
from arena.domain.records import (
    AttemptRecord,
    EntryKind,
    HistoryEntry,
    JobRecord,
    JobState,
    NodeRecord,
    Wish,
)
from arena.domain.replacing import freeze, replace, thaw
from arena.domain.transitions import ATTEMPT_TRANSITIONS, JOB_TRANSITIONS, NODE_TRANSITIONS, check_transition
from arena.engine.config import EngineConfig
from arena.engine.entries import Entries, Entry, entry
from arena.engine.pace_learning import paces_after
from arena.engine.ports import RestartCost, Step
from arena.engine.state import ClusterState, next_epoch, pool_of, wants_devices
from arena.errors import InternalError
from arena.policies.base import Decision, Holding


class Draft:
    """A state being changed by one event at one instant.

    Attributes:
        state: The state so far; changed through the methods only.
    """

    def __init__(self, state: ClusterState, event: Event, now_s: float, config: EngineConfig) -> None:
        self.now_s = now_s
        self.config = config
        self.decision: Decision | None = None
        self._event = event
        self._before = state
        # A private copy, changed in place until the step is finished: a new one for each change took most of the time.
        self.state = thaw(state)
        self._open: Any = self.state
        self._commands: list[Command] = []
        self._entries: list[Entry | Callable[[], Entry]] = []
        self._jobs: dict[JobId, JobRecord] = {}
        self._attempts: dict[AttemptId, AttemptRecord] = {}
        self._nodes: dict[NodeId, NodeRecord] = {}
        self._forgotten_nodes: tuple[NodeId, ...] = ()

    def update(self, **changes: object) -> None:
        """Replace fields of the state; handlers outside this module replace only those that are not indexes."""
        for name, value in changes.items():
            setattr(self._open, name, value)

    def log_as(self, event: Event) -> None:
        """Have the event logged as what was used of it; what it brought beyond that is not to be found again."""
        self._event = event

    def command(self, command: Command) -> None:
        """Add a command, to be sent once this step is durable."""
        self._commands.append(command)

    @property
    def asks_for_something(self) -> bool:
        """Whether a command so far is one that will be answered by an event."""
        return not all(isinstance(command, UNANSWERED) for command in self._commands)

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
        """Add a history entry; data that are None are left out."""
        self._entries.append(entry(kind, message, job_id=job_id, attempt_id=attempt_id, node_id=node_id, **data))

    def record_lazily(self, make: Callable[[], Entry]) -> None:
        """Add a history entry that is made when it is read, of values that do not change."""
        self._entries.append(make)

    # Records

    def put_job(self, job: JobRecord) -> None:
        """Store a job; its queue entry and holding follow. A terminal job leaves the state.

        Raises:
            InternalError: The change of state is not legal.
        """
        state, job_id = self.state, job.job_id
        before = state.jobs.get(job_id)
        if before is not None and before.state is not job.state:
            check_transition(JOB_TRANSITIONS, before.state, job.state, "job", job_id)
            if job.changed_at_s != self.now_s:
                job = replace(job, changed_at_s=self.now_s)
            self.record_lazily(partial(_told_of_job_state, job, before.state))
        self._jobs[job_id] = job
        is_over = job.state.is_terminal
        if is_over:
            self._open.jobs = state.jobs.delete(job_id)
            self._open.lengths = state.lengths.after(job)
            self._forget_job(job_id)
        else:
            self._open.jobs = state.jobs.set(job_id, job)
        if job.state is JobState.QUEUED or (before is not None and before.state is JobState.QUEUED):
            self.refresh_queue(job, before)
        if is_over or _may_hold_otherwise(before, job):
            self.refresh_holding(job_id)

    def _forget_job(self, job_id: JobId) -> None:
        state = self.state
        if job_id in state.grids:
            self._open.grids, self._open.grid_shapes = state.grids.delete(job_id), state.grid_shapes.delete(job_id)

    def refresh_queue(self, job: JobRecord, before: JobRecord | None = None) -> None:
        """Put a job into the queue, or take it out, as its record says."""
        queue = self.state.queue
        old_key = None if before is None else before.queue_key
        is_queued = old_key is not None and queue.has(old_key)
        is_wanted = job.job_id in self.state.grids and wants_devices(job, self.now_s)
        if is_queued is not is_wanted:
            self._open.queue = (
                queue.with_key(job.queue_key) if old_key is None or not is_queued else queue.without(old_key)
            )
            self._open.decision_due = True

    def refresh_holding(self, job_id: JobId) -> None:
        """Recompute what a job has or is about to have."""
        known = self.state.holding
        before = known.get(job_id)
        holding = self._holding(self.state.jobs.get(job_id), before)
        if holding is not None and holding is not before:
            self._open.holding = known.set(job_id, holding)
        elif holding is None and before is not None:
            self._open.holding = known.delete(job_id)

    def _holding(self, job: JobRecord | None, before: Holding | None) -> Holding | None:
        """Return what a job has: ``before`` itself where that is right already."""
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
        attempt = self.state.attempts.get(job.attempt_id) if job.attempt_id else None
        if attempt is None:
            return None
        movable = job.state is JobState.RUNNING and job.spec.preemptible and attempt.is_going_on
        if before is not None and before.allocation is attempt.allocation and before.since_s == attempt.launched_at_s:
            return before if before.movable is movable else replace(before, movable=movable)
        return Holding(
            group=attempt.group,
            plan=attempt.plan,
            estimate=attempt.estimate,
            allocation=attempt.allocation,
            movable=movable,
            since_s=attempt.launched_at_s,
        )

    def put_attempt(self, attempt: AttemptRecord) -> None:
        """Store an attempt; an ended one leaves the state.

        Raises:
            InternalError: The change of state is not legal.
        """
        name, attempts = attempt.attempt_id, self.state.attempts
        before = attempts.get(name)
        self._attempts[name] = attempt
        self._open.attempts = attempts.set(name, attempt) if attempt.is_live else attempts.delete(name)
        if before is None:
            return
        if not attempt.is_live:
            self._open.paces = paces_after(self.state, attempt, self.now_s)
        if before.state is not attempt.state:
            check_transition(ATTEMPT_TRANSITIONS, before.state, attempt.state, "attempt", name)
        if before.is_going_on is not attempt.is_going_on:
            self.refresh_holding(attempt.job_id)

    def put_node(self, node: NodeRecord) -> None:
        """Store a node; capacity follows. A change of state is recorded in the history."""
        node_id, nodes = node.node_id, self.state.nodes
        before = nodes.get(node_id)
        self._nodes[node_id] = node
        self._open.nodes = nodes.set(node_id, node)
        if before is not None and before.info is node.info and before.state is node.state:
            if before.is_usable is not node.is_usable:
                self.refresh_node(node_id)
            return
        if before is not None:
            check_transition(NODE_TRANSITIONS, before.state, node.state, "node", node_id)
        if _share_of_shape(before) != _share_of_shape(node):
            self._open.shape_dirty_at_s = self.now_s
        if before is None or before.state is not node.state:
            self._record_node_state(node, before.state if before is not None else None)
        self.refresh_node(node_id)

    def forget_node(self, node: NodeRecord, cause: str) -> None:
        """Drop a lost node, which nobody has anything of: should it come back, it is a new one."""
        node_id = node.node_id
        self._open.nodes = self.state.nodes.delete(node_id)
        if node_id in self.state.places:
            self._open.places = self.state.places.delete(node_id)
        self._nodes.pop(node_id, None)
        self._forgotten_nodes = (*self._forgotten_nodes, node_id)
        self.record(
            EntryKind.NODE_STATE, f"{node.state.value} -> forgotten: {cause}", node_id=node_id, before=node.state.value
        )

    def _record_node_state(self, node: NodeRecord, before: NodeState | None) -> None:
        cause = f": {node.state_cause}" if node.state_cause else ""
        self.record(
            EntryKind.NODE_STATE,
            f"{before.value if before else 'new'} -> {node.state.value}{cause}",
            node_id=node.node_id,
            before=before.value if before else None,
            after=node.state.value,
            cause=node.state_cause or None,
        )

    # Devices

    def refresh_node(self, node_id: NodeId) -> None:
        """Recompute what a node has to give: clean, not held, not reserved, and only if the node is usable."""
        node, capacity = self.state.nodes[node_id], self.state.capacity
        clean = tuple(
            (device.index, device.device_id)
            for device in (node.info.devices if node.is_usable else ())
            if device.dirty is None
        )
        after = capacity.with_devices(node_id, pool_of(node), clean)
        if not clean:
            after = after.with_node(node_id, pool_of(node), ())
        if after is not capacity:
            self._open.capacity, self._open.decision_due = after, True
        self._refresh_rooms((node_id,))

    def _refresh_rooms(self, node_ids: tuple[NodeId, ...]) -> None:
        """Recompute which of the devices that nodes could give are free."""
        state, changed = self.state, []
        capacity, holders, reserved = state.capacity, state.holders, state.reserved
        for node_id in node_ids:
            known = capacity.devices.get(node_id)
            if known is None:
                continue
            free = tuple([item for item in known.free if item[1] not in holders])
            if reserved:
                free = tuple([item for item in free if item[1] not in reserved])
            if free != capacity.free_items(node_id):
                changed.append((node_id, known.pool, free))
        if changed:
            self._open.capacity, self._open.decision_due = capacity.with_rooms(changed), True

    def take_free(self, job: JobRecord, allocation: Allocation) -> bool:
        """Give the next attempt of a job that has none its devices if all are free; it is launched within this step.

        Returns:
            False where one of them is not free; nothing has changed then.
        """
        if job.wish is not Wish.RUN:
            return False
        capacity, changed = self.state.capacity, []
        name, held = attempt_id(job.job_id, next_epoch(self.state, job)), dict[DeviceId, AttemptId]()
        for share in allocation.shares:
            room, mine = capacity.rooms.get(share.node_id), share.device_ids
            if room is None:
                return False
            rest = tuple([item for item in room.free if item[1] not in mine])
            if len(room.free) - len(rest) != len(mine):
                return False
            changed.append((share.node_id, room.pool, rest))
            held.update(dict.fromkeys(mine, name))
        self._open.capacity = capacity.with_rooms(changed)
        self._open.holders = self.state.holders.update(held)
        self._jobs[job.job_id] = job
        return True

    def hold(self, name: AttemptId, devices: frozenset[DeviceId]) -> None:
        """Give an attempt the devices that were kept for its job; what is free stays as it is.

        Raises:
            InternalError: A device is held by another attempt.
        """
        holders = self.state.holders
        for device in devices:
            if device in holders:
                raise InternalError(f"device {device} is held by {holders[device]}, not free for {name}")
        self._open.holders = holders.update(dict.fromkeys(devices, name))
        self._open.reserved = _without(self.state.reserved, devices)
        self._open.decision_due = True

    def release(self, attempt: AttemptRecord, node_id: NodeId) -> None:
        """Take back an attempt's devices of one node, whose process group is gone."""
        name, holders = attempt.attempt_id, self.state.holders
        rest = holders.mutate()
        for share in attempt.allocation.shares:
            for device in share.device_ids if share.node_id == node_id else ():
                if holders.get(device) == name:
                    del rest[device]
        self._open.holders = rest.finish()
        self._refresh_rooms((node_id,))

    def reserve(self, job_id: JobId, node_ids: tuple[NodeId, ...], device_ids: frozenset[DeviceId]) -> None:
        """Keep devices for a job's target.

        Raises:
            InternalError: A device is kept for another job.
        """
        reserved = self.state.reserved
        for device in device_ids if reserved else ():
            if reserved.get(device, job_id) != job_id:
                raise InternalError(f"device {device} is kept for {reserved[device]}, not free for {job_id}")
        self._open.reserved = reserved.update(dict.fromkeys(device_ids, job_id))
        self._refresh_rooms(node_ids)

    def unreserve(self, node_ids: tuple[NodeId, ...], device_ids: frozenset[DeviceId]) -> None:
        """Give up devices that were kept for a target."""
        self._open.reserved = _without(self.state.reserved, device_ids)
        self._refresh_rooms(node_ids)

    # The end of it

    def finish(self) -> tuple[ClusterState, Step]:
        """Return the next state and the step that leads to it; the draft is done with then."""
        history: Sequence[HistoryEntry] = ()
        if self._entries:
            history = Entries(self.state.history_index, self.now_s, self._entries)
            self._open.history_index += len(self._entries)
        return freeze(self.state), Step(
            event=self._event,
            at_s=self.now_s,
            commands=tuple(self._commands),
            jobs=tuple(self._jobs.values()) if self._jobs else (),
            attempts=tuple(self._attempts.values()) if self._attempts else (),
            nodes=tuple(self._nodes.values()) if self._nodes else (),
            forgotten_nodes=self._forgotten_nodes,
            history=history,
            restart_cost=self._new_restart_cost(),
            paces=self.state.paces if self.state.paces is not self._before.paces else None,
            decision=self.decision,
            decision_index=self.state.decision_index,
        )

    def _new_restart_cost(self) -> RestartCost | None:
        state, before = self.state, self._before
        if state.restart_s == before.restart_s and state.restart_sample_count == before.restart_sample_count:
            return None
        return RestartCost(mean_s=state.restart_s, sample_count=state.restart_sample_count)


def _told_of_job_state(job: JobRecord, before: JobState) -> Entry:
    told = f"{before} -> {job.state}"
    if job.error and job.state.is_terminal:
        told += f": {job.error}"
    return entry(
        EntryKind.JOB_STATE,
        told,
        job_id=job.job_id,
        before=str(before),
        after=str(job.state),
        error=job.error or None,
        result=job.result or None,
    )


def _share_of_shape(node: NodeRecord | None) -> tuple[str, str, int] | None:
    """Return what a node adds to the cluster's shape."""
    if node is None or node.state is NodeState.LOST or not node.info.devices:
        return None
    return (node.info.gpu_type, node.info.zone, len(node.info.devices))


def _may_hold_otherwise(before: JobRecord | None, job: JobRecord) -> bool:
    """Tell whether a job's record changed in what its holding is made of."""
    if before is None:
        return job.target is not None or job.attempt_id is not None
    return (
        before.target is not job.target
        or before.attempt_id != job.attempt_id
        or (before.state is JobState.RUNNING) is not (job.state is JobState.RUNNING)
    )


Key = TypeVar("Key")
Value = TypeVar("Value")


def _without(known: Map[Key, Value], keys: Iterable[Key]) -> Map[Key, Value]:
    """Return a map without some keys, which need not be there."""
    rest = known.mutate()
    for key in keys:
        rest.pop(key, None)
    return rest.finish()
