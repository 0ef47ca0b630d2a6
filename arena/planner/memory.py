"""Peak memory of one GPU of each stage. Pure: no I/O, no clock.

What a rank of the worker holds, in bytes per parameter: fp32 has weights 4, gradients 4, AdamW moments 8 (SGD with
momentum 4, without 0); bf16 has weights 2, gradients 4 (summed over micro-batches in fp32), fp32 master weights 4 and
the moments. n ranks hold the same parameter: dp, times tp where tensor parallelism does not split it; dp / ep for
experts; twice dp for tied embeddings on two stages.

* ZeRO-1 divides moments and master weights by n, ZeRO-2 also gradients. When a unit's backward pass is over, its
  gradients of the micro-batch are there as they came and summed up in fp32, then summed up and as the rank's share (and
  once more where gloo does it), but its activations are gone; units are layers, small ones put together up to 25 MiB.
* ZeRO-3 divides weights too: what is divided is the fp32 weight (in bf16, the master). Whole are the weights, in the
  working precision, of the layer at work and of the next, and a layer's gradients as under ZeRO-2.
* Activations: what ``arena.planner.activations`` lists, for the micro-batches in flight, and the output that a stage
  sends; one message from each neighbour is received ahead. Recomputation adds what it makes again of one layer.
* Logits: their log-softmax in fp32, and two gradients of that size while they last (three where the vocabulary is
  split: the worker's own loss).

A tensor counts as long as somebody needs it; allocators keep more (see ``USABLE_SHARE``).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.domain.parallel import ParallelPlan, Recompute
from arena.planner.activations import Kept, Operators, Spread
from arena.planner.calibration import CALIBRATION
from arena.planner.candidates import RECOMPUTE_MODES, Candidates, Floats, candidate_of
from arena.planner.compute import ELEMENT_BYTES
from arena.planner.holdings import (
    Holdings,
    exchange_on_rank,
    exchanged_together,
    gathered_on_rank,
    holdings,
    state_bytes,
    state_on_rank,
)
from arena.planner.implementation import WORKER, Attention, Implementation
from arena.planner.model import ModelCost, Part, model_cost
from arena.units import GIB, MIB

USABLE_SHARE = 0.97
"""Share of a device's memory a plan may fill; the rest is fragmentation. Of published runs (planner_accuracy study,
2026-11-29) the fullest that ran is predicted at 0.970, the least full that failed for memory at 1.011."""

_CONTEXT_BYTES = 1 * GIB
_CPU_CONTEXT_BYTES = 256 * MIB
"""Driver context and libraries of a process alone (on the CPU: the interpreter with its libraries)."""

_LOGITS_KEPT_BYTES = 4.0
_LOGITS_GRADIENT_BYTES = 8.0
_SPLIT_LOGITS_GRADIENT_BYTES = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of each stage by what they are for, ``[n, p]``, zero beyond a plan's depth.

    Args:
        state: Weights, gradients, optimizer.
        gathered: Weights that are whole for a time under ZeRO-3.
        activations: Kept for backward passes, and received ahead.
        working: In use for a moment by the layer at work, recomputation included.
        logits: Log-softmax and its gradients on the last stage; they are gone when its layers run backward.
        exchange: Gradients on their way under ZeRO, less the activations that are gone by then.
        context: Driver, libraries, communication buffers.
    """

    state: Floats
    gathered: Floats
    activations: Floats
    working: Floats
    logits: Floats
    exchange: Floats
    context: Floats

    @property
    def total(self) -> Floats:
        """The peak: of what lasts only for a moment, the largest."""
        moment = np.maximum(np.maximum(self.working, self.logits), self.exchange)
        peak: Floats = self.state + self.gathered + self.activations + moment + self.context
        return peak


def operators_of(gpu_type: GpuType, implementation: Implementation = WORKER) -> Operators:
    """Return what the operators of a device keep."""
    return Operators(
        has_fused_rms_norm=gpu_type.name != "cpu",
        stores_scores=implementation.attention is Attention.STORED,
        drops_weights=implementation.drops_weights,
        keeps_every_other_product=implementation.keeps_every_other_product,
    )


def memory_kind(gpu_type: GpuType) -> Hashable:
    """Return what memory depends on of a GPU type: it is the same on types that are alike in this."""
    return operators_of(gpu_type), gpu_type.name == "cpu"


