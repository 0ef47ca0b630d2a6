"""Peak memory of one GPU of each stage. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.planner.candidates import Candidates, Floats
from arena.planner.compute import ELEMENT_BYTES
from arena.planner.model import ModelCost
from arena.units import GIB, MIB

USABLE_SHARE = 0.94
"""Share of a device's memory a plan may fill; the rest is fragmentation. An assumption until it is fitted."""

_CONTEXT_BYTES = 1 * GIB
_CPU_CONTEXT_BYTES = 256 * MIB
"""Driver context, libraries and communication buffers (on the CPU: the interpreter with its libraries)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes per parameter of what a training step keeps."""

    weights: float
    gradients: float
    optimizer: float


def state_bytes(train: TrainSpec) -> StateBytes:
    """Return the bytes per parameter: fp32 state, and a working copy in 16 bit under mixed precision."""
    sgd_moments = 4.0 if train.optimizer.momentum else 0.0
    moments = 8.0 if train.optimizer.name == "adamw" else sgd_moments
    if train.precision == "fp32":
        return StateBytes(weights=4.0, gradients=4.0, optimizer=moments)
    return StateBytes(weights=2.0, gradients=4.0, optimizer=moments + 4.0)


def memory_bytes_by_stage(
    model: ModelCost, train: TrainSpec, gpu_type: GpuType, candidates: Candidates, parameters: Floats
) -> Floats:
    """Return the peak of each stage, ``[n, p]``; ``parameters`` are those of one tensor-parallel rank."""
    context = _CPU_CONTEXT_BYTES if gpu_type.name == "cpu" else _CONTEXT_BYTES
    state = _state(model, train, candidates, parameters)
    peak = context + state + _activations(model, train, candidates)
    rows = np.arange(len(candidates))
    peak[rows, candidates.pp - 1] += _logits(model, train, candidates)
    return np.where(candidates.stage_mask, peak, 0.0)


def _state(model: ModelCost, train: TrainSpec, candidates: Candidates, parameters: Floats) -> Floats:
    each = state_bytes(train)
    dp = candidates.dp.astype(np.float64)
    weights = each.weights / np.where(candidates.zero == 3, dp, 1.0)
    gradients = each.gradients / np.where(candidates.zero >= 2, dp, 1.0)
    optimizer = each.optimizer / np.where(candidates.zero >= 1, dp, 1.0)
    # ZeRO-3 holds the gathered weights of the layer at work and of the one prefetched.
    gathered = np.where(candidates.zero == 3, 2.0 * model.layer.parameter_count / candidates.tp * each.weights, 0.0)
    return parameters * (weights + gradients + optimizer)[:, None] + gathered[:, None]


def _activations(model: ModelCost, train: TrainSpec, candidates: Candidates) -> Floats:
    """Activations of the micro-batches in flight; under full recomputation only each layer's input is kept."""
    layer = model.layer
    tokens = candidates.micro_batch_size * model.seq_len
    whole = layer.replicated_activations_per_token + layer.sharded_activations_per_token / candidates.tp
    kept = np.where(candidates.is_full_recompute, float(model.hidden), whole)
    working = np.where(candidates.is_full_recompute, whole, 0.0)
    per_token = candidates.stage_layers * kept[:, None] * _in_flight(candidates) + working[:, None]
    return per_token * (tokens * ELEMENT_BYTES[train.precision])[:, None]


def _in_flight(candidates: Candidates) -> Floats:
    """Micro-batches whose activations a stage holds at once, in units of the whole stage, ``[n, p]``."""
    count = candidates.micro_batch_count[:, None].astype(np.float64)
    depth = candidates.pp[:, None]
    stage = np.arange(candidates.stage_layers.shape[1])[None, :]
    chunks = candidates.virtual_stage_count[:, None]
    warm_up = np.maximum(1, depth - stage)
    interleaved = (2 * np.maximum(0, depth - stage - 1) + (chunks - 1) * depth + 1) / chunks
    held = np.minimum(count, np.where(chunks > 1, interleaved, warm_up))
    return np.where(candidates.is_gpipe[:, None], count, held)


def _logits(model: ModelCost, train: TrainSpec, candidates: Candidates) -> Floats:
    """Logits in the working precision, and their softmax and gradient in fp32."""
    tokens = candidates.micro_batch_size * model.seq_len
    element_bytes = ELEMENT_BYTES[train.precision] + 8.0
    logits: Floats = tokens * (model.vocab_size / candidates.tp) * element_bytes
    return logits
