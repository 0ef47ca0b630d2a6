"""What the planner says of the artifact's cells: of each uniform plan that its program could have run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from arena.domain.capability import tensor_parallel_dimensions
from arena.domain.cluster import GpuType
from arena.domain.job import ModelSpec, TrainSpec
from arena.domain.parallel import Recompute, even_split
from arena.planner.candidates import RECOMPUTE_MODES, Candidates, chunk_units
from arena.planner.cost import evaluate
from arena.planner.holdings import holdings
from arena.planner.memory import USABLE_SHARE, memory_by_stage
from experiments.arena_data.clusters import Links, calibration, gpu_type_of, group_of, memory_limit_bytes
from experiments.arena_data.data import Cell, Degrees, Hardware, Workload
from experiments.arena_data.models import Trained, trained

MICRO_BATCHES = 16
"""Of a step, whatever the plan (``optimize_all_configs.sh``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPrediction:
    """What the planner says of one plan.

    Args:
        memory_bytes: Of tensors, on the fullest GPU.
    """

    degrees: Degrees
    time_s: float
    memory_bytes: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the planner says of a cell."""

    cell: Cell
    plans: tuple[PlanPrediction, ...]

    @property
    def best(self) -> PlanPrediction | None:
        """The fastest plan that fits."""
        return min((plan for plan in self.plans if plan.fits), key=lambda plan: plan.time_s, default=None)


def predict(cell: Cell, links: Mapping[str, Links]) -> Prediction:
    """Return what the planner says of a cell."""
    work, gpu_type = trained(cell.workload), gpu_type_of(cell.hardware, links)
    degrees = list(degrees_of(cell.workload, cell.hardware))
    if not degrees:
        return Prediction(cell=cell, plans=())
    candidates = candidates_of(degrees, work.train)
    estimates = evaluate(
        work.train,
        gpu_type,
        group_of(cell.hardware, gpu_type),
        candidates,
        implementation=work.implementation,
        calibration=calibration(),
        model=work.model,
    )
    memory_bytes = tensor_bytes(candidates, gpu_type, work)
    limit_bytes = USABLE_SHARE * memory_limit_bytes(gpu_type)
    plans = (
        PlanPrediction(degrees=one, time_s=seconds, memory_bytes=needed, fits=needed <= limit_bytes)
        for one, seconds, needed in zip(degrees, estimates.iter_time_s.tolist(), memory_bytes, strict=True)
    )
    return Prediction(cell=cell, plans=tuple(plans))


def degrees_of(workload: Workload, hardware: Hardware) -> Iterator[Degrees]:
    """Yield the degrees that Alpa looks at, by powers of two: tensor parallelism stays inside a node.

    A micro-batch has at least a sample for each replica, and each stage a layer.
    """
    model = trained(workload).train.model
    powers = [2**power for power in range(hardware.gpu_count.bit_length())]
    for pp, tp in product(powers, powers):
        dp, rest = divmod(hardware.gpu_count, pp * tp)
        is_whole = dp and not rest and workload.batch % (MICRO_BATCHES * dp) == 0
        if is_whole and pp <= model.layers and tp <= hardware.gpus_per_node and _splits(tp, model):
            yield pp, dp, tp


def _splits(tp: int, model: ModelSpec) -> bool:
    return all(size % tp == 0 for size in tensor_parallel_dimensions(model).values())


def candidates_of(degrees: Sequence[Degrees], train: TrainSpec) -> Candidates:
    """Return the artifact's plans with some degrees.

    GPipe's schedule, every layer computed again, the optimizer divided over replicas and activations over
    tensor-parallel ranks (Alpa's ``prefer_reduce_scatter``).
    """
    pp, dp, tp = (np.array(column, dtype=np.int64) for column in zip(*degrees, strict=True))
    depths, cut = np.unique(pp, return_inverse=True)
    chunks = np.zeros((2, len(depths), int(pp.max()), 1), dtype=np.int64)
    for index, depth in enumerate(depths.tolist()):
        chunks[:, index, :depth] = chunk_units(tuple(even_split(train.model.layers, depth)), 1)
    return Candidates(
        dp=dp[:, None],
        tp=tp[:, None],
        gpu_count=(dp * tp)[:, None],
        micro_batch_count=np.full((len(pp), 1), MICRO_BATCHES, dtype=np.int64),
        pp=pp,
        micro_batch_size=train.global_batch // (MICRO_BATCHES * dp),
        zero=(dp > 1).astype(np.int64),
        virtual_stage_count=np.ones_like(pp),
        is_gpipe=np.ones(len(pp), dtype=np.bool_),
        recompute=np.full_like(pp, RECOMPUTE_MODES.index(Recompute.FULL)),
        is_sequence_parallel=tp > 1,
        expert_parallel=np.ones_like(pp),
        cut=cut.reshape(-1),
        chunk_first=chunks[0],
        chunk_last=chunks[1],
    )


def tensor_bytes(candidates: Candidates, gpu_type: GpuType, work: Trained) -> list[float]:
    """Return the bytes of tensors on the fullest GPU of each plan."""
    held = holdings(work.model, candidates)
    memory = memory_by_stage(work.model, work.train, gpu_type, candidates, held, implementation=work.implementation)
    tensors: list[float] = (memory.total - memory.context).max(axis=1).tolist()
    return tensors
