"""Jobs, attempts and nodes as the scheduler knows them. Pure: no I/O, no clock.

Records are values: the engine replaces them, the store writes the replaced ones. Instants (``_at_s``) are seconds of
the scheduler's clock, never of another host's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from arena.domain.allocation import Allocation, GpuGroup
from arena.domain.cluster import NodeInfo, NodeState
from arena.domain.failed_start import FailedStart
from arena.domain.grid import Estimate
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import AttemptId, DeviceId, NodeId
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.replacing import quickly_made
from arena.domain.struck import StruckPlan


class JobState(StrEnum):
    """States of a job (legal changes: ``arena.domain.transitions``)."""

    QUEUED = "queued"
    HELD = "held"
    STARTING = "starting"
    RUNNING = "running"
    RECONFIGURING = "reconfiguring"
    PREEMPTING = "preempting"
    FINISHING = "finishing"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Whether the job is over; terminal is terminal."""
        return self in _TERMINAL


_TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
LIVE_JOB_STATES = tuple(state for state in JobState if not state.is_terminal)
"""States of jobs that are not over."""
ENDED_JOB_STATES = tuple(state for state in JobState if state.is_terminal)
"""States of jobs that are over."""


class Wish(StrEnum):
    """What the user wants of a job, apart from the state it is in."""

    RUN = "run"
    HOLD = "hold"
    CANCEL = "cancel"


class AttemptState(StrEnum):
    """States of an attempt (legal changes: ``arena.domain.transitions``)."""

    LAUNCHING = "launching"
    STARTING = "starting"
    RUNNING = "running"
    FINISHING = "finishing"
    STOPPING = "stopping"
    ENDED = "ended"


class AttemptTransition(StrEnum):
    """How an attempt came from the one before it."""

    START = "start"
    RESTART = "restart"
    IN_PLACE = "in_place"


class EndKind(StrEnum):
    """How one node's share of an attempt ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    KILLED = "killed"
    LAUNCH_FAILED = "launch_failed"
    LOST = "lost"


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnd:
    """The verified end of one node's share: its process group is gone.

    Args:
        kind: How it ended.
        exit_codes: By global rank; negative is minus the signal.
        error_code: The worker's own word for the failure (see ``WorkerError.code``), empty when it had none.
        message: One line for people, e.g. ``rank 2 was killed by signal 9``.
        log_tail: Last lines of the failing rank.
        dirty: Devices that must not be given away, each with the reason (a process that would not die).
        left_for: Why its agent had it save and stop without being asked: what is said of the node's being taken away.
    """

    node_id: NodeId
    kind: EndKind
    exit_codes: Mapping[int, int] = field(default_factory=dict)
    error_code: str = ""
    message: str = ""
    log_tail: str = ""
    dirty: Mapping[DeviceId, str] = field(default_factory=dict)
    left_for: str = ""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a decision wants a job to have next; it becomes an attempt when its devices are free."""

    group: GpuGroup
    plan: ParallelPlan | None
    estimate: Estimate | None
    allocation: Allocation
    decided_at_s: float
    decision_index: int
    cause: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What a job's latest evaluation found.

    Args:
        loss: Mean over the targets of the samples; None where it was no number.
        accuracy: Share of the targets that the model ranked first, where it was measured.
        evaluate_s: How long training stood still for it.
        at_s: When it was reported.
    """

    step: int
    loss: float | None
    accuracy: float | None = None
    sample_count: int
    evaluate_s: float
    at_s: float


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job is.

    Args:
        step: Optimizer steps done by the live (or last) attempt.
        durable_step: Steps in the last durable checkpoint.
        durable_at_s: When that checkpoint became durable.
        reported_at_s: When the last step or evaluation was reported.
        lost_steps: Steps repeated because an attempt died after its last checkpoint, over the job's life.
        stalled_since_s: Set while no progress came for longer than the job's stall time-out.
        evaluation: The latest one of any attempt, None before the first.
    """

    step: int = 0
    loss: float | None = None
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    durable_step: int = 0
    durable_at_s: float | None = None
    reported_at_s: float | None = None
    lost_steps: int = 0
    stalled_since_s: float | None = None
    evaluation: Evaluation | None = None


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """What a new attempt needs to know of the one before it, to say what the change between them cost."""

    attempt_id: AttemptId
    plan: ParallelPlan | None
    group: GpuGroup
    decided_at_s: float
    stop_requested_at_s: float | None
    stopped_at_s: float | None
    ended_at_s: float
    last_step: int
    save_s: float | None


NODE_GOES = frozenset({ReasonCode.NODE_RECLAIMED, ReasonCode.NODE_EMPTIED})
"""Why attempts are stopped whose node is to be empty."""

