"""Cells over several GPU types for a job's grid: what ``best_column`` answers to prices and shares of a cluster.

Pure: no I/O, no clock.

A policy weighs columns that it can look up; a search takes too long for a decision. So a job's questions are asked
when its grid is made: for GPUs of each type in doubling numbers, what is fastest; for all there is, what is best at
prices of which one type after the other is the scarce one. What a part of the GPUs does about as well is left out.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import cast

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape, GpuType
from arena.domain.grid import MIXED_CELLS_MAX, Cell, Estimate, Grid, PlanEstimate
from arena.domain.job import GpuLimits, JobSpec
from arena.domain.parallel import ParallelPlan
from arena.errors import InfeasibleError
from arena.planner.hardware import catalog
from arena.planner.heterogeneous.asked import limits_of, may_mix, offers_of, space_of
from arena.planner.heterogeneous.groups import anywhere, group_of, is_held, plan_anywhere
from arena.planner.heterogeneous.offer import HeterogeneousResult, Offer, PartKey, Space, ZoneLinks
from arena.planner.heterogeneous.search import best_column

MIXED_VERSION = "mixed-1"
QUESTIONS_MAX = 24
"""Of one zone; each takes about a second at the most."""

_DEAR, _CHEAP = 0.75, 0.1
"""Prices of the scarce type and of the others, as shares of what a GPU of the type does alone at its best."""

GAIN_MIN = 1.1
"""How much faster a mixed group has to be than what a part of its GPUs does; estimates are hardly more exact."""

_UNLIKE_MAX = 2
"""Doublings between the GPUs of two types up to which they are asked for together."""

_PRICED_MIN = 8
"""With fewer GPUs of each type the shares leave little that prices could find."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedCells:
    """Finds them.

    Args:
        gpu_types: Hardware catalog.
        beyond_worker: Whether to offer what the worker does not run as well.
    """

    gpu_types: Mapping[str, GpuType] = field(default_factory=catalog)
    beyond_worker: bool = False

    def may_widen(self, spec: JobSpec, shape: ClusterShape) -> bool:
        """Tell quickly whether a job could have mixed cells on a cluster at all."""
        return (
            may_mix(spec)
            and spec.gpus.count_max != 1
            and spec.gpus.nodes_max != 1
            and any(len(offer) > 1 for offer in self._offers(spec, shape))
        )

    def widened(self, spec: JobSpec, shape: ClusterShape, grid: Grid) -> Grid:
        """Return a job's grid with its mixed cells; deterministic."""
        steps = self.steps(spec, shape, grid)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return cast("Grid", done.value)

    def steps(self, spec: JobSpec, shape: ClusterShape, grid: Grid) -> Generator[None, None, Grid]:
        """Do what ``widened`` does search by search, so that it can be given up in between."""
        if not self.may_widen(spec, shape):
            return grid
        found: dict[GpuGroup, Cell] = {}
        for offer in self._offers(spec, shape):
            for cell in self._answers(spec, offer, grid):
                if cell is not None and is_held(cell.group, shape):
                    loose = _loose(cell) if spec.gpus.same_zone else cell
                    known = found.get(loose.group)
                    if known is None or loose.steps_per_s > known.steps_per_s:
                        found[loose.group] = loose
                yield
        kept = [cell for cell in found.values() if not _is_beaten(cell, [*grid.cells, *found.values()])]
        kept.sort(key=lambda cell: (-cell.steps_per_s, cell.group))
        kept = sorted(kept[:MIXED_CELLS_MAX], key=lambda cell: (cell.group.gpu_count, -cell.steps_per_s, cell.group))
        return replace(grid, mixed=tuple(kept), source=f"{grid.source}, {MIXED_VERSION}")

    def _offers(self, spec: JobSpec, shape: ClusterShape) -> Iterator[Offer]:
        # Nobody tells the scheduler what lies between zones, so each is looked at by itself.
        gpus = GpuLimits(types=spec.gpus.types, same_zone=True)
        return (offer for offer in offers_of(shape, self.gpu_types, gpus, ZoneLinks()) if len(offer) > 1)

    def _answers(self, spec: JobSpec, offer: Offer, grid: Grid) -> Iterator[Cell | None]:
        """Yield the answer to each question, None where it is no plan over several types."""
        space = space_of(spec.parallel, beyond_worker=self.beyond_worker, proves=False)
        space = replace(space, one_node=False)  # nodes are of one type
        for part, prices in questions(offer, worth_by_type(grid), gpus_useful(spec, grid)):
            if sum(one.gpu_count for one in part.values()) < spec.gpus.count_min:
                continue
            found = _answer(spec, part, prices, space)
            if found is None or found.plan is None or found.estimate is None:
                yield None
            else:
                yield _cell(found.plan, found.estimate, part)


