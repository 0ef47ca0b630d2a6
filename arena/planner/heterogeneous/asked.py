"""What a job lets a heterogeneous search do, and what of a cluster it may be offered. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd

from arena.domain.cluster import ClusterShape, GpuType
from arena.domain.job import GpuLimits, JobSpec, ParallelLimits
from arena.planner.heterogeneous.offer import Constraints, Offer, Offered, PartKey, Space, ZoneLinks


def may_mix(spec: JobSpec) -> bool:
    """Return whether nothing in a job speaks against any mixed plan; those are not sharded and run 1F1B."""
    limits = spec.parallel
    return (
        spec.train is not None
        and limits.plan is None
        and limits.dp_max is None
        and (not limits.zero or 0 in limits.zero)
        and (not limits.schedules or "1f1b" in limits.schedules)
    )


def limits_of(gpus: GpuLimits, limits: Constraints | None = None) -> Constraints:
    """Return constraints with what a job says of its GPUs and nodes."""
    return replace(
        limits or Constraints(),
        gpu_count_min=gpus.count_min if gpus.count_min > 1 else None,
        gpu_count_max=gpus.count_max,
        node_count_max=gpus.nodes_max,
    )


def space_of(limits: ParallelLimits, *, beyond_worker: bool, proves: bool = True) -> Space:
    """Return the plans that a job's bounds leave."""
    usual = Space()
    return Space(
        pp_max=min(limits.pp_max or usual.pp_max, usual.pp_max),
        tp_max=min(limits.tp_max or usual.tp_max, usual.tp_max),
        micro_batch_max=min(limits.micro_batch_max or usual.micro_batch_max, usual.micro_batch_max),
        allow_unsupported=beyond_worker,
        proves=proves,
    )


def offers_of(
    shape: ClusterShape, gpu_types: Mapping[str, GpuType], gpus: GpuLimits, links: ZoneLinks
) -> Iterator[Offer]:
    """Yield what a plan can be spread over: the GPUs of each zone, or of all zones that links join.

    Types that are not in ``gpu_types`` are left out.
    """
    parts: dict[PartKey, list[tuple[int, int]]] = {}
    for pool in shape.pools:
        is_wanted = not gpus.types or pool.gpu_type in gpus.types
        if is_wanted and pool.gpu_type in gpu_types and pool.node_count and pool.gpus_per_node:
            parts.setdefault((pool.gpu_type, pool.zone), []).append((pool.gpus_per_node, pool.node_count))
    offer = {
        key: Offered(
            gpu_type=gpu_types[key[0]],
            gpu_count=sum(size * count for size, count in pools),
            gpus_per_node=gcd(*(size for size, _ in pools)),
        )
        for key, pools in sorted(parts.items())
    }
    for zones in _joined(sorted({zone for _, zone in offer}), links, same_zone=gpus.same_zone):
        yield {key: part for key, part in offer.items() if key[1] in zones}


def _joined(zones: list[str], links: ZoneLinks, *, same_zone: bool) -> list[set[str]]:
    groups: list[set[str]] = [{zone} for zone in zones]
    for pair in [] if same_zone else sorted(links.tiers):
        mine = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if group not in mine] + [set().union(*mine)]
    return groups
