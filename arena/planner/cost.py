"""The cost model: what a step takes and needs under many plans at once, as arrays. Pure: no I/O, no clock.

A first roofline with alpha-beta communication. What it holds:

* Compute of a layer and micro-batch: the sum over its matrix products of FLOPs / (peak x efficiency(FLOPs)), plus
  memory traffic of the rest, plus launch latency; backward costs twice forward, full recomputation one forward more.
* Tensor parallelism: two all-reduces a layer in each direction, not overlapped.
* Pipeline (stages may differ): sum of the stage times + (m - 1) x the slowest, divided warm-up when interleaved.
* Data parallelism: one synchronisation after a stage's last backward, not overlapped with compute, hierarchical
  across nodes. The step ends at the maximum over stages of (when the stage drains + its synchronisation); stage i
  drains while the earlier ones still run backward. ZeRO-3 gathers a stage's weights twice per micro-batch.
* Memory of each stage: weights, gradients, optimizer by ZeRO stage; activations of the micro-batches in flight;
  logits on the last stage; a constant for the context.

Shapes: n candidates, p the deepest pipeline among them; ``[n]`` and ``[n, p]`` arrays, stages beyond a plan's depth
hold zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.planner.candidates import Candidates, Floats
from arena.planner.communication import Links, all_gather_s, all_reduce_s, links_of, send_s
from arena.planner.compute import ELEMENT_BYTES, head_time_s, layer_time_s
from arena.planner.memory import memory_bytes_by_stage, state_bytes
from arena.planner.model import ModelCost, model_cost
from arena.planner.pipeline import pipeline_time_s, step_end_s

MODELLED_RELATIVE_ERROR = 0.3
"""Expected error of an estimate without any measurement: an assumption until profiles say better."""
OPTIMIZER_TRAFFIC_BYTES_PER_PARAMETER = 28
"""AdamW in fp32: reads weight, gradient and two moments, writes three of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Predictions as arrays: ``iter_time_s`` and each part of ``breakdown_s`` ``[n]``, memory ``[n, p]``."""

    iter_time_s: Floats
    breakdown_s: Mapping[str, Floats]
    memory_bytes_by_stage: Floats
    relative_error: Floats
    usd_per_step: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageTimes:
    """Seconds per micro-batch and stage ``[n, p]``: compute, tensor-parallel, ZeRO-3 gathers; sends ``[n, 1]``."""

    compute_s: Floats
    tensor_s: Floats
    gather_s: Floats
    send_s: Floats

    @property
    def total_s(self) -> Floats:
        """Time of one micro-batch on each stage, its sends included."""
        busy = self.compute_s + self.tensor_s + self.gather_s
        return np.where(busy > 0, busy + self.send_s, 0.0)


def evaluate(train: TrainSpec, gpu_type: GpuType, group: GpuGroup, candidates: Candidates) -> Estimates:
    """Predict time and memory of every candidate on a group of one GPU type."""
    model = model_cost(train.model)
    links = links_of(gpu_type, group, candidates)
    stages = _stage_times(model, train, gpu_type, candidates, links)
    pipeline_s = pipeline_time_s(stages.total_s, candidates.micro_batch_count, candidates.virtual_stage_count)
    parameters = stage_parameters(model, candidates)
    sync_s = _sync_s(parameters, train, candidates, links)
    update_s = _update_s(parameters, gpu_type, candidates)
    iter_time_s = step_end_s(pipeline_s, stages.total_s, sync_s + update_s)
    breakdown = _breakdown(stages, pipeline_s, sync_s, iter_time_s, candidates)
    return Estimates(
        iter_time_s=iter_time_s,
        breakdown_s=breakdown,
        memory_bytes_by_stage=memory_bytes_by_stage(model, train, gpu_type, candidates, parameters),
        relative_error=np.full(len(candidates), MODELLED_RELATIVE_ERROR),
        usd_per_step=iter_time_s * group.gpu_count * gpu_type.usd_per_hour / 3600.0,
    )


def stage_parameters(model: ModelCost, candidates: Candidates) -> Floats:
    """Return the parameters on one tensor-parallel rank of each stage, ``[n, p]``, before ZeRO."""
    counts = candidates.stage_layers * float(model.layer.parameter_count)
    counts[:, 0] += model.embedding_parameter_count
    counts[np.arange(len(candidates)), candidates.pp - 1] += model.head_parameter_count
    return counts / candidates.tp[:, None]


def _stage_times(
    model: ModelCost, train: TrainSpec, gpu_type: GpuType, candidates: Candidates, links: Links
) -> _StageTimes:
    layers = candidates.stage_layers.astype(np.float64)
    tokens = (candidates.micro_batch_size * model.seq_len).astype(np.float64)
    element_bytes = ELEMENT_BYTES[train.precision]
    passes = 3.0 + candidates.is_full_recompute
    compute_s = layers * (passes * layer_time_s(model, train, gpu_type, tokens, candidates.tp))[:, None]
    rows = np.arange(len(candidates))
    compute_s[rows, candidates.pp - 1] += 3.0 * head_time_s(model, train, gpu_type, tokens, candidates.tp)
    activation_bytes = (tokens * model.hidden * element_bytes)[:, None]
    reductions = 4.0 + 2.0 * candidates.is_full_recompute[:, None]
    layer_bytes = (model.layer.parameter_count / candidates.tp * element_bytes)[:, None]
    gather_s = np.where(candidates.zero[:, None] == 3, 2.0 * all_gather_s(links.data, layer_bytes), 0.0)
    sends_s = 2.0 * candidates.virtual_stage_count[:, None] * send_s(links.pipeline, activation_bytes)
    return _StageTimes(
        compute_s=compute_s,
        tensor_s=layers * reductions * all_reduce_s(links.tensor, activation_bytes),
        gather_s=layers * gather_s,
        send_s=np.where(candidates.pp[:, None] > 1, sends_s, 0.0),
    )


def _sync_s(parameters: Floats, train: TrainSpec, candidates: Candidates, links: Links) -> Floats:
    """Gradient synchronisation of each stage: an all-reduce, or as much as scatter and gather when sharded.

    Sharding works layer by layer, so it pays the latency of two collectives for each.
    """
    gradient_bytes = parameters * state_bytes(train).gradients
    zero = candidates.zero[:, None]
    latency_s = 2.0 * candidates.stage_layers * all_gather_s(links.data, np.zeros_like(gradient_bytes))
    scatter_s = all_gather_s(links.data, gradient_bytes)
    whole_s = all_reduce_s(links.data, gradient_bytes)
    sync_s = np.select([zero == 3, zero >= 1], [scatter_s + latency_s, whole_s + latency_s], whole_s)
    return np.where(candidates.stage_mask, sync_s, 0.0)


def _update_s(parameters: Floats, gpu_type: GpuType, candidates: Candidates) -> Floats:
    own = parameters / np.where(candidates.zero >= 1, candidates.dp, 1)[:, None]
    return own * OPTIMIZER_TRAFFIC_BYTES_PER_PARAMETER / gpu_type.memory_bandwidth_bytes_per_s


def _breakdown(
    stages: _StageTimes, pipeline_s: Floats, sync_s: Floats, iter_time_s: Floats, candidates: Candidates
) -> dict[str, Floats]:
    """Split the step along its slowest stage; what is left over is the update that nothing hides."""
    rows = np.arange(len(candidates))
    slowest = stages.total_s.argmax(axis=1)
    count = candidates.micro_batch_count
    exposed_s = iter_time_s - pipeline_s
    data_s = np.minimum(sync_s.max(axis=1), exposed_s)
    return {
        "compute": count * stages.compute_s[rows, slowest],
        "tensor_parallel": count * stages.tensor_s[rows, slowest],
        "shard_gather": count * stages.gather_s[rows, slowest],
        "pipeline_send": count * stages.send_s[:, 0],
        "pipeline_bubble": pipeline_s - count * stages.total_s[rows, slowest],
        "data_parallel": data_s,
        "update": exposed_s - data_s,
    }
