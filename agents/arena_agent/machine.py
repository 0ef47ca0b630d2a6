"""The agent's state machine: what it holds, what it does about each message. Pure: no I/O, no clock.

``handle(state, event) -> (state, effects)``. The shell writes every ``Write`` effect to the journal before it carries
out the effects after it, so the journal, fed to ``replay``, gives the state back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from immutables import Map

from arena.domain.job import JobId
from arena.domain.launch import AttemptId, DeviceId, Launch, NodeId
from arena.domain.records import EndKind, NodeEnd
from arena.errors import InternalError
from arena_agent.epochs import SpentEpochs
from arena_agent.journal import (
    Acked,
    AgentStarted,
    AttemptRecord,
    Ended,
    Fence,
    Launched,
    LaunchIntent,
    Record,
    Refused,
    Started,
    StopSent,
)
from arena_agent.procfs import ProcessIdentity

StopMode = Literal["save", "kill"]


class AttemptPhase(StrEnum):
    """Where an attempt is on this node."""

    INTENDED = "intended"
    LAUNCHING = "launching"
    STARTED = "started"
    STOPPING = "stopping"
    ENDED = "ended"


_P = AttemptPhase
PHASE_TRANSITIONS: Mapping[AttemptPhase, frozenset[AttemptPhase]] = {
    _P.INTENDED: frozenset({_P.LAUNCHING, _P.STOPPING, _P.ENDED}),
    _P.LAUNCHING: frozenset({_P.STARTED, _P.STOPPING, _P.ENDED}),
    _P.STARTED: frozenset({_P.STOPPING, _P.ENDED}),
    _P.STOPPING: frozenset({_P.ENDED}),
    _P.ENDED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShare:
    """One node's share of an attempt, from the intent to launch it to the acknowledged end.

    Args:
        supervisor: Identity of its supervisor once it lives.
        is_started: All local ranks were up once.
        left_for: Why this agent had it stop by itself, empty if it did not.
        end: Its verified end; devices are held until there is one.
    """

    attempt_id: AttemptId
    job_id: JobId
    epoch: int
    devices: tuple[DeviceId, ...]
    phase: AttemptPhase = AttemptPhase.INTENDED
    supervisor: ProcessIdentity | None = None
    is_started: bool = False
    stop_mode: StopMode | None = None
    stop_grace_s: float = 0.0
    left_for: str = ""
    end: NodeEnd | None = None

    @property
    def is_live(self) -> bool:
        """Whether any process of it may exist."""
        return self.phase is not AttemptPhase.ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """All shares that are not acknowledged, and the epochs of those that were. Persistent: a change copies nothing."""

    node_id: NodeId
    shares: Map[AttemptId, HeldShare] = field(default_factory=Map)
    spent: SpentEpochs = field(default_factory=SpentEpochs)

    @property
    def live(self) -> tuple[HeldShare, ...]:
        """Shares whose processes may exist, by attempt."""
        return tuple(share for _, share in sorted(self.shares.items()) if share.is_live)

    @property
    def ended(self) -> tuple[HeldShare, ...]:
        """Shares whose end the scheduler has not acknowledged, by attempt."""
        return tuple(share for _, share in sorted(self.shares.items()) if not share.is_live)

    def epoch_seen(self, job_id: JobId) -> int:
        """Return the highest epoch of a job that this node knows of, 0 if it knows of none."""
        held = (share.epoch for share in self.shares.values() if share.job_id == job_id)
        return max(self.spent.of(job_id), *held, 0)

    def holder(self, device_id: DeviceId) -> AttemptId | None:
        """The live attempt that holds a device."""
        return next((share.attempt_id for share in self.live if device_id in share.devices), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAsked:
    """The scheduler wants a share launched; ``unfit`` says why this node cannot (a dirty or unknown device)."""

    launch: Launch
    unfit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchUnreadable:
    """The scheduler wants a share launched that this agent does not understand."""

    attempt_id: AttemptId
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorUp:
    """The supervisor of a share lives."""

    attempt_id: AttemptId
    supervisor: ProcessIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksUp:
    """All local ranks of a share are up."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """The scheduler wants a share stopped; or this agent does, since the node goes (``left_for``) and nobody asks."""

    attempt_id: AttemptId
    mode: StopMode
    grace_s: float
    left_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedGone:
    """Nothing of a share is left; ``gone_boot_s`` is when that was seen."""

    attempt_id: AttemptId
    end: NodeEnd
    gone_boot_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAcknowledged:
    """The scheduler has the end of a share on disk."""

    attempt_id: AttemptId


AgentEvent = LaunchAsked | LaunchUnreadable | SupervisorUp | RanksUp | StopAsked | VerifiedGone | EndAcknowledged


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Put a record on disk before the effects that follow."""

    record: AttemptRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSupervisor:
    """Start the processes of a share."""

    launch: Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class StopShare:
    """Tell the supervisor of a share to stop, and see to it that nothing is left."""

    attempt_id: AttemptId
    mode: StopMode
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TellStarted:
    """Report to the scheduler that a share is up."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class TellEnded:
    """Report the end of a share to the scheduler, again and again until it is acknowledged."""

    attempt_id: AttemptId
    end: NodeEnd


Effect = Write | StartSupervisor | StopShare | TellStarted | TellEnded
Outcome = tuple[AgentState, tuple[Effect, ...]]


def handle(state: AgentState, event: AgentEvent) -> Outcome:
    """Return the state after an event and what is to be done, in order."""
    match event:
        case LaunchAsked():
            return _launch(state, event)
        case LaunchUnreadable(attempt_id=attempt_id, why=why):
            is_new = attempt_id not in state.shares
            return _refuse(state, attempt_id, EndKind.LAUNCH_FAILED, why) if is_new else (state, ())
        case StopAsked():
            return _stop(state, event)
        case SupervisorUp(attempt_id=attempt_id, supervisor=supervisor):
            record = Launched(attempt_id=attempt_id, pid=supervisor.pid, start_ticks=supervisor.start_ticks)
            return _write(state, record)
        case RanksUp(attempt_id=attempt_id):
            return _ranks_up(state, attempt_id)
        case VerifiedGone():
            return _gone(state, event)
        case EndAcknowledged(attempt_id=attempt_id):
            return _acknowledged(state, attempt_id)


def _ranks_up(state: AgentState, attempt_id: AttemptId) -> Outcome:
    share = state.shares.get(attempt_id)
    if share is None or share.is_started or not share.is_live:
        return state, ()
    return _write(state, Started(attempt_id=attempt_id), TellStarted(attempt_id=attempt_id))


def _gone(state: AgentState, event: VerifiedGone) -> Outcome:
    share = state.shares.get(event.attempt_id)
    if share is None or not share.is_live:
        return state, ()
    end = replace(event.end, left_for=share.left_for)
    record = Ended(attempt_id=event.attempt_id, end=end, gone_boot_s=event.gone_boot_s)
    return _write(state, record, TellEnded(attempt_id=event.attempt_id, end=end))


def _acknowledged(state: AgentState, attempt_id: AttemptId) -> Outcome:
    share = state.shares.get(attempt_id)
    if share is None or share.is_live:
        return state, ()
    return _write(state, Acked(attempt_id=attempt_id))


def _write(state: AgentState, record: AttemptRecord, *effects: Effect) -> Outcome:
    return apply(state, record), (Write(record=record), *effects)


def _launch(state: AgentState, event: LaunchAsked) -> Outcome:
    launch = event.launch
    known = state.shares.get(launch.attempt_id)
    if known is not None:  # said twice; what is true of it is said again
        return state, _news_of(known)
    why = _refusal(state, launch) or event.unfit
    if why is not None:
        return _refuse(state, launch.attempt_id, EndKind.LAUNCH_FAILED, why)
    intent = LaunchIntent(
        attempt_id=launch.attempt_id, job_id=launch.job_id, epoch=launch.epoch, devices=launch.device_ids
    )
    return _write(state, intent, StartSupervisor(launch=launch))


def _refusal(state: AgentState, launch: Launch) -> str | None:
    """Return why a launch may not be, None when it may."""
    seen = state.epoch_seen(launch.job_id)
    if launch.epoch <= seen:
        word = "repeated" if launch.epoch == seen else "older"
        return f"epoch {launch.epoch} of job {launch.job_id} is {word}: this node has seen epoch {seen}"
    for share in state.live:
        if share.job_id == launch.job_id:
            return f"attempt {share.attempt_id} of the same job still lives here"
    for device_id in launch.device_ids:
        holder = state.holder(device_id)
        if holder is not None:
            return f"device {device_id} is held by attempt {holder}"
    if len(set(launch.device_ids)) < len(launch.device_ids):
        return f"a device is named twice in {', '.join(launch.device_ids)}"
    return None


def _refuse(state: AgentState, attempt_id: AttemptId, kind: EndKind, why: str) -> Outcome:
    job_id, _, epoch = attempt_id.rpartition(".")
    end = NodeEnd(node_id=state.node_id, kind=kind, message=why)
    record = Refused(attempt_id=attempt_id, job_id=JobId(job_id), epoch=int(epoch), end=end)
    return _write(state, record, TellEnded(attempt_id=attempt_id, end=end))


def _news_of(share: HeldShare) -> tuple[Effect, ...]:
    if share.end is not None:
        return (TellEnded(attempt_id=share.attempt_id, end=share.end),)
    return (TellStarted(attempt_id=share.attempt_id),) if share.is_started else ()


def _stop(state: AgentState, event: StopAsked) -> Outcome:
    share = state.shares.get(event.attempt_id)
    if share is None:
        # The launch may still be on its way (or was lost): spend its epoch, so that it cannot start after this.
        return _refuse(state, event.attempt_id, EndKind.KILLED, "was never launched on this node")
    if share.end is not None:
        return state, _news_of(share)
    if share.stop_mode == "kill":
        return state, ()
    record = StopSent(attempt_id=event.attempt_id, mode=event.mode, grace_s=event.grace_s, left_for=event.left_for)
    stop = StopShare(attempt_id=event.attempt_id, mode=event.mode, grace_s=event.grace_s)
    return _write(state, record, stop)


def apply(state: AgentState, record: Record) -> AgentState:
    """Return the state after a record of the journal."""
    match record:
        case AgentStarted():
            return state
        case Fence(job_id=job_id, epoch=epoch):
            return replace(state, spent=state.spent.spend(job_id, epoch))
        case LaunchIntent(attempt_id=attempt_id, job_id=job_id, epoch=epoch, devices=devices):
            share = HeldShare(attempt_id=attempt_id, job_id=job_id, epoch=epoch, devices=devices)
            return _put(state, share)
        case Refused(attempt_id=attempt_id, job_id=job_id, epoch=epoch, end=end):
            share = HeldShare(attempt_id=attempt_id, job_id=job_id, epoch=epoch, devices=())
            return _put(state, replace(share, phase=AttemptPhase.ENDED, end=end))
        case Acked(attempt_id=attempt_id):
            return _forgotten(state, attempt_id)
        case Launched() | Started() | StopSent() | Ended():
            return _put(state, _advanced(_share(state, record.attempt_id), record))


def _advanced(share: HeldShare, record: Launched | Started | StopSent | Ended) -> HeldShare:
    """Return a share after a record about it; what comes late does not undo a stop."""
    match record:
        case Launched(pid=pid, start_ticks=start_ticks):
            identity = ProcessIdentity(pid=pid, start_ticks=start_ticks)
            return _moved(replace(share, supervisor=identity), AttemptPhase.LAUNCHING)
        case Started():
            return _moved(replace(share, is_started=True), AttemptPhase.STARTED)
        case StopSent(mode=mode, grace_s=grace_s, left_for=why):
            stopping = replace(share, stop_mode=mode, stop_grace_s=grace_s, left_for=share.left_for or why)
            return _moved(stopping, AttemptPhase.STOPPING)
        case Ended(end=end):
            return _moved(replace(share, end=end), AttemptPhase.ENDED)


def replay(node_id: NodeId, records: Iterable[Record]) -> AgentState:
    """Return the state that a journal's records lead to."""
    state = AgentState(node_id=node_id)
    for record in records:
        state = apply(state, record)
    return state


