"""What a job says of its optimizer. Pure: no I/O, no clock."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from arena.domain.specbase import Model, PositiveFloat, PositiveInt


class ScheduleSpec(Model):
    """Learning-rate schedule over steps: linear warm-up, then constant, linear or cosine decay.

    Attributes:
        decay_steps: Step at which the floor is reached; by default the job's step limit.
        floor_ratio: Final learning rate as a share of the peak.
    """

    kind: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    decay_steps: PositiveInt | None = None
    floor_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0


class OptimizerSpec(Model):
    """Optimizer with its schedule and gradient clipping (by global norm)."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: PositiveFloat = 1e-3
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    clip_norm: PositiveFloat | None = 1.0
    schedule: ScheduleSpec = ScheduleSpec()
