"""What the worker runtime runs: one table of family x layout, each refusal with its reason. Pure: no I/O, no clock.

The planner offers nothing that is refused here (unless it is asked to look beyond the worker), and the worker refuses
the same at launch; tests train every family under every layout that the table allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import groupby

from arena.domain.divisors import divisors, format_set
from arena.domain.job import ModelFamily, ModelSpec, TrainSpec
from arena.domain.micro_batches import micro_batches
from arena.domain.parallel import ParallelPlan, Recompute, Replica, Schedule
from arena.domain.variant import VARIANT_FIELDS

BYTE_VALUES = 256
PARTS_MAX = 4096
"""Most layers, and most experts of a layer; a typing error must not take all memory of who plans."""
BATCH_MAX = 2**20
"""Most samples of a step: who plans and who trains goes through its micro-batches one by one."""


class Feature(StrEnum):
    """What a plan or a job can ask of the worker."""

    DATA_PARALLEL = "dp"
    TENSOR_PARALLEL = "tp"
    SEQUENCE_PARALLEL = "sp"
    EXPERT_PARALLEL = "ep"
    PIPELINE = "pp"
    GPIPE = "gpipe"
    INTERLEAVED = "interleaved"
    ZERO_1 = "zero1"
    ZERO_2 = "zero2"
    ZERO_3 = "zero3"
    RECOMPUTE_SELECTIVE = "recompute=selective"
    RECOMPUTE_FULL = "recompute=full"
    UNEVEN_LAYERS = "uneven layers"
    UNEQUAL_MICRO_BATCHES = "unequal micro-batches"
    MIXED_DP = "dp by stage"
    MIXED_TP = "tp by stage or replica"
    TIED_EMBEDDINGS = "tied embeddings"
    DROPOUT = "dropout"
    BF16 = "bf16"
    FP16 = "fp16"


_NO_EXPERTS = "the model has no experts"
_NO_VOCABULARY = "image models have no vocabulary to tie"
_ALL_REFUSE = {Feature.FP16: "precision fp16 needs loss scaling, which the worker does not do; use bf16 or fp32"}

REFUSALS: Mapping[ModelFamily, Mapping[Feature, str]] = {
    ModelFamily.GPT: {**_ALL_REFUSE, Feature.EXPERT_PARALLEL: _NO_EXPERTS},
    ModelFamily.LLAMA: {**_ALL_REFUSE, Feature.EXPERT_PARALLEL: _NO_EXPERTS},
    ModelFamily.BERT: {**_ALL_REFUSE, Feature.EXPERT_PARALLEL: _NO_EXPERTS},
    ModelFamily.MOE: _ALL_REFUSE,
    ModelFamily.VIT: {
        **_ALL_REFUSE,
        Feature.EXPERT_PARALLEL: _NO_EXPERTS,
        Feature.TIED_EMBEDDINGS: _NO_VOCABULARY,
    },
    ModelFamily.WIDE_RESNET: {
        **_ALL_REFUSE,
        Feature.EXPERT_PARALLEL: _NO_EXPERTS,
        Feature.TIED_EMBEDDINGS: _NO_VOCABULARY,
        Feature.SEQUENCE_PARALLEL: "convolutions have no sequence to shard",
        Feature.DROPOUT: "the Wide-ResNet is built without dropout",
    },
    ModelFamily.T5: {**_ALL_REFUSE, Feature.EXPERT_PARALLEL: _NO_EXPERTS},
}
"""The table: what is missing from a family's row it runs."""

UNTRAINED: Mapping[ModelFamily, str] = {ModelFamily.T5: "the worker trains no encoder-decoder (t5)"}
"""Families that are planned only."""

TRAINED_FAMILIES = tuple(family for family in ModelFamily if family not in UNTRAINED)
"""Families that the worker trains."""


def features_of(train: TrainSpec, plan: ParallelPlan) -> frozenset[Feature]:
    """Return what a job under a plan asks of the worker."""
    return frozenset({*_job_features(train), *_degree_features(plan), *_step_features(plan)})


def unsupported(train: TrainSpec, plan: ParallelPlan, *, beyond_worker: bool = False) -> str | None:
    """Return why the worker (or, beyond it, any program) cannot train a model under a plan, None when it can."""
    return next(refusals(train, plan, beyond_worker=beyond_worker), None)


def refusals(train: TrainSpec, plan: ParallelPlan, *, beyond_worker: bool = False) -> Iterator[str]:
    """Yield everything that keeps the worker (or, beyond it, any program) from training a model under a plan."""
    yield from job_refusals(train, beyond_worker=beyond_worker)
    if any(_size_refusals(train)):
        return
    features = frozenset({*_degree_features(plan), *_step_features(plan)})
    yield from _table_refusals(train.model, features, beyond_worker=beyond_worker)
    yield from _shape_refusals(train.model, plan)
    yield from _combination_refusals(train.model, plan)
    yield from _batch_refusals(train, plan)


