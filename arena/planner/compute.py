"""Roofline times of a model's parts. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.domain.parallel import Recompute
from arena.planner.activations import ONLY_NONE, Kept, Spread
from arena.planner.candidates import RECOMPUTE_MODES, Candidates, Floats, Ints
from arena.planner.hardware import peak_flops_per_s
from arena.planner.model import ModelCost, Part, Product

ELEMENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
"""Bytes of one activation."""

_EFFICIENCY_FLOPS = np.log10([1e9, 1e10, 1e11, 1e12])
_EFFICIENCY = np.array([0.14, 0.55, 0.71, 0.76])
_A100_PEAK = 312e12
"""The efficiency curve was taken on an A100 in bf16; other peaks reach the same share at proportional sizes."""

_UNALIGNED_FACTOR = 0.79
"""Share of the efficiency kept by products whose width is no multiple of 128: hidden 14400 against 13824 once cost
38 % more time for 8.5 % more work. Tensor cores only."""

_TRAFFIC_PER_ACTIVATION = 3.0
"""Reads and writes of each kept activation by the operators between the products: written once, read twice."""

_FORWARD_AND_BACKWARD = 3.0
"""A backward pass costs two forward passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """How a micro-batch is shared out: distinct combinations, all ``[u]``.

    Args:
        samples: Of a micro-batch.
        sequence: What divides activations that only sequence parallelism divides.
        ep: Expert-parallel degree.
    """

    samples: Floats
    tp: Floats
    sequence: Floats
    ep: Floats

    def divisor(self, spread: Spread) -> Floats:
        """Return by what a tensor is divided."""
        return (self.tp, self.sequence, np.ones_like(self.tp))[spread]


def stage_compute_s(model: ModelCost, train: TrainSpec, gpu_type: GpuType, candidates: Candidates) -> Floats:
    """Return seconds of forward, backward and recomputation of one micro-batch on each stage, ``[n, p]``."""
    shards, which = distinct_shards(candidates)
    times = [_part_times_s(part, train, gpu_type, shards) for part in model.parts]
    by_mode = np.stack([np.stack([mode[index] for mode in times], axis=-1) for index in range(len(RECOMPUTE_MODES))])
    rows = candidates.recompute[:, None] * len(shards.tp) + which
    return candidates.sums(model.cumulative(by_mode.reshape(-1, len(model.parts))), rows)


def distinct_shards(candidates: Candidates) -> tuple[Shards, Ints]:
    """Return the distinct ways to share out a micro-batch, and which of them each candidate (and stage) has."""
    columns = np.broadcast_arrays(
        candidates.micro_batch_size[:, None],
        candidates.tp,
        candidates.sequence_divisor,
        candidates.expert_parallel[:, None],
    )
    code = columns[0].astype(np.int64)
    for column in columns[1:]:
        code = code * (int(column.max()) + 1) + column
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    samples, tp, sequence, ep = (column.ravel()[first].astype(np.float64) for column in columns)
    return Shards(samples=samples, tp=tp, sequence=sequence, ep=ep), which.reshape(code.shape)


def _part_times_s(part: Part, train: TrainSpec, gpu_type: GpuType, shards: Shards) -> tuple[Floats, Floats, Floats]:
    """Return a part's seconds under each recomputation setting, ``[u]`` each."""
    kernels = part.kernel_count + part.expert_kernel_count * part.expert_count / shards.ep
    element_bytes = ELEMENT_BYTES[train.precision]
    weight_bytes = held_parameters(part, shards) * element_bytes if part.products else 0.0
    forward_s = _operators_s(part, part.products, part.kept, train=train, gpu_type=gpu_type, shards=shards)
    forward_s += kernels * gpu_type.launch_latency_s + weight_bytes / gpu_type.memory_bandwidth_bytes_per_s
    none_s = _FORWARD_AND_BACKWARD * forward_s
    if not part.is_layer:
        return none_s, none_s, none_s
    attention = [product for product in part.products if product.is_attention]
    again = [kept for kept in part.kept if kept.modes == ONLY_NONE]
    attention_s = _operators_s(part, attention, again, train=train, gpu_type=gpu_type, shards=shards)
    attention_s += part.attention_kernel_count * gpu_type.launch_latency_s
    return none_s, none_s + attention_s, none_s + forward_s


def held_parameters(part: Part, shards: Shards) -> Floats:
    """Return a part's parameters on one rank, ``[u]``."""
    counts = part.parameters
    held: Floats = counts.replicated + (counts.split + counts.tied + counts.expert / shards.ep) / shards.tp
    return held


def _operators_s(
    part: Part,
    products: Iterable[Product],
    kept: Iterable[Kept],
    *,
    train: TrainSpec,
    gpu_type: GpuType,
    shards: Shards,
) -> Floats:
    """Return the seconds of products, and of the memory traffic of the operators between them, in a forward pass."""
    factor = _alignment(part, train, gpu_type, shards)
    time_s = np.zeros_like(shards.tp)
    for product in products:
        flops = product.flops_per_sample * shards.samples / shards.divisor(product.spread)
        pieces = part.expert_count / shards.ep if product.is_expert else 1.0
        time_s += pieces * _product_s(train, gpu_type, flops / pieces, factor)
    traffic_bytes = np.zeros_like(shards.tp)
    for tensor in kept:
        if Recompute.NONE in tensor.modes:
            each = tensor.element_bytes or ELEMENT_BYTES[train.precision]
            traffic_bytes += tensor.elements * each * shards.samples / shards.divisor(tensor.spread)
    logits = part.logits_elements * shards.samples / shards.divisor(part.logits_spread)
    traffic_bytes += 4.0 * logits
    return time_s + _TRAFFIC_PER_ACTIVATION * traffic_bytes / gpu_type.memory_bandwidth_bytes_per_s


def _product_s(train: TrainSpec, gpu_type: GpuType, flops: Floats, factor: Floats) -> Floats:
    peak = peak_flops_per_s(gpu_type, train.precision)
    efficiency = np.interp(np.log10(flops * (_A100_PEAK / peak)), _EFFICIENCY_FLOPS, _EFFICIENCY)
    seconds: Floats = flops / (peak * efficiency * factor)
    return seconds


def _alignment(part: Part, train: TrainSpec, gpu_type: GpuType, shards: Shards) -> Floats:
    if train.precision == "fp32" or gpu_type.name == "cpu":
        return np.ones_like(shards.tp)
    aligned = np.ones(shards.tp.shape, dtype=np.bool_)
    for width in part.widths:
        aligned &= width % (128 * shards.tp) == 0
    factor: Floats = np.where(aligned, 1.0, _UNALIGNED_FACTOR)
    return factor