def memory_of_plan(
    train: TrainSpec, plan: ParallelPlan, gpu_type: GpuType, implementation: Implementation = WORKER
) -> Memory:
    """Return what one plan of any form needs, ``[1, stages]``."""
    model = model_cost(train.model, operators_of(gpu_type, implementation))
    candidates = candidate_of(plan, train.global_batch)
    held = holdings(model, candidates)
    return memory_by_stage(model, train, gpu_type, candidates, held, implementation=implementation)


def memory_by_stage(
    model: ModelCost,
    train: TrainSpec,
    gpu_type: GpuType,
    candidates: Candidates,
    held: Holdings,
    *,
    implementation: Implementation = WORKER,
) -> Memory:
    """Return what every stage of every candidate needs."""
    lasting = _lasting(model, train, gpu_type, candidates, held=held, implementation=implementation)
    passing = _passing(model, train, candidates, implementation)
    return Memory(
        state=lasting.state,
        gathered=lasting.gathered,
        activations=passing.activations,
        working=passing.working,
        logits=passing.logits,
        exchange=_exchange(candidates, lasting.exchange, lasting.freed_share, passing.kept, passing.in_flight),
        context=lasting.context,
    )


_OF_STATE = ("cut", "pp", "dp", "tp", "gpu_count", "expert_parallel", "zero")
_OF_PASSES = (
    *("cut", "pp", "tp", "micro_batch_size", "micro_batch_count", "virtual_stage_count"),
    *("is_gpipe", "recompute", "is_sequence_parallel"),
)
MEMORY_PARTS = (_OF_STATE, _OF_PASSES)
"""Columns of the candidates on which a part of the memory depends."""


def peaks_by_stage(model: ModelCost, train: TrainSpec, gpu_type: GpuType, candidates: Candidates) -> Floats:
    """Return the peak of every stage of every candidate, ``[n, p]``: the total of ``memory_by_stage``, in less time.

    State depends on few columns of the candidates, activations on others: each is computed for what differs in them.
    """
    some, of_state = candidates.distinct(_OF_STATE)
    lasting = _lasting(model, train, gpu_type, some, held=holdings(model, some), implementation=WORKER)
    some, of_passes = candidates.distinct(_OF_PASSES)
    passing = _passing(model, train, some, WORKER)
    exchange = _exchange(
        candidates,
        lasting.exchange[of_state],
        lasting.freed_share[of_state],
        passing.kept[of_passes],
        passing.in_flight[of_passes],
    )
    moment = np.maximum(np.maximum(passing.working, passing.logits)[of_passes], exchange)
    steady = (lasting.state + lasting.gathered + lasting.context)[of_state]
    peaks: Floats = steady + passing.activations[of_passes] + moment
    return peaks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lasting:
    """Bytes that depend on who holds which state, ``[n, p]``.

    Args:
        exchange: Gradients on their way.
        freed_share: Of a micro-batch's activations, what is gone by then.
    """

    state: Floats
    gathered: Floats
    exchange: Floats
    freed_share: Floats
    context: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passing:
    """Bytes that depend on the micro-batches, ``[n, p]``: kept of one, of those in flight, and all that is there."""

    kept: Floats
    in_flight: Floats
    activations: Floats
    working: Floats
    logits: Floats


def _lasting(
    model: ModelCost,
    train: TrainSpec,
    gpu_type: GpuType,
    candidates: Candidates,
    *,
    held: Holdings,
    implementation: Implementation,
) -> _Lasting:
    together = exchanged_together(model, candidates, held)
    is_cpu = gpu_type.name == "cpu"
    context = _context(gpu_type, candidates) + implementation.buffer_bytes
    return _Lasting(
        state=state_on_rank(train, candidates, held) + _other_gradients(train, candidates, held, implementation),
        gathered=gathered_on_rank(model, train, candidates, held),
        exchange=exchange_on_rank(train, candidates, held, together, copies_operand=is_cpu),
        freed_share=_freed_share(model, held, together),
        context=np.where(candidates.stage_mask, context, 0.0),
    )


def _passing(model: ModelCost, train: TrainSpec, candidates: Candidates, implementation: Implementation) -> _Passing:
    kept = _kept(model, train, candidates)
    in_flight = kept * _in_flight(candidates)
    return _Passing(
        kept=kept,
        in_flight=in_flight,
        activations=in_flight + _received_ahead(model, train, candidates),
        working=_working(model, train, candidates),
        logits=_logits(model, candidates, implementation),
    )


