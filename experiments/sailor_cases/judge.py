"""Our search over Sailor's profiles, with its simulator as the judge."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from arena.domain.grid import Estimate
from arena.domain.job import ModelFamily, ModelSpec, TrainSpec
from arena.domain.parallel import ParallelPlan, Recompute
from arena.domain.reason import Reason, ReasonCode, reason
from arena.planner.hardware import catalog
from arena.planner.heterogeneous.judge import Judgement
from arena.planner.heterogeneous.offer import Offer, Offered, PartKey
from arena.planner.heterogeneous.sync import NODE_LEVELS, After
from arena.planner.heterogeneous.tables import Kind, StageTable
from arena.units import GIB
from experiments.sailor_cases.simulator import MEMORY_BYTES, USD_PER_S, SailorKind, Simulator

GPUS_PER_NODE = 4
DEGREES = (1, 2, 4)
SIZES = (1, 2, 4, 8)
_REPLICAS_BY_LEVEL = tuple(nodes + 1 if nodes < 2 else (nodes - 1) * GPUS_PER_NODE + 1 for nodes in NODE_LEVELS)
"""Replicas of a stage that spans at least so many nodes."""


def offer_of(cluster: dict[str, int]) -> Offer:
    """Return the offer of a case: ``{"A100-40_us-central1-a": 32}``."""
    offer: dict[PartKey, Offered] = {}
    base = catalog()["a100-40"]
    for text, count in cluster.items():
        name, zone = text.split("_", 1)
        gpu_type = replace(base, name=name, memory_bytes=MEMORY_BYTES[name], usd_per_hour=USD_PER_S[name] * 3600)
        offer[name, zone] = Offered(gpu_type=gpu_type, gpu_count=count, gpus_per_node=GPUS_PER_NODE)
    return offer


def train_of(simulator: Simulator) -> TrainSpec:
    """Return a workload with the layers and the batch of the case; nothing else of it is looked at."""
    model = ModelSpec(family=ModelFamily.GPT, layers=simulator.layer_count, hidden=64, heads=4)
    return TrainSpec(model=model, global_batch=simulator.batch)


@dataclass(frozen=True, kw_only=True)
class SailorJudge:
    """The simulator as a judge of our plans."""

    simulator: Simulator
    train: TrainSpec
    offer: Offer

    def fresh(self) -> SailorJudge:
        """Return itself: it learns nothing."""
        return self

    def learn(self, plan: ParallelPlan, table: StageTable) -> None:
        """Learn nothing."""

    def judge(self, plan: ParallelPlan) -> Judgement:
        """Return a plan's figures by the simulator's formulas."""
        stages, cuts = stages_of(plan)
        size = plan.micro_batch_size
        iter_time_s = self.simulator.step_s(stages, cuts, size)
        usd_per_s, transfer_usd = self.simulator.usd(stages, cuts, size)
        counts: dict[PartKey, int] = {}
        for stage in stages:
            for name, tp, zone in stage:
                counts[name, zone] = counts.get((name, zone), 0) + tp
        return Judgement(
            estimate=Estimate(iter_time_s=iter_time_s, usd_per_step=iter_time_s * usd_per_s + transfer_usd),
            gpu_counts=counts,
            transfer_usd=transfer_usd,
            refusal=self._refusal(stages, cuts, size),
        )

    def _refusal(self, stages: list[list[SailorKind]], cuts: list[int], size: int) -> Reason | None:
        for at, stage in enumerate(stages):
            for kind in sorted(set(stage)):
                layers = range(cuts[at], cuts[at + 1])
                needed = self.simulator.memory_bytes(kind, size, layers, len(stages) - at)
                limit = MEMORY_BYTES[kind[0]]
                if needed > limit:
                    return reason(ReasonCode.MEMORY, needed_gib=needed / GIB, stage=at, capacity_gib=limit / GIB)
        return None


def stages_of(plan: ParallelPlan) -> tuple[list[list[SailorKind]], list[int]]:
    """Return a plan in Sailor's terms: the kinds of each stage's replicas, and where the layers are cut."""
    cuts = [0]
    for stage in plan.stages:
        cuts.append(cuts[-1] + stage.layer_count)
    return [[(str(one.gpu_type), one.tp, str(one.zone)) for one in stage.replicas] for stage in plan.stages], cuts


def tables_of_case(simulator: Simulator, offer: Offer) -> list[StageTable]:
    """Return a table for each micro-batch size that was profiled."""
    parts = sorted(offer)
    kinds = [(parts[part][0], tp, parts[part][1]) for part, tp in product(range(len(parts)), DEGREES)]
    return [_table(simulator, parts, kinds, size) for size in SIZES]


def _table(simulator: Simulator, parts: list[PartKey], kinds: list[SailorKind], size: int) -> StageTable:
    layers = simulator.layer_count
    shape = (len(kinds), layers, layers + 1)
    times, left, memory = np.full(shape, np.inf), np.zeros(shape, dtype=np.int64), np.full(shape, np.inf)
    after = np.zeros((len(NODE_LEVELS), len(kinds), layers + 1))
    for index, kind in enumerate(kinds):
        each = [simulator.compute_s(kind, size, [layer]) for layer in range(layers)]
        if not all(map(math.isfinite, each)):
            continue
        sums = np.concatenate(([0.0], np.cumsum(each)))
        one, two = (_memory(simulator, kind, size, count) for count in (1, 2))
        send_s = min(min(simulator.send_s(kind, other, size), simulator.send_s(other, kind, size)) for other in kinds)
        starts, ends = np.triu_indices(layers)
        ends = ends + 1
        sent = np.where(starts > 0, 2 * send_s, np.where(ends < layers, send_s, 0.0))
        times[index, starts, ends] = sums[ends] - sums[starts] + sent
        first = one[ends] - one[starts] + simulator.memory_bytes(kind, size, [], 1)
        step = (two[ends] - two[starts]) - (one[ends] - one[starts])
        most = np.floor((MEMORY_BYTES[kind[0]] - first) / step).astype(np.int64) + 1
        left[index, starts, ends] = np.maximum(most, 0)
        memory[index, starts, ends] = first
        for level, replicas in enumerate(_REPLICAS_BY_LEVEL):
            for end in range(1, layers + 1):
                ring_s = simulator.ring_s([kind], replicas, range(end)) if replicas > 1 else 0.0
                after[level, index, end] = ring_s + simulator.update_s(kind, size)
    return StageTable(
        kinds=tuple(Kind(part=parts.index((kind[0], kind[2])), tp=kind[1]) for kind in kinds),
        micro_batch_size=size,
        recompute=Recompute.NONE,
        need=-(-simulator.batch // size),
        time_s=np.where(left > 0, times, np.inf),
        stages_left_max=left,
        after=After(first=after[None], last=np.zeros((1, *after[..., :-1].shape))),
        compute_s=times,
        memory_bytes=memory,
        memory_step_bytes=np.zeros(shape),
        detour_s=np.zeros((len(parts), len(parts), layers + 1)),
    )


def _memory(simulator: Simulator, kind: SailorKind, size: int, left: int) -> np.ndarray:
    empty = simulator.memory_bytes(kind, size, [], left)
    each = [simulator.memory_bytes(kind, size, [layer], left) - empty for layer in range(simulator.layer_count)]
    return np.concatenate(([0.0], np.cumsum(each)))
