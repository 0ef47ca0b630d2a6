"""Lays a model out on the ranks of a plan: device mesh, tensor parallelism, sharding, pipeline schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from arena.domain.job import TrainSpec
from arena.domain.parallel import ParallelPlan, Schedule, even_split
from arena_agent.worker.batches import micro_batch_count
from arena_agent.worker.loss import summed_cross_entropy
from arena_agent.worker.model import Chunk, ChunkSpec

LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """Where a rank stands in the plan; ranks run stage first, then replica, then tensor-parallel index."""

    pp: int
    dp: int
    tp: int

    @classmethod
    def of(cls, rank: int, plan: ParallelPlan) -> Coordinate:
        """Return the coordinate of a global rank."""
        return cls(pp=rank // (plan.dp * plan.tp), dp=rank // plan.tp % plan.dp, tp=rank % plan.tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A rank's share of the model and how a step runs through it.

    Args:
        plan: The whole plan.
        at: This rank's coordinate.
        mesh: Device mesh ``pp x dp x tp``.
        device: Where this rank computes.
        chunks: This rank's model chunks, in pipeline order.
        pipeline: The schedule; None without pipelining.
        loss_of: Maps logits (this rank's part of the vocabulary) and targets of a micro-batch to its share of the
            global mean loss.
    """

    plan: ParallelPlan
    at: Coordinate
    mesh: DeviceMesh
    device: torch.device
    chunks: tuple[Chunk, ...]
    pipeline: Schedule1F1B | ScheduleGPipe | ScheduleInterleaved1F1B | None
    loss_of: LossFunction

    @property
    def feeds_inputs(self) -> bool:
        """Whether this rank holds the first chunk."""
        return self.chunks[0].is_first

    @property
    def computes_loss(self) -> bool:
        """Whether this rank holds the last chunk."""
        return self.chunks[-1].is_last


def chunk_specs(plan: ParallelPlan) -> tuple[ChunkSpec, ...]:
    """Return all chunks in pipeline order; chunk ``c`` belongs to pipeline rank ``c % pp``."""
    splits = [even_split(stage.layer_count, plan.virtual_stage_count) for stage in plan.stages]
    counts = [split[turn] for turn in range(plan.virtual_stage_count) for split in splits]
    firsts = [sum(counts[:index]) for index in range(len(counts))]
    return tuple(
        ChunkSpec(stage_index=index, stage_count=len(counts), layers=range(first, first + count))
        for index, (first, count) in enumerate(zip(firsts, counts, strict=True))
    )


def build_layout(train: TrainSpec, plan: ParallelPlan, *, rank: int, device: torch.device) -> Layout:
    """Build this rank's chunks with uninitialised parameters on ``device``; a collective over all ranks."""
    at = Coordinate.of(rank, plan)
    mesh = init_device_mesh(device.type, (plan.pp, plan.dp, plan.tp), mesh_dim_names=("pp", "dp", "tp"))
    specs = chunk_specs(plan)[at.pp :: plan.pp]
    chunks = tuple(_build_chunk(train, plan, spec, mesh, device) for spec in specs)
    loss_of = _loss_function(train.tokens_per_step, mesh, plan.tp)
    pipeline = None
    if plan.pp > 1:
        stages = [
            _pipeline_stage(train, plan, chunk, spec, mesh, device) for chunk, spec in zip(chunks, specs, strict=True)
        ]
        pipeline = _schedule(plan, stages, micro_batch_count(plan, train.global_batch, at.dp), loss_of)
    return Layout(plan=plan, at=at, mesh=mesh, device=device, chunks=chunks, pipeline=pipeline, loss_of=loss_of)


def _build_chunk(
    train: TrainSpec, plan: ParallelPlan, spec: ChunkSpec, mesh: DeviceMesh, device: torch.device
) -> Chunk:
    with torch.device("meta"):
        chunk = Chunk(train.model, spec, recompute=plan.recompute, uses_bf16=train.precision == "bf16")
    if plan.tp > 1:
        parallelize_module(chunk, mesh["tp"], _tensor_parallel_styles(chunk))
    if plan.zero and plan.dp > 1:
        _shard(chunk, plan, mesh["dp"])
    chunk.to_empty(device=device)
    if isinstance(chunk, FSDPModule):
        # Settles the sharded storage now, so that views taken of it stay valid.
        chunk.unshard()
        chunk.reshard()
    return chunk