def job_refusals(train: TrainSpec, *, beyond_worker: bool = False) -> Iterator[str]:
    """Yield everything that keeps the worker (or, beyond it, any program) from training a model under any plan."""
    if not beyond_worker:
        yield from _model_refusals(train.model)
        yield from _data_refusals(train)
    yield from _table_refusals(train.model, frozenset(_job_features(train)), beyond_worker=beyond_worker)
    yield from _size_refusals(train)


def tensor_parallel_dimensions(model: ModelSpec) -> dict[str, int]:
    """Return the sizes that a tensor-parallel degree must divide, by name, the most telling first."""
    if model.family is ModelFamily.WIDE_RESNET:
        return (
            {"variant.bottleneck": model.variant.bottleneck}
            if model.variant.bottleneck
            else {"norm_groups": model.norm_groups}
        )
    sizes = {"heads": model.heads, "kv_heads": model.kv_head_count, "ffn_hidden": model.ffn_width}
    for name in ("dense_ffn_hidden", "shared_ffn_hidden"):
        width = getattr(model.variant, name)
        if width is not None:
            sizes[f"variant.{name}"] = width
    return sizes if model.is_image_model else {**sizes, "vocab_size": model.vocab_size}


def _distinct_replicas(plan: ParallelPlan) -> list[tuple[Replica, ...]]:
    """Return the replicas of each stage, once where stages share them; thousands of plans may be looked at."""
    return list({id(stage.replicas): stage.replicas for stage in plan.stages}.values())


def _tensor_degrees(plan: ParallelPlan) -> list[int]:
    """Return the tensor-parallel degrees of a plan in rising order."""
    return sorted({replica.tp for stage in _distinct_replicas(plan) for replica, _ in groupby(stage)})


def _job_features(train: TrainSpec) -> Iterator[Feature]:
    if train.model.tied_embeddings:
        yield Feature.TIED_EMBEDDINGS
    if train.model.dropout or train.model.attention_dropout:
        yield Feature.DROPOUT
    if train.precision != "fp32":
        yield Feature(train.precision)


def _degree_features(plan: ParallelPlan) -> Iterator[Feature]:
    replicas = _distinct_replicas(plan)
    if any(len(stage) > 1 for stage in replicas):
        yield Feature.DATA_PARALLEL
    if len({len(stage) for stage in replicas}) > 1:
        yield Feature.MIXED_DP
    degrees = _tensor_degrees(plan)
    if degrees[-1] > 1:
        yield Feature.TENSOR_PARALLEL
    if len(degrees) > 1:
        yield Feature.MIXED_TP
    if plan.pp > 1:
        yield Feature.PIPELINE
    if not plan.is_even:
        yield Feature.UNEVEN_LAYERS
    if any(len({replica.micro_batch_count for replica, _ in groupby(stage)}) > 1 for stage in replicas):
        yield Feature.UNEQUAL_MICRO_BATCHES


def _step_features(plan: ParallelPlan) -> Iterator[Feature]:
    if plan.sequence_parallel:
        yield Feature.SEQUENCE_PARALLEL
    if plan.expert_parallel > 1:
        yield Feature.EXPERT_PARALLEL
    if plan.zero:
        yield Feature(f"zero{plan.zero}")
    if plan.schedule is not Schedule.ONE_F_ONE_B:
        yield Feature(plan.schedule.value)
    if plan.recompute is not Recompute.NONE:
        yield Feature(f"recompute={plan.recompute.value}")


def _table_refusals(model: ModelSpec, features: frozenset[Feature], *, beyond_worker: bool) -> Iterator[str]:
    """Yield what the table says; what it says of all families is the worker's lack, the rest the model's nature."""
    row = REFUSALS[model.family]
    for feature in sorted(features):
        if feature in row and not (beyond_worker and feature in _ALL_REFUSE):
            yield row[feature]


def _model_refusals(model: ModelSpec) -> Iterator[str]:
    """Yield what the worker does not build of a model."""
    if model.family in UNTRAINED:
        yield UNTRAINED[model.family]
    window = model.variant.attention_window
    sees_all = {"attention_window", "window_period"} if window is not None and window >= model.seq_len else set()
    names_by_text: dict[str, list[str]] = {}
    for name in model.variant.set_fields():
        if name not in sees_all:
            names_by_text.setdefault(VARIANT_FIELDS[name].refusal, []).append(name)
    for text, names in names_by_text.items():
        yield f"{text} (model.variant: {', '.join(names)})"


def _size_refusals(train: TrainSpec) -> Iterator[str]:
    for name, size in (("layers", train.model.layers), ("expert_count", train.model.expert_count or 0)):
        if size > PARTS_MAX:
            yield f"model.{name} = {size} is more than {PARTS_MAX}"
    if train.global_batch > BATCH_MAX:
        yield f"train.global_batch = {train.global_batch} is more than {BATCH_MAX}"


