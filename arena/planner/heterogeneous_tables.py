"""Times and memory of every stage that a pipeline over mixed GPUs could have, as arrays. Pure: no I/O, no clock.

A kind is a GPU type, its zone and a tensor-parallel degree. Figures are what ``arena.planner.cost.evaluate`` says of a
pipeline with this one stage, so mixed plans are priced by the formulas of uniform ones. Shapes: k kinds, l layers;
``[k, l, l + 1]`` arrays are indexed by kind, first layer, and the layer behind the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from arena.domain.allocation import GpuGroup
from arena.domain.capability import tensor_parallel_dimensions
from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.domain.parallel import Recompute
from arena.planner.candidates import RECOMPUTE_MODES, Candidates, Floats, Ints
from arena.planner.communication import Tier
from arena.planner.compute import ELEMENT_BYTES
from arena.planner.cost import Estimates, evaluate
from arena.planner.heterogeneous_offer import Offer, Offered, Space
from arena.planner.holdings import state_bytes
from arena.planner.memory import USABLE_SHARE, operators_of
from arena.planner.model import model_cost

NODE_LEVELS = (0, 1, 2, 16)
"""Nodes a first stage is known to span at least; at 0 it has one replica."""
_COUNT = 4
"""Micro-batches of the pipelines that are priced: enough that no stage of them is short of micro-batches."""
_ON_STAGE = ("compute", "tensor_parallel", "expert_exchange", "shard_gather")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """GPUs that a replica can have: which part of the offer (by position), and how many."""

    part: int
    tp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTable:
    """All stages for one micro-batch size and recomputation setting.

    Args:
        time_s: Of one micro-batch with its sends over the fastest link there could be, ``[k, l, l + 1]``; infinite
            where there is no such stage.
        stages_left_max: How many stages, itself among them, may follow at most until it runs out of memory.
        after_s: Least synchronisation and update of a first stage, ``[levels, k, l + 1]``; see ``NODE_LEVELS``.
        need: Micro-batches of a step.
        compute_s: ``time_s`` without sends.
        memory_bytes, memory_step_bytes: Of the last stage, or where one stage follows; and of each that follows then.
    """

    kinds: tuple[Kind, ...]
    micro_batch_size: int
    recompute: Recompute
    need: int
    time_s: Floats
    stages_left_max: Ints
    after_s: Floats
    compute_s: Floats
    memory_bytes: Floats
    memory_step_bytes: Floats

    @property
    def layer_count(self) -> int:
        """Layers of the model."""
        return int(self.time_s.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Stages to price: units ``[first, last)``, stages left, whether layers stand before; ``[r]`` each."""

    first: Ints
    last: Ints
    left: Ints
    is_behind: Ints