LAUNCHES_KEPT = 4
"""Launches whose instants a job's record has; what a policy needs to see that a job is moved too often."""


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job with its state.

    Args:
        epoch: Number of the latest attempt, 0 before the first.
        attempt_id: The live attempt, if any; at most one.
        target: What it is to have next, waiting for devices or for the old attempt to end.
        reasons: Why it is where it is, as of the latest decision that looked at it.
        predecessor: The attempt that ended last.
        launch_failure_count, port_failure_count, evaluation_failure_count: Launches that failed, ports that were taken,
            and failures of ours on it, since it last ran or was released.
        restarts_since_progress: Failures since a checkpoint last advanced; what the restart budget counts.
        not_before_s: Backoff: no launch before this instant.
        run_time_s: Seconds its attempts have run (first step to end), for time limits and attained service.
        gpu_seconds: Attained service.
        launched_at_s: Instants of its latest launches since it was last released, the last ``LAUNCHES_KEPT``.
        struck: Plans that ran out of memory and are not tried again.
        failed_starts: Nodes that it failed on before a first step, since it made one there or was released.
        is_deadline_promised: Whether its deadline could be promised when its first grid was there.
        deadline_cause, deadline_earliest_at_s: Why not, and the earliest end that could have been.
        is_promise_broken: Whether it was told that the promise cannot be kept, or was not.
        spent_usd: Price of the GPU time of its attempts that have ended.
    """

    job_id: JobId
    spec: JobSpec
    user: str
    request_id: str
    submitted_at_s: float
    state: JobState = JobState.QUEUED
    wish: Wish = Wish.RUN
    epoch: int = 0
    attempt_id: AttemptId | None = None
    target: Target | None = None
    reasons: tuple[Reason, ...] = (reason(ReasonCode.NOT_YET_EVALUATED),)
    evaluated_at_s: float | None = None
    progress: Progress = Progress()
    predecessor: Predecessor | None = None
    launch_failure_count: int = 0
    port_failure_count: int = 0
    restart_count: int = 0
    restarts_since_progress: int = 0
    preemption_count: int = 0
    reconfiguration_count: int = 0
    evaluation_failure_count: int = 0
    not_before_s: float = 0.0
    first_started_at_s: float | None = None
    launched_at_s: tuple[float, ...] = ()
    struck: tuple[StruckPlan, ...] = ()
    failed_starts: tuple[FailedStart, ...] = ()
    changed_at_s: float = 0.0
    ended_at_s: float | None = None
    run_time_s: float = 0.0
    gpu_seconds: float = 0.0
    is_deadline_promised: bool = False
    deadline_cause: Reason | None = None
    deadline_earliest_at_s: float | None = None
    is_promise_broken: bool = False
    spent_usd: float = 0.0
    result: str = ""
    error: str = ""

    @property
    def queue_key(self) -> tuple[int, float, JobId]:
        """Order of service: priority, then submission, then id."""
        return (-self.spec.priority, self.submitted_at_s, self.job_id)


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One launch of a job with one plan on concrete devices.

    Args:
        cause: Why this attempt was made.
        stop_cause: Why it was asked to stop, None if it was not.
        started_nodes: Nodes whose processes are up.
        ends: Verified ends by node; the attempt has ended when every node has one (the first: ``first_end_at_s``).
        resumed_step: Step of the state it started from, None until the worker said so.
        evaluated_step: Step of its latest evaluation.
        timed_steps, timed_s: Steps whose times were told, and their sum; the first one, which is slow, is left out.
        rendezvous_s, load_s, save_s: The worker's own measure of these parts (``save_s``: the last save).
        leave_at_s: When it is to be asked, or made, to leave, because a node of its is to be empty; None: it may stay.
    """

    attempt_id: AttemptId
    job_id: JobId
    epoch: int
    plan: ParallelPlan | None
    group: GpuGroup
    estimate: Estimate | None
    allocation: Allocation
    master_addr: str
    master_port: int
    cause: Reason
    decision_index: int
    decided_at_s: float
    launched_at_s: float
    state: AttemptState = AttemptState.LAUNCHING
    transition: AttemptTransition = AttemptTransition.START
    predecessor: Predecessor | None = None
    started_nodes: tuple[NodeId, ...] = ()
    ends: tuple[NodeEnd, ...] = ()
    started_at_s: float | None = None
    ready_at_s: float | None = None
    first_step_at_s: float | None = None
    stop_requested_at_s: float | None = None
    stop_mode: str = ""
    stop_cause: Reason | None = None
    stopped_at_s: float | None = None
    first_end_at_s: float | None = None
    ended_at_s: float | None = None
    resumed_step: int | None = None
    last_step: int = 0
    durable_step: int = 0
    evaluated_step: int | None = None
    timed_steps: int = 0
    timed_s: float = 0.0
    rendezvous_s: float | None = None
    load_s: float | None = None
    save_s: float | None = None
    outcome: EndKind | None = None
    finished_report: bool = False
    error: str = ""
    leave_at_s: float | None = None

    @property
    def has_till_its_node_goes(self) -> bool:
        """Whether it is saving because a node of it is to be empty: nobody else waits for its devices."""
        return self.stop_mode == "save" and self.stop_cause is not None and self.stop_cause.code in NODE_GOES

    @property
    def is_live(self) -> bool:
        """Whether any of its processes may still exist."""
        return self.state is not AttemptState.ENDED

    @property
    def is_going_on(self) -> bool:
        """Whether it runs whole: none of its nodes has ended, and its work is not done."""
        return self.state is AttemptState.RUNNING and not self.ends and not self.finished_report

    @property
    def ended_nodes(self) -> frozenset[NodeId]:
        """Nodes on which it is verified gone (or lost for good)."""
        return frozenset(end.node_id for end in self.ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A drain request: who wanted it, when, and why.

    Args:
        until_s: When the node is to be empty; None lets what runs there run to its end.
    """

    by: str
    at_s: float
    why: str
    until_s: float | None = None


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node with its state.

    Args:
        next_port: Next rendezvous port to lease; ports go round the range, so none is reused soon.
        disconnected_at_s: Set while its agent's stream is down; after the grace period the node is lost.
        launch_failure_count: Launch failures in a row, over all jobs.
        failed_starts: Jobs that failed here before a first step, each once, since a job last made one here.
        state_cause: Why it is in this state, for people.
        condemned: Attempts that must be gone before the node takes new work (unknown or superseded ones it holds).
        drain: An admin's request, until an admin takes it back.
        notice: Its lender's, as its agent told, until the agent says otherwise.
        notice_id: Which word of its lender was heard last, empty where it had no name.
        dismissed_notice_id: The word in spite of which an admin took the node back: said again, it counts no more.
    """

    node_id: NodeId
    info: NodeInfo
    state: NodeState = NodeState.READY
    state_cause: str = ""
    drain: Drain | None = None
    disconnected_at_s: float | None = None
    registered_at_s: float = 0.0
    next_port: int = 0
    launch_failure_count: int = 0
    last_launch_error: str = ""
    failed_starts: tuple[FailedStart, ...] = ()
    quarantined_until_s: float | None = None
    condemned: tuple[AttemptId, ...] = ()
    notice: Drain | None = None
    notice_id: str = ""
    dismissed_notice_id: str = ""

    @property
    def leaving(self) -> Drain | None:
        """Why it takes no work any more: of a drain and a notice the one by which it is to be empty first."""
        if self.notice is None or self.drain is None:
            return self.notice or self.drain
        return min(self.notice, self.drain, key=_empty_at_s)

    @property
    def empty_at_s(self) -> float | None:
        """When nothing may run there any more; None: nobody says."""
        leaving = self.leaving
        return None if leaving is None else leaving.until_s

    @property
    def is_usable(self) -> bool:
        """Whether new work may be placed here."""
        return self.state is NodeState.READY and self.disconnected_at_s is None


def _empty_at_s(drain: Drain) -> float:
    return math.inf if drain.until_s is None else drain.until_s


class EntryKind(StrEnum):
    """Kinds of history entries, as ``arena events`` shows them."""

    SCHEDULER_STARTED = "scheduler_started"
    JOB_SUBMITTED = "job_submitted"
    JOB_STATE = "job_state"
    JOB_PROGRESS = "job_progress"
    JOB_EVALUATED = "job_evaluated"
    GRID_BUILT = "grid_built"
    ATTEMPT_LAUNCHED = "attempt_launched"
    ATTEMPT_STARTED = "attempt_started"
    ATTEMPT_READY = "attempt_ready"
    ATTEMPT_FIRST_STEP = "attempt_first_step"
    ATTEMPT_STOP_REQUESTED = "attempt_stop_requested"
    ATTEMPT_STOPPED = "attempt_stopped"
    ATTEMPT_ENDED = "attempt_ended"
    CHECKPOINT_SAVED = "checkpoint_saved"
    CHECKPOINT_FAILED = "checkpoint_failed"
    CHECKPOINT_SKIPPED = "checkpoint_skipped"
    PLAN_CHANGED = "plan_changed"
    PLAN_STRUCK = "plan_struck"
    JOB_PREEMPTED = "job_preempted"
    JOB_STALLED = "job_stalled"
    JOB_BUDGET = "job_budget"
    PROMISE_BROKEN = "promise_broken"
    NODE_STATE = "node_state"
    DECISION = "decision"


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """Something that happened, for people and for ``arena events --json``.

    Args:
        index: Position in the history, from 1, without gaps.
        data: Facts as JSON scalars (numbers, strings, booleans, lists of them).
    """

    index: int
    at_s: float
    kind: EntryKind
    message: str
    job_id: JobId | None = None
    attempt_id: AttemptId | None = None
    node_id: NodeId | None = None
    data: Mapping[str, object] = field(default_factory=dict)
