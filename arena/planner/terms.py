"""Seconds of a plan's stages by what they are spent on, each part for the plans that differ in it.

Pure: no I/O, no clock. Formulas and shapes: see ``arena.planner.cost``. A part depends on some columns of the
candidates alone, so it is computed for the distinct ones among them (``Term``); thousands of plans have few of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from arena.domain.job import TrainSpec
from arena.planner.calibration import Calibration
from arena.planner.candidates import Candidates, Floats, Ints
from arena.planner.communication import all_gather_s, all_reduce_s, all_to_all_s, send_s
from arena.planner.compute import ELEMENT_BYTES, PartTimes
from arena.planner.holdings import Holdings, holdings, state_bytes
from arena.planner.implementation import Implementation
from arena.planner.model import ModelCost, Part
from arena.planner.network import Network, Rings
from arena.planner.pipeline import BACKWARD_SHARE
from arena.planner.profiles import Told

OPTIMIZER_TRAFFIC_BYTES_PER_PARAMETER = 28
"""AdamW in fp32: reads weight, gradient and two moments, writes three of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A part of the stages' times that depends on some columns alone.

    Args:
        seconds: Of each stage of the distinct candidates, ``[d, p]``.
        which: Which of them stands for each candidate, ``[n]``.
    """

    seconds: Floats
    which: Ints

    def at(self, rows: Ints, stages: Ints) -> Floats:
        """Return the seconds of one stage of each of some candidates."""
        one: Floats = self.seconds[self.which[rows], stages]
        return one


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTerms:
    """Seconds per micro-batch and stage, by what they are spent on; ``after``: once in a step, behind the last one.

    Args:
        sync: Of ``after``, the part that is no update.
    """

    compute: Term
    tensor: Term
    expert: Term | None
    shard: Term
    send: Term
    after: Term
    sync: Term

    @property
    def of_micro_batch(self) -> dict[str, Term]:
        """Parts of a micro-batch's time by their name in a breakdown."""
        named = {"compute": self.compute, "tensor_parallel": self.tensor, "expert_exchange": self.expert}
        named |= {"shard_gather": self.shard, "pipeline_send": self.send}
        return {name: term for name, term in named.items() if term is not None}

    def total_s(self) -> Floats:
        """Return the time of one micro-batch on each stage, its sends included, ``[n, p]``."""
        of_layers = self.compute.seconds + self.tensor.seconds
        total = of_layers[self.compute.which]
        for term in (self.expert, self.shard, self.send):
            if term is not None:
                total += term.seconds[term.which]
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What times depend on beside the candidates."""

    model: ModelCost
    train: TrainSpec
    network: Network
    implementation: Implementation
    calibration: Calibration
    part_times: Mapping[str, PartTimes]

    @property
    def gradient_bytes(self) -> float:
        """Bytes of an element of the gradients that replicas exchange."""
        return self.implementation.gradient_bytes or state_bytes(self.train).gradients

    def exposed_s(self, busy_s: Floats, hidden_behind_s: Floats) -> Floats:
        """Return what collectives add to the computing that they run beside."""
        exposed: Floats = np.maximum(busy_s - hidden_behind_s, self.calibration.unhidden_share * busy_s)
        return exposed


_OF_LAYERS = (
    *("gpu_type", "cut", "pp", "tp"),
    *("micro_batch_size", "is_sequence_parallel", "expert_parallel", "recompute"),
)
_OF_EXCHANGE = ("group", "cut", "pp", "dp", "tp", "gpu_count", "micro_batch_size", "expert_parallel", "recompute")
_OF_STATE = ("group", "cut", "pp", "dp", "tp", "gpu_count", "expert_parallel", "zero")
_OF_SENDS = ("group", "cut", "pp", "tp", "gpu_count", "micro_batch_size", "is_sequence_parallel")
TIME_PARTS = (_OF_LAYERS, _OF_EXCHANGE, _OF_STATE, _OF_SENDS)
"""Columns of the candidates on which a part of the stages' times depends."""


def stage_terms(setting: Setting, candidates: Candidates) -> StageTerms:
    """Compute each part once for candidates that do not differ in what it depends on."""
    implementation, network = setting.implementation, setting.network
    candidates = network.with_types(candidates)
    some, of_layers = candidates.distinct(_OF_LAYERS)
    compute_s = _compute_s(setting, some)
    tensor = Term(seconds=_tensor_s(setting, network, some), which=of_layers)
    expert = None
    if np.any(candidates.expert_parallel > 1):
        some, which = candidates.distinct(_OF_EXCHANGE)
        expert = Term(seconds=_expert_s(setting, network, some), which=which)
    if implementation.overlaps_gradients or implementation.overlaps_shards:
        # What is hidden depends on the computing beside it: nothing is alike.
        of_state = np.arange(len(candidates))
        state = _state_times(setting, network, candidates, compute_s[of_layers])
    else:
        state, of_state = _state_times_alone(setting, candidates)
    some, of_sends = candidates.distinct(_OF_SENDS)
    ends = 2.0 if implementation.sends_in_turn else 1.0
    send_s = ends * _send_s(setting, network, some)
    return StageTerms(
        compute=Term(seconds=compute_s, which=of_layers),
        tensor=tensor,
        expert=expert,
        shard=Term(seconds=state.shard_s, which=of_state),
        send=Term(seconds=send_s, which=of_sends),
        after=Term(seconds=state.sync_s + state.update_s, which=of_state),
        sync=Term(seconds=state.sync_s, which=of_state),
    )


