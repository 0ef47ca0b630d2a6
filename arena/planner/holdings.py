"""What one rank of each stage holds of parameters, gradients and optimizer state. Pure: no I/O, no clock.

The rules are those of ``arena.planner.memory``; arrays are ``[n, p]`` as there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arena.domain.job import TrainSpec
from arena.planner.candidates import Candidates, Floats, Ints
from arena.planner.model import ModelCost
from arena.planner.ranges import largest_in
from arena.units import MIB

_UNIT_PARAMETERS = 25 * MIB / 4
"""Small layers are put together up to so many parameters, before tensor parallelism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes per parameter of what a training step keeps."""

    weights: float
    gradients: float
    moments: float
    master: float

    @property
    def sharded_weights(self) -> float:
        """Bytes of a weight that ZeRO-3 divides: the fp32 one."""
        return self.master or self.weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """Parameters on one rank of each stage, ``[n, p]``.

    Args:
        dense: Held by all replicas.
        expert: Experts.
        share: The part of both that is a rank's own when ranks with the same parameters divide them.
    """

    dense: Floats
    expert: Floats
    share: Floats

    @property
    def total(self) -> Floats:
        """All that a rank holds without ZeRO."""
        return self.dense + self.expert


def state_bytes(train: TrainSpec) -> StateBytes:
    """Return the bytes per parameter: fp32 state, and a working copy in 16 bit under mixed precision."""
    sgd_moments = 4.0 if train.optimizer.momentum else 0.0
    moments = 8.0 if train.optimizer.name == "adamw" else sgd_moments
    if train.precision == "fp32":
        return StateBytes(weights=4.0, gradients=4.0, moments=moments, master=0.0)
    return StateBytes(weights=2.0, gradients=4.0, moments=moments, master=4.0)


def holdings(model: ModelCost, candidates: Candidates) -> Holdings:
    """Return the parameters of one rank of each stage."""
    counts = [part.parameters for part in model.parts]
    tp, dp = candidates.tp.astype(np.float64), candidates.dp.astype(np.float64)
    ep = candidates.expert_parallel[:, None].astype(np.float64)
    split = candidates.sums(model.cumulative(one.split for one in counts)[None]) / tp
    replicated = candidates.sums(model.cumulative(one.replicated for one in counts)[None])
    expert = candidates.sums(model.cumulative(one.expert for one in counts)[None]) / (tp * ep)
    tied = np.zeros(split.shape)
    copies = np.ones((len(split), 1))
    if model.beginning.parameters.tied:
        users = candidates.sums(model.cumulative(float(part.uses_embedding) for part in model.parts)[None]) > 0
        tied = users * (model.beginning.parameters.tied / tp)
        copies = np.maximum(users.sum(axis=1, keepdims=True), 1.0)
    return Holdings(
        dense=split + replicated + tied,
        expert=expert,
        share=split / dp + replicated / (dp * tp) + expert / (dp / ep) + tied / (dp * copies),
    )


def state_on_rank(train: TrainSpec, candidates: Candidates, held: Holdings) -> Floats:
    """Return the bytes of weights, gradients and optimizer state."""
    each, zero = state_bytes(train), candidates.zero[:, None]
    weights = np.where(zero == 3, held.share * each.sharded_weights, held.total * each.weights)
    gradients = each.gradients * np.where(zero >= 2, held.share, held.total)
    # Under ZeRO-3 the divided weights are the master weights.
    optimizer_bytes = each.moments + np.where(zero == 3, 0.0, each.master)
    state: Floats = weights + gradients + optimizer_bytes * np.where(zero >= 1, held.share, held.total)
    return state


def gathered_on_rank(model: ModelCost, train: TrainSpec, candidates: Candidates, held: Holdings) -> Floats:
    """Return the bytes of the weights of two layers that are whole at a time (ZeRO-3)."""
    is_gathered = (candidates.zero[:, None] == 3) & (held.share < held.total)
    if not np.any(is_gathered):
        return np.zeros(held.total.shape)
    totals = model.by_unit(float(part.parameters.total) for part in model.parts)
    first, last = candidates.chunk_first, candidates.chunk_last
    start = largest_in(totals[:-1] + totals[1:], np.minimum(first, len(totals) - 2), np.maximum(last - 1, first))
    follower = np.where(candidates.by_cut(start + 1 < last), _unit_sizes(model, candidates, start + 1), 0.0)
    is_there = candidates.by_cut(last > first)
    pair = np.where(is_there, _unit_sizes(model, candidates, start) + follower, 0.0).max(axis=2)
    return np.where(is_gathered, pair * state_bytes(train).weights, 0.0)


def exchange_on_rank(
    train: TrainSpec, candidates: Candidates, held: Holdings, together: Floats, *, copies_operand: bool
) -> Floats:
    """Return the bytes of a unit's gradients on their way, beside those that are kept (ZeRO-1, 2 and 3).

    As they came and summed up in fp32; then summed up, with the share that the rank receives. ZeRO-1 sums up in the
    memory of the gradients themselves, and receives the shares of all units.

    Args:
        together: Parameters of the unit.
        copies_operand: Whether a reduce-scatter works on a copy, as gloo's does.
    """
    each, zero = state_bytes(train), candidates.zero[:, None]
    is_divided = held.share < held.total
    own_share = np.divide(held.share, held.total, out=np.ones(held.total.shape), where=is_divided)
    sums = together * each.gradients
    scattered = np.maximum(together * each.weights + sums, sums * (1.0 + own_share + copies_operand))
    once = sums * copies_operand + held.share * each.gradients
    return np.where(is_divided, np.select([zero >= 2, zero == 1], [scattered, once], 0.0), 0.0)


def exchanged_together(model: ModelCost, candidates: Candidates, held: Holdings) -> Floats:
    """Return the parameters of the largest unit: a layer under ZeRO-3, else also several small ones."""
    totals = model.by_unit(float(part.parameters.total) for part in model.parts)
    first, last = candidates.chunk_first, candidates.chunk_last
    sizes = _unit_sizes(model, candidates, largest_in(totals, first, last))
    layer = np.where(candidates.by_cut(last > first), sizes, 0.0).max(axis=2)
    together = np.maximum(_UNIT_PARAMETERS / candidates.tp, layer)
    unit: Floats = np.minimum(held.total, np.where(candidates.zero[:, None] == 3, layer, together))
    return unit


def _unit_sizes(model: ModelCost, candidates: Candidates, units: Ints) -> Floats:
    """Return the parameters on one rank, ``[n, p, v]``, of units that are given for each way to split layers."""
    counts = [part.parameters for part in model.parts]
    at = model.part_by_unit[np.minimum(units, model.unit_count - 1)]
    tp = candidates.tp[..., None].astype(np.float64)
    sizes = candidates.by_cut(np.array([float(one.split + one.tied) for one in counts])[at]) / tp
    sizes += candidates.by_cut(np.array([float(one.replicated) for one in counts])[at])
    if any(one.expert for one in counts):
        expert = candidates.by_cut(np.array([float(one.expert) for one in counts])[at])
        sizes += expert / (tp * candidates.expert_parallel[:, None, None])
    return sizes
