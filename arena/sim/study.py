"""One run of a study: a policy over the jobs of a trace, checked as it goes, with all that a report shows of it.

Pure: no I/O, no clock. The same scenario and policy give the same digest on every machine.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np

from arena.domain.cluster import ClusterShape
from arena.domain.events import Event, JobWishChanged, NodeDisconnected
from arena.domain.grid import GridSource
from arena.domain.job import JobId
from arena.domain.trace import TraceOutcome
from arena.engine.config import EngineConfig
from arena.engine.ports import Step
from arena.errors import SpecError
from arena.policies.arena_greedy import ArenaGreedy
from arena.policies.base import Policy
from arena.policies.registry import gives_what_is_asked, make_policy
from arena.sim.asks import Asked, Lengths, Telling, replay_jobs
from arena.sim.budgets import GIVEN_UP
from arena.sim.checks import Watchdog
from arena.sim.costs import SimCosts
from arena.sim.disturbances import RECLAIMED, Disturbance
from arena.sim.figures import (
    Figures,
    Need,
    Window,
    binned,
    figures,
    finish_time_fairness,
    steady_window,
    window_figures,
)
from arena.sim.ledger import JobOutcome, Ledger
from arena.sim.replay import REPLAY_CONFIG, Replay
from arena.sim.run import HORIZON_S
from arena.sim.tenants import TenantFigures, TenantLedger
from arena.sim.timeline import Bar, Timeline, all_devices, drawn_devices, rows_of

STUDY_CONFIG = replace(REPLAY_CONFIG, decide_after_s=0.0)
"""All that happens at one instant is decided together."""

FOREVER_S = math.nextafter(HORIZON_S, 0.0)
"""Beyond any trace; a replay that is cut even here leaves it to the watchdog to say who never ended."""

BINS = 400
EVENTS_KEPT = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All of a run but its policy.

    Args:
        costs: What changes take.
        disturbances: What happens to the nodes.
        is_rigid: Whether jobs get what they ask for; None leaves it to how the policy was published.
        until_s: Where the run is cut.
        checks_all: Examine the engine's whole state after every event; slow.
    """

    jobs: tuple[Asked, ...]
    shape: ClusterShape
    grids: GridSource
    costs: SimCosts
    lengths: Lengths = field(default_factory=Lengths)
    disturbances: tuple[Disturbance, ...] = ()
    is_rigid: bool | None = None
    until_s: float = math.inf
    checks_all: bool = False
    config: EngineConfig = STUDY_CONFIG

    def needs(self) -> dict[JobId, Need]:
        """Return what figures must know of each job."""
        return {one.job.job_id: self._need(one) for one in self.jobs}

    def _need(self, asked: Asked) -> Need:
        restart = self.costs.restart
        start_s = self.costs.start_s + restart.restart_s(asked.spec, asked.group, is_first=True)
        alone_s = start_s + asked.alone_s + self.costs.exit_s
        told = self.lengths.stop(asked).steps
        return Need(
            gpu_count=asked.gpu_count,
            alone_s=alone_s,
            deadline_s=asked.spec.deadline_s,
            is_longer=told is not None and told < asked.step_count,
            is_cancelled=asked.job.outcome is TraceOutcome.CANCELLED,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A run over time, in bins of equal width.

    Args:
        edges_s: One more than bins.
        busy_gpus: Mean of the GPUs held.
        speed: Mean of the sum over jobs of their speed, 1 on what they asked for.
    """

    edges_s: tuple[float, ...]
    busy_gpus: tuple[float, ...]
    speed: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a policy did.

    Args:
        policy: As it was asked for.
        digest: SHA-256 over all outcomes.
        losses: What became of nodes.
        window: The steady window, None where it has no length.
        rows: GPUs of the chart, in order.
        bars: Their bars, up to a bound.
        tenants: What became of guaranteed shares, where there are any.
    """

    policy: str
    policy_version: str
    is_rigid: bool
    digest: str
    losses: Losses
    whole: Figures
    steady: Figures | None
    window: Window | None
    outcomes: tuple[JobOutcome, ...]
    rhos: Mapping[JobId, float]
    series: Series
    rows: tuple[str, ...]
    bars: tuple[Bar, ...]
    tenants: tuple[TenantFigures, ...] = ()


@dataclass(slots=True, kw_only=True)
class Losses:
    """Counts nodes that went away while jobs were there, by cause, and jobs that were given up for their budgets."""

    failed_node_count: int = 0
    reclaimed_node_count: int = 0
    given_up_job_count: int = 0

    def watch(self, step: Step) -> None:
        """Take a step into account."""
        match step.event:
            case NodeDisconnected(why=why) if why == RECLAIMED:
                self.reclaimed_node_count += 1
            case NodeDisconnected():
                self.failed_node_count += 1
            case JobWishChanged(by=by) if by == GIVEN_UP:
                self.given_up_job_count += 1
            case _:
                pass


@dataclass(slots=True, kw_only=True)
class FlightRecorder:
    """Keeps the last events of a run, for when it fails."""

    events: deque[tuple[float, Event]] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    event_count: int = 0

    def watch(self, step: Step) -> None:
        """Keep a step's input."""
        self.event_count += 1
        self.events.append((step.at_s, step.event))


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Runs a scenario under a policy.

    Args:
        recorder: Has the last events when a run fails.
        watch: Also called with every step.
    """

    scenario: Scenario
    recorder: FlightRecorder = field(default_factory=FlightRecorder)
    watch: Callable[[Step], None] | None = None

    def run(self, policy: Policy, *, label: str) -> RunResult:
        """Replay the jobs.

        Raises:
            ReplayFaultError: The run did what no run may do.
            InternalError: An invariant of the engine broke.
        """
        scenario = self.scenario
        is_rigid = scenario.is_rigid if scenario.is_rigid is not None else gives_what_is_asked(policy.name)
        watchdog = Watchdog(devices=frozenset(all_devices(scenario.shape)))
        devices = drawn_devices(scenario.shape)
        paces = {one.job.job_id: one.step_s for one in scenario.jobs}
        timeline = Timeline(step_s_by_job=paces, rows=rows_of(devices))
        losses = Losses()
        tenants = TenantLedger(tenants=scenario.config.tenants) if scenario.config.tenants else None
        own = [self.recorder.watch, watchdog.watch, timeline.watch, losses.watch]
        own += [] if tenants is None else [tenants.watch]
        watchers = [*own, *([self.watch] if self.watch else [])]

        def watching(step: Step) -> None:
            for watch in watchers:
                watch(step)

        replay = Replay(
            shape=scenario.shape,
            policy=policy,
            grids=scenario.grids,
            costs=scenario.costs,
            config=scenario.config,
            disturbances=scenario.disturbances,
            check=scenario.checks_all,
        )
        told = Telling(is_rigid=is_rigid, lengths=scenario.lengths, is_data_parallel=is_data_parallel(policy))
        jobs = list(replay_jobs(scenario.jobs, told))
        ledger = replay.run(jobs, until_s=min(scenario.until_s, FOREVER_S), watch=watching)
        if math.isinf(scenario.until_s):
            watchdog.finish()
        result = _result(scenario, policy, ledger, timeline, label=label, is_rigid=is_rigid, losses=losses)
        return result if tenants is None else replace(result, tenants=tenants.figures())


def _result(
    scenario: Scenario,
    policy: Policy,
    ledger: Ledger,
    timeline: Timeline,
    *,
    label: str,
    is_rigid: bool,
    losses: Losses,
) -> RunResult:
    needs, gpu_count = scenario.needs(), scenario.shape.gpu_count
    rhos = finish_time_fairness(ledger.outcomes, needs, gpu_count=gpu_count)
    window = steady_window([one.job.submitted_at_s for one in scenario.jobs])
    return RunResult(
        policy=label,
        policy_version=policy.version,
        is_rigid=is_rigid,
        digest=digest_of(ledger.outcomes),
        losses=losses,
        whole=figures(ledger, needs, gpu_count=gpu_count, rhos=rhos),
        steady=_steady(scenario, ledger, window, needs, rhos),
        window=window,
        outcomes=tuple(ledger.outcomes),
        rhos=rhos,
        series=_series(ledger, timeline),
        rows=tuple(timeline.rows),
        bars=tuple(timeline.bars),
    )


def _steady(
    scenario: Scenario,
    ledger: Ledger,
    window: Window | None,
    needs: Mapping[JobId, Need],
    rhos: Mapping[JobId, float],
) -> Figures | None:
    if window is None:
        return None
    submitted = {one.job.job_id: one.job.submitted_at_s for one in scenario.jobs}
    inside = {job_id: need for job_id, need in needs.items() if window.from_s <= submitted[job_id] <= window.to_s}
    return window_figures(ledger, inside, window, gpu_count=scenario.shape.gpu_count, rhos=rhos)


def _series(ledger: Ledger, timeline: Timeline) -> Series:
    if not ledger.busy:
        return Series(edges_s=(), busy_gpus=(), speed=())
    edges = np.linspace(ledger.busy[0][0], ledger.busy[-1][0], BINS + 1)
    return Series(
        edges_s=tuple(edges.tolist()),
        busy_gpus=tuple(binned(ledger.busy, edges).tolist()),
        speed=tuple(binned(timeline.speed(), edges).tolist()),
    )


def digest_of(outcomes: Iterable[JobOutcome]) -> str:
    """Return a SHA-256 over how every job went, in the order of their ids; floats in full."""
    found = hashlib.sha256()
    for one in sorted(outcomes, key=lambda outcome: outcome.job_id):
        values = (
            one.job_id,
            one.submitted_at_s,
            one.first_started_at_s,
            one.ended_at_s,
            one.state.value,
            one.gpu_count,
            one.gpu_seconds,
            one.lost_gpu_seconds,
            one.attempt_count,
        )
        found.update(repr(values).encode() + b"\n")
    return found.hexdigest()


def policy_for(text: str, jobs: Iterable[Asked]) -> Policy:
    """Return a policy from ``name`` or ``name:option=number:...``, told what jobs ask for where it wants to know.

    Raises:
        SpecError: There is no such policy or option, or a value is no number.
    """
    policy = policy_named(text)
    if isinstance(policy, ArenaGreedy):
        return replace(policy, asks={one.job.job_id: one.ask for one in jobs})
    return policy


def is_data_parallel(policy: Policy) -> bool:
    """Tell whether a policy looks at data-parallel plans alone, so that jobs are planned as such from the beginning."""
    inner = policy.inner if isinstance(policy, Wrapping) else policy
    return isinstance(inner, ArenaGreedy) and inner.rules.data_parallel


@runtime_checkable
class Wrapping(Protocol):
    """A policy around another, e.g. one that takes its time."""

    @property
    def inner(self) -> Policy:
        """The other."""
        ...


def policy_named(text: str) -> Policy:
    """Return a policy from ``name`` or ``name:option=number:...``.

    Raises:
        SpecError: There is no such policy or option, or a value is no number.
    """
    name, *options = text.split(":")
    return make_policy(name, dict(_option(text, option) for option in options))


def _option(text: str, option: str) -> tuple[str, float]:
    key, _, value = option.partition("=")
    try:
        return key, float(value)
    except ValueError as error:
        raise SpecError(f"policy {text!r}: {option!r} is no option", fix="write name:option=number") from error
