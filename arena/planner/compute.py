"""Roofline times of a model's parts. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.domain.parallel import Recompute
from arena.planner.activations import ONLY_NONE, Kept, Spread
from arena.planner.calibration import CALIBRATION, Calibration
from arena.planner.candidates import RECOMPUTE_MODES, Candidates, Floats, Ints
from arena.planner.hardware import peak_flops_per_s
from arena.planner.implementation import WORKER, Attention, Implementation
from arena.planner.model import ModelCost, Part, Product

ELEMENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
"""Bytes of one activation."""

_FORWARD_AND_BACKWARD = 3.0
"""A backward pass costs two forward passes."""

_FLASH_FORWARD_AND_BACKWARD = 3.5
"""Attention that stores no scores computes them once more in its backward pass (Dao et al. 2022)."""

_KERNEL_ALIGNMENT = 64
"""Columns of a product on a rank that tensor cores want a multiple of."""

_HEAD_ALIGNMENT = 8
"""Numbers in 16 bit that a tensor core loads at once: heads of other sizes take slow kernels."""

_BLEND = 4.0
"""Norm that blends the bounds of computing and memory: a product near the ridge reaches neither."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """What times depend on beside the part and its shards."""

    gpu_type: GpuType
    precision: str
    implementation: Implementation
    calibration: Calibration

    @property
    def product_flops_per_s(self) -> float:
        """Rate of a large product."""
        peak = peak_flops_per_s(self.gpu_type, self.precision)
        return peak * self.calibration.product_share(self.gpu_type.name)

    @property
    def has_tensor_cores(self) -> bool:
        """Whether shapes matter."""
        return self.precision != "fp32" and self.gpu_type.name != "cpu"

    @property
    def launch_s(self) -> float:
        """Seconds of a kernel's launch that nothing hides."""
        return self.calibration.launch_share * self.gpu_type.launch_latency_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forward:
    """Seconds of a part's forward pass, ``[u]`` each: attention scores apart, as their backward pass differs."""

    scores_s: Floats
    rest_s: Floats

    @property
    def total_s(self) -> Floats:
        """The whole."""
        return self.scores_s + self.rest_s


def stage_compute_s(
    model: ModelCost,
    train: TrainSpec,
    gpu_type: GpuType,
    candidates: Candidates,
    *,
    implementation: Implementation = WORKER,
    calibration: Calibration = CALIBRATION,
) -> Floats:
    """Return seconds of forward, backward and recomputation of one micro-batch on each stage, ``[n, p]``."""
    shards, which = distinct_shards(candidates)
    machine = _Machine(
        gpu_type=gpu_type, precision=train.precision, implementation=implementation, calibration=calibration
    )
    times = [_part_times_s(part, machine, shards) for part in model.parts]
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


def _part_times_s(part: Part, machine: _Machine, shards: Shards) -> tuple[Floats, Floats, Floats]:
    """Return a part's seconds under each recomputation setting, ``[u]`` each."""
    kernels = part.kernel_count + part.expert_kernel_count * part.expert_count / shards.ep
    forward = _forward(part.products, part.kept, part=part, machine=machine, shards=shards, kernels=kernels)
    is_flash = machine.implementation.attention is Attention.FLASH
    passes = _FLASH_FORWARD_AND_BACKWARD if is_flash else _FORWARD_AND_BACKWARD
    none_s = _FORWARD_AND_BACKWARD * forward.rest_s + passes * forward.scores_s
    if not part.is_layer:
        return none_s, none_s, none_s
    core_only = machine.implementation.recomputes_core_only
    attention = [one for one in part.products if one.is_attention and (one.head_size or not core_only)]
    again = [kept for kept in part.kept if kept.modes == ONLY_NONE and (kept.is_score or not core_only)]
    kernels = np.full_like(shards.tp, part.attention_kernel_count / (2.0 if core_only else 1.0))
    attention_s = _forward(attention, again, part=part, machine=machine, shards=shards, kernels=kernels).total_s
    return none_s, none_s + attention_s, none_s + forward.total_s


def held_parameters(part: Part, shards: Shards) -> Floats:
    """Return a part's parameters on one rank, ``[u]``."""
    counts = part.parameters
    held: Floats = counts.replicated + (counts.split + counts.tied + counts.expert / shards.ep) / shards.tp
    return held


def _forward(
    products: Iterable[Product],
    kept: Iterable[Kept],
    *,
    part: Part,
    machine: _Machine,
    shards: Shards,
    kernels: Floats,
) -> _Forward:
    """Return the seconds of products, and of the memory traffic of the operators between them."""
    scores_s, rest_s = np.zeros_like(shards.tp), kernels * machine.launch_s
    for product in products:
        if product.head_size:
            scores_s += _scores_s(product, machine, shards)
        else:
            pieces = part.expert_count / shards.ep if product.is_expert else np.ones_like(shards.tp)
            rest_s += pieces * _product_s(product, machine, shards, pieces)
    traffic_bytes = 4.0 * part.logits_elements * shards.samples / shards.divisor(part.logits_spread)
    for tensor in kept:
        if Recompute.NONE in tensor.modes:
            each = tensor.element_bytes or ELEMENT_BYTES[machine.precision]
            traffic_bytes += tensor.elements * each * shards.samples / shards.divisor(tensor.spread)
    passes = machine.calibration.activation_passes
    rest_s += passes * traffic_bytes / machine.gpu_type.memory_bandwidth_bytes_per_s
    return _Forward(scores_s=scores_s, rest_s=rest_s)


def _product_s(product: Product, machine: _Machine, shards: Shards, pieces: Floats) -> Floats:
    """Return the seconds of a product with a weight: bound by computing or by memory, the two blended."""
    flops = product.flops_per_sample * shards.samples / (shards.divisor(product.spread) * pieces)
    compute_s = flops / machine.product_flops_per_s
    if not product.inner:
        return compute_s
    divisor = shards.divisor(product.spread)
    inner = product.inner / divisor if product.splits_inner else np.full_like(divisor, product.inner)
    outer = np.full_like(divisor, product.outer) if product.splits_inner else product.outer / divisor
    if machine.has_tensor_cores:
        is_aligned = (inner % _KERNEL_ALIGNMENT == 0) & (outer % _KERNEL_ALIGNMENT == 0)
        compute_s = compute_s / np.where(is_aligned, 1.0, machine.calibration.unaligned_share)
    elements = flops / 2.0 * (1.0 / inner + 1.0 / outer) + inner * outer
    bandwidth = machine.gpu_type.memory_bandwidth_bytes_per_s * machine.calibration.product_bandwidth_share
    memory_s = elements * ELEMENT_BYTES[machine.precision] / bandwidth
    seconds: Floats = (compute_s**_BLEND + memory_s**_BLEND) ** (1.0 / _BLEND)
    return seconds


def _scores_s(product: Product, machine: _Machine, shards: Shards) -> Floats:
    """Return the seconds of the scores and their product with the values; short heads fill a kernel badly."""
    calibration = machine.calibration
    share = calibration.stored_share
    if machine.implementation.attention is Attention.FLASH:
        share = calibration.flash_share * product.head_size / (product.head_size + calibration.flash_head_size)
    if machine.has_tensor_cores and product.head_size % _HEAD_ALIGNMENT:
        share *= calibration.odd_head_share
    flops = product.flops_per_sample * shards.samples / shards.divisor(product.spread)
    return flops / (machine.product_flops_per_s * share)