def after_last_s(setting: Setting, candidates: Candidates) -> Floats:
    """Return what follows the last micro-batch of each stage where nothing hides it, ``[n, p]``.

    That is what ``stage_terms`` says of programs that overlap nothing, in less time.
    """
    state, which = _state_times_alone(setting, setting.network.with_types(candidates))
    found: Floats = (state.sync_s + state.update_s)[which]
    return found


def _compute_s(setting: Setting, candidates: Candidates) -> Floats:
    found = np.zeros((len(candidates), candidates.depth))
    for index, gpu_type in enumerate(setting.network.gpu_types):
        rows = np.arange(len(candidates))
        if candidates.gpu_type is not None:
            rows = np.flatnonzero(candidates.gpu_type == index)
        here = candidates.take(rows)
        times = setting.part_times.get(gpu_type.name) or PartTimes.of(
            setting.model,
            setting.train,
            gpu_type,
            (here,),
            implementation=setting.implementation,
            calibration=setting.calibration,
        )
        found[rows] = times.of_stages(setting.model, here)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _StateTimes:
    """Seconds that depend on who holds which state, ``[n, p]``: in each micro-batch, after the last, of the update."""

    shard_s: Floats
    sync_s: Floats
    update_s: Floats


def _state_times_alone(setting: Setting, candidates: Candidates) -> tuple[_StateTimes, Ints]:
    """Return the times of distinct candidates with no computing beside them, and which stands for each."""
    some, which = candidates.distinct(_OF_STATE)
    return _state_times(setting, setting.network, some, np.zeros((len(some), some.depth))), which


def _state_times(setting: Setting, network: Network, candidates: Candidates, compute_s: Floats) -> _StateTimes:
    held = holdings(setting.model, candidates)
    rings = network.rings(candidates, setting.implementation.shard_ranks_max)
    shard_s = _shard_s(setting, candidates, rings, held)
    return _StateTimes(
        shard_s=setting.exposed_s(shard_s, compute_s) if setting.implementation.overlaps_shards else shard_s,
        sync_s=_sync_s(setting, candidates, rings, held) + _scatter_s(setting, candidates, rings, held, compute_s),
        update_s=_update_s(setting, network, candidates, held),
    )


def _activation_bytes(train: TrainSpec, candidates: Candidates) -> Floats:
    """Bytes of one element of each of a micro-batch's samples, ``[n, 1]``."""
    return candidates.micro_batch_size[:, None].astype(np.float64) * ELEMENT_BYTES[train.precision]


def _tensor_s(setting: Setting, network: Network, candidates: Candidates) -> Floats:
    model = setting.model
    if not np.any(candidates.tp > 1):
        return np.zeros((len(candidates), candidates.depth))
    reduced = np.array([_reductions(part) for part in model.parts]).T
    elements, counts = reduced[:3], reduced[3:]
    modes = candidates.recompute[:, None]
    size_bytes = candidates.sums(model.cumulative(elements), modes) * _activation_bytes(setting.train, candidates)
    return all_reduce_s(network.tensor_ring(candidates), size_bytes, candidates.sums(model.cumulative(counts), modes))


def _reductions(part: Part) -> tuple[float, ...]:
    """Return elements, then counts, of a micro-batch's all-reduces under each recomputation setting."""
    one = part.reductions
    elements = one.forward_elements + one.backward_elements
    count = one.forward_count + one.backward_count
    again = (one.forward_elements, one.forward_count) if part.is_layer else (0.0, 0)
    return (
        *(elements, elements + one.attention_elements, elements + again[0]),
        *(count, count + one.attention_count, count + again[1]),
    )


def _expert_s(setting: Setting, network: Network, candidates: Candidates) -> Floats:
    model = setting.model
    exchanged = [part.exchanged_elements for part in model.parts]
    is_again = (candidates.recompute == 2)[:, None]
    passes = 2.0 + is_again
    size_bytes = candidates.sums(model.cumulative(exchanged)[None]) * _activation_bytes(setting.train, candidates)
    layers = candidates.sums(model.cumulative(float(elements > 0) for elements in exchanged)[None])
    return all_to_all_s(network.expert_ring(candidates), passes * size_bytes, 2.0 * passes * layers)