def _data_refusals(train: TrainSpec) -> Iterator[str]:
    evaluated = train.evaluation.data if train.evaluation is not None else None
    for name, data in (("data", train.data), ("evaluation.data", evaluated)):
        if data is not None and data.source == "builtin" and data.path is not None:
            wanted = "images" if train.model.is_image_model else "text or tokens"
            yield f"train.{name}.path is given, but what is built in has none: add source: {wanted}"
    if train.model.is_image_model or train.data.source == "tokens":
        return
    # The mask of BERT, the last of the vocabulary, has room among them: UTF-8 never holds byte 255.
    if train.model.vocab_size < BYTE_VALUES:
        yield f"byte-level text needs model.vocab_size of at least {BYTE_VALUES}, it is {train.model.vocab_size}"


def _shape_refusals(model: ModelSpec, plan: ParallelPlan) -> Iterator[str]:
    if plan.layer_count != model.layers:
        yield f"the plan places {plan.layer_count} layers, the model has {model.layers}"
    sizes = tensor_parallel_dimensions(model)
    degrees = _tensor_degrees(plan)
    valid = [tp for tp in divisors(min(sizes.values())) if all(size % tp == 0 for size in sizes.values())]
    for name, size in sizes.items():
        for tp in degrees:
            if size % tp:
                yield f"tp{tp} does not divide model.{name} = {size}; possible: tp in {format_set(valid)}"
    if plan.sequence_parallel:
        for tp in degrees:
            for length in sorted({model.sequence_length, model.target_len or model.sequence_length}):
                if length % tp:
                    yield f"sp over tp{tp} does not divide the sequence of {length}"


def _combination_refusals(model: ModelSpec, plan: ParallelPlan) -> Iterator[str]:
    replicas = _distinct_replicas(plan)
    is_alike = all(stage == replicas[0] for stage in replicas)
    if plan.sequence_parallel and _tensor_degrees(plan) == [1]:
        yield "sequence parallelism shards over tensor parallelism, the plan has tp1"
    if plan.schedule is Schedule.INTERLEAVED:
        if plan.pp == 1:
            yield "the interleaved schedule needs pp of at least 2"
        if not is_alike:
            yield "the interleaved schedule needs the same replicas on every stage"
    if any(stage.layer_count < plan.virtual_stage_count for stage in plan.stages):
        yield f"a stage with fewer layers than its {plan.virtual_stage_count} virtual stages"
    yield from _expert_refusals(model, plan)


def _expert_refusals(model: ModelSpec, plan: ParallelPlan) -> Iterator[str]:
    ep = plan.expert_parallel
    if ep == 1:
        return
    if (model.expert_count or ep) % ep:
        yield f"ep{ep} does not divide model.expert_count = {model.expert_count}"
    for stage in _distinct_replicas(plan):
        if len(stage) % ep:
            yield f"ep{ep} does not divide dp{len(stage)}: experts are spread over replicas"
        if len({replica.tp for replica, _ in groupby(stage)}) > 1:
            yield "expert parallelism needs the same tp on every replica of a stage"


def _batch_refusals(train: TrainSpec, plan: ParallelPlan) -> Iterator[str]:
    totals: set[int] = set()
    for stage in _distinct_replicas(plan):
        counts = [replica.micro_batch_count for replica in stage]
        given = [count for count in counts if count is not None]
        if given and len(given) < len(counts):
            yield "micro-batch counts for some replicas and not for others"
        elif given and sum(given) * plan.micro_batch_size < train.global_batch:
            yield f"{sum(given)} micro-batches of {plan.micro_batch_size} do not hold the batch of {train.global_batch}"
        totals.update({sum(given)} if given else ())
    if len(totals) > 1:
        yield f"stages run {' and '.join(map(str, sorted(totals)))} micro-batches; each runs all of them"
    dp_max = max(len(stage.replicas) for stage in plan.stages)
    if train.global_batch < dp_max:
        text = f"dp{dp_max} exceeds the global batch of {train.global_batch}: a replica would have no sample"
        yield f"{text}; possible: dp at most {train.global_batch}, or a batch of at least {dp_max}"
    elif totals:
        yield from _idle_replicas(plan, train.global_batch)


def _idle_replicas(plan: ParallelPlan, global_batch: int) -> Iterator[str]:
    """Micro-batch counts that hold more than the batch can leave replicas with nothing to run."""
    batches = micro_batches(plan, global_batch)
    for index, stage in enumerate(plan.stages):
        busy = {batch.replicas[index] for batch in batches}
        idle = [replica for replica in range(len(stage.replicas)) if replica not in busy]
        if idle:
            yield f"replica {idle[0]} of stage {index} has no micro-batch in a batch of {global_batch}"