def _exchange(candidates: Candidates, exchange: Floats, freed_share: Floats, kept: Floats, in_flight: Floats) -> Floats:
    """Return gradients on their way, less the activations that are gone by then.

    Under ZeRO-1 these are all, as the step's backward passes are over; else those of one unit and micro-batch.
    """
    freed = np.where(candidates.zero[:, None] == 1, in_flight, freed_share * kept)
    more: Floats = np.maximum(exchange - freed, 0.0)
    return more


def _other_gradients(
    train: TrainSpec, candidates: Candidates, held: Holdings, implementation: Implementation
) -> Floats:
    """Return by how many bytes a program's gradients are more than the worker's."""
    shared = np.where(candidates.zero[:, None] == 1, implementation.kept_share_bytes * held.share, 0.0)
    if implementation.kept_gradient_bytes is None:
        return shared
    more = implementation.kept_gradient_bytes - state_bytes(train).gradients
    other: Floats = shared + more * np.where(candidates.zero[:, None] >= 2, held.share, held.total)
    return other


def _context(gpu_type: GpuType, candidates: Candidates) -> Floats:
    """Return what a process takes beside tensors, ``[n, 1]``: a rank among others has communication buffers as well."""
    if gpu_type.name == "cpu":
        return np.full((len(candidates), 1), float(_CPU_CONTEXT_BYTES))
    is_alone = (candidates.pp[:, None] == 1) & (candidates.gpu_count[:, :1] == 1)
    return np.where(is_alone, float(_CONTEXT_BYTES), CALIBRATION.rank_context_bytes)


def _freed_share(model: ModelCost, held: Holdings, together: Floats) -> Floats:
    """Return what share of a micro-batch's activations is gone when a unit's gradients are on their way.

    Of layers that are alike it is their share of the parameters; layers that differ hold many of one or of the other,
    so that there only a unit that is the whole stage is certain.
    """
    share = np.divide(together, held.total, out=np.zeros(held.total.shape), where=held.total > 0)
    return np.floor(share) if sum(part.is_layer for part in model.parts) > 1 else share


def _kept(model: ModelCost, train: TrainSpec, candidates: Candidates) -> Floats:
    """Return what a stage keeps of one micro-batch, the outputs that it has sent among it."""
    element_bytes = ELEMENT_BYTES[train.precision]
    kept = _spread_sums(model, candidates, element_bytes)
    first, last, messages = candidates.chunk_first, candidates.chunk_last, model.messages
    # What only passes through is there once, however often it is sent.
    through = messages.carried[first] + messages.crossing[last] - messages.carried[last]
    sent = np.where(last > first, through, 0.0).sum(axis=2)
    kept += candidates.by_cut(sent) * element_bytes / candidates.sequence_divisor
    return kept * candidates.micro_batch_size[:, None]


def _received_ahead(model: ModelCost, train: TrainSpec, candidates: Candidates) -> Floats:
    """Return the buffers of the next activation and the next gradient of a stage."""
    first, last = candidates.chunk_first, candidates.chunk_last
    messages = model.messages.crossing
    before = np.where(last > first, messages[first], 0.0)
    behind = np.where(last > first, messages[last], 0.0)
    ahead = candidates.by_cut(before.max(axis=2) + behind.max(axis=2))
    samples = candidates.micro_batch_size[:, None]
    return ahead * samples * ELEMENT_BYTES[train.precision] / candidates.sequence_divisor


def _spread_sums(model: ModelCost, candidates: Candidates, element_bytes: float) -> Floats:
    """Return the bytes per sample that one rank of each stage keeps, ``[n, p]``."""
    total = np.zeros((len(candidates), candidates.depth))
    for spread in Spread:
        by_mode = np.array(
            [[_bytes(part.kept, spread, element_bytes, mode) for part in model.parts] for mode in RECOMPUTE_MODES]
        )
        total += candidates.sums(model.cumulative(by_mode), candidates.recompute[:, None]) / _divisor(
            candidates, spread
        )
    return total


def _divisor(candidates: Candidates, spread: Spread) -> Floats | float:
    if spread is Spread.SPLIT:
        return candidates.tp.astype(np.float64)
    return candidates.sequence_divisor.astype(np.float64) if spread is Spread.SEQUENCE else 1.0


