"""Sets of plans that exercise every pair of features which the capability table allows. Pure and seeded.

A greedy search (as Cohen et al. 1997, AETG) over every plan of so many ranks: the next one taken is the one that has
the most pairs of features not had together so far. The table says what is refused, so the sets follow it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from arena.domain.capability import REFUSALS, Feature, features_of, tensor_parallel_dimensions, unsupported
from arena.domain.job import JobSpec, ModelFamily, TrainSpec
from arena.domain.parallel import ParallelPlan, Recompute, Replica, Schedule, Stage, even_split

Families = tuple[ModelFamily, ...]

ALIKE: tuple[Families, ...] = (
    (ModelFamily.GPT, ModelFamily.LLAMA, ModelFamily.BERT, ModelFamily.VIT),
    (ModelFamily.MOE,),
    (ModelFamily.WIDE_RESNET,),
)
"""Families whose layers the same code lays out. They share a covering set: each of its pairs of features is trained by
one of them, and each of them trains with every feature."""
LAYERS = 5
GLOBAL_BATCH = 6
# 6 samples, 5 layers, 260 tokens and a width of 24: little divides evenly, on purpose.
_MODELS: dict[ModelFamily, dict[str, Any]] = {
    ModelFamily.GPT: {"ffn_hidden": 40, "kv_heads": 2},
    ModelFamily.LLAMA: {"ffn_hidden": 40, "kv_heads": 2},
    ModelFamily.BERT: {},
    ModelFamily.MOE: {"ffn_hidden": 32, "kv_heads": 2, "expert_count": 4},
    ModelFamily.VIT: {"image_size": 16, "patch_size": 4, "class_count": 10},
    ModelFamily.WIDE_RESNET: {
        "heads": 1,
        "hidden": 8,
        "image_size": 8,
        "class_count": 10,
        "group_depths": (2, 3),
        "norm_groups": 4,
    },
}
_JOB_FEATURES = (Feature.TIED_EMBEDDINGS, Feature.DROPOUT)
_TRIES_MAX = 40
"""Frames of the same features that are tried until one is supported; more than there are within four ranks."""


class Usual(StrEnum):
    """What a plan does that asks for nothing special; counts as a feature here, so that it meets the others too."""

    ONE_F_ONE_B = "1f1b over stages"
    NO_ZERO = "replicas without sharding"
    NO_RECOMPUTE = "nothing recomputed"
    WHOLE_SEQUENCE = "tensor parallelism without sharding the sequence"


Level = Feature | Usual | ModelFamily
Pair = frozenset[Level]
LEVELS: tuple[Level, ...] = (*Feature, *Usual, *ModelFamily)
_NUMBERS: dict[Level, int] = {level: number for number, level in enumerate(LEVELS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job of a family under a plan, with everything that the two ask of the worker."""

    family: ModelFamily
    plan: ParallelPlan
    features: frozenset[Feature]

    def __str__(self) -> str:
        of_job = [feature.value for feature in (*_JOB_FEATURES, Feature.BF16) if feature in self.features]
        return "-".join([self.family.value, str(self.plan), *of_job]).replace(" ", "_")

    @property
    def pairs(self) -> set[Pair]:
        """Pairs of features that it exercises together, and its family with each of them."""
        return pairs_of(levels_of(self.features) | {self.family})

    def job(self, steps: int, **checkpoint: Any) -> JobSpec:
        """Return the job, ended after so many steps."""
        return job(self.family, self.features, steps, **checkpoint)


def pairs_of(levels: frozenset[Level]) -> set[Pair]:
    """Return all pairs of some features."""
    return {frozenset(pair) for pair in itertools.combinations(levels, 2)}


def levels_of(features: frozenset[Feature]) -> frozenset[Level]:
    """Return features with what is usual where they ask for nothing else."""
    usual: set[Level] = set()
    if Feature.PIPELINE in features and not features & {Feature.GPIPE, Feature.INTERLEAVED}:
        usual.add(Usual.ONE_F_ONE_B)
    if Feature.DATA_PARALLEL in features and not features & {Feature.ZERO_1, Feature.ZERO_2, Feature.ZERO_3}:
        usual.add(Usual.NO_ZERO)
    if not features & {Feature.RECOMPUTE_SELECTIVE, Feature.RECOMPUTE_FULL}:
        usual.add(Usual.NO_RECOMPUTE)
    if Feature.TENSOR_PARALLEL in features and Feature.SEQUENCE_PARALLEL not in features:
        usual.add(Usual.WHOLE_SEQUENCE)
    return features | usual


