"""Plans over several GPU types and zones of a cluster file: the best one with its bound, and the user's own.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd

from arena.cli.plan_grid import Goal, Work, usable_bytes
from arena.domain.capability import refusals
from arena.domain.grid import Estimate
from arena.domain.job import JobSpec, TrainSpec
from arena.domain.parallel import ParallelPlan
from arena.errors import InfeasibleError
from arena.planner.clusterfile import Cluster
from arena.planner.heterogeneous.judge import Judge, check_mixed
from arena.planner.heterogeneous.offer import (
    Constraints,
    HeterogeneousResult,
    Objective,
    Offer,
    Offered,
    PartKey,
    Space,
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
    """Return the best plan over GPUs of several types or zones, None where there is none that keeps the constraints.

    Raises:
        SpecError: Zones between which a plan could be spread are not linked.
    """
    if not _may_mix(spec):
        return None
    objective = Objective.COST if goal is Goal.COST else Objective.THROUGHPUT
    limits = spec.parallel
    space = Space(
        pp_max=min(limits.pp_max or Space().pp_max, Space().pp_max),
        tp_max=min(limits.tp_max or Space().tp_max, Space().tp_max),
        micro_batch_max=min(limits.micro_batch_max or Space().micro_batch_max, Space().micro_batch_max),
        allow_unsupported=beyond_worker,
    )
    best: tuple[HeterogeneousResult, Offer] | None = None
    for offer in offers_of(cluster, spec):
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
    return _priced(best[0].plan, train, cluster, offer, result=result)


def _may_mix(spec: JobSpec) -> bool:
    """Return whether nothing in the job speaks against any mixed plan; those are neither small nor sharded."""
    limits, gpus = spec.parallel, spec.gpus
    is_free = gpus.count is None and gpus.max is None and gpus.nodes_max is None and limits.dp_max is None
    return (
        is_free
        and limits.plan is None
        and (not limits.zero or 0 in limits.zero)
        and (not limits.schedules or "1f1b" in limits.schedules)
    )


def offers_of(cluster: Cluster, spec: JobSpec) -> Iterator[Offer]:
    """Yield what a plan can be spread over: the GPUs of each zone, or of all zones that links join."""
    parts: dict[PartKey, list[tuple[int, int]]] = {}
    for pool in cluster.shape.pools:
        if not spec.gpus.types or pool.gpu_type in spec.gpus.types:
            parts.setdefault((pool.gpu_type, pool.zone), []).append((pool.gpus_per_node, pool.node_count))
    offer = {
        key: Offered(
            gpu_type=cluster.gpu_types[key[0]],
            gpu_count=sum(size * count for size, count in pools),
            gpus_per_node=gcd(*(size for size, _ in pools)),
        )
        for key, pools in sorted(parts.items())
    }
    for zones in _joined(sorted({zone for _, zone in offer}), cluster, same_zone=spec.gpus.same_zone):
        yield {key: part for key, part in offer.items() if key[1] in zones}


def _joined(zones: list[str], cluster: Cluster, *, same_zone: bool) -> list[set[str]]:
    groups: list[set[str]] = [{zone} for zone in zones]
    for pair in [] if same_zone else sorted(cluster.links.tiers):
        mine = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if group not in mine] + [set().union(*mine)]
    return groups


def explain_mixed(
    plan: ParallelPlan, spec: JobSpec, train: TrainSpec, cluster: Cluster, *, beyond_worker: bool
) -> MixedPlan:
    """Return what a plan does that names GPU types or zones.

    Raises:
        SpecError: It names GPUs that the cluster has not or zones that nothing links, or shards state.
    """
    check_mixed(plan)
    spec = spec.model_copy(update={"gpus": spec.gpus.model_copy(update={"same_zone": False})})
    offer = {key: part for one in offers_of(cluster, spec) for key, part in one.items()}
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
