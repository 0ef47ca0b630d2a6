"""How fast jobs ran against their estimates, by what the estimates were made for. Pure: no I/O, no clock.

The planner is wrong alike for like jobs: what one has measured is the best guess for the next one that does the same on
the same GPU types. A history is a value made of the latest runs that were long enough; it is small, and it depends on
those runs alone, so that one read back after a restart is the one that there was.

What is kept of a run is one number, for all its groups: the logarithm of the estimated step time over the measured one.
It belongs to who made the estimate as well. A table of measurements that takes the place of the planner is not held to
what the planner got wrong, nor is a planner with other constants.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from immutables import Map

from arena.domain.allocation import GpuGroup
from arena.domain.grid import Grid
from arena.domain.history import workload_name
from arena.domain.job import JobSpec

TRUST_S_MIN = 60.0
"""A run of less says nothing that lasts: the first steps are slow."""

RUNS_KEPT = 5
"""Of each kind; their median counts, so that one or two odd ones change little, and three new ones change all."""

KINDS_KEPT = 256
"""Kinds that are remembered: where there are more, whoever has most of them gives up what was measured longest ago."""

STEP_S_MIN = 1e-6
STEP_S_MAX = 1e9
"""A step that is said to take less than the first or more than the second was not measured."""


def possible_step_s(told_s: float | None) -> float | None:
    """Return a step time as it was told, in seconds, or None where none was or no step can take so long.

    Programs tell it themselves, by clocks that may have been set back: it may be negative, infinite or no number.
    """
    return told_s if told_s is not None and STEP_S_MIN <= told_s < STEP_S_MAX else None


PACE_BOUND = 1e6
"""A run counts as so many times as fast or as slow as estimated at most: what estimates and clocks cannot be off by."""

LOG_DIGITS = 6
"""Decimal digits of a logarithm that are kept; a millionth is far below what a measurement is worth."""


class PaceKind(NamedTuple):
    """What an estimate was made for.

    Args:
        source: Who made it, see ``estimator``.
        work: What is done, see ``work_name``.
        gpu_types: On which types of GPUs, see ``types_name``.
        user: Whose program it is; empty for work that is everybody's.
    """

    source: str
    work: str
    gpu_types: str
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPace:
    """What runs of one kind measured.

    Args:
        log_paces: Logarithms of estimated over measured step times of the latest runs, the last one last.
        at_s: When the last of them ended.
    """

    kind: PaceKind
    log_paces: tuple[float, ...]
    at_s: float

    @property
    def log_pace(self) -> float:
        """The median of the runs."""
        ordered, count = sorted(self.log_paces), len(self.log_paces)
        return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceHistory:
    """What the latest runs measured, by kind."""

    kinds: Map[PaceKind, MeasuredPace] = field(default_factory=Map)
    _by_work: dict[tuple[str, str], tuple[MeasuredPace, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def of_work(self, source: str, work: str) -> tuple[MeasuredPace, ...]:
        """Return what is known of a work whose estimates are from one source, on all types, in their order."""
        if self.kinds and not self._by_work:  # made when somebody asks first; who asks in another thread makes the same
            found: dict[tuple[str, str], tuple[MeasuredPace, ...]] = {}
            for one in self.all:
                found[one.kind[:2]] = (*found.get(one.kind[:2], ()), one)
            self._by_work.update(found)
        return self._by_work.get((source, work), ())

    def after(self, kind: PaceKind, pace: float, at_s: float) -> PaceHistory:
        """Return the history after one more run.

        Args:
            pace: Estimated over measured step time.
            at_s: When it ended, not before those that ended before.
        """
        known = self.kinds.get(kind)
        before = () if known is None else known.log_paces
        log_pace = math.log(min(max(pace, 1.0 / PACE_BOUND), PACE_BOUND))
        logs = (*before, round(log_pace, LOG_DIGITS))[-RUNS_KEPT:]
        kinds = self.kinds.set(kind, MeasuredPace(kind=kind, log_paces=logs, at_s=at_s))
        return PaceHistory(kinds=kinds.delete(_least_worth(kinds)) if len(kinds) > KINDS_KEPT else kinds)

    @property
    def all(self) -> tuple[MeasuredPace, ...]:
        """What is remembered, in order of the kinds."""
        return tuple(one for _, one in sorted(self.kinds.items()))

    @classmethod
    def of(cls, known: Iterable[MeasuredPace]) -> PaceHistory:
        """Return the history of what was remembered of each kind."""
        return cls(kinds=Map({one.kind: one for one in known}))


def _least_worth(kinds: Map[PaceKind, MeasuredPace]) -> PaceKind:
    """Return the oldest kind of the user who has most: nobody's many programs push out what others measured."""
    counts = Counter(kind.user for kind in kinds)
    return min(kinds.values(), key=lambda one: (-counts[one.kind.user], one.at_s, one.kind)).kind


def work_name(spec: JobSpec, user: str) -> str:
    """Return what jobs have in common that are as fast as each other on the same GPUs.

    Of a program its name says little, so it is its user's.
    """
    name = workload_name(spec)
    if spec.command is not None:
        return f"{user}: {name}"
    return name if spec.train is None else f"{name} {spec.train.precision}"


def types_name(group: GpuGroup) -> str:
    """Return on which types of GPUs a group is."""
    return "+".join(sorted({part.gpu_type for part in group.parts}))


def estimator(grid: Grid) -> str:
    """Return who estimated the cells of a grid; what adds groups over several types has no say in them."""
    return grid.source.partition(", ")[0]
