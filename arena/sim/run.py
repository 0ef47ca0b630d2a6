"""A simulated run: the engine, modelled agents and a list of things that happen. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from arena.domain.events import Event, NodeDisconnected, Tick
from arena.domain.grid import GridSource
from arena.domain.job import JobId
from arena.domain.records import JobRecord
from arena.engine.config import EngineConfig
from arena.engine.engine import Engine
from arena.engine.invariants import violations
from arena.engine.ports import Step
from arena.errors import InternalError
from arena.policies.base import Policy
from arena.sim.costs import SimCosts
from arena.sim.kernel import Kernel
from arena.sim.world import ARRIVALS_LAST, Fate, SimWorld

HORIZON_S = 1e14
"""Nothing that is to happen later than this happens: it is a deadline that was set to never."""


@dataclass(slots=True, kw_only=True)
class Simulation:
    """The production engine on a virtual clock.

    Args:
        policy: Under test.
        grids: Where performance grids come from.
        costs: Durations of the modelled agents.
        config: The engine's deadlines and budgets.
        fates: How jobs really go; who is missing ends at the limit of its specification.
        source: What happens from outside, in order of time; drawn one by one, so it may be without end.
        is_over: Asked whether the run has ended, where the source never does: after every event that changed a job, and
            while there is none.
        check: Examine every state for broken invariants; slower.
        watch: Called with every step. By default steps and ended jobs are kept; with a watcher they are not, so that
            memory stays flat.
        is_only_watched: The watcher has nothing happen at the instant of the step that it is called with, so that the
            last event of an instant is known and is decided about within its step, without a tick: the same
            decisions, and a quarter fewer steps.
    """

    policy: Policy
    grids: GridSource
    costs: SimCosts = field(default_factory=SimCosts)
    config: EngineConfig = field(default_factory=lambda: EngineConfig(shape_settle_s=0.0))
    fates: Mapping[JobId, Fate] = field(default_factory=dict)
    source: Iterator[tuple[float, Event]] = field(default_factory=lambda: iter(()))
    is_over: Callable[[], bool] | None = None
    check: bool = False
    watch: Callable[[Step], None] | None = None
    is_only_watched: bool = False
    kernel: Kernel[Event] = field(default_factory=Kernel)
    steps: list[Step] = field(default_factory=list)
    ended: dict[JobId, JobRecord] = field(default_factory=dict)
    engine: Engine = field(init=False)
    world: SimWorld = field(init=False)
    _drawn: Event | None = None

    def __post_init__(self) -> None:
        self.engine = Engine(self.policy, self.config)
        self.world = SimWorld(
            kernel=self.kernel,
            grids=self.grids,
            costs=self.costs,
            attempts=lambda name: self.engine.state.attempts[name],
            fates=self.fates,
        )

    def at(self, at_s: float, event: Event) -> None:
        """Have something happen."""
        self.kernel.push(at_s, event, priority=ARRIVALS_LAST)

    def run(self, *, until_s: float = HORIZON_S, events_max: int = 1_000_000_000) -> None:
        """Go on until nothing is left to happen, or until an instant.

        Raises:
            InternalError: An invariant broke, or the run did not come to an end within ``events_max`` events.
        """
        for _ in range(events_max):
            event = self._next(until_s)
            if event is None:
                return
            step = self.handle(event)
            if self.is_over is not None and (step.jobs or not self.engine.state.jobs) and self.is_over():
                return
        raise InternalError(f"the simulation did not end within {events_max} events")

    def _draw(self) -> None:
        """Keep the next thing from outside scheduled."""
        following = next(self.source, None)
        if following is not None:
            at_s, self._drawn = following
            self.kernel.push(at_s, self._drawn, priority=ARRIVALS_LAST)

    def _next(self, until_s: float) -> Event | None:
        if self._drawn is None:
            self._draw()
        event_at_s, wakeup_s = self.kernel.peek_s(), self.engine.next_wakeup_s
        if event_at_s is not None and (wakeup_s is None or wakeup_s >= event_at_s):
            if event_at_s > until_s:
                return None
            event = self.kernel.pop()
            if event is self._drawn:
                self._drawn = None
            return event
        if wakeup_s is None or wakeup_s > until_s:
            return None
        if event_at_s is None and not self.engine.state.jobs:
            return None  # only periodic looks at an empty cluster are left
        self.kernel.now_s = max(self.kernel.now_s, wakeup_s)
        return Tick()

    def _is_last(self) -> bool:
        """Tell whether nothing else is known to happen at this instant."""
        if self._drawn is None:
            self._draw()
        at_s = self.kernel.peek_s()
        return at_s is None or at_s > self.kernel.now_s

    def handle(self, event: Event) -> Step:
        """Handle one event at the present instant and carry out what follows from it."""
        if isinstance(event, NodeDisconnected):
            self.world.lose_node(event.node_id)
        step = self.engine.handle(event, self.kernel.now_s, is_last=self._is_last if self.is_only_watched else None)
        if self.watch is not None:
            self.watch(step)
        else:
            self.steps.append(step)
            self.ended.update({job.job_id: job for job in step.jobs if job.state.is_terminal})
        if step.attempts or step.jobs:
            self._forget_what_ended(step)
        if self.check and (broken := violations(self.engine.state)):
            raise InternalError(f"after {event.kind} at {self.kernel.now_s:.3f} s: {'; '.join(broken)}")
        for command in step.commands:
            self.world.send(command)
        return step

    def _forget_what_ended(self, step: Step) -> None:
        for attempt in step.attempts:
            if attempt.ended_at_s is not None:
                self.world.forget_attempt(attempt.attempt_id)
        for job in step.jobs:
            if job.ended_at_s is not None:
                self.world.forget_job(job.job_id)