def job(family: ModelFamily, features: frozenset[Feature], steps: int, **checkpoint: Any) -> JobSpec:
    """Return a small job with what the features say of it.

    The rate changes every weight in three steps. ``eps`` keeps Adam from making steps of rounding errors where a
    gradient is all but zero.
    """
    fields = {
        "model": {
            "family": family,
            "layers": LAYERS,
            "hidden": 24,
            "heads": 4,
            "vocab_size": 260,
            "seq_len": 16,
            **_MODELS[family],
            "tied_embeddings": Feature.TIED_EMBEDDINGS in features,
            "dropout": 0.1 if Feature.DROPOUT in features else 0.0,
            "attention_dropout": 0.2 if Feature.DROPOUT in features else 0.0,
        },
        "global_batch": GLOBAL_BATCH,
        "optimizer": {"lr": 1e-3, "eps": 1e-6, "weight_decay": 0.1, "clip_norm": 0.5},
        "precision": "bf16" if Feature.BF16 in features else "fp32",
        "seed": 3,
    }
    return JobSpec.model_validate({"name": "job", "train": fields, "stop": {"steps": steps}, "checkpoint": checkpoint})


def train(family: ModelFamily, features: frozenset[Feature] = frozenset()) -> TrainSpec:
    """Return the training part of the job."""
    found = job(family, features, 1).train
    assert found is not None
    return found


def allowed_features(family: ModelFamily) -> frozenset[Feature]:
    """Return what the table does not refuse to a family."""
    return frozenset(Feature) - REFUSALS[family].keys()


def possible_pairs(families: Families, ranks_min: int, ranks_max: int) -> set[Pair]:
    """Return every pair that some case of so many ranks has, but for bf16 with what is usual."""
    found: set[Pair] = set()
    for family in families:
        of_job = allowed_features(family) & {*_JOB_FEATURES, Feature.BF16}
        for features in candidates(family, ranks_min, ranks_max):
            found |= pairs_of(levels_of(features | of_job) | {family})
    return {pair for pair in found if Feature.BF16 not in pair or _is_coarse(pair)}


@lru_cache(maxsize=32)
def covering_set(families: Families, ranks_min: int, ranks_max: int) -> tuple[Case, ...]:
    """Return cases that have every pair of features that any case of so many ranks has, and each with each family.

    Pairs with bf16 come from cases of their own, since results in bf16 are compared more loosely.
    """
    exact = [option for family in families for option in _options(family, ranks_min, ranks_max)]
    coarse = [
        replace(option, features=option.features | {Feature.BF16})
        for option in exact
        if Feature.BF16 in allowed_features(option.family)
    ]
    return (*_greedy(exact, lambda pair: True), *_greedy(coarse, _is_coarse))


def _options(family: ModelFamily, ranks_min: int, ranks_max: int) -> Iterator[Case]:
    """Yield a case for each set of features of a plan and of a job, whether or not the job may have the plan."""
    jobs = [feature for feature in _JOB_FEATURES if feature in allowed_features(family)]
    exact = [frozenset(chosen) for size in range(len(jobs) + 1) for chosen in itertools.combinations(jobs, size)]
    for (features, plan), of_job in itertools.product(candidates(family, ranks_min, ranks_max).items(), exact):
        yield Case(family=family, plan=plan, features=features | of_job)


def _is_coarse(pair: Pair) -> bool:
    return Feature.BF16 in pair and not any(isinstance(level, Usual) for level in pair)


def _greedy(options: Iterable[Case], is_wanted: Callable[[Pair], bool]) -> list[Case]:
    """Take the case with the most new pairs until there is none; among equals the one with the fewest features."""
    options = sorted(options, key=lambda option: len(option.features))
    pairs = [_bits(levels_of(option.features) | {option.family}) for option in options]
    wanted = sum(_bits(pair) for pair in itertools.combinations(LEVELS, 2) if is_wanted(frozenset(pair)))
    taken: list[Case] = []
    while True:
        gains = [(mask & wanted).bit_count() for mask in pairs]
        best = max(range(len(gains)), key=gains.__getitem__, default=None)
        if best is None or gains[best] == 0:
            return taken
        option = options[best]
        if unsupported(train(option.family, option.features), option.plan) is None:
            taken.append(option)
            wanted &= ~pairs[best]
        else:
            pairs[best] = 0


def _bits(levels: Iterable[Level]) -> int:
    """Return the pairs of some features as a set of bits: a row for the lower one, a column for the higher."""
    numbers = sorted(_NUMBERS[level] for level in levels)
    columns = sum(1 << number for number in numbers)
    return sum((columns >> number + 1 << number + 1) << len(LEVELS) * number for number in numbers)


