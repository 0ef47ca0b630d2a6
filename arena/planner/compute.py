"""Roofline times of a layer and of the output projection. Pure: no I/O, no clock."""

from __future__ import annotations

import numpy as np

from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.planner.candidates import Floats, Ints
from arena.planner.hardware import peak_flops_per_s
from arena.planner.model import ModelCost

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


def layer_time_s(model: ModelCost, train: TrainSpec, gpu_type: GpuType, tokens: Floats, tp: Ints) -> Floats:
    """Return the forward time of one layer and micro-batch of ``tokens``, ``[n]``."""
    layer = model.layer
    time_s = np.zeros_like(tokens)
    factor = _alignment(model, train, gpu_type, tp)
    for flops_per_token in layer.gemm_flops_per_token:
        time_s += _product_s(train, gpu_type, flops_per_token * tokens / tp, factor)
    elements = layer.replicated_activations_per_token + layer.sharded_activations_per_token / tp
    traffic_bytes = _TRAFFIC_PER_ACTIVATION * elements * tokens * ELEMENT_BYTES[train.precision]
    weight_bytes = layer.parameter_count / tp * ELEMENT_BYTES[train.precision]
    time_s += (traffic_bytes + weight_bytes) / gpu_type.memory_bandwidth_bytes_per_s
    return time_s + layer.kernel_count * gpu_type.launch_latency_s


def head_time_s(model: ModelCost, train: TrainSpec, gpu_type: GpuType, tokens: Floats, tp: Ints) -> Floats:
    """Return the forward time of the output projection and the loss, ``[n]``."""
    factor = _alignment(model, train, gpu_type, tp)
    product_s = _product_s(train, gpu_type, model.head_flops_per_token * tokens / tp, factor)
    logits_bytes = 4.0 * model.vocab_size * tokens / tp
    return product_s + _TRAFFIC_PER_ACTIVATION * logits_bytes / gpu_type.memory_bandwidth_bytes_per_s


def _product_s(train: TrainSpec, gpu_type: GpuType, flops: Floats, factor: Floats) -> Floats:
    peak = peak_flops_per_s(gpu_type, train.precision)
    efficiency = np.interp(np.log10(flops * (_A100_PEAK / peak)), _EFFICIENCY_FLOPS, _EFFICIENCY)
    seconds: Floats = flops / (peak * efficiency * factor)
    return seconds


def _alignment(model: ModelCost, train: TrainSpec, gpu_type: GpuType, tp: Ints) -> Floats:
    if train.precision == "fp32" or gpu_type.name == "cpu":
        return np.ones(len(tp))
    aligned = ((model.hidden % (128 * tp)) == 0) & ((model.ffn_width % (128 * tp)) == 0)
    factor: Floats = np.where(aligned, 1.0, _UNALIGNED_FACTOR)
    return factor
