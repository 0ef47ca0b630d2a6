"""Stages of pipelines over mixed GPUs, priced by ``arena.planner.cost.evaluate``. Pure: no I/O, no clock.

A stage's figures are those of a pipeline in which it alone holds layers, so mixed plans cost what uniform ones do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.domain.parallel import Recompute
from arena.planner import terms
from arena.planner.calibration import CALIBRATION
from arena.planner.candidates import RECOMPUTE_MODES, Candidates, Floats, Ints
from arena.planner.communication import Tier, send_s, tiers_of
from arena.planner.compute import ELEMENT_BYTES
from arena.planner.cost import Estimates, evaluate
from arena.planner.heterogeneous.offer import Offered
from arena.planner.holdings import state_bytes
from arena.planner.implementation import WORKER
from arena.planner.memory import operators_of
from arena.planner.model import model_cost
from arena.planner.network import Network, Place

BATCHES = 4
"""Micro-batches of the pipelines that are priced: enough that no stage of them is short of micro-batches."""
_ON_STAGE = ("compute", "tensor_parallel", "expert_exchange", "shard_gather")

Setting = tuple[Recompute, int]
"""Recomputation and micro-batch size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Stages to price: units ``[first, last)``, stages left, whether layers stand before, dp and tp; ``[r]`` each."""

    first: Ints
    last: Ints
    left: Ints
    is_behind: Ints
    tp: Ints
    dp: Ints

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def of(cls, units: Sequence[tuple[int, int]], left: Sequence[int], *, tp: int, dp: int = 1) -> Rows:
        """Return stages by their units, and how many there are from each to the last."""
        first = np.array([one for one, _ in units], dtype=np.int64)
        return cls(
            first=first,
            last=np.array([one for _, one in units], dtype=np.int64),
            left=np.array(left, dtype=np.int64),
            is_behind=(first > 0).astype(np.int64),
            tp=np.full(len(first), tp, dtype=np.int64),
            dp=np.full(len(first), dp, dtype=np.int64),
        )

    def with_degrees(self, degrees: Sequence[tuple[int, int]]) -> Rows:
        """Return all stages under each (tp, dp), one after the other."""
        count = len(self)
        return Rows(
            first=np.tile(self.first, len(degrees)),
            last=np.tile(self.last, len(degrees)),
            left=np.tile(self.left, len(degrees)),
            is_behind=np.tile(self.is_behind, len(degrees)),
            tp=np.repeat(np.array([tp for tp, _ in degrees], dtype=np.int64), count),
            dp=np.repeat(np.array([dp for _, dp in degrees], dtype=np.int64), count),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """One stage on one replica: seconds of a micro-batch without its sends, peak memory."""

    time_s: float
    memory_bytes: float


def priced(
    train: TrainSpec,
    gpu_type: GpuType,
    node_counts: Sequence[int],
    rows: Rows,
    settings: Sequence[Setting],
    *,
    is_alone: bool = False,
) -> Estimates:
    """Price pipelines of which only one stage holds layers, settings by stages, ``[settings * rows]``.

    Args:
        node_counts: GPUs of each node; a stage behind others begins on the second one.
        is_alone: Whether the plan is one rank; ranks among others keep communication buffers.
    """
    candidates = _pipelines(node_counts, rows, settings, is_alone=is_alone)
    return evaluate(train, gpu_type, GpuGroup.of(gpu_type.name, node_counts), candidates)


def _pipelines(node_counts: Sequence[int], rows: Rows, settings: Sequence[Setting], *, is_alone: bool) -> Candidates:
    count, total = len(rows), len(rows) * len(settings)
    chunk_first = np.zeros((count, 2, 1), dtype=np.int64)
    chunk_last = np.zeros((count, 2, 1), dtype=np.int64)
    at = np.arange(count)
    chunk_first[at, rows.is_behind, 0], chunk_last[at, rows.is_behind, 0] = rows.first, rows.last
    modes = np.array([RECOMPUTE_MODES.index(mode) for mode, _ in settings], dtype=np.int64)
    sizes = np.array([size for _, size in settings], dtype=np.int64)
    tp, dp = (np.tile(one, len(settings))[:, None] for one in (rows.tp, rows.dp))
    gpu_count = np.repeat(np.maximum(dp * tp, 1 if is_alone else 2), 2, axis=1)
    gpu_count[np.tile(rows.is_behind, len(settings)) > 0, 0] = max(node_counts)
    return Candidates(
        dp=dp,
        tp=tp,
        gpu_count=gpu_count,
        micro_batch_count=np.full((total, 1), BATCHES, dtype=np.int64),
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


def on_stage_s(estimates: Estimates) -> Floats:
    """Return the seconds of a micro-batch on the stage that holds layers, sends left out."""
    seconds: Floats = sum((estimates.breakdown_s[name] for name in _ON_STAGE), np.zeros_like(estimates.iter_time_s))
    return seconds / BATCHES


def after_s(train: TrainSpec, gpu_type: GpuType, node_counts: Sequence[int], rows: Rows) -> Floats:
    """Return the seconds of synchronisation and update of stages, ``[rows]``.

    Args:
        node_counts: GPUs of each node; a stage behind others begins on the second one.
    """
    setting = terms.Setting(
        model=model_cost(train.model, operators_of(gpu_type)),
        train=train,
        network=Network.of((Place(gpu_type=gpu_type, group=GpuGroup.of(gpu_type.name, node_counts)),)),
        implementation=WORKER,
        calibration=CALIBRATION,
        part_times={},
    )
    pipelines = _pipelines(node_counts, rows, [(Recompute.NONE, 1)], is_alone=False)
    # No layers are before the stage, so nothing of it runs beside their last pass.
    found: Floats = terms.after_last_s(setting, pipelines).max(axis=1)
    return found


def stage_figures(
    train: TrainSpec,
    part: Offered,
    units: tuple[int, int],
    *,
    tp: int,
    stages_left: int,
    setting: Setting,
    is_alone: bool,
) -> StageFigures:
    """Return time and memory of one stage.

    Args:
        units: First unit, and the one behind the last.
        stages_left: Stages from this one to the last.
        is_alone: Whether the plan is one rank.
    """
    rows = Rows.of([units], [stages_left], tp=tp)
    found = priced(train, part.gpu_type, [part.gpus_per_node], rows, [setting], is_alone=is_alone)
    return StageFigures(
        time_s=float(on_stage_s(found)[0]),
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
    found = np.zeros(len(stages))
    for is_behind in (False, True):
        own = [index for index, (units, _) in enumerate(stages) if (units[0] > 0) == is_behind]
        if own:
            rows = Rows.of([stages[at][0] for at in own], [stages[at][1] for at in own], tp=tp, dp=dp)
            nodes = [max(node_counts), *node_counts] if is_behind else node_counts
            found[own] = after_s(train, gpu_type, nodes, rows)
    return found


def own_tier(gpu_type: GpuType, *, is_one_node: bool) -> Tier:
    """Return the link over which a GPU sends to a neighbour stage of its own kind, by what it reaches."""
    inside, across = tiers_of(gpu_type)
    return inside if is_one_node else across


def slower(one: Tier, other: Tier) -> Tier:
    """Return the link that two in a row make."""
    return Tier(
        bandwidth_bytes_per_s=min(one.bandwidth_bytes_per_s, other.bandwidth_bytes_per_s),
        latency_s=max(one.latency_s, other.latency_s),
    )


def boundary_s(train: TrainSpec, gpu_type: GpuType, tier: Tier, micro_batch_size: int) -> Floats:
    """Return the time of a micro-batch's message between two stages cut in front of each layer, ``[l + 1]``.

    Zero at the model's ends.
    """
    sizes = boundary_bytes(train, gpu_type, micro_batch_size)
    found: Floats = CALIBRATION.send_times * send_s(tier, sizes)
    found[[0, -1]] = 0.0
    return found


def boundary_bytes(train: TrainSpec, gpu_type: GpuType, micro_batch_size: int) -> Floats:
    """Return the bytes of a micro-batch's activations in front of each layer and behind the last, ``[l + 1]``."""
    model = model_cost(train.model, operators_of(gpu_type))
    sizes: Floats = model.messages.crossing[1:-1] * (micro_batch_size * ELEMENT_BYTES[train.precision])
    return sizes


def stage_gradient_bytes(train: TrainSpec, gpu_type: GpuType, units: tuple[int, int]) -> float:
    """Return the bytes of all gradients of a stage, once."""
    model = model_cost(train.model, operators_of(gpu_type))
    sums = model.cumulative(float(part.parameters.total) for part in model.parts)
    return float(sums[units[1]] - sums[units[0]]) * state_bytes(train).gradients
