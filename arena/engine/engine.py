"""The sans-I/O engine: ``handle(event, now_s) -> Step``. Pure apart from its own state: no I/O, no clock.

Both drivers, live and simulated, run this class. The state is a persistent value: ``engine.state = saved`` undoes
every step since ``saved`` was read, which is what a driver does when a commit failed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator

from arena.domain.cluster import NodeState
from arena.domain.events import (
    AttemptEnded,
    AttemptStarted,
    DevicesChanged,
    Event,
    GridBuilt,
    GridFailed,
    JobsCancelled,
    JobSubmitted,
    JobWishChanged,
    NodeDisconnected,
    NodeDrainChanged,
    NodeNoticeChanged,
    NodeRegistered,
    SchedulerStarted,
    Tick,
    WorkerReported,
)
from arena.domain.grid import Grid
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import AttemptId, NodeId
from arena.domain.reason import Reason
from arena.domain.records import AttemptRecord, EntryKind, JobRecord, NodeRecord
from arena.domain.replacing import replace
from arena.engine import attempts, deadlines, jobs, nodes, reports
from arena.engine.admission import admission_of_new, admit
from arena.engine.config import EngineConfig
from arena.engine.decide import decide, explanation, rest
from arena.engine.draft import Draft
from arena.engine.node_state import settle_node
from arena.engine.ports import Restored, Step
from arena.engine.state import ClusterState, reasons_of, restored_state
from arena.policies.base import Admission, Policy, ServingWaiting

Deadline = tuple[float, str, str]
"""Instant, kind of record (``job``, ``attempt``, ``node``), id."""


class Engine:
    """The scheduler's brain.

    Args:
        policy: Asked whenever something changed that it would look at.
        config: Deadlines and budgets.
        restored: What a store remembers; nothing for a new cluster.
    """

    def __init__(self, policy: Policy, config: EngineConfig, restored: Restored | None = None) -> None:
        self.policy = policy
        self.config = config
        self._serves_waiting_only = isinstance(policy, ServingWaiting) and policy.serves_waiting_only
        self._deadlines: list[Deadline] = []
        self._scheduled: set[Deadline] = set()
        self._state = ClusterState(restart_s=config.restart_s)
        if restored is not None:
            self.state = _with_indexes(restored_state(restored, config.restart_s), restored.last_at_s, config)

    @property
    def state(self) -> ClusterState:
        """The present state, a value."""
        return self._state

    @state.setter
    def state(self, state: ClusterState) -> None:
        self._state = state
        self._deadlines = []
        self._scheduled = set()
        self._schedule(state.jobs.values(), state.attempts.values(), state.nodes.values())

    @property
    def next_wakeup_s(self) -> float | None:
        """When a ``Tick`` is due even if nothing happens, None when nothing will."""
        state, config = self._state, self.config
        first_s = self._deadlines[0][0] if self._deadlines else math.inf
        if state.shape_dirty_at_s is not None:
            first_s = min(first_s, state.shape_dirty_at_s + config.shape_settle_s)
        if state.decision_due and state.due_since_s is not None and config.decide_after_s is not None:
            # The looks below only make a decision due: counted as well, they would be due again and again until then.
            return min(first_s, state.due_since_s + config.decide_after_s)
        if state.decided_at_s is not None and state.decided_at_s + config.sweep_s < first_s and state.queue:
            first_s = state.decided_at_s + config.sweep_s
        if state.look_again_at_s is not None:
            first_s = min(first_s, state.look_again_at_s)
        return first_s if first_s < math.inf else None

    def view(self, job: JobRecord) -> JobRecord:
        """Return a job with its reasons as of the latest decision that looked at it."""
        reasons, evaluated_at_s = reasons_of(self._state, job)
        return replace(job, reasons=reasons, evaluated_at_s=evaluated_at_s)

    def explain(self, state: ClusterState, job_id: JobId, now_s: float) -> tuple[Reason, ...]:
        """Return what the policy says of one job in a state; safe from any thread, since a state is a value."""
        return explanation(state, self.config, now_s, self.policy, job_id)

    def admission(self, state: ClusterState, spec: JobSpec, grid: Grid, now_s: float) -> Admission | None:
        """Return whether the deadline of a job that is not submitted yet could be promised; safe from any thread."""
        return admission_of_new(state, self.config, now_s, self.policy, (spec, grid))

    def handle(self, event: Event, now_s: float, *, is_last: Callable[[], bool] | None = None) -> Step:
        """Apply one event and, if it changed what a policy would look at, decide.

        Args:
            event: What happened.
            now_s: The instant, never before that of the event before.
            is_last: Tells whether the driver knows of nothing else at this instant, None where it never does: what is
                gathered for no time at all, so that what happens at once is decided about at once, need not wait for a
                ``Tick`` then.

        Returns:
            The commands to send and the records to write, in that order of durability: records first.

        Raises:
            InternalError: The event asks for something impossible; the state is as before.
        """
        draft = Draft(self._state, event, now_s, self.config)
        self._apply(draft, event)
        if draft.state.shape_dirty_at_s is not None and self.config.shape_settle_s <= 0:
            nodes.settle_shape(draft)
        if draft.state.decision_due:
            has_nobody = self._serves_waiting_only and not draft.state.queue
            if has_nobody and not self.config.decide_after_s:
                rest(draft)
            elif self._is_instant_over(draft, is_last) or self._is_to_decide(draft, event):
                rest(draft) if has_nobody else decide(draft, self.policy)
        self._state, step = draft.finish()
        self._schedule(step.jobs, step.attempts, step.nodes)
        return step

    def _is_to_decide(self, draft: Draft, event: Event) -> bool:
        """Tell whether a decision that is due is asked for now; where events are gathered, only a tick does that."""
        state, after_s = draft.state, self.config.decide_after_s
        if after_s is None:
            return True
        if state.due_since_s is None:
            draft.update(due_since_s=draft.now_s)
            return False
        return isinstance(event, Tick) and draft.now_s >= state.due_since_s + after_s

    def _is_instant_over(self, draft: Draft, is_last: Callable[[], bool] | None) -> bool:
        """Tell whether a tick at this instant would only decide: no command is answered in it, no deadline is due."""
        if is_last is None or self.config.decide_after_s != 0.0:
            return False
        is_due = bool(self._deadlines) and self._deadlines[0][0] <= draft.now_s
        return not is_due and not draft.asks_for_something and is_last()

    def _apply(self, draft: Draft, event: Event) -> None:  # noqa: C901, PLR0912 - one line for each kind of event
        match event:
            case Tick():
                self._tick(draft)
            case WorkerReported():
                reports.apply_report(draft, event.attempt_id, event.report)
            case AttemptStarted():
                attempts.mark_started(draft, event.node_id, event.attempt_id)
            case AttemptEnded():
                nodes.end_on_node(draft, event)
            case JobSubmitted():
                if jobs.submit(draft, event):
                    admit(draft, self.policy, event.job_id)
            case JobWishChanged():
                jobs.change_wish(draft, event)
            case JobsCancelled():
                jobs.cancel_all(draft, event)
            case GridBuilt():
                self._take_grid(draft, event)
            case GridFailed():
                jobs.grid_failed(draft, event)
            case NodeRegistered():
                nodes.register(draft, event)
            case NodeDisconnected():
                nodes.disconnect(draft, event)
            case NodeDrainChanged():
                nodes.change_drain(draft, event)
            case NodeNoticeChanged():
                nodes.change_notice(draft, event)
            case DevicesChanged():
                nodes.change_devices(draft, event)
            case SchedulerStarted():
                _start(draft, event)

    def _take_grid(self, draft: Draft, event: GridBuilt) -> None:
        is_first = event.job_id not in draft.state.grids
        jobs.take_grid(draft, event)
        if is_first:
            admit(draft, self.policy, event.job_id)

    def _tick(self, draft: Draft) -> None:
        for _, kind, name in self._pop_due(draft.now_s):
            state = draft.state
            if kind == "job" and (job := state.jobs.get(JobId(name))) is not None:
                deadlines.job_due(draft, job)
            elif kind == "attempt" and (attempt := state.attempts.get(AttemptId(name))) is not None:
                deadlines.attempt_due(draft, attempt)
            elif kind == "node" and (node := state.nodes.get(NodeId(name))) is not None:
                deadlines.node_due(draft, node)
        state = draft.state
        if state.shape_dirty_at_s is not None and draft.now_s >= state.shape_dirty_at_s + self.config.shape_settle_s:
            nodes.settle_shape(draft)
        look_again_s = state.look_again_at_s
        if state.queue and state.decided_at_s is not None and draft.now_s >= state.decided_at_s + self.config.sweep_s:
            draft.update(decision_due=True)
        if look_again_s is not None and draft.now_s >= look_again_s:
            draft.update(decision_due=True)

    def _pop_due(self, now_s: float) -> Iterator[Deadline]:
        due = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            deadline = heapq.heappop(self._deadlines)
            self._scheduled.discard(deadline)
            due.append(deadline)
        return iter(due)

    def _schedule(
        self,
        job_records: Iterable[JobRecord],
        attempt_records: Iterable[AttemptRecord],
        node_records: Iterable[NodeRecord],
    ) -> None:
        config = self.config
        for job in job_records:
            for at_s in deadlines.of_job(job, config):
                self._push(at_s, "job", job.job_id)
        for attempt in attempt_records:
            owner = self._state.jobs.get(attempt.job_id) if attempt.is_live else None
            if owner is not None:
                for at_s in deadlines.of_attempt(attempt, owner, config):
                    self._push(at_s, "attempt", attempt.attempt_id)
        for node in node_records:
            for at_s in deadlines.of_node(node, config):
                self._push(at_s, "node", node.node_id)

    def _push(self, at_s: float, kind: str, name: str) -> None:
        """Keep a deadline; one that is set to never (infinity) is none, so that memory does not grow with them."""
        if at_s == math.inf:
            return
        deadline = (at_s, kind, name)
        if deadline not in self._scheduled:
            self._scheduled.add(deadline)
            heapq.heappush(self._deadlines, deadline)


def _start(draft: Draft, event: SchedulerStarted) -> None:
    draft.record(
        EntryKind.SCHEDULER_STARTED,
        f"scheduler {event.scheduler_version} with policy {event.policy} {event.policy_version}",
        version=event.scheduler_version,
        policy=event.policy,
        policy_version=event.policy_version,
    )
    for node_id in sorted(draft.state.nodes):
        node = draft.state.nodes[node_id]
        if node.state is not NodeState.LOST:
            # Nobody could be heard while no scheduler ran: everybody's grace begins now.
            draft.put_node(replace(node, disconnected_at_s=draft.now_s))
    nodes.ask_for_grids(draft)  # what was being built went with the process before


def _with_indexes(state: ClusterState, now_s: float, config: EngineConfig) -> ClusterState:
    draft = Draft(state, Tick(), now_s, config)
    for job_id in sorted(state.jobs):
        draft.refresh_queue(state.jobs[job_id])
        draft.refresh_holding(job_id)
    for node_id in sorted(state.nodes):
        draft.refresh_node(node_id)
        settle_node(draft, node_id)
    return draft.finish()[0]


def replay(engine: Engine, inputs: Iterable[tuple[float, Event]]) -> Iterator[Step]:
    """Feed a log of inputs to an engine; with the same policy and configuration the steps are those recorded.

    The log is that of a driver that never knows of the last event of an instant, as the live one.
    """
    for at_s, event in inputs:
        yield engine.handle(event, at_s)
