"""Which plans this worker runtime can run, each refusal with its reason. Pure: no I/O, no clock, no torch."""

from __future__ import annotations

from collections.abc import Iterator

from arena.domain.job import JobSpec, TrainSpec
from arena.domain.parallel import ParallelPlan, Schedule


def unsupported(spec: JobSpec, plan: ParallelPlan) -> str | None:
    """Return why the worker cannot run a job under a plan, or None when it can.

    Supported for GPT and Llama: dp (also where it does not divide the global batch), tp that divides heads and
    widths, pp with uneven layer splits, 1f1b, gpipe and interleaved schedules, zero 0 to 3, unequal micro-batch
    counts, recomputation (none, selective, full), fp32 and bf16.
    """
    if spec.train is None:
        return "the worker runtime trains models; a command job is run as its own program"
    return next(_refusals(spec.train, plan), None)


def _refusals(train: TrainSpec, plan: ParallelPlan) -> Iterator[str]:
    yield from _model_refusals(train)
    yield from _stage_refusals(train, plan)
    yield from _tensor_refusals(train, plan)
    yield from _feature_refusals(plan)
    yield from _batch_refusals(train, plan)


def _model_refusals(train: TrainSpec) -> Iterator[str]:
    if train.precision == "fp16":
        yield "precision fp16 needs loss scaling, which the worker does not do; use bf16 or fp32"
    if train.data.source != "tokens" and train.model.vocab_size < 256:
        yield f"byte-level text needs a vocabulary of at least 256, model.vocab_size is {train.model.vocab_size}"


def _stage_refusals(train: TrainSpec, plan: ParallelPlan) -> Iterator[str]:
    if plan.layer_count != train.model.layers:
        yield f"the plan places {plan.layer_count} layers, the model has {train.model.layers}"
    shapes = {tuple((replica.tp, replica.micro_batch_count) for replica in stage.replicas) for stage in plan.stages}
    if len(shapes) > 1:
        yield "stages with different replicas: the worker's device mesh is pp x dp x tp, alike on every stage"
    if len({replica.tp for replica in plan.stages[0].replicas}) > 1:
        yield "replicas with different tp: the worker's device mesh has one tp degree"
    if train.model.tied_embeddings and plan.pp > 1:
        yield "tied embeddings live on one pipeline stage, the plan has pp" + str(plan.pp)
    chunk_count = plan.virtual_stage_count
    if any(stage.layer_count < chunk_count for stage in plan.stages):
        yield f"a stage with fewer layers than its {chunk_count} virtual stages"


def _tensor_refusals(train: TrainSpec, plan: ParallelPlan) -> Iterator[str]:
    model = train.model
    sizes = {
        "heads": model.heads,
        "kv_heads": model.kv_head_count,
        "ffn_hidden": model.ffn_width,
        "vocab_size": model.vocab_size,
    }
    for name, size in sizes.items():
        if size % plan.tp:
            valid = [tp for tp in range(1, size + 1) if all(value % tp == 0 for value in sizes.values())]
            yield f"tp{plan.tp} does not divide model.{name} = {size}; possible: tp {valid}"


def _feature_refusals(plan: ParallelPlan) -> Iterator[str]:
    if plan.expert_parallel > 1:
        yield f"expert parallelism (ep{plan.expert_parallel}): the worker's models have no experts"
    if plan.sequence_parallel:
        yield "sequence parallelism is not built into the worker's tensor parallelism"
    if plan.schedule is Schedule.INTERLEAVED and plan.pp == 1:
        yield "the interleaved schedule needs pp of at least 2"


def _batch_refusals(train: TrainSpec, plan: ParallelPlan) -> Iterator[str]:
    counts = [replica.micro_batch_count for replica in plan.stages[0].replicas]
    given = [count for count in counts if count is not None]
    if given and len(given) < len(counts):
        yield "micro-batch counts for some replicas and not for others"
    elif given and sum(given) * plan.micro_batch_size < train.global_batch:
        yield f"{sum(given)} micro-batches of {plan.micro_batch_size} do not hold the batch of {train.global_batch}"
    if train.global_batch < plan.dp:
        yield f"dp{plan.dp} exceeds the global batch of {train.global_batch}: a replica would have no sample"
