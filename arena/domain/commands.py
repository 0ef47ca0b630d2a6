"""Outputs of the engine, a closed union. Pure: no I/O, no clock.

A command is sent only after the records that intend it are durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from arena.domain.cluster import ClusterShape
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import AttemptId, Launch, NodeId
from arena.domain.replacing import quickly_made


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAttempt:
    """Start one node's share of an attempt; an agent refuses an epoch it has seen or an older one."""

    kind: Literal["launch_attempt"] = "launch_attempt"
    node_id: NodeId
    launch: Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAttempt:
    """End one node's share: ``save`` asks the ranks to save and exit and kills after the grace, ``kill`` kills."""

    kind: Literal["stop_attempt"] = "stop_attempt"
    node_id: NodeId
    attempt_id: AttemptId
    mode: Literal["save", "kill"]
    grace_s: float


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgeEnd:
    """The end of an attempt is on disk here; the agent may forget it."""

    kind: Literal["acknowledge_end"] = "acknowledge_end"
    node_id: NodeId
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRegistration:
    """Verdict over the attempts an agent holds: go on, or kill."""

    kind: Literal["answer_registration"] = "answer_registration"
    node_id: NodeId
    keep: tuple[AttemptId, ...]
    kill: tuple[AttemptId, ...]


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class BuildGrid:
    """Have the planner make a job's grid for a cluster shape; answered by ``GridBuilt`` or ``GridFailed``."""

    kind: Literal["build_grid"] = "build_grid"
    job_id: JobId
    spec: JobSpec
    shape: ClusterShape


@dataclass(frozen=True, slots=True, kw_only=True)
class DismissNotice:
    """An admin took a node back in spite of its lender's word: its agent is not to act on that word either."""

    kind: Literal["dismiss_notice"] = "dismiss_notice"
    node_id: NodeId
    notice_id: str


Command = LaunchAttempt | StopAttempt | AcknowledgeEnd | AnswerRegistration | BuildGrid | DismissNotice

UNANSWERED = (AcknowledgeEnd, AnswerRegistration, DismissNotice)
"""Commands that are answers themselves: no event follows from them."""
