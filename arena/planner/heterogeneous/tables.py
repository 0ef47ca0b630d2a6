"""Times and memory of every stage that a pipeline over mixed GPUs could have, as arrays. Pure: no I/O, no clock.

A kind is a GPU type, its zone and a tensor-parallel degree. Shapes: k kinds, l layers, g parts of the offer;
``[k, l, l + 1]`` arrays are indexed by kind, first layer, and the layer behind the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from arena.domain.capability import tensor_parallel_dimensions
from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.domain.parallel import Recompute
from arena.planner.candidates import Flags, Floats, Ints
from arena.planner.heterogeneous.offer import Offer, Offered, Space, ZoneLinks, alike
from arena.planner.heterogeneous.stages import Rows, Setting, boundary_s, on_stage_s, own_tier, priced, slower
from arena.planner.heterogeneous.sync import After, after_by_class
from arena.planner.memory import USABLE_SHARE, operators_of
from arena.planner.model import model_cost


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
        after: Least synchronisation and update of first and last stages.
        need: Micro-batches of a step.
        compute_s: ``time_s`` without sends.
        memory_bytes, memory_step_bytes: Of the last stage, or where one stage follows; and of each that follows then.
        detour_s: What a message takes beyond what is in ``time_s`` at the end that is on the first part, if the other
            end is on the second, by the layer behind the cut, ``[g, g, l + 1]``.
    """

    kinds: tuple[Kind, ...]
    micro_batch_size: int
    recompute: Recompute
    need: int
    time_s: Floats
    stages_left_max: Ints
    after: After
    compute_s: Floats
    memory_bytes: Floats
    memory_step_bytes: Floats
    detour_s: Floats

    @property
    def layer_count(self) -> int:
        """Layers of the model."""
        return int(self.time_s.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """Figures of a part's kinds, ``[settings, degrees, l, l + 1]``. Names as in ``StageTable``."""

    compute_s: Floats
    stages_left_max: Ints
    memory_bytes: Floats
    memory_step_bytes: Floats


def tables_of(train: TrainSpec, offer: Offer, links: ZoneLinks, space: Space) -> list[StageTable]:
    """Return a table for each micro-batch size and recomputation setting."""
    parts = sorted(offer)
    kinds = kinds_of(train, offer, space)
    if not kinds:
        return []
    modes = [Recompute.NONE, Recompute.FULL] if space.recompute else [Recompute.NONE]
    settings = [(mode, size) for mode in modes for size in _micro_batch_sizes(train, space)]
    filled: list[_Figures] = []
    for index, first in enumerate(alike(offer)):
        degrees = [kind.tp for kind in kinds if kind.part == index]
        is_new = first == index or degrees != [kind.tp for kind in kinds if kind.part == first]
        filled.append(_figures(train, offer[parts[index]], degrees, settings) if is_new else filled[first])
    after = after_by_class(train, offer, links, [(kind.part, kind.tp) for kind in kinds])
    figures = _Figures(
        compute_s=np.concatenate([one.compute_s for one in filled], axis=1),
        stages_left_max=np.concatenate([one.stages_left_max for one in filled], axis=1),
        memory_bytes=np.concatenate([one.memory_bytes for one in filled], axis=1),
        memory_step_bytes=np.concatenate([one.memory_step_bytes for one in filled], axis=1),
    )
    sends = {size: _sends(train, offer, links, size) for _, size in settings}
    tables: list[StageTable] = []
    for index, (mode, size) in enumerate(settings):
        own, detour = sends[size]
        sent = (own[:, :-1, None] + own[:, None, :])[[kind.part for kind in kinds]]
        fits = figures.stages_left_max[index] > 0
        tables.append(
            StageTable(
                kinds=kinds,
                micro_batch_size=size,
                recompute=mode,
                need=-(-train.global_batch // size),
                time_s=np.where(fits, figures.compute_s[index] + sent, np.inf),
                stages_left_max=figures.stages_left_max[index],
                after=after,
                compute_s=figures.compute_s[index],
                memory_bytes=figures.memory_bytes[index],
                memory_step_bytes=figures.memory_step_bytes[index],
                detour_s=detour,
            )
        )
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


def _sends(train: TrainSpec, offer: Offer, links: ZoneLinks, size: int) -> tuple[Floats, Floats]:
    """Return a message's time over each part's own network, ``[g, l + 1]``, and the detours to other parts."""
    keys = sorted(offer)
    is_one_node = sum(part.node_count for part in offer.values()) == 1
    tiers = [own_tier(offer[key].gpu_type, is_one_node=is_one_node) for key in keys]
    own = np.stack([boundary_s(train, offer[key].gpu_type, tier, size) for key, tier in zip(keys, tiers, strict=True)])
    detour = np.zeros((len(keys), len(keys), own.shape[1]))
    for at, key in enumerate(keys):
        for to, other in enumerate(keys):
            tier = slower(tiers[at], tiers[to])
            if key[1] != other[1]:
                tier = slower(tier, links.tier(key[1], other[1]))
            detour[at, to] = boundary_s(train, offer[key].gpu_type, tier, size) - own[at]
    return own, detour


def _figures(train: TrainSpec, part: Offered, degrees: Sequence[int], settings: Sequence[Setting]) -> _Figures:
    layers = train.model.layers
    starts, ends, rows = _stage_rows(train, part.gpu_type)
    priced_rows = rows.with_degrees([(tp, 1) for tp in degrees])
    found = priced(train, part.gpu_type, [part.gpus_per_node], priced_rows, settings)
    shape = (len(settings), len(degrees), len(rows))
    seconds = on_stage_s(found).reshape(shape)
    at = np.tile(priced_rows.is_behind, len(settings))
    memory = found.memory_bytes_by_stage[np.arange(len(at)), at].reshape(shape)
    near, far = _class_of(train, part.gpu_type, starts, ends)
    limit = USABLE_SHARE * part.gpu_type.memory_bytes
    left = _stages_left(memory[..., near], memory[..., far], limit, ends == layers)

    def placed(values: Floats | Ints, default: float) -> Floats:
        whole = np.full((*shape[:2], layers, layers + 1), default)
        whole[:, :, starts, ends] = values
        return whole

    return _Figures(
        compute_s=placed(seconds[..., near], np.inf),
        stages_left_max=placed(left, 0).astype(np.int64),
        memory_bytes=placed(memory[..., near], np.inf),
        memory_step_bytes=placed(memory[..., far] - memory[..., near], 0.0),
    )


def _stages_left(near: Floats, far: Floats, limit: float, is_last: Flags) -> Ints:
    """Memory grows by the same amount with every stage that follows: two of them tell the most that fit."""
    step = np.maximum(far - near, 1.0)
    most = np.floor((limit - near) / step).astype(np.int64) + 2
    return np.where(near > limit, 0, np.where(is_last, 1, most)).astype(np.int64)


def _is_alike(train: TrainSpec, gpu_type: GpuType) -> bool:
    return len(model_cost(train.model, operators_of(gpu_type)).parts) == 3


def _stage_rows(train: TrainSpec, gpu_type: GpuType) -> tuple[Ints, Ints, Rows]:
    """Return all pairs of first layer and end, and the distinct stages among them, each with two depths."""
    layers = train.model.layers
    starts, ends = (one.astype(np.int64) for one in np.triu_indices(layers))
    ends = ends + 1
    kept = _kept(train, gpu_type, starts, ends)
    some_starts, some_ends = starts[kept], ends[kept]
    first = np.where(some_starts == 0, 0, some_starts + 1)
    last = np.where(some_ends == layers, layers + 2, some_ends + 1)
    near, far = (np.where(some_ends == layers, 1, left) for left in (2, 3))
    units = list(zip(first.tolist(), last.tolist(), strict=True))
    return starts, ends, Rows.of(units * 2, [*near.tolist(), *far.tolist()], tp=1)


def _kept(train: TrainSpec, gpu_type: GpuType, starts: Ints, ends: Ints) -> Flags:
    """Return which stages stand for all: with layers that are alike, those at an end, and one of each length."""
    if not _is_alike(train, gpu_type):
        return np.ones(len(starts), dtype=np.bool_)
    found: Flags = (starts == 0) | (ends == train.model.layers) | (starts == 1)
    return found


def _class_of(train: TrainSpec, gpu_type: GpuType, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the rows, near and far, that hold for every pair."""
    layers = train.model.layers
    kept = _kept(train, gpu_type, starts, ends)
    key_start, key_end = starts, ends
    if _is_alike(train, gpu_type):
        is_middle = (starts > 0) & (ends < layers)
        key_start = np.where(is_middle, 1, starts)
        key_end = np.where(is_middle, ends - starts + 1, ends)
    index = np.zeros((layers, layers + 1), dtype=np.int64)
    index[starts[kept], ends[kept]] = np.arange(int(kept.sum()))
    near = index[key_start, key_end]
    return near, near + int(kept.sum())
