"""What the planner says of the artifact's cells: of each uniform plan that its program could have run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from arena.domain.capability import tensor_parallel_dimensions
from arena.domain.cluster import GpuType
from arena.domain.job import ModelSpec, TrainSpec
from arena.domain.parallel import Recompute, even_split
from arena.planner.candidates import RECOMPUTE_MODES, Candidates, chunk_units
from arena.planner.cost import evaluate
from arena.planner.holdings import holdings
from arena.planner.memory import USABLE_SHARE, memory_by_stage
from arena.planner.model import ModelCost
from experiments.arena_data.clusters import Links, calibration, gpu_type_of, group_of, memory_limit_bytes
from experiments.arena_data.data import Cell, Degrees, Hardware, Workload
from experiments.arena_data.models import Trained, trained

MICRO_BATCHES = 16
"""Of a step, whatever the plan (``optimize_all_configs.sh``)."""

_WEIGHT_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One plan of the artifact's program.

    Args:
        stage_layers: Layers of each stage.
        expert_parallel: Replicas that share out the experts.
    """

    degrees: Degrees
    stage_layers: tuple[int, ...]
    expert_parallel: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPrediction:
    """What the planner says of one plan.

    Args:
        memory_bytes: Of tensors, on the fullest GPU.
    """

    layout: Layout
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
        return fastest(self.plans)


def fastest(plans: Iterable[PlanPrediction]) -> PlanPrediction | None:
    """Return the fastest plan that fits."""
    return min((plan for plan in plans if plan.fits), key=lambda plan: plan.time_s, default=None)


def predict(cell: Cell, links: Mapping[str, Links]) -> Prediction:
    """Return what the planner says of a cell."""
    work, gpu_type = trained(cell.workload), gpu_type_of(cell.hardware, links)
    layouts = list(layouts_of(cell.workload, cell.hardware))
    if not layouts:
        return Prediction(cell=cell, plans=())
    candidates = candidates_of(layouts, work.train)
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
        PlanPrediction(layout=one, time_s=seconds, memory_bytes=needed, fits=needed <= limit_bytes)
        for one, seconds, needed in zip(layouts, estimates.iter_time_s.tolist(), memory_bytes, strict=True)
    )
    return Prediction(cell=cell, plans=tuple(plans))


def layouts_of(workload: Workload, hardware: Hardware) -> Iterator[Layout]:
    """Yield the plans that Alpa's search looks at, stages of equal meshes: degrees are powers of two.

    Tensor parallelism stays inside a node; a micro-batch has at least a sample (and a group of experts' tokens) for
    each replica; stages have equal layers, operations or something between operations and weights.
    """
    work = trained(workload)
    model = work.train.model
    powers = [2**power for power in range(hardware.gpu_count.bit_length())]
    for pp, tp in product(powers, powers):
        dp, rest = divmod(hardware.gpu_count, pp * tp)
        is_whole = dp and not rest and workload.batch % (MICRO_BATCHES * dp * work.samples_min) == 0
        if is_whole and pp <= model.layers and tp <= hardware.gpus_per_node and _splits(tp, model):
            shares = (1, dp) if work.expert_count and dp > 1 and work.expert_count % dp == 0 else (1,)
            for layers, ep in product(splits_of(work.model, pp), shares):
                yield Layout(degrees=(pp, dp, tp), stage_layers=layers, expert_parallel=ep)


def _splits(tp: int, model: ModelSpec) -> bool:
    return all(size % tp == 0 for size in tensor_parallel_dimensions(model).values())


def splits_of(model: ModelCost, pp: int) -> list[tuple[int, ...]]:
    """Return ways to split layers over stages: as many each, as much work each, and between work and weights."""
    layers = model.unit_count - 2
    work, weights = (
        model.by_unit(values)[1:-1]
        for values in (
            [part.flops_per_sample for part in model.parts],
            [float(part.parameters.total) for part in model.parts],
        )
    )
    found = {tuple(even_split(layers, pp))}
    for share in _WEIGHT_SHARES:
        sums = np.cumsum((1.0 - share) * work / work.sum() + share * weights / weights.sum())
        cuts = [0, *(int(np.abs(sums - stage / pp).argmin()) + 1 for stage in range(1, pp)), layers]
        split = tuple(after - before for before, after in pairwise(cuts))
        if min(split) > 0:
            found.add(split)
    return sorted(found)


def candidates_of(layouts: Sequence[Layout], train: TrainSpec) -> Candidates:
    """Return plans as arrays.

    GPipe's schedule, every layer computed again, and the optimizer divided over replicas (Alpa's
    ``prefer_reduce_scatter``).
    """
    pp, dp, tp = (np.array(column, dtype=np.int64) for column in zip(*(one.degrees for one in layouts), strict=True))
    chunks = np.zeros((2, len(layouts), int(pp.max()), 1), dtype=np.int64)
    for index, one in enumerate(layouts):
        chunks[:, index, : one.degrees[0]] = chunk_units(one.stage_layers, 1)
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
        is_sequence_parallel=np.zeros(len(pp), dtype=np.bool_),
        expert_parallel=np.array([one.expert_parallel for one in layouts], dtype=np.int64),
        cut=np.arange(len(pp), dtype=np.int64),
        chunk_first=chunks[0],
        chunk_last=chunks[1],
    )


def tensor_bytes(candidates: Candidates, gpu_type: GpuType, work: Trained) -> list[float]:
    """Return the bytes of tensors on the fullest GPU of each plan."""
    held = holdings(work.model, candidates)
    memory = memory_by_stage(work.model, work.train, gpu_type, candidates, held, implementation=work.implementation)
    tensors: list[float] = (memory.total - memory.context).max(axis=1).tolist()
    return tensors