def worth_by_type(grid: Grid) -> dict[str, float]:
    """Return the steps per second that a GPU of each type does at its best in groups of that type alone."""
    found: dict[str, float] = {}
    for cell in grid.cells:
        if len(cell.group.parts) == 1:
            name = cell.group.parts[0].gpu_type
            found[name] = max(found.get(name, 0.0), cell.steps_per_s / cell.group.gpu_count)
    return found


def gpus_useful(spec: JobSpec, grid: Grid) -> int | None:
    """Return the GPUs beyond which a job gains nothing, None where nobody knows: twice as many as at its fastest."""
    fastest = max(grid.cells, key=lambda cell: cell.steps_per_s, default=None)
    most = None if fastest is None else 2 * fastest.group.gpu_count
    limits = [one for one in (spec.gpus.count_max, most) if one is not None]
    return min(limits, default=None)


def questions(
    offer: Offer, worth: Mapping[str, float], most: int | None = None
) -> list[tuple[Offer, Mapping[PartKey, float]]]:
    """Return what is asked: shares of an offer, each with prices of a GPU of its parts.

    Args:
        worth: Of a GPU of each type alone.
        most: GPUs beyond which nothing is gained.
    """
    is_priced = all(worth.get(key[0], 0.0) for key in offer)
    is_priced &= max(part.gpu_count for part in offer.values()) >= _PRICED_MIN
    dear = [
        (offer, {key: worth[key[0]] * (_DEAR if key == scarce else _CHEAP) for key in offer})
        for scarce in (sorted(offer) if is_priced else [])
    ]
    shares = [offer, *_pairs(offer, most)]
    free = [(share, dict.fromkeys(share, 0.0)) for share in shares[: QUESTIONS_MAX - len(dear)]]
    return [*free, *dear]


def _pairs(offer: Offer, most: int | None) -> list[Offer]:
    """Return shares of two parts: as many GPUs of each first, then unlike numbers; about a node of each first."""
    found: dict[tuple[int, int, tuple[tuple[PartKey, int], ...]], Offer] = {}
    for one, other in combinations(sorted(offer), 2):
        sizes = [
            [count for count in _doubling(offer[key].gpu_count) if count < (most or count + 1)] for key in (one, other)
        ]
        for mine, yours in product(*sizes):
            unlike = abs(mine.bit_length() - yours.bit_length())
            if unlike <= _UNLIKE_MAX and mine + yours <= (most or mine + yours):
                node = max(offer[one].gpus_per_node, offer[other].gpus_per_node)
                away = abs(max(mine, yours).bit_length() - node.bit_length())
                pair = {key: replace(offer[key], gpu_count=count) for key, count in ((one, mine), (other, yours))}
                found[unlike, away, ((one, mine), (other, yours))] = pair
    everything = {key: part.gpu_count for key, part in offer.items()}
    ordered = [found[key] for key in sorted(found)]
    return [pair for pair in ordered if {key: part.gpu_count for key, part in pair.items()} != everything]


def _doubling(most: int) -> list[int]:
    return [*(1 << power for power in range((most - 1).bit_length())), most]


def _answer(spec: JobSpec, offer: Offer, prices: Mapping[PartKey, float], space: Space) -> HeterogeneousResult | None:
    """Return the best column at some prices, None where the job's limits leave none."""
    assert spec.train is not None
    try:
        return best_column(
            spec.train,
            offer,
            prices,
            lambda iter_time_s: 1.0 / iter_time_s,
            constraints=limits_of(spec.gpus),
            space=space,
        )
    except InfeasibleError:
        return None


def _cell(plan: ParallelPlan, estimate: Estimate, offer: Offer) -> Cell | None:
    group = group_of(plan, offer)
    if len({part.gpu_type for part in group.parts}) == 1:
        return None
    return Cell(group=group, best=PlanEstimate(plan=plan, estimate=estimate))


def _loose(cell: Cell) -> Cell:
    """Return a cell that any zone will do for."""
    assert cell.best.plan is not None
    return Cell(group=anywhere(cell.group), best=replace(cell.best, plan=plan_anywhere(cell.best.plan)))


def _is_beaten(cell: Cell, others: list[Cell]) -> bool:
    """Tell whether another group is about as fast with fewer GPUs, or as fast with as many of each type."""
    mine = _by_type(cell)
    for other in others:
        theirs = _by_type(other)
        if other is cell or any(count > mine.get(name, 0) for name, count in theirs.items()):
            continue
        if theirs != mine and other.steps_per_s * GAIN_MIN >= cell.steps_per_s:
            return True
        if theirs == mine and (-other.steps_per_s, other.group) < (-cell.steps_per_s, cell.group):
            return True
    return False


def _by_type(cell: Cell) -> dict[str, int]:
    counts: dict[str, int] = {}
    for part in cell.group.parts:
        counts[part.gpu_type] = counts.get(part.gpu_type, 0) + part.gpu_count
    return counts