def _shard_s(setting: Setting, candidates: Candidates, rings: Rings, held: Holdings) -> Floats:
    """Return the scatters of gradients (ZeRO-2 and 3) and gathers of weights (ZeRO-3) of one micro-batch."""
    zero = candidates.zero[:, None]
    if not np.any(zero >= 2):
        return np.zeros((len(candidates), candidates.depth))
    units = _collectives(setting, candidates)
    scatter_s = _halves_s(rings, held, setting.gradient_bytes, units)
    gather_s = 2.0 * _halves_s(rings, held, ELEMENT_BYTES[setting.train.precision], units)
    seconds: Floats = np.where(zero >= 2, scatter_s, 0.0) + np.where(zero == 3, gather_s, 0.0)
    return seconds


def _collectives(setting: Setting, candidates: Candidates) -> Floats:
    """Return in how many collectives a stage's parameters go, ``[n, p]``."""
    units = candidates.sums(setting.model.cumulative(np.ones(len(setting.model.parts)))[None])
    return units * setting.implementation.collectives_per_unit


def _halves_s(rings: Rings, held: Holdings, bytes_each: float, count: Floats | float) -> Floats:
    """Return the time to gather (or to reduce-scatter) all parameters of a rank among those that divide them."""
    dense_s = all_gather_s(rings.shard, held.dense * bytes_each, count)
    if not np.any(held.expert):
        return dense_s
    return dense_s + all_gather_s(rings.expert_data, held.expert * bytes_each, count)


def _whole_s(rings: Rings, held: Holdings, bytes_each: float) -> Floats:
    """Return the time to sum all gradients of a rank over the replicas."""
    dense_s = all_reduce_s(rings.data, held.dense * bytes_each)
    if not np.any(held.expert):
        return dense_s
    return dense_s + all_reduce_s(rings.expert_data, held.expert * bytes_each)


def _send_s(setting: Setting, network: Network, candidates: Candidates) -> Floats:
    """Return the sends of one micro-batch: activations on, gradients back."""
    model, hops = setting.model, network.hops(candidates)
    first, last = candidates.chunk_first, candidates.chunk_last
    is_chunk = last > first
    messages = model.messages.crossing
    goes_on, goes_back = is_chunk & (last < model.unit_count), is_chunk & (first > 0)
    divisor = candidates.tp if setting.implementation.splits_sends else candidates.sequence_divisor
    one_element = _activation_bytes(setting.train, candidates) / divisor
    seconds = np.zeros((len(candidates), candidates.depth))
    for goes, elements, hop in (
        (goes_on, messages[last], hops.on),
        (goes_back, messages[first], hops.back),
    ):
        sizes = candidates.by_cut(np.where(goes, elements, 0.0).sum(axis=2)) * one_element
        seconds += send_s(hop, sizes, candidates.by_cut(goes.sum(axis=2).astype(np.float64)))
    return seconds


def _sync_s(setting: Setting, candidates: Candidates, rings: Rings, held: Holdings) -> Floats:
    """Gathering of updated weights on each stage, unit by unit, under ZeRO-1 and ZeRO-2; ZeRO-3 has it in each step."""
    zero = candidates.zero[:, None]
    gather_s = _halves_s(rings, held, state_bytes(setting.train).weights, _collectives(setting, candidates))
    if setting.implementation.overlaps_shards:
        gather_s = setting.calibration.unhidden_share * gather_s
    return np.where(candidates.stage_mask & ((zero == 1) | (zero == 2)), gather_s, 0.0)


def _scatter_s(setting: Setting, candidates: Candidates, rings: Rings, held: Holdings, compute_s: Floats) -> Floats:
    """Synchronisation of gradients after a stage's last micro-batch that its backward pass does not hide.

    An all-reduce without sharding, a reduce-scatter unit by unit under ZeRO-1; above, each micro-batch has its own.
    Where fewer ranks share state than there are replicas, gradients are summed over all of them.
    """
    zero = candidates.zero[:, None]
    scatter_s = whole_s = _whole_s(rings, held, setting.gradient_bytes)
    if setting.implementation.shard_ranks_max is None and not setting.implementation.reduces_whole:
        scatter_s = _halves_s(rings, held, setting.gradient_bytes, _collectives(setting, candidates))
    seconds = np.select([zero == 0, zero == 1], [whole_s, scatter_s], 0.0)
    if setting.implementation.overlaps_gradients:
        seconds = setting.exposed_s(seconds, BACKWARD_SHARE * compute_s)
    return np.where(candidates.stage_mask, seconds, 0.0)


def _update_s(setting: Setting, network: Network, candidates: Candidates, held: Holdings) -> Floats:
    own = np.where(candidates.zero[:, None] >= 1, held.share, held.total)
    seconds: Floats = own * OPTIMIZER_TRAFFIC_BYTES_PER_PARAMETER / network.memory_bandwidth(candidates)
    for index, gpu_type in enumerate(setting.network.gpu_types):
        told = Told.of(gpu_type, setting.train, setting.model)
        if told is not None:
            is_here = np.full(len(candidates), True) if candidates.gpu_type is None else candidates.gpu_type == index
            rows = np.flatnonzero(is_here)
            share = np.divide(own, held.total, out=np.zeros(own.shape), where=held.total > 0)
            seconds[rows] = told.stage_update_s(candidates.take(rows), share[rows], seconds[rows])
    return seconds