def after_reboot(state: AgentState) -> AgentState:
    """Return the state of a host that was booted anew: process identities of the boot before mean nothing."""
    shares = {attempt_id: replace(share, supervisor=None) for attempt_id, share in state.shares.items()}
    return replace(state, shares=Map(shares))


def _share(state: AgentState, attempt_id: AttemptId) -> HeldShare:
    share = state.shares.get(attempt_id)
    if share is None:
        raise InternalError(f"attempt {attempt_id} is not known here")
    return share


def _put(state: AgentState, share: HeldShare) -> AgentState:
    return replace(state, shares=state.shares.set(share.attempt_id, share))


def _forgotten(state: AgentState, attempt_id: AttemptId) -> AgentState:
    """Return the state without an attempt whose end is acknowledged, but with its epoch spent."""
    share = state.shares.get(attempt_id)
    if share is None:
        return state
    spent = state.spent.spend(share.job_id, share.epoch)
    return replace(state, shares=state.shares.delete(attempt_id), spent=spent)


def _moved(share: HeldShare, phase: AttemptPhase) -> HeldShare:
    if share.phase is AttemptPhase.STOPPING and phase is not AttemptPhase.ENDED:
        return share
    if phase not in PHASE_TRANSITIONS[share.phase]:
        raise InternalError(f"attempt {share.attempt_id} may not go from {share.phase} to {phase} on this node")
    return replace(share, phase=phase)
