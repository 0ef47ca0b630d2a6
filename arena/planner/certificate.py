"""The fastest uniform plan of a group, with bounds below which no other plan is. Pure: no I/O, no clock.

All layouts of ``arena.planner.layout_space`` that fit are timed, so the fastest of them is certain. Other splits of the
layers over stages with one dp and tp have a bound: where layers are alike, every split has the same sum S of stage
times, and the slowest stage takes at least S / pp, so that with m micro-batches a step of 1F1B takes
S + (m - 1) S / pp or longer, and fits only if some stage of the even split does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import GpuType
from arena.domain.grid import PlanEstimate
from arena.domain.reason import Reason
from arena.planner.bulk import Memories, Priced, batches_of, priced
from arena.planner.candidates import Floats
from arena.planner.layout_space import LayoutSpace
from arena.planner.memory import USABLE_SHARE, operators_of
from arena.planner.model import model_cost
from arena.planner.network import Place
from arena.planner.search import Search

_PART_KINDS = 3
"""Distinct parts of a model whose layers are alike: beginning, layer, ending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """A plan, and how much faster another could be at most.

    Args:
        best: No layout of the space takes less: all were judged, and timed where they fit.
        any_split_bound_s: No split of the layers over equal stages takes less; None where nothing is known of splits,
            as layers differ.
        plan_count: Layouts that were judged.
    """

    best: PlanEstimate
    any_split_bound_s: float | None
    plan_count: int


def certified_best(search: Search, gpu_type: GpuType, group: GpuGroup) -> Certified | Reason:
    """Return the fastest plan of a group with its bound, or why there is none."""
    ((cell,), counts) = search.cells([(gpu_type, group)])
    if isinstance(cell, Reason):
        return cell
    best = min((cell.best, *cell.others), key=lambda one: one.estimate.iter_time_s)
    best_s = best.estimate.iter_time_s
    model = model_cost(search.train.model, operators_of(gpu_type))
    is_known = len(model.parts) == _PART_KINDS and search.limits.plan is None
    others_s = list(_bounds_s(_possible(search, Place(gpu_type=gpu_type, group=group)))) if is_known else []
    return Certified(
        best=best,
        any_split_bound_s=min([best_s, *others_s]) if is_known else None,
        plan_count=counts.judged,
    )


def _possible(search: Search, place: Place) -> Priced:
    """Time all layouts that some split of their layers may make fit."""
    table = LayoutSpace(train=search.train, limits=search.limits).table([place.group])
    memories = Memories.of(search.train, place, batches_of(table.layouts))
    roomy = replace(memories, peaks=_leanest_stages(memories))
    return priced(search.train, [(place, table.ranges[0])], roomy, [USABLE_SHARE * place.gpu_type.memory_bytes])


def _bounds_s(plans: Priced) -> Iterator[float]:
    """Yield for the layouts of each batch what no split is faster than; those that are interleaved have one split."""
    for step in plans.timings.values():
        candidates = step.candidates
        if candidates.gpu_count.shape[1] > 1:
            continue
        total_s = step.stage_s.sum(axis=1)
        bound_s = total_s + (candidates.micro_batch_count[:, 0] - 1) * total_s / candidates.pp
        yield float(np.where(candidates.virtual_stage_count > 1, np.inf, bound_s).min())


def _leanest_stages(memories: Memories) -> Floats:
    """Return the memory of the stage that needs least, by layout."""
    least = np.zeros(len(memories.peaks))
    for batch, by_stage in zip(memories.batches, memories.by_stage, strict=True):
        least[batch.rows] = np.where(batch.candidates.stage_mask, by_stage, np.inf).min(axis=1)
    return least