@lru_cache(maxsize=32)
def candidates(family: ModelFamily, ranks_min: int, ranks_max: int) -> dict[frozenset[Feature], ParallelPlan]:
    """Return a supported plan for each set of features that a plan of so many ranks can have."""
    plain = train(family)
    frames: dict[frozenset[Feature], list[ParallelPlan]] = {}
    for plan in _frames(plain, ranks_min, ranks_max):
        frames.setdefault(features_of(plain, plan), []).append(plan)
    found: dict[frozenset[Feature], ParallelPlan] = {}
    chance = random.Random(f"{family}:{ranks_max}")
    for features, alike in sorted(frames.items(), key=lambda item: sorted(item[0])):
        chance.shuffle(alike)
        for form in _passes(features, allowed_features(family)):
            plans = [replace(plan, **form) for plan in alike[:_TRIES_MAX]]
            plans = [plan for plan in plans if unsupported(plain, plan) is None]
            for memory in _memory_options(features) if plans else ():
                chosen = (replace(plan, **memory) for plan in chance.sample(plans, len(plans)))
                supported = next((plan for plan in chosen if unsupported(plain, plan) is None), None)
                if supported is not None:
                    found.setdefault(features_of(plain, supported), supported)
    return found


def _passes(frame: frozenset[Feature], allowed: frozenset[Feature]) -> Iterator[dict[str, Any]]:
    """Yield how passes may run through a plan, without what its degrees make no sense of."""
    schedules = [(Schedule.ONE_F_ONE_B, 1)]
    if Feature.PIPELINE in frame:
        schedules += [(Schedule.GPIPE, 1), (Schedule.INTERLEAVED, 2)]
    may_split = Feature.TENSOR_PARALLEL in frame and Feature.SEQUENCE_PARALLEL in allowed
    may_spread = Feature.DATA_PARALLEL in frame and Feature.EXPERT_PARALLEL in allowed
    for (schedule, virtual), is_split, ep in itertools.product(
        schedules, (False, True) if may_split else (False,), (1, 2) if may_spread else (1,)
    ):
        yield {
            "schedule": schedule,
            "virtual_stage_count": virtual,
            "sequence_parallel": is_split,
            "expert_parallel": ep,
        }


def _memory_options(frame: frozenset[Feature]) -> Iterator[dict[str, Any]]:
    """Yield what may be sharded, where there are replicas to shard over, and recomputed."""
    stages = range(4) if Feature.DATA_PARALLEL in frame else (0,)
    for zero, recompute in itertools.product(stages, Recompute):
        yield {"zero": zero, "recompute": recompute}


def _frames(plain: TrainSpec, ranks_min: int, ranks_max: int) -> Iterator[ParallelPlan]:
    """Yield plans of every form of stages, layer split and micro-batch counts, without further options."""
    sizes = tensor_parallel_dimensions(plain.model).values()
    degrees = [tp for tp in range(1, ranks_max + 1) if all(size % tp == 0 for size in sizes)]
    for rank_count in range(ranks_min, ranks_max + 1):
        for stages in _forms(rank_count, degrees):
            yield from _plans_of_form(stages)


def _forms(rank_count: int, degrees: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the tensor-parallel degrees of each replica of each stage, over so many ranks."""
    for first in degrees:
        if first == rank_count:
            yield ((first,),)
        elif first < rank_count:
            for rest in _forms(rank_count - first, degrees):
                if len(rest) < LAYERS:
                    yield ((first,), *rest)
                if len(rest[0]) < GLOBAL_BATCH:
                    yield ((first, *rest[0]), *rest[1:])


def _plans_of_form(form: tuple[tuple[int, ...], ...]) -> Iterator[ParallelPlan]:
    for layers, size, are_unequal in itertools.product(_layer_splits(len(form)), (1, 2), (False, True)):
        counts = [_counts(len(stage), -(-GLOBAL_BATCH // size)) if are_unequal else None for stage in form]
        if are_unequal and not any(counts):
            continue
        yield ParallelPlan(
            stages=tuple(
                Stage(layer_count=layer_count, replicas=_replicas(degrees, count))
                for layer_count, degrees, count in zip(layers, form, counts, strict=True)
            ),
            micro_batch_size=size,
        )


def _layer_splits(pp: int) -> list[tuple[int, ...]]:
    even = tuple(even_split(LAYERS, pp))
    heavy_end = (*[1] * (pp - 1), LAYERS - pp + 1)
    return sorted({even, even[::-1], heavy_end})


def _counts(dp: int, total: int) -> list[int] | None:
    """Return unequal micro-batch counts, None where there is one replica or too few micro-batches."""
    return [*[1] * (dp - 1), total - dp + 1] if 1 < dp < total else None


def _replicas(degrees: Sequence[int], counts: list[int] | None) -> tuple[Replica, ...]:
    return tuple(
        Replica(tp=tp, micro_batch_count=counts[index] if counts else None) for index, tp in enumerate(degrees)
    )