def _bytes(tensors: tuple[Kept, ...], spread: Spread, element_bytes: float, mode: Recompute) -> float:
    return sum(
        tensor.elements * (tensor.element_bytes or element_bytes)
        for tensor in tensors
        if tensor.spread is spread and mode in tensor.modes
    )


def _working(model: ModelCost, train: TrainSpec, candidates: Candidates) -> Floats:
    """Return what the layer at work has in use for a moment: gradients, what it recomputes, a weight's gradient."""
    element_bytes = ELEMENT_BYTES[train.precision]
    samples = candidates.micro_batch_size[:, None]
    worst = np.zeros((len(candidates), candidates.depth))
    for index, part in enumerate(model.parts):
        if part.is_layer:
            made = [_made_again(part, candidates, element_bytes, mode) for mode in RECOMPUTE_MODES]
            again = np.select([candidates.recompute[:, None] == 1, candidates.recompute[:, None] == 2], made[1:], 0.0)
            moment = np.zeros_like(again)
            for tensors in part.working:
                moment = np.maximum(moment, _on_rank(tensors, candidates, element_bytes))
            weight = part.parameters.largest * element_bytes / candidates.tp
            here = candidates.sums(model.cumulative(float(one == index) for one in range(len(model.parts)))[None])
            worst = np.maximum(worst, np.where(here > 0, (again + moment) * samples + weight, 0.0))
    return worst


def _made_again(part: Part, candidates: Candidates, element_bytes: float, mode: Recompute) -> Floats:
    """Return the bytes per sample by which a layer grows when its backward pass makes again what it did not keep.

    Selective recomputation makes the attention again after the rest of the layer is gone.
    """
    missing = tuple(one for one in part.kept if Recompute.NONE in one.modes and mode not in one.modes)
    # What is kept for the recomputation is there once: as an input it is among the missing as well.
    input_bytes = _on_rank(
        tuple(one for one in part.kept if Recompute.NONE not in one.modes), candidates, element_bytes
    )
    again = np.maximum(_on_rank(missing, candidates, element_bytes) - input_bytes, 0.0)
    if mode is Recompute.SELECTIVE:
        gone = tuple(one for one in part.kept if Recompute.NONE in one.modes and mode in one.modes)
        again = np.maximum(again - _on_rank(gone, candidates, element_bytes), 0.0)
    return again


def _on_rank(tensors: tuple[Kept, ...], candidates: Candidates, element_bytes: float) -> Floats:
    """Return the bytes per sample of some tensors on one rank, ``[n, p or 1]``."""
    total = np.zeros(candidates.tp.shape)
    for spread in Spread:
        whole = sum(one.elements * (one.element_bytes or element_bytes) for one in tensors if one.spread is spread)
        total = total + whole / _divisor(candidates, spread)
    return total


def _in_flight(candidates: Candidates) -> Floats:
    """Micro-batches whose activations a stage holds at once, in units of the whole stage, ``[n, p]``."""
    count = candidates.micro_batch_count.astype(np.float64)
    depth = candidates.pp[:, None]
    stage = np.arange(candidates.depth)[None, :]
    chunks = candidates.virtual_stage_count[:, None]
    warm_up = np.maximum(1, depth - stage)
    interleaved = (2 * np.maximum(0, depth - stage - 1) + (chunks - 1) * depth + 1) / chunks
    held = np.minimum(count, np.where(chunks > 1, interleaved, warm_up))
    return np.where(candidates.is_gpipe[:, None], count, held)


def _logits(model: ModelCost, candidates: Candidates, implementation: Implementation) -> Floats:
    """Return the bytes of the logits: kept for each micro-batch in flight on the last stage, gradients of one."""
    ending = model.ending
    divisor = candidates.tp if ending.logits_spread is Spread.SPLIT else np.ones_like(candidates.tp)
    elements = ending.logits_elements * candidates.micro_batch_size[:, None] / divisor
    gradients = np.where(divisor > 1, _SPLIT_LOGITS_GRADIENT_BYTES, _LOGITS_GRADIENT_BYTES)
    in_flight = np.where(candidates.is_gpipe[:, None], candidates.micro_batch_count, 1)
    logits = elements * (_LOGITS_KEPT_BYTES * in_flight + gradients)
    if implementation.logits_bytes is not None:
        logits = elements * implementation.logits_bytes * in_flight
    return np.where(candidates.last_stages, logits, 0.0)