def _tensor_parallel_styles(chunk: Chunk) -> dict[str, ParallelStyle]:
    styles: dict[str, ParallelStyle] = {}
    for name, module in chunk.named_modules():
        leaf = name.rpartition(".")[2]
        if leaf == "attn":
            # One DTensor for all projections, so that their input gradients are summed before one all-reduce.
            whole = (Replicate(), None)
            styles[name] = PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole)
        elif leaf == "mlp":
            styles[name] = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
        elif leaf in {"wq", "wk", "wv", "w_gate", "w_in"}:
            styles[name] = ColwiseParallel()
        elif leaf in {"wo", "w_out"}:
            styles[name] = RowwiseParallel()
        elif leaf == "embed" and isinstance(module, nn.Embedding):
            styles[name] = RowwiseParallel(input_layouts=Replicate())
        elif leaf == "head":
            styles[name] = ColwiseParallel()
    return styles


def _shard(chunk: Chunk, plan: ParallelPlan, mesh: DeviceMesh) -> None:
    """Shard over data parallelism: zero 3 drops gathered parameters after use, zero 1 and 2 keep them for the step."""
    parts: list[nn.Module] = [*chunk.layers.values(), chunk]
    for part in parts:
        fully_shard(part, mesh=mesh, reshard_after_forward=plan.zero == 3)
        assert isinstance(part, FSDPModule)
        # The loss is already divided by the tokens of the global batch, so gradients are summed, not averaged.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


def _loss_function(token_count: int, mesh: DeviceMesh, tp: int) -> LossFunction:
    group = mesh["tp"].get_group() if tp > 1 else None

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        return summed_cross_entropy(logits, targets, group) / token_count

    return loss_of


def _pipeline_stage(  # noqa: PLR0917 - one private call site
    train: TrainSpec,
    plan: ParallelPlan,
    chunk: Chunk,
    spec: ChunkSpec,
    mesh: DeviceMesh,
    device: torch.device,
) -> PipelineStage:
    rows, seq_len = plan.micro_batch_size, train.model.seq_len
    hidden = torch.empty(rows, seq_len, train.model.hidden, device="meta", requires_grad=True)
    tokens = torch.empty(rows, seq_len, dtype=torch.int64, device="meta")
    logits_dtype = torch.bfloat16 if train.precision == "bf16" else torch.float32
    logits = torch.empty(
        rows, seq_len, train.model.vocab_size // plan.tp, dtype=logits_dtype, device="meta", requires_grad=True
    )
    return PipelineStage(
        chunk,
        spec.stage_index,
        spec.stage_count,
        device,
        input_args=tokens if spec.is_first else hidden,
        output_args=logits if spec.is_last else hidden,
        group=mesh["pp"].get_group(),
    )


def _schedule(
    plan: ParallelPlan, stages: Sequence[PipelineStage], count: int, loss_of: LossFunction
) -> Schedule1F1B | ScheduleGPipe | ScheduleInterleaved1F1B:
    if plan.schedule is Schedule.INTERLEAVED:
        return ScheduleInterleaved1F1B(list(stages), count, loss_fn=loss_of, scale_grads=False)
    # With fewer micro-batches than stages 1F1B never leaves its warm-up: that is GPipe's order, which torch allows.
    if plan.schedule is Schedule.GPIPE or count < plan.pp:
        return ScheduleGPipe(stages[0], count, loss_fn=loss_of, scale_grads=False)
    return Schedule1F1B(stages[0], count, loss_fn=loss_of, scale_grads=False)


def run_micro_batches(layout: Layout, inputs: Tensor, targets: Tensor) -> float:
    """Run forward and backward over a replica's micro-batches; gradients accumulate.

    Args:
        layout: The rank's layout.
        inputs: Tokens ``[rows, seq]``, read by ranks that hold the first chunk.
        targets: Tokens one further, read by ranks that hold the last chunk.

    Returns:
        This rank's share of the global loss; zero on ranks that do not compute it.
    """
    if layout.pipeline is None:
        return _run_alone(layout, inputs, targets)
    losses: list[Tensor] = []
    arguments = (inputs,) if layout.feeds_inputs else ()
    goal = targets if layout.computes_loss else None
    layout.pipeline.step(*arguments, target=goal, losses=losses, return_outputs=False)
    return sum(float(loss) for loss in losses) if layout.computes_loss else 0.0


def _run_alone(layout: Layout, inputs: Tensor, targets: Tensor) -> float:
    chunk = layout.chunks[0]
    size = layout.plan.micro_batch_size
    starts = range(0, len(inputs), size)
    total = torch.zeros((), device=layout.device)
    for start in starts:
        if isinstance(chunk, FSDPModule):
            is_last = start == starts[-1]
            # Zero 1 shards the optimizer alone: gradients stay whole until the step's last micro-batch.
            chunk.set_requires_gradient_sync(is_last or layout.plan.zero > 1)
            chunk.set_is_last_backward(is_last)
        logits = chunk(inputs[start : start + size])
        loss = layout.loss_of(logits, targets[start : start + size])
        torch.autograd.backward(loss)
        total += loss.detach()
    return float(total)
