"""Plans over several GPU types and zones of a cluster file: the best one with its bound, and the user's own.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from arena.cli.plan_grid import Goal, Work, usable_bytes
from arena.domain.capability import refusals
from arena.domain.grid import Estimate
from arena.domain.job import JobSpec, TrainSpec
from arena.domain.parallel import ParallelPlan
from arena.errors import InfeasibleError
from arena.planner.clusterfile import Cluster
from arena.planner.heterogeneous.asked import limits_of, may_mix, offers_of, space_of
from arena.planner.heterogeneous.judge import Judge, check_mixed
from arena.planner.heterogeneous.offer import (
    Constraints,
    HeterogeneousResult,
    Objective,
    Offer,
    Offered,
    PartKey,
)
from arena.planner.heterogeneous.placed import PlacedKind
from arena.planner.heterogeneous.search import search


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedKind:
    """Replicas of a stage that are alike; bytes are of one GPU."""

    gpu_type: str
    zone: str
    tp: int
    replica_count: int
    memory_bytes: int
    usable_memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStage:
    """A stage of a mixed plan."""

    layer_count: int
    kinds: tuple[MixedKind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedGpus:
    """GPUs of one type in one zone."""

    gpu_type: str
    zone: str
    gpu_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlan:
    """A plan over several GPU types or zones.

    Args:
        gpus: What it takes of the cluster.
        refusals: Everything that keeps it from running.
        transfer_usd_per_step: Of ``estimate.usd_per_step``, what crosses zones.
        bound: No plan over these GPUs is better: seconds, or dollars a step; None for a plan of the user's own.
    """

    plan: ParallelPlan
    gpus: tuple[MixedGpus, ...]
    refusals: tuple[str, ...]
    estimate: Estimate
    stages: tuple[MixedStage, ...]
    units_per_s: float
    usd_per_million_units: float
    transfer_usd_per_step: float
    bound: float | None
    gap: float | None


def best_mixed(
    spec: JobSpec, train: TrainSpec, cluster: Cluster, goal: Goal, *, constraints: Constraints, beyond_worker: bool
) -> MixedPlan | None:
    """Return the best plan over GPUs of several types or zones.

    None where there is none that keeps the constraints, or one type in one zone does better by itself.

    Raises:
        SpecError: Zones between which a plan could be spread are not linked.
    """
    if not may_mix(spec):
        return None
    objective = Objective.COST if goal is Goal.COST else Objective.THROUGHPUT
    space = space_of(spec.parallel, beyond_worker=beyond_worker)
    constraints = limits_of(spec.gpus, constraints)
    best: tuple[HeterogeneousResult, Offer] | None = None
    for offer in offers_of(cluster.shape, cluster.gpu_types, spec.gpus, cluster.links):
        if len(offer) > 1:
            try:
                found = search(train, offer, cluster.links, objective=objective, constraints=constraints, space=space)
            except InfeasibleError:  # groups of one type may keep them; the caller says so if none does
                continue
            if found.plan is not None and (best is None or found.score < best[0].score):
                best = found, offer
    if best is None or best[0].plan is None:
        return None
    result, offer = best
    mixed = _priced(best[0].plan, train, cluster, offer, result=result)
    return mixed if len(mixed.gpus) > 1 else None


def explain_mixed(
    plan: ParallelPlan, spec: JobSpec, train: TrainSpec, cluster: Cluster, *, beyond_worker: bool
) -> MixedPlan:
    """Return what a plan does that names GPU types or zones.

    Raises:
        SpecError: It names GPUs that the cluster has not or zones that nothing links, or shards state.
    """
    check_mixed(plan)
    gpus = spec.gpus.model_copy(update={"same_zone": False})
    offers = offers_of(cluster.shape, cluster.gpu_types, gpus, cluster.links)
    offer = {key: part for one in offers for key, part in one.items()}
    told = tuple(refusals(train, plan, beyond_worker=beyond_worker))
    return _priced(plan, train, cluster, offer, told=told)


def _priced(
    plan: ParallelPlan,
    train: TrainSpec,
    cluster: Cluster,
    offer: Offer,
    *,
    told: tuple[str, ...] = (),
    result: HeterogeneousResult | None = None,
) -> MixedPlan:
    judge, work = Judge(train=train, offer=offer, links=cluster.links), Work.of(train)
    judgement = judge.judge(plan)
    if judgement.refusal is not None:
        told = (*told, str(judgement.refusal))
    return MixedPlan(
        plan=plan,
        gpus=tuple(
            MixedGpus(gpu_type=name, zone=zone, gpu_count=count) for (name, zone), count in judgement.gpu_counts.items()
        ),
        refusals=told,
        estimate=judgement.estimate,
        stages=tuple(_stages(plan, judge, offer)),
        units_per_s=work.units_per_s(judgement.estimate),
        usd_per_million_units=work.usd_per_million_units(judgement.estimate),
        transfer_usd_per_step=judgement.transfer_usd,
        bound=result.bound if result is not None else None,
        gap=result.gap if result is not None else None,
    )


def _stages(plan: ParallelPlan, judge: Judge, offer: Offer) -> Iterator[MixedStage]:
    for stage, placed, memory in zip(plan.stages, judge.placed(plan), judge.memory_by_kind(plan), strict=True):
        counts = Counter(placed.kinds)
        yield MixedStage(
            layer_count=stage.layer_count,
            kinds=tuple(_kind(kind, counts[kind], size, offer) for kind, size in memory.items()),
        )


def _kind(kind: PlacedKind, count: int, size: int, offer: Mapping[PartKey, Offered]) -> MixedKind:
    (name, zone), tp = kind
    return MixedKind(
        gpu_type=name,
        zone=zone,
        tp=tp,
        replica_count=count,
        memory_bytes=size,
        usable_memory_bytes=usable_bytes(offer[name, zone].gpu_type),
    )
