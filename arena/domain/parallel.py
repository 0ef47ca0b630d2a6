"""Parallelism plans: how a job is laid out on its GPUs. Pure: no I/O, no clock.

A plan is a pipeline of stages; each stage holds a number of layers and a number of data-parallel replicas, each
replica a tensor-parallel group. The general form (per-stage and per-replica degrees) is the one that heterogeneous
plans need; ``ParallelPlan.uniform`` builds the common case, and its text form is ``dp4 tp2 pp2 mb1``.

Rank order is stage, then replica, then tensor-parallel index: neighbours in a tensor-parallel group are
neighbours in rank, so a placement that keeps ranks in node order never splits the group. Where replicas name what they
are on, GPU type and zone come before the stage: the ranks of a type follow each other, so nodes of one type can hold
parts of several stages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby

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
        if self.micro_batch_count is not None and self.micro_batch_count < 1:
            raise SpecError("a replica needs at least one micro-batch", why=f"got {self.micro_batch_count}")


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
        if self.expert_parallel < 1:
            raise SpecError("expert-parallel degree must be at least 1", why=f"got {self.expert_parallel}")
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
        expert_parallel: int = 1,
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
            expert_parallel=expert_parallel,
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
        if not self.names_gpus:
            return tuple(replica.tp for stage in self.stages for replica in stage.replicas)
        return tuple(self.stages[stage].replicas[replica].tp for stage, replica in self.replicas_by_rank)

    @property
    def names_gpus(self) -> bool:
        """Whether a replica names the GPU type or zone that it is on."""
        seen: tuple[Replica, ...] = ()
        for stage in self.stages:
            if stage.replicas is not seen:  # stages mostly share theirs
                seen = stage.replicas
                if any(replica.gpu_type is not None or replica.zone is not None for replica in seen):
                    return True
        return False

    @property
    def replicas_by_rank(self) -> tuple[tuple[int, int], ...]:
        """Stage and replica of each tensor-parallel group in rank order."""
        places = [(stage, replica) for stage, one in enumerate(self.stages) for replica in range(len(one.replicas))]
        if self.names_gpus:
            places.sort(key=lambda place: _where(self.stages[place[0]].replicas[place[1]]))
        return tuple(places)

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


def _where(replica: Replica) -> tuple[str, str]:
    return replica.gpu_type or "", replica.zone or ""


def even_split(total: int, part_count: int) -> list[int]:
    """Split ``total`` into ``part_count`` parts that differ by at most one, larger ones first."""
    base, extra = divmod(total, part_count)
    return [base + (index < extra) for index in range(part_count)]


def format_plan(plan: ParallelPlan) -> str:
    """Return the text form: ``dp4 tp2 pp2 mb1``, with what differs from the defaults after it.

    An uneven layer split is written ``layers=5,3``; a plan whose stages or replicas differ lists them:
    ``[layers=5 tp2*2 | layers=3 tp1,tp1@t4/zone-ax3] mb1``, where ``*2`` repeats a replica and ``x3`` is its
    micro-batches. A name that could be misread stands in quotes: ``tp1@'rtx3090'``.
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
    runs = [(replica, len(list(same))) for replica, same in groupby(stage.replicas)]
    replicas = (_format_replica(replica) + (f"*{count}" if count > 1 else "") for replica, count in runs)
    return f"layers={stage.layer_count} " + ",".join(replicas)


def _format_replica(replica: Replica) -> str:
    return (
        f"tp{replica.tp}"
        + (f"@{_format_name(replica.gpu_type)}" if replica.gpu_type is not None else "")
        + (f"/{_format_name(replica.zone)}" if replica.zone is not None else "")
        + (f"x{replica.micro_batch_count}" if replica.micro_batch_count is not None else "")
    )


def _format_name(name: str) -> str:
    if _BARE_NAME.fullmatch(name) and not _COUNT_AT_END.search(name):
        return name
    return "'" + name.replace("'", "''") + "'"


_BARE_NAME = re.compile(r"[^\s'@/,|*\[\]]+")
_COUNT_AT_END = re.compile(r"x[0-9]+\Z")
_NAME = r"'(?:[^']|'')*'|[^\s'@/,|*\[\]]+?"
_STAGE_HEAD = re.compile(r"\s*layers=([0-9]{1,9})\s+")
_REPLICA = re.compile(
    rf"\s*tp([0-9]{{1,9}})(?:@({_NAME}))?(?:/({_NAME}))?(?:x([0-9]{{1,10}}))?(?:\*([0-9]{{1,9}}))?\s*([,|\]])"
)
_NUMBERS = ("dp", "tp", "pp", "mb", "zero", "interleaved", "ep")
_WORD = re.compile(rf"({'|'.join(_NUMBERS)})([0-9]{{1,10}})")
_FLAGS = ("1f1b", "gpipe", "sp")
_OPTIONS = ("recompute", "layers")
_EXAMPLES = "write it like 'dp2 tp2 pp1 mb1 zero3' or '[layers=5 tp2 | layers=3 tp1*2] mb1'"

REPLICAS_MAX = 2**20
"""Most replicas, over all stages, of a plan that is read: a typing error must not take all memory."""


