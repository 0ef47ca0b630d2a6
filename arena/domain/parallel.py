"""Parallelism plans: how a job is laid out on its GPUs. Pure: no I/O, no clock.

A plan is a pipeline of stages; each stage holds a number of layers and a number of data-parallel replicas, each
replica a tensor-parallel group. The general form (per-stage and per-replica degrees) is the one that heterogeneous
plans need; ``ParallelPlan.uniform`` builds the common case, and its text form is ``dp4 tp2 pp2 mb1``.

Rank order is stage, then replica, then tensor-parallel index: neighbours in a tensor-parallel group are
neighbours in rank, so a placement that keeps ranks in node order never splits the group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from arena.errors import SpecError


class Schedule(StrEnum):
    """Pipeline schedule."""

    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    GPIPE = "gpipe"


class Recompute(StrEnum):
    """Which activations are recomputed in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One data-parallel replica of a stage.

    Args:
        tp: Tensor-parallel degree.
        gpu_type: Type its GPUs must have; None in a plan for a group of one type.
        zone: Zone its GPUs must stand in; None where the group has one zone.
        micro_batch_count: Micro-batches of this replica per step; None means an even share.
    """

    tp: int = 1
    gpu_type: str | None = None
    zone: str | None = None
    micro_batch_count: int | None = None

    def __post_init__(self) -> None:
        if self.tp < 1:
            raise SpecError("tp must be at least 1", why=f"got {self.tp}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage: a run of consecutive transformer layers on its replicas."""

    layer_count: int
    replicas: tuple[Replica, ...]

    def __post_init__(self) -> None:
        if self.layer_count < 1:
            raise SpecError("a pipeline stage needs at least one layer", why=f"got {self.layer_count}")
        if not self.replicas:
            raise SpecError("a pipeline stage needs at least one replica")

    @property
    def gpu_count(self) -> int:
        """GPUs of this stage."""
        return sum(replica.tp for replica in self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """The layout of one attempt.

    Args:
        stages: Pipeline stages in layer order.
        micro_batch_size: Sequences per micro-batch and replica.
        schedule: Pipeline schedule.
        virtual_stage_count: Model chunks per pipeline rank; above 1 only with the interleaved schedule.
        zero: 0 none, 1 optimizer state, 2 also gradients, 3 also parameters sharded over data parallelism.
        recompute: Activation recomputation.
        expert_parallel: Expert-parallel degree (inside data parallelism).
        sequence_parallel: Shard the sequence of norm and dropout regions over tensor parallelism.
    """

    stages: tuple[Stage, ...]
    micro_batch_size: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    virtual_stage_count: int = 1
    zero: int = 0
    recompute: Recompute = Recompute.NONE
    expert_parallel: int = 1
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        if not self.stages:
            raise SpecError("a plan needs at least one pipeline stage")
        if self.micro_batch_size < 1:
            raise SpecError("micro-batch size must be at least 1", why=f"got {self.micro_batch_size}")
        if self.zero not in {0, 1, 2, 3}:
            raise SpecError("zero must be 0, 1, 2 or 3", why=f"got {self.zero}")
        if (self.virtual_stage_count > 1) != (self.schedule is Schedule.INTERLEAVED):
            raise SpecError(
                "the interleaved schedule and more than one virtual stage go together",
                why=f"schedule {self.schedule.value}, {self.virtual_stage_count} virtual stages",
            )

    @classmethod
    def uniform(
        cls,
        *,
        layer_count: int,
        dp: int = 1,
        tp: int = 1,
        pp: int = 1,
        micro_batch_size: int = 1,
        schedule: Schedule = Schedule.ONE_F_ONE_B,
        virtual_stage_count: int = 1,
        zero: int = 0,
        recompute: Recompute = Recompute.NONE,
        sequence_parallel: bool = False,
    ) -> ParallelPlan:
        """Return the plan with the same dp and tp on every stage and layers split as evenly as possible.

        Raises:
            SpecError: A degree is below 1 or there are fewer layers than (virtual) stages.
        """
        if min(dp, tp, pp) < 1:
            raise SpecError("dp, tp and pp must be at least 1", why=f"got dp{dp} tp{tp} pp{pp}")
        if layer_count < pp * virtual_stage_count:
            raise SpecError(
                "fewer layers than pipeline stages",
                why=f"{layer_count} layers, pp{pp} x {virtual_stage_count} virtual stages",
                fix=f"use pp x virtual stages of at most {layer_count}",
            )
        replicas = (Replica(tp=tp),) * dp
        return cls(
            stages=tuple(Stage(layer_count=count, replicas=replicas) for count in even_split(layer_count, pp)),
            micro_batch_size=micro_batch_size,
            schedule=schedule,
            virtual_stage_count=virtual_stage_count,
            zero=zero,
            recompute=recompute,
            sequence_parallel=sequence_parallel,
        )

    @property
    def pp(self) -> int:
        """Pipeline depth."""
        return len(self.stages)

    @property
    def dp(self) -> int:
        """Data-parallel degree of the first stage (of every stage in a uniform plan)."""
        return len(self.stages[0].replicas)

    @property
    def tp(self) -> int:
        """Tensor-parallel degree of the first replica (of every replica in a uniform plan)."""
        return self.stages[0].replicas[0].tp

    @property
    def gpu_count(self) -> int:
        """GPUs, and so ranks, of the plan."""
        return sum(stage.gpu_count for stage in self.stages)

    @property
    def layer_count(self) -> int:
        """Transformer layers over all stages."""
        return sum(stage.layer_count for stage in self.stages)

    @property
    def tensor_parallel_sizes(self) -> tuple[int, ...]:
        """Sizes of the tensor-parallel groups in rank order; a placement keeps each inside one node."""
        return tuple(replica.tp for stage in self.stages for replica in stage.replicas)

    @property
    def is_uniform(self) -> bool:
        """Whether every stage has the same replicas, all alike."""
        first = self.stages[0].replicas
        return all(stage.replicas == first for stage in self.stages) and all(replica == first[0] for replica in first)

    @property
    def is_even(self) -> bool:
        """Whether layers are split as ``uniform`` would split them."""
        counts = tuple(stage.layer_count for stage in self.stages)
        return counts == tuple(even_split(self.layer_count, self.pp))

    def __str__(self) -> str:
        return format_plan(self)


def even_split(total: int, part_count: int) -> list[int]:
    """Split ``total`` into ``part_count`` parts that differ by at most one, larger ones first."""
    base, extra = divmod(total, part_count)
    return [base + (index < extra) for index in range(part_count)]


def format_plan(plan: ParallelPlan) -> str:
    """Return the text form: ``dp4 tp2 pp2 mb1``, with what differs from the defaults after it.

    An uneven layer split is written ``layers=5,3``; a plan whose stages differ lists them:
    ``[layers=5 tp2,tp2 | layers=3 tp1,tp1@t4] mb1``.
    """
    if plan.is_uniform and plan.stages[0].replicas[0] == Replica(tp=plan.tp):
        words = [f"dp{plan.dp}", f"tp{plan.tp}", f"pp{plan.pp}", f"mb{plan.micro_batch_size}"]
        if not plan.is_even:
            words.append("layers=" + ",".join(str(stage.layer_count) for stage in plan.stages))
    else:
        words = [
            "[" + " | ".join(_format_stage(stage) for stage in plan.stages) + "]",
            f"mb{plan.micro_batch_size}",
        ]
    if plan.zero:
        words.append(f"zero{plan.zero}")
    if plan.schedule is Schedule.INTERLEAVED:
        words.append(f"interleaved{plan.virtual_stage_count}")
    elif plan.schedule is Schedule.GPIPE:
        words.append("gpipe")
    if plan.recompute is not Recompute.NONE:
        words.append(f"recompute={plan.recompute.value}")
    if plan.expert_parallel > 1:
        words.append(f"ep{plan.expert_parallel}")
    if plan.sequence_parallel:
        words.append("sp")
    return " ".join(words)


def _format_stage(stage: Stage) -> str:
    return f"layers={stage.layer_count} " + ",".join(
        f"tp{replica.tp}"
        + (f"@{replica.gpu_type}" if replica.gpu_type else "")
        + (f"/{replica.zone}" if replica.zone else "")
        + (f"x{replica.micro_batch_count}" if replica.micro_batch_count is not None else "")
        for replica in stage.replicas
    )


_WORD = re.compile(r"(dp|tp|pp|mb|zero|interleaved|ep)(\d+)")


def parse_plan(text: str, *, layer_count: int) -> ParallelPlan:
    """Read the text form of a plan whose stages are alike.

    Args:
        text: For example ``dp2 tp2 pp1 mb4 zero3``; what is left out has its default of 1 (zero: 0).
        layer_count: Transformer layers of the model.

    Raises:
        SpecError: An unknown word, a repeated one, or degrees that do not fit together.
    """
    numbers: dict[str, int] = {}
    options: dict[str, str] = {}
    for word in text.split():
        if match := _WORD.fullmatch(word):
            key, value = match[1], match[2]
            if key in numbers:
                raise SpecError(f"plan {text!r} names {key} twice")
            numbers[key] = int(value)
        elif word in {"gpipe", "1f1b", "sp"} or word.startswith(("recompute=", "layers=")):
            key, _, value = word.partition("=")
            options[key] = value
        else:
            raise SpecError(
                f"plan {text!r} holds an unknown word {word!r}",
                fix="write it like 'dp2 tp2 pp1 mb1 zero3', 'dp1 tp1 pp2 mb1 interleaved2'",
            )
    try:
        recompute = Recompute(options.get("recompute", "none"))
    except ValueError:
        raise SpecError(
            f"plan {text!r} has an unknown recompute",
            fix=f"one of {', '.join(kind.value for kind in Recompute)}",
        ) from None
    plan = ParallelPlan.uniform(
        layer_count=layer_count,
        dp=numbers.get("dp", 1),
        tp=numbers.get("tp", 1),
        pp=numbers.get("pp", 1),
        micro_batch_size=numbers.get("mb", 1),
        schedule=_schedule(numbers, options),
        virtual_stage_count=numbers.get("interleaved", 1),
        zero=numbers.get("zero", 0),
        recompute=recompute,
        sequence_parallel="sp" in options,
    )
    plan = replace(plan, expert_parallel=numbers.get("ep", 1))
    return _with_layers(plan, options["layers"], text) if "layers" in options else plan


def _schedule(numbers: dict[str, int], options: dict[str, str]) -> Schedule:
    if "interleaved" in numbers:
        return Schedule.INTERLEAVED
    return Schedule.GPIPE if "gpipe" in options else Schedule.ONE_F_ONE_B


def _with_layers(plan: ParallelPlan, layers: str, text: str) -> ParallelPlan:
    counts: Sequence[int] = [int(part) for part in layers.split(",") if part.isdigit()]
    if len(counts) != plan.pp or sum(counts) != plan.layer_count:
        raise SpecError(
            f"plan {text!r} splits layers wrongly",
            why=f"need {plan.pp} numbers that sum to {plan.layer_count}, got {layers!r}",
        )
    return replace(
        plan,
        stages=tuple(replace(stage, layer_count=count) for stage, count in zip(plan.stages, counts, strict=True)),
    )
