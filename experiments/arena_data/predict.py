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
from arena.planner.candidates import RECOMPUTE_MODES, Candidates, Floats, chunk_units
from arena.planner.cost import evaluate
from arena.planner.holdings import holdings
from arena.planner.memory import USABLE_SHARE, memory_by_stage
from arena.planner.model import ModelCost
from arena.units import GIB
from experiments.arena_data.clusters import Links, calibration, gpu_type_of, group_of, memory_limit_bytes
from experiments.arena_data.data import Cell, Degrees, Hardware, Workload, workload_of
from experiments.arena_data.models import Trained, trained

MICRO_BATCHES = 16
"""Of a step, whatever the plan (``optimize_all_configs.sh``)."""

MESH_NODES_MAX = 4
IMBALANCE_MAX = 0.25
"""Of Alpa's search (``AutoStageOption`` in the trainers, ``stage_construction.py`` of Alpa)."""

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

    def __str__(self) -> str:
        pp, dp, tp = self.degrees
        experts = f" ep{self.expert_parallel}" if self.expert_parallel > 1 else ""
        return f"dp{dp} tp{tp} pp{pp}{experts} layers {'+'.join(map(str, self.stage_layers))}"

    @property
    def is_plain(self) -> bool:
        """Whether stages have equal layers, and replicas all experts."""
        return max(self.stage_layers) - min(self.stage_layers) <= 1 and self.expert_parallel == 1


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
    is_searched: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the planner says of a cell.

    Args:
        plans: All uniform plans.
        is_refused: Alpa's compiler fails, whatever fits.
        limit_bytes: What tensors may fill of a GPU.
    """

    cell: Cell
    plans: tuple[PlanPrediction, ...]
    is_refused: bool
    limit_bytes: float

    @property
    def best(self) -> PlanPrediction | None:
        """The fastest plan that fits, among those that Alpa's search looks at."""
        return fastest(plan for plan in self.plans if plan.is_searched)

    @property
    def quickest(self) -> PlanPrediction | None:
        """The fastest plan that Alpa's search looks at, whether it fits or not."""
        return min((plan for plan in self.plans if plan.is_searched), key=lambda plan: plan.time_s, default=None)

    @property
    def is_feasible(self) -> bool:
        """Whether Alpa's run should succeed."""
        return self.best is not None and not self.is_refused


def fastest(plans: Iterable[PlanPrediction]) -> PlanPrediction | None:
    """Return the fastest plan that fits."""
    return min((plan for plan in plans if plan.fits), key=lambda plan: plan.time_s, default=None)


def chosen_by_estimates(prediction: Prediction) -> PlanPrediction | None:
    """Return our choice among the plans that were estimated, whose stages have equal layers.

    Where none fits, the plan that needs least.
    """
    plans = [
        plan
        for plan in prediction.plans
        if plan.layout.degrees in (prediction.cell.estimates_s or {}) and plan.layout.is_plain
    ]
    return fastest(plans) or min(plans, key=lambda plan: plan.memory_bytes, default=None)


def predict(cell: Cell, links: Mapping[str, Links]) -> Prediction:
    """Return what the planner says of a cell."""
    work, gpu_type = trained(cell.workload), gpu_type_of(cell.hardware, links)
    layouts = list(layouts_of(cell.workload, cell.hardware))
    refused = is_refused(cell.workload, cell.hardware)
    limit_bytes = USABLE_SHARE * memory_limit_bytes(gpu_type)
    if not layouts:
        return Prediction(cell=cell, plans=(), is_refused=refused, limit_bytes=limit_bytes)
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
    plans = (
        PlanPrediction(
            layout=layout,
            time_s=seconds,
            memory_bytes=needed,
            fits=needed <= limit_bytes,
            is_searched=is_searched(layout, work.model, cell.hardware),
        )
        for layout, seconds, needed in zip(
            layouts, estimates.iter_time_s.tolist(), tensor_bytes(candidates, gpu_type, work), strict=True
        )
    )
    return Prediction(cell=cell, plans=tuple(plans), is_refused=refused, limit_bytes=limit_bytes)


def layouts_of(workload: Workload, hardware: Hardware) -> Iterator[Layout]:
    """Yield the plans whose stages have equal meshes, by powers of two.

    Tensor parallelism stays inside a node; a micro-batch has at least a sample (and a group of experts' tokens) for
    each replica.
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
    work, weights = _work(model), model.by_unit([float(part.parameters.total) for part in model.parts])[1:-1]
    found = {tuple(even_split(layers, pp))}
    for share in _WEIGHT_SHARES:
        sums = np.cumsum((1.0 - share) * work / work.sum() + share * weights / weights.sum())
        cuts = [0, *(int(np.abs(sums - stage / pp).argmin()) + 1 for stage in range(1, pp)), layers]
        split = tuple(after - before for before, after in pairwise(cuts))
        if min(split) > 0:
            found.add(split)
    return sorted(found)


def _work(model: ModelCost) -> Floats:
    """Return the operations of each layer."""
    return model.by_unit([part.flops_per_sample for part in model.parts])[1:-1]


def is_searched(layout: Layout, model: ModelCost, hardware: Hardware) -> bool:
    """Tell whether Alpa's search looks at a plan.

    A stage lies on four nodes at most (``small_power_of_two``), and where there are several, each has its share of the
    work within a tolerance (``stage_imbalance_tolerance``).
    """
    pp, dp, tp = layout.degrees
    work = _work(model)
    ends = np.cumsum(layout.stage_layers)
    shares = np.array([part.sum() for part in np.split(work, ends[:-1])]) / work.sum() * pp
    is_even = pp == 1 or (shares.max() < 1.0 + IMBALANCE_MAX and shares.min() > 1.0 / (1.0 + IMBALANCE_MAX))
    return bool(is_even) and dp * tp <= MESH_NODES_MAX * hardware.gpus_per_node


def is_refused(workload: Workload, hardware: Hardware) -> bool:
    """Tell whether Alpa's compiler fails on one of the meshes that its search compiles, which ends the run.

    The search tries a mesh as so many replicas where they divide the samples of a micro-batch; a replica's samples must
    hold whole groups of experts' tokens as well, which is not looked at.
    """
    samples = workload.batch // MICRO_BATCHES
    group = trained(workload).samples_min
    meshes = [2**power for power in range(hardware.gpus_per_node.bit_length())]
    meshes += [nodes * hardware.gpus_per_node for nodes in (2, 4) if nodes <= hardware.node_count]
    return any(samples % mesh == 0 and samples // group % mesh for mesh in meshes)


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


def replica_errors(replicas_gib: Mapping[str, Sequence[float]], links: Mapping[str, Links]) -> list[float]:
    """Return the relative errors of the memory of plans with 1, 2, 4, 8 and 16 replicas alone (``dp_mem.json``)."""
    found: list[float] = []
    for name, row in replicas_gib.items():
        workload = workload_of(name)
        work = trained(workload)
        for power, measured_gib in enumerate(row):
            hardware = Hardware(gpu_type="v100", node_count=1, gpus_per_node=2**power)
            layout = Layout(degrees=(1, 2**power, 1), stage_layers=(work.train.model.layers,))
            if measured_gib > 0 and layout in set(layouts_of(workload, hardware)):
                candidates = candidates_of([layout], work.train)
                bytes_of_tensors = tensor_bytes(candidates, gpu_type_of(hardware, links), work)[0]
                found.append(bytes_of_tensors / (measured_gib * GIB) - 1.0)
    return found