def parse_plan(text: str, *, layer_count: int) -> ParallelPlan:
    """Read the text form of a plan, as ``format_plan`` writes it.

    Args:
        text: For example ``dp2 tp2 pp1 mb4 zero3``; what is left out has its default of 1 (zero: 0).
        layer_count: Transformer layers of the model.

    Raises:
        SpecError: An unknown word, a repeated one, or parts that do not fit together.
    """
    stages: tuple[Stage, ...] = ()
    rest = text
    if text.lstrip().startswith("["):
        stages, rest = _parse_stages(text, layer_count)
    words = _parse_words(text, rest)
    _check_words(text, words, has_stages=bool(stages))
    numbers = {key: int(value) for key, value in words.items() if key in _NUMBERS}
    if not stages:
        stages = _stages_of_degrees(text, words, numbers, layer_count)
    return ParallelPlan(
        stages=stages,
        micro_batch_size=numbers.get("mb", 1),
        schedule=_schedule(words),
        virtual_stage_count=numbers.get("interleaved", 1),
        zero=numbers.get("zero", 0),
        recompute=Recompute(words.get("recompute", "none")),
        expert_parallel=numbers.get("ep", 1),
        sequence_parallel="sp" in words,
    )


def _parse_words(text: str, rest: str) -> dict[str, str]:
    """Return the words after the stages by what they set; a flag has no value."""
    words: dict[str, str] = {}
    for word in rest.split():
        key, _, value = word.partition("=")
        if match := _WORD.fullmatch(word):
            key, value = match[1], match[2]
        elif word not in _FLAGS and (key not in _OPTIONS or not value):
            raise SpecError(f"plan {_shown(text)} holds an unknown word {_shown(word)}", fix=_EXAMPLES)
        if key in words:
            raise SpecError(f"plan {_shown(text)} names {key} twice")
        words[key] = value
    return words


def _check_words(text: str, words: dict[str, str], *, has_stages: bool) -> None:
    named = [word for word in ("1f1b", "gpipe", "interleaved") if word in words]
    if len(named) > 1:
        raise SpecError(f"plan {_shown(text)} names two schedules", why=" and ".join(named))
    known = [kind.value for kind in Recompute]
    if words.get("recompute", "none") not in known:
        raise SpecError(f"plan {_shown(text)} has an unknown recompute", fix=f"one of {', '.join(known)}")
    twice = [word for word in ("dp", "tp", "pp", "layers") if word in words]
    if has_stages and twice:
        raise SpecError(f"plan {_shown(text)} lists its stages and names {', '.join(twice)} as well", fix=_EXAMPLES)


def _stages_of_degrees(
    text: str, words: dict[str, str], numbers: dict[str, int], layer_count: int
) -> tuple[Stage, ...]:
    dp, tp, pp = (numbers.get(key, 1) for key in ("dp", "tp", "pp"))
    if dp * pp > REPLICAS_MAX:
        raise SpecError(f"plan {_shown(text)} is too large", why=f"dp{dp} x pp{pp} is more than {REPLICAS_MAX}")
    plan = ParallelPlan.uniform(
        layer_count=layer_count,
        dp=dp,
        tp=tp,
        pp=pp,
        schedule=_schedule(words),
        virtual_stage_count=numbers.get("interleaved", 1),
    )
    if "layers" not in words:
        return plan.stages
    parts = words["layers"].split(",")
    counts = [int(part) for part in parts if part.isdecimal() and len(part) < 10]
    if len(counts) != len(parts) or len(counts) != pp or sum(counts) != layer_count:
        raise SpecError(
            f"plan {_shown(text)} splits layers wrongly",
            why=f"need {pp} numbers that sum to {layer_count}, got {_shown(words['layers'])}",
        )
    return tuple(replace(stage, layer_count=count) for stage, count in zip(plan.stages, counts, strict=True))


def _parse_stages(text: str, layer_count: int) -> tuple[tuple[Stage, ...], str]:
    """Return the stages that a text lists in brackets, and what follows them."""
    stages: list[Stage] = []
    at, left, end = text.index("[") + 1, REPLICAS_MAX, "|"
    while end == "|":
        head = _STAGE_HEAD.match(text, at)
        if head is None:
            raise _unreadable(text, at, "a stage starts with its layers")
        replicas: list[Replica] = []
        at, end = head.end(), ","
        while end == ",":
            found = _REPLICA.match(text, at)
            if found is None:
                raise _unreadable(text, at, "a replica is written like tp2, tp1@t4/zone-a, tp2x3 or tp2*4")
            repeat = int(found[5] or 1)
            left -= repeat
            if repeat < 1 or left < 0:
                raise _unreadable(text, at, f"a plan has 1 to {REPLICAS_MAX} replicas")
            replicas += [_replica(found)] * repeat
            at, end = found.end(), found[6]
        stages.append(Stage(layer_count=int(head[1]), replicas=tuple(replicas)))
    placed = sum(stage.layer_count for stage in stages)
    if placed != layer_count:
        raise SpecError(f"plan {_shown(text)} places {placed} layers", why=f"the model has {layer_count}")
    return tuple(stages), text[at:]


def _replica(found: re.Match[str]) -> Replica:
    return Replica(
        tp=int(found[1]),
        gpu_type=_parse_name(found[2]),
        zone=_parse_name(found[3]),
        micro_batch_count=int(found[4]) if found[4] else None,
    )


def _parse_name(name: str | None) -> str | None:
    return name[1:-1].replace("''", "'") if name is not None and name.startswith("'") else name


def _unreadable(text: str, at: int, expected: str) -> SpecError:
    return SpecError(f"plan {_shown(text)} cannot be read at {_shown(text[at : at + 20])}", why=expected, fix=_EXAMPLES)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _schedule(words: dict[str, str]) -> Schedule:
    if "interleaved" in words:
        return Schedule.INTERLEAVED
    return Schedule.GPIPE if "gpipe" in words else Schedule.ONE_F_ONE_B