def tables_of(train: TrainSpec, offer: Offer, space: Space) -> list[StageTable]:
    """Return a table for each micro-batch size and recomputation setting."""
    parts = sorted(offer)
    kinds = kinds_of(train, offer, space)
    sizes = _micro_batch_sizes(train, space)
    modes = [Recompute.NONE, Recompute.FULL] if space.recompute else [Recompute.NONE]
    is_one_node = sum(part.node_count for part in offer.values()) == 1
    settings = [(mode, size) for mode in modes for size in sizes]
    sends = [_own_sends(train, offer[key].gpu_type, settings, is_one_node=is_one_node) for key in parts]
    filled = [_by_kind(train, offer[parts[kind.part]], kind.tp, settings, sends[kind.part]) for kind in kinds]
    tables: list[StageTable] = []
    for index, (mode, size) in enumerate(settings):
        table = StageTable(
            kinds=kinds,
            micro_batch_size=size,
            recompute=mode,
            need=-(-train.global_batch // size),
            time_s=np.stack([one.compute_s[index] + one.send_s[index] for one in filled]),
            stages_left_max=np.stack([one.stages_left_max[index] for one in filled]),
            after_s=np.stack([one.after_s for one in filled], axis=1),
            compute_s=np.stack([one.compute_s[index] for one in filled]),
            memory_bytes=np.stack([one.memory_bytes[index] for one in filled]),
            memory_step_bytes=np.stack([one.memory_step_bytes[index] for one in filled]),
        )
        tables.append(replace(table, time_s=np.where(table.stages_left_max > 0, table.time_s, np.inf)))
    return tables


def kinds_of(train: TrainSpec, offer: Offer, space: Space) -> tuple[Kind, ...]:
    """Return every part of the offer with each degree that divides its nodes and the model."""
    sizes = tensor_parallel_dimensions(train.model).values()
    return tuple(
        Kind(part=index, tp=tp)
        for index, key in enumerate(sorted(offer))
        for tp in range(1, min(space.tp_max, offer[key].gpus_per_node, offer[key].gpu_count) + 1)
        if offer[key].gpus_per_node % tp == 0 and all(size % tp == 0 for size in sizes)
    )


def _micro_batch_sizes(train: TrainSpec, space: Space) -> list[int]:
    most = min(space.micro_batch_max, train.global_batch)
    return [size for size in (2**power for power in range(most.bit_length())) if size <= most]


def own_tier(gpu_type: GpuType, *, is_one_node: bool) -> Tier:
    """Return the link over which a GPU sends to a neighbour stage of its own kind."""
    if is_one_node:
        return Tier(bandwidth_bytes_per_s=gpu_type.link_bandwidth_bytes_per_s, latency_s=gpu_type.link_latency_s)
    return Tier(bandwidth_bytes_per_s=gpu_type.network_bandwidth_bytes_per_s, latency_s=gpu_type.network_latency_s)


def slower(one: Tier, other: Tier) -> Tier:
    """Return the link that two in a row make."""
    return Tier(
        bandwidth_bytes_per_s=min(one.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s),
        latency_s=max(one.latency_s, other.latency_s),
    )


def boundary_s(train: TrainSpec, gpu_type: GpuType, sizes: Sequence[int], *, is_one_node: bool) -> Floats:
    """Return the time of a micro-batch's message between two stages cut in front of each layer, ``[sizes, l + 1]``.

    It goes over the network of the type, or over its link where both stages are on one node; zero at the model's ends.
    """
    layers = train.model.layers
    found = np.zeros((len(sizes), layers + 1))
    if layers > 1:
        cuts = np.arange(1, layers)
        rows = _Rows(
            first=np.zeros(layers - 1, dtype=np.int64),
            last=cuts + 1,
            left=np.full(layers - 1, 2),
            is_behind=np.zeros(layers - 1, dtype=np.int64),
        )
        nodes = [2] if is_one_node else [1, 1]
        settings = [(Recompute.NONE, size) for size in sizes]
        priced = _priced(train, gpu_type, nodes, rows, tp=1, dp=1, settings=settings)
        found[:, 1:layers] = priced.breakdown_s["pipeline_send"].reshape(len(sizes), -1) / _COUNT
    return found


def boundary_bytes(train: TrainSpec, gpu_type: GpuType, micro_batch_size: int) -> Floats:
    """Return the bytes of a micro-batch's activations in front of each layer and behind the last, ``[l + 1]``."""
    model = model_cost(train.model, operators_of(gpu_type))
    outputs = model.by_unit(part.output_elements for part in model.parts)[:-1]
    sizes: Floats = outputs * (micro_batch_size * ELEMENT_BYTES[train.precision])
    return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class _KindFigures:
    """A kind's figures, ``[settings, l, l + 1]``; ``after_s`` is ``[levels, l + 1]``. Names as in ``StageTable``."""

    compute_s: Floats
    send_s: Floats
    stages_left_max: Ints
    memory_bytes: Floats
    memory_step_bytes: Floats
    after_s: Floats


def _by_kind(
    train: TrainSpec, part: Offered, tp: int, settings: Sequence[tuple[Recompute, int]], send_s: Floats
) -> _KindFigures:
    layers = train.model.layers
    starts, ends, rows = _stage_rows(train, part.gpu_type)
    estimates = _priced(train, part.gpu_type, [part.gpus_per_node], rows, tp=tp, dp=1, settings=settings)
    shape = (len(settings), len(rows.first))
    seconds = sum((estimates.breakdown_s[name] for name in _ON_STAGE), np.zeros(shape[0] * shape[1])) / _COUNT
    at = np.tile(rows.is_behind, shape[0])
    memory = estimates.memory_bytes_by_stage[np.arange(len(at)), at].reshape(shape)
    near, far = _class_of(train, part.gpu_type, starts, ends)
    times = np.full((len(settings), layers, layers + 1), np.inf)
    left = np.zeros(times.shape, dtype=np.int64)
    sizes, steps = np.full(times.shape, np.inf), np.zeros(times.shape)
    times[:, starts, ends] = seconds.reshape(shape)[:, near]
    sizes[:, starts, ends] = memory[:, near]
    steps[:, starts, ends] = memory[:, far] - memory[:, near]
    limit = USABLE_SHARE * part.gpu_type.memory_bytes
    left[:, starts, ends] = _stages_left(memory[:, near], memory[:, far], limit, ends == layers)
    return _KindFigures(
        compute_s=times,
        send_s=send_s,
        stages_left_max=left,
        memory_bytes=sizes,
        memory_step_bytes=steps,
        after_s=_after(train, part, tp),
    )


def _stages_left(near: Floats, far: Floats, limit: float, is_last: np.ndarray) -> Ints:
    """Memory grows by the same amount with every stage that follows: two of them tell the most that fit."""
    step = np.maximum(far - near, 1.0)
    most = np.floor((limit - near) / step).astype(np.int64) + 2
    return np.where(near > limit, 0, np.where(is_last, 1, most)).astype(np.int64)


def _own_sends(
    train: TrainSpec, gpu_type: GpuType, settings: Sequence[tuple[Recompute, int]], *, is_one_node: bool
) -> Floats:
    """Return the least time of a stage's sends, on behind it and back in front, ``[settings, l, l + 1]``."""
    each = boundary_s(train, gpu_type, [size for _, size in settings], is_one_node=is_one_node)
    found: Floats = each[:, :-1, None] + each[:, None, :]
    return found


def _is_alike(train: TrainSpec, gpu_type: GpuType) -> bool:
    return len(model_cost(train.model, operators_of(gpu_type)).parts) == 3


def _pairs(layers: int) -> tuple[Ints, Ints]:
    starts, ends = np.triu_indices(layers)
    return starts.astype(np.int64), ends.astype(np.int64) + 1


def _stage_rows(train: TrainSpec, gpu_type: GpuType) -> tuple[Ints, Ints, _Rows]:
    """Return all pairs of first layer and end, and the distinct stages among them, each with two depths."""
    layers = train.model.layers
    starts, ends = _pairs(layers)
    some_starts, some_ends = starts, ends
    if _is_alike(train, gpu_type):
        kept = (starts == 0) | (ends == layers) | (starts == 1)
        some_starts, some_ends = starts[kept], ends[kept]
    first = np.where(some_starts == 0, 0, some_starts + 1)
    last = np.where(some_ends == layers, layers + 2, some_ends + 1)
    near = np.where(some_ends == layers, 1, 2)
    far = np.where(some_ends == layers, 1, 3)
    return (
        starts,
        ends,
        _Rows(
            first=np.concatenate((first, first)),
            last=np.concatenate((last, last)),
            left=np.concatenate((near, far)),
            is_behind=np.concatenate((some_starts > 0, some_starts > 0)).astype(np.int64),
        ),
    )


def _class_of(train: TrainSpec, gpu_type: GpuType, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the rows, near and far, that hold for every pair."""
    layers = train.model.layers
    key_start, key_end = starts, ends
    if _is_alike(train, gpu_type):
        is_middle = (starts > 0) & (ends < layers)
        key_start = np.where(is_middle, 1, starts)
        key_end = np.where(is_middle, ends - starts + 1, ends)
        kept = (starts == 0) | (ends == layers) | (starts == 1)
    else:
        kept = np.ones(len(starts), dtype=np.bool_)
    index = np.zeros((layers, layers + 1), dtype=np.int64)
    index[starts[kept], ends[kept]] = np.arange(int(kept.sum()))
    near = index[key_start, key_end]
    return near, near + int(kept.sum())


def _priced(
    train: TrainSpec,
    gpu_type: GpuType,
    node_counts: Sequence[int],
    rows: _Rows,
    *,
    tp: int,
    dp: int,
    settings: Sequence[tuple[Recompute, int]],
    is_alone: bool = False,
) -> Estimates:
    """Price pipelines of which only one stage holds layers, settings by stages, ``[settings * rows]``.

    Args:
        is_alone: Whether the plan is one rank; ranks among others keep communication buffers.
    """
    count = len(rows.first)
    chunk_first = np.zeros((count, 2, 1), dtype=np.int64)
    chunk_last = np.zeros((count, 2, 1), dtype=np.int64)
    at = np.arange(count)
    chunk_first[at, rows.is_behind, 0], chunk_last[at, rows.is_behind, 0] = rows.first, rows.last
    total = count * len(settings)
    modes = np.array([RECOMPUTE_MODES.index(mode) for mode, _ in settings], dtype=np.int64)
    sizes = np.array([size for _, size in settings], dtype=np.int64)
    column = np.ones((total, 1), dtype=np.int64)
    candidates = Candidates(
        dp=column * dp,
        tp=column * tp,
        gpu_count=np.broadcast_to(column * max(dp * tp, 1 if is_alone else 2), (total, 2)),
        micro_batch_count=column * _COUNT,
        pp=np.tile(rows.left + rows.is_behind, len(settings)),
        micro_batch_size=np.repeat(sizes, count),
        zero=np.zeros(total, dtype=np.int64),
        virtual_stage_count=np.ones(total, dtype=np.int64),
        is_gpipe=np.zeros(total, dtype=np.bool_),
        recompute=np.repeat(modes, count),
        is_sequence_parallel=np.zeros(total, dtype=np.bool_),
        expert_parallel=np.ones(total, dtype=np.int64),
        cut=np.tile(at, len(settings)),
        chunk_first=chunk_first,
        chunk_last=chunk_last,
    )
    return evaluate(train, gpu_type, GpuGroup.of(gpu_type.name, node_counts), candidates)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """One stage on one replica: seconds of a micro-batch without its sends, peak memory."""

    time_s: float
    memory_bytes: float


def stage_figures(
    train: TrainSpec,
    part: Offered,
    units: tuple[int, int],
    *,
    tp: int,
    stages_left: int,
    setting: tuple[Recompute, int],
    is_alone: bool,
) -> StageFigures:
    """Return time and memory of one stage.

    Args:
        units: First unit, and the one behind the last.
        stages_left: Stages from this one to the last.
        setting: Recomputation and micro-batch size.
        is_alone: Whether the plan is one rank.
    """
    rows = _one_row(units, stages_left)
    found = _priced(
        train, part.gpu_type, [part.gpus_per_node], rows, tp=tp, dp=1, settings=[setting], is_alone=is_alone
    )
    return StageFigures(
        time_s=sum(float(found.breakdown_s[name][0]) for name in _ON_STAGE) / _COUNT,
        memory_bytes=float(found.memory_bytes_by_stage[0, rows.is_behind[0]]),
    )


def after_stages_s(
    train: TrainSpec,
    gpu_type: GpuType,
    stages: Sequence[tuple[tuple[int, int], int]],
    *,
    node_counts: Sequence[int],
    tp: int,
    dp: int,
) -> Floats:
    """Return synchronisation and update of stages on replicas of one kind, ``[stages]``.

    Args:
        stages: First unit and the one behind the last of each, and how many stages there are from it to the last.
        node_counts: GPUs of a stage by node; a replica's are all on one.
    """
    rows = _Rows(
        first=np.array([units[0] for units, _ in stages], dtype=np.int64),
        last=np.array([units[1] for units, _ in stages], dtype=np.int64),
        left=np.array([left for _, left in stages], dtype=np.int64),
        is_behind=np.array([int(units[0] > 0) for units, _ in stages], dtype=np.int64),
    )
    found = _priced(train, gpu_type, node_counts, rows, tp=tp, dp=dp, settings=[(Recompute.NONE, 1)])
    seconds: Floats = found.breakdown_s["data_parallel"] + found.breakdown_s["update"]
    return seconds


def stage_gradient_bytes(train: TrainSpec, gpu_type: GpuType, units: tuple[int, int]) -> float:
    """Return the bytes of all gradients of a stage, once."""
    model = model_cost(train.model, operators_of(gpu_type))
    sums = model.cumulative(float(part.parameters.total) for part in model.parts)
    return float(sums[units[1]] - sums[units[0]]) * state_bytes(train).gradients


def _one_row(units: tuple[int, int], stages_left: int) -> _Rows:
    return _Rows(
        first=np.array([units[0]], dtype=np.int64),
        last=np.array([units[1]], dtype=np.int64),
        left=np.array([stages_left], dtype=np.int64),
        is_behind=np.array([int(units[0] > 0)], dtype=np.int64),
    )


def _after(train: TrainSpec, part: Offered, tp: int) -> Floats:
    """Return what follows first stages of 0, 1, ... layers, ``[levels, l + 1]``, at the least."""
    layers = train.model.layers
    ends = np.arange(1, layers + 1)
    rows = _Rows(
        first=np.zeros(layers, dtype=np.int64),
        last=np.where(ends == layers, layers + 2, ends + 1),
        left=np.where(ends == layers, 1, 2),
        is_behind=np.zeros(layers, dtype=np.int64),
    )
    found = np.zeros((len(NODE_LEVELS), layers + 1))
    for level, nodes in enumerate(NODE_LEVELS):
        options = [
            _priced(train, part.gpu_type, counts, rows, tp=tp, dp=dp, settings=[(Recompute.NONE, 1)])
            for counts, dp in _spreads(nodes, part, tp)
        ]
        found[level, 1:] = np.min(
            [one.breakdown_s["data_parallel"] + one.breakdown_s["update"] for one in options], axis=0
        )
    return found


def _spreads(nodes: int, part: Offered, tp: int) -> Iterator[tuple[list[int], int]]:
    """Yield the ways to spread a stage over nodes that can be the fastest: as many replicas on each as fit, or one."""
    fit = part.gpus_per_node // tp
    is_slow_inside = part.gpu_type.link_bandwidth_bytes_per_s < 2 * part.gpu_type.network_bandwidth_bytes_per_s
    if nodes == 0:
        yield [tp], 1
    elif nodes == 1:
        yield ([2 * tp], 2) if fit > 1 else ([tp, tp], 2)
    else:
        yield [fit * tp] * nodes, fit * nodes
        if fit > 1 and is_slow_inside:
            yield [tp] * nodes, nodes
