"""The order in which each rank of a pipeline runs forward and backward passes. Pure: no I/O, no clock.

Orders come from running the whole pipeline once in unit time: whoever is idle takes the next backward pass that is
ready, else the next forward pass that its bound on micro-batches in flight allows. For stages that are alike this
gives 1F1B (Narayanan et al., PipeDream-Flush, ICML 2021), its interleaved form (Narayanan et al., Megatron-LM, SC'21)
and GPipe (Huang et al. 2019); it holds as well where stages have unequal replicas. Since the orders were run once,
ranks that follow them cannot wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from arena.domain.micro_batches import MicroBatch, runs_in_step
from arena.domain.parallel import ParallelPlan, Schedule

_DURATION = {"forward": 1, "backward": 2}


class Pass(StrEnum):
    """Direction of an action."""

    FORWARD = "forward"
    BACKWARD = "backward"


class Action(NamedTuple):
    """One pass of one micro-batch through one model chunk; ``chunk`` counts over the whole pipeline."""

    direction: Pass
    chunk: int
    micro_batch: int


Orders = dict[tuple[int, int], tuple[Action, ...]]


def schedule_of(plan: ParallelPlan, batches: Sequence[MicroBatch]) -> Orders:
    """Return the actions of a step in order, by (stage, replica)."""
    run = _Run(plan=plan, units=[unit for stage in range(plan.pp) for unit in _units(plan, stage, batches)])
    run.finish()
    return {
        (unit.stage, replica): tuple(
            Action(direction, chunk, unit.rounds[turn][replica])
            for direction, chunk, turn in unit.done
            if replica in unit.rounds[turn]
        )
        for unit in run.units
        for replica in sorted({replica for one in unit.rounds for replica in one})
    }


@dataclass(slots=True, kw_only=True)
class _Unit:
    """Ranks that act as one: a replica, or all replicas of a stage where they meet within every micro-batch.

    Args:
        rounds: Micro-batch by replica, for each turn.
        forwards, backwards: (chunk, turn) in the order they are done.
        in_flight_max: Forward passes that may wait for their backward pass.
        fills_first: Whether a backward pass waits until as many forward passes as may are in flight. Over all
            micro-batches that is GPipe; interleaved, it is the published alternation, without which a chunk's early
            backward passes starve the chunks behind it (up to a fifth of the step's time).
    """

    stage: int
    rounds: Sequence[dict[int, int]]
    forwards: Sequence[tuple[int, int]]
    backwards: Sequence[tuple[int, int]]
    in_flight_max: int
    fills_first: bool
    forward_count: int = 0
    backward_count: int = 0
    busy_until: int = 0
    done: list[tuple[Pass, int, int]] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        return self.backward_count == len(self.backwards)

    @property
    def may_go_forward(self) -> bool:
        return self.forward_count - self.backward_count < self.in_flight_max

    @property
    def may_go_backward(self) -> bool:
        is_full = not self.may_go_forward or self.forward_count == len(self.forwards)
        return is_full or not self.fills_first


def _units(plan: ParallelPlan, stage: int, batches: Sequence[MicroBatch]) -> list[_Unit]:
    taken: dict[int, list[int]] = {replica: [] for replica in range(len(plan.stages[stage].replicas))}
    for index, batch in enumerate(batches):
        taken[batch.replicas[stage]].append(index)
    if runs_in_step(plan):
        turns = max(len(indices) for indices in taken.values())
        rounds = [{replica: indices[turn] for replica, indices in taken.items()} for turn in range(turns)]
        return [_unit(plan, stage, rounds)]
    return [_unit(plan, stage, [{replica: index} for index in indices]) for replica, indices in taken.items()]


def _unit(plan: ParallelPlan, stage: int, rounds: Sequence[dict[int, int]]) -> _Unit:
    pp, turns = plan.pp, plan.virtual_stage_count
    passes = [(chunk, turn) for chunk in range(turns) for turn in range(len(rounds))]
    forwards = sorted(passes, key=lambda one: (one[1] // pp, one[0], one[1] % pp))
    backwards = sorted(passes, key=lambda one: (one[1] // pp, -one[0], one[1] % pp))
    in_flight = pp - stage if turns == 1 else 2 * (pp - stage - 1) + (turns - 1) * pp + 1
    is_gpipe = plan.schedule is Schedule.GPIPE
    return _Unit(
        stage=stage,
        rounds=rounds,
        forwards=[(chunk * pp + stage, turn) for chunk, turn in forwards],
        backwards=[(chunk * pp + stage, turn) for chunk, turn in backwards],
        in_flight_max=len(passes) if is_gpipe else in_flight,
        fills_first=is_gpipe or turns > 1,
    )


@dataclass(slots=True, kw_only=True)
class _Run:
    """The pipeline in unit time; ``done_at`` says when a pass of a micro-batch through a chunk is over."""

    plan: ParallelPlan
    units: list[_Unit]
    now: int = 0
    done_at: dict[Action, int] = field(default_factory=dict)

    def finish(self) -> None:
        """Run until every micro-batch is through."""
        while not all(unit.is_finished for unit in self.units):
            for unit in self.units:
                if unit.busy_until <= self.now:
                    self._act(unit)
            later = [unit.busy_until for unit in self.units if unit.busy_until > self.now]
            if later:
                self.now = min(later)
            else:
                self._go_on()

    def _go_on(self) -> None:
        """Relax a bound where all wait: unequal rounds cannot always keep to it. The first that is ready goes on."""
        unit = next((unit for unit in self.units if self._is_ready(unit, Pass.BACKWARD)), None)
        if unit is not None:
            self._start(unit, Pass.BACKWARD)
        else:
            next(unit for unit in self.units if self._is_ready(unit, Pass.FORWARD)).in_flight_max += 1

    def _act(self, unit: _Unit) -> None:
        if unit.may_go_backward and self._is_ready(unit, Pass.BACKWARD):
            self._start(unit, Pass.BACKWARD)
        elif unit.may_go_forward and self._is_ready(unit, Pass.FORWARD):
            self._start(unit, Pass.FORWARD)

    def _is_ready(self, unit: _Unit, direction: Pass) -> bool:
        is_forward = direction is Pass.FORWARD
        passes, index = (unit.forwards, unit.forward_count) if is_forward else (unit.backwards, unit.backward_count)
        if index == len(passes):
            return False
        chunk, turn = passes[index]
        needed = _needed(direction, chunk, self.plan.pp * self.plan.virtual_stage_count)
        if needed is None:
            return True
        never = self.now + 1
        return all(self.done_at.get(Action(*needed, batch), never) <= self.now for batch in unit.rounds[turn].values())

    def _start(self, unit: _Unit, direction: Pass) -> None:
        if direction is Pass.FORWARD:
            chunk, turn = unit.forwards[unit.forward_count]
            unit.forward_count += 1
        else:
            chunk, turn = unit.backwards[unit.backward_count]
            unit.backward_count += 1
        unit.busy_until = self.now + _DURATION[direction]
        unit.done.append((direction, chunk, turn))
        for batch in unit.rounds[turn].values():
            self.done_at[Action(direction, chunk, batch)] = unit.busy_until


def _needed(direction: Pass, chunk: int, chunk_count: int) -> tuple[Pass, int] | None:
    """Return which pass of the same micro-batch comes first."""
    if direction is Pass.FORWARD:
        return (Pass.FORWARD, chunk - 1) if chunk > 0 else None
    if chunk == chunk_count - 1:
        return Pass.FORWARD, chunk
    return Pass.BACKWARD, chunk + 1
