"""The engine's deadlines and budgets, in one place. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from arena.domain.leaving import LEAVE_AHEAD_S
from arena.domain.tenants import Guarantees


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Deadlines and budgets of the engine.

    Args:
        checkpoint_root: Place under which jobs that name none keep their checkpoints.
        output_root: Place under which jobs that name none leave their results.
        node_grace_s: How long an agent may be away before its node is lost.
        forget_lost_s: How long an agent may be away before its node, lost long since, is forgotten, unless an admin
            drained it; None never forgets any.
        launch_deadline_s: From launch until the processes of all nodes are up; a part-launched gang is then
            rolled back.
        ready_deadline_s: From processes up until a training job's ranks have met and loaded their state.
        leave_ahead_s: So long before a node is to be empty jobs that can be saved are moved away; of a node that is
            reclaimed sooner they are moved at once.
        stop_margin_s: Added to a job's grace before a stop is repeated as a kill.
        backoff_s: First wait after a failure; doubles with each further one, up to ``backoff_s_max``.
        quarantine_after: Launch failures in a row after which a node takes no work for ``quarantine_s``.
        port_failures_max: Launches of one job that may find their port taken before it counts as a failure.
        evaluation_failures_max: Decisions that may fail on one job before it is held.
        plans_struck_max: Plans of one job that may be struck out for running out of memory; further ones count as
            failures.
        stall_factor, stall_s_min: A running training job is stalled after this multiple of its step time, at least
            so many seconds, without a step.
        sweep_s: Longest time between two decisions, however quiet it is.
        decide_after_s: How long what happens is gathered before the policy is asked about all of it; None asks within
            the step of every event that matters.
        is_strict: Whether a decision that cannot be carried out ends the run (a study must not hide a policy's fault)
            instead of being taken without the job that is to blame.
        shape_settle_s: How long the set of nodes must have been stable before grids are built anew.
        restart_s: Cost of a reconfiguration assumed until some have been measured.
        tenants: Guaranteed GPUs by project.
        usd_per_hour: Price of a GPU hour of each type; without one it costs nothing.
    """

    checkpoint_root: str = ""
    output_root: str = ""
    node_grace_s: float = 15.0
    forget_lost_s: float | None = None
    launch_deadline_s: float = 60.0
    ready_deadline_s: float = 300.0
    leave_ahead_s: float = LEAVE_AHEAD_S
    stop_margin_s: float = 10.0
    backoff_s: float = 1.0
    backoff_s_max: float = 300.0
    quarantine_after: int = 3
    quarantine_s: float = 300.0
    port_failures_max: int = 16
    evaluation_failures_max: int = 3
    plans_struck_max: int = 16
    stall_factor: float = 20.0
    stall_s_min: float = 60.0
    sweep_s: float = 10.0
    decide_after_s: float | None = None
    is_strict: bool = False
    shape_settle_s: float = 0.5
    restart_s: float = 10.0
    tenants: Guarantees = field(default_factory=dict)
    usd_per_hour: Mapping[str, float] = field(default_factory=dict)
