"""What the engine's drivers provide, as protocols: world, store. Pure: no I/O, no clock.

A driver (live service or simulator) feeds events to the engine, makes each batch of steps durable through its store,
and only then hands the commands to its world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from arena.domain.cluster import ClusterShape
from arena.domain.commands import Command
from arena.domain.events import Event
from arena.domain.grid import Grid
from arena.domain.history import LengthHistory
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.paces import PaceHistory
from arena.domain.records import AttemptRecord, HistoryEntry, JobRecord, NodeRecord
from arena.domain.replacing import quickly_made
from arena.policies.base import Decision


class World(Protocol):
    """Carries commands to agents and to the planner; the answers come back as events."""

    def send(self, command: Command) -> None:
        """Start carrying out a command; never blocks. A command to an absent node is dropped."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartCost:
    """What restarts (save, stop, start, load) have been measured to cost.

    Args:
        sample_count: How many of them ``mean_s`` weighs as; at least 1.
    """

    mean_s: float
    sample_count: int


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one event did: commands to carry out, records to write.

    Args:
        event: The input, for the log.
        at_s: The instant it was handled at.
        commands: To be sent once the records are durable, in order.
        jobs, attempts, nodes: New or changed records, each in its final form of this step.
        forgotten_nodes: Nodes whose records are to be dropped.
        history: New history entries.
        restart_cost: What is known of it now, if another restart was measured.
        paces: What is known of them now, if another run was measured.
        decision: The policy's answer, if it was asked; ``decision_index`` is the number of the latest one.
    """

    event: Event
    at_s: float
    commands: tuple[Command, ...] = ()
    jobs: tuple[JobRecord, ...] = ()
    attempts: tuple[AttemptRecord, ...] = ()
    nodes: tuple[NodeRecord, ...] = ()
    forgotten_nodes: tuple[NodeId, ...] = ()
    history: Sequence[HistoryEntry] = ()
    restart_cost: RestartCost | None = None
    paces: PaceHistory | None = None
    decision: Decision | None = None
    decision_index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a store gives back after a restart.

    Args:
        jobs: Non-terminal jobs.
        attempts: Live attempts.
        nodes: All known nodes.
        grids: Latest grid and its cluster shape, of non-terminal jobs that have one.
        history_index: Index of the last history entry.
        decision_index: Index of the last decision.
        last_at_s: Greatest instant on record; the clock must not fall behind it.
        lengths: What jobs that ended have taught about lengths.
        restart_cost: What restarts were measured to cost, None if none was.
        paces: How fast jobs that ended ran against their estimates.
        epoch_floor: Attempts with numbers up to this one may have been made that are not on record: what is known is a
            copy from before them.
    """

    jobs: tuple[JobRecord, ...] = ()
    attempts: tuple[AttemptRecord, ...] = ()
    nodes: tuple[NodeRecord, ...] = ()
    grids: Mapping[JobId, tuple[ClusterShape, Grid]] = field(default_factory=dict)
    history_index: int = 0
    decision_index: int = 0
    last_at_s: float = 0.0
    lengths: LengthHistory = field(default_factory=LengthHistory)
    restart_cost: RestartCost | None = None
    paces: PaceHistory = field(default_factory=PaceHistory)
    epoch_floor: int = 0


class Store(Protocol):
    """Durable state; one writer."""

    def load(self) -> Restored:
        """Return what a new engine starts from."""
        ...

    def commit(self, steps: Sequence[Step]) -> None:
        """Make steps durable in one transaction, in order.

        Raises:
            ResourceExhaustedError: The disk is full; nothing of the batch was written.
            UnavailableError: The store is busy or gone; nothing of the batch was written.
        """
        ...
