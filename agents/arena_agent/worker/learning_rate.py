"""The learning rate of a step, a function of the step alone. Pure: no I/O, no clock."""

from __future__ import annotations

import math

from arena.domain.job import JobSpec
from arena.domain.optimizer import OptimizerSpec, ScheduleSpec


def learning_rate(optimizer: OptimizerSpec, *, step: int, decay_steps: int | None) -> float:
    """Return the rate of optimizer step ``step`` (0-based): linear warm-up, then constant, linear or cosine decay.

    Args:
        optimizer: Peak rate and schedule.
        step: Optimizer steps already done.
        decay_steps: Step at which the floor is reached; unused by the constant schedule.
    """
    schedule = optimizer.schedule
    if step < schedule.warmup_steps:
        return optimizer.lr * (step + 1) / schedule.warmup_steps
    return optimizer.lr * _decay(schedule, step, decay_steps)


def decay_steps(spec: JobSpec) -> int | None:
    """Return where the decay of a job ends: its own number, else the job's step limit."""
    if spec.train is None:
        return None
    return spec.train.optimizer.schedule.decay_steps or spec.step_limit


def _decay(schedule: ScheduleSpec, step: int, end: int | None) -> float:
    if schedule.kind == "constant" or end is None:
        return 1.0
    span = max(1, end - schedule.warmup_steps)
    done = min(1.0, (step - schedule.warmup_steps) / span)
    remainder = 1.0 - done if schedule.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return schedule.floor_ratio + (1.0 - schedule.floor_ratio) * remainder
