"""How many replicas of which kind each stage of a given pipeline gets. Pure: no I/O, no clock.

A stage has to do ``need`` micro-batches within X seconds; a replica of kind k does ``slots[k]`` of them. Stages are
covered with the cheapest kinds at given prices while parts last; X is the least for which that works out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from arena.domain.parallel import Recompute
from arena.planner.candidates import Floats, Ints
from arena.planner.heterogeneous_tables import Kind, StageTable

_EPSILON = 1e-9
_STAGES_FOR_ALL_ORDERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A plan before it is worth being one.

    Args:
        cuts: First layer of each stage, then the number of layers.
        replicas: Of each stage and kind, ``[p, k]``.
        slots: Micro-batches that each replica may take at most, ``[p, k]``.
        time_s: Of a micro-batch, ``[p, k]``.
        busy_s: X.
    """

    kinds: tuple[Kind, ...]
    micro_batch_size: int
    recompute: Recompute
    cuts: tuple[int, ...]
    replicas: Ints
    slots: Ints
    time_s: Floats
    busy_s: float

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from others."""
        return (
            self.micro_batch_size,
            self.recompute,
            self.cuts,
            self.replicas.tobytes(),
            np.where(self.replicas > 0, self.slots, 0).tobytes(),
        )

    def gpu_counts(self, part_count: int) -> Ints:
        """Return the GPUs of each part."""
        tp = np.array([kind.tp for kind in self.kinds], dtype=np.int64)
        part = np.array([kind.part for kind in self.kinds], dtype=np.int64)
        return np.bincount(part, weights=self.replicas.sum(axis=0) * tp, minlength=part_count).astype(np.int64)

    @property
    def stage_s(self) -> Floats:
        """Time of a micro-batch on the slowest replica of each stage, ``[p]``."""
        slowest: Floats = np.where(self.replicas > 0, self.time_s, 0.0).max(axis=1)
        return slowest

    @property
    def pipeline_s(self) -> float:
        """Closed form of the pipeline's time."""
        stage_s = self.stage_s
        busy = np.where(self.replicas > 0, self.time_s * self.slots, 0.0).max(axis=1)
        busiest = int(busy.argmax())
        return float(busy[busiest] + stage_s.sum() - stage_s[busiest])


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """GPUs of each part, whole nodes' worth counted by tensor-parallel degree, and the prices at which they go."""

    gpu_count: Ints
    price: Floats


def stage_times(table: StageTable, cuts: tuple[int, ...]) -> Floats:
    """Return the time of a micro-batch on each stage and kind, infinite where it does not fit, ``[p, k]``."""
    pp = len(cuts) - 1
    starts, ends = np.array(cuts[:-1]), np.array(cuts[1:])
    left = np.arange(pp, 0, -1)
    fits = table.stages_left_max[:, starts, ends] >= left[None, :]
    found: Floats = np.where(fits, table.time_s[:, starts, ends], np.inf).T
    return found


def mixes(table: StageTable, cuts: tuple[int, ...], stock: Stock, *, is_equal: bool, goal_s: float) -> Iterator[Mix]:
    """Yield mixes for a pipeline, with fewer and fewer slow kinds, each as fast as it can be made.

    Bounds on the slowest replica go through their breakpoints in rising order, until even the bound is too slow.
    """
    times = stage_times(table, cuts)
    if not np.isfinite(times).any(axis=1).all():
        return
    least = times.min(axis=1)
    for bound in _breakpoints(times, least.max()):
        allowed = np.where(times <= bound * (1.0 + _EPSILON), times, np.inf)
        found = _fastest(table, cuts, allowed, stock, is_equal=is_equal, goal_s=goal_s)
        if found is not None:
            yield found
            goal_s = min(goal_s, found.pipeline_s)


def _breakpoints(times: Floats, least: float) -> list[float]:
    """Return the bounds worth a try: the times of kinds on their stages, thinned out where there are many."""
    values = np.unique(times[np.isfinite(times) & (times >= least)])
    if len(values) > 6:
        values = values[np.unique(np.linspace(0, len(values) - 1, 6).astype(np.int64))]
    return [float(value) for value in values]


def _fastest(
    table: StageTable, cuts: tuple[int, ...], times: Floats, stock: Stock, *, is_equal: bool, goal_s: float
) -> Mix | None:
    """Return the mix with the least X by bisection over X, None where none beats the goal."""
    low = _least_busy_s(table, times, stock)
    high = min(goal_s, table.need * float(times[np.isfinite(times)].max()))
    if low > high:
        return None
    best = cover_at(table, cuts, times, stock, busy_s=high, is_equal=is_equal)
    if best is None:
        return None
    while high > low * 1.001:
        middle = max((low * high) ** 0.5, low)
        found = cover_at(table, cuts, times, stock, busy_s=middle, is_equal=is_equal)
        if found is None:
            low = middle
        else:
            best, high = found, min(middle, found.busy_s)
    return best


def _least_busy_s(table: StageTable, times: Floats, stock: Stock) -> float:
    """Return what the work takes if it spread over all GPUs without loss."""
    tp = np.array([kind.tp for kind in table.kinds])
    part = np.array([kind.part for kind in table.kinds])
    by_stage = np.full((len(times), len(stock.gpu_count)), np.inf)
    for index in range(len(stock.gpu_count)):
        by_stage[:, index] = (times * tp)[:, part == index].min(axis=1, initial=np.inf)
    with np.errstate(divide="ignore"):
        rate = (stock.gpu_count / by_stage.min(axis=0, initial=np.inf)).sum()
    stages = 1.0 / np.where(np.isfinite(times), times, np.inf).min(axis=1)
    return float(max(table.need / max(rate, 1e-300), 0.0)) if stages.all() else float("inf")


def cover_at(
    table: StageTable, cuts: tuple[int, ...], times: Floats, stock: Stock, *, busy_s: float, is_equal: bool
) -> Mix | None:
    """Return the cheapest cover found of all stages within a busy time, None where GPUs do not last."""
    slots = np.where(np.isfinite(times), np.floor(busy_s / times * (1 + _EPSILON) + _EPSILON), 0).astype(np.int64)
    slots = np.minimum(slots, table.need)
    if is_equal:
        return _equal_cover(table, cuts, times, slots, stock)
    replicas = _cover(table, slots, np.full(len(times), table.need), stock)
    if replicas is None:
        return None
    return _mix(table, cuts, times, slots, replicas)


def _equal_cover(
    table: StageTable, cuts: tuple[int, ...], times: Floats, slots: Ints, stock: Stock
) -> Mix | None:
    """Every stage has the same number of replicas, each with as many micro-batches: the fewest replicas that do."""
    best: tuple[float, Mix] | None = None
    count = int(slots.max(axis=1).min())
    if count < 1:
        return None
    replicas_min = -(-table.need // count)
    usable = (slots >= count).astype(np.int64)
    replicas = _cover(table, usable, np.full(len(times), replicas_min), stock)
    if replicas is not None:
        found = _mix(table, cuts, times, np.where(usable > 0, count, 0), replicas)
        best = (found.pipeline_s, found)
    return None if best is None else best[1]


def _mix(table: StageTable, cuts: tuple[int, ...], times: Floats, slots: Ints, replicas: Ints) -> Mix:
    used = replicas > 0
    finite = np.where(np.isfinite(times), times, 0.0)
    return Mix(
        kinds=table.kinds,
        micro_batch_size=table.micro_batch_size,
        recompute=table.recompute,
        cuts=cuts,
        replicas=replicas,
        slots=np.where(used, slots, 0),
        time_s=finite,
        busy_s=float((finite * slots * used).max()),
    )


def _cover(table: StageTable, slots: Ints, needs: Ints, stock: Stock) -> Ints | None:
    """Return replicas ``[p, k]`` that hold what each stage needs, the cheapest of several orders."""
    tp = np.array([kind.tp for kind in table.kinds])
    part = np.array([kind.part for kind in table.kinds])
    best: tuple[float, Ints] | None = None
    for price in (stock.price, np.ones_like(stock.price)):
        with np.errstate(divide="ignore"):
            each = np.where(slots > 0, (price[part] * tp)[None, :] / slots, np.inf)
        for order in _orders(each):
            found = _cover_in_order(slots, needs, each, order, (tp, part, stock.gpu_count))
            if found is not None:
                cost = float((found.sum(axis=0) * tp * stock.price[part]).sum())
                if best is None or cost < best[0] - _EPSILON:
                    best = (cost, found)
        if best is not None:
            break
    return None if best is None else best[1]


def _orders(each: Floats) -> Iterator[tuple[int, ...]]:
    """Yield orders of the stages: all of few, else those with the most to lose first."""
    pp = len(each)
    if pp <= _STAGES_FOR_ALL_ORDERS:
        yield from permutations(range(pp))
        return
    ranked = np.sort(each, axis=1)
    second = ranked[:, 1] if ranked.shape[1] > 1 else ranked[:, 0]
    regret = np.where(np.isfinite(second), second - ranked[:, 0], np.inf)
    yield tuple(int(stage) for stage in np.argsort(-regret, kind="stable"))
    yield tuple(range(pp))


def _cover_in_order(
    slots: Ints, needs: Ints, each: Floats, order: tuple[int, ...], gpus: tuple[Ints, Ints, Ints]
) -> Ints | None:
    tp, part, stock = gpus
    free = stock.copy()
    replicas = np.zeros(slots.shape, dtype=np.int64)
    for stage in order:
        left = int(needs[stage])
        for kind in np.argsort(each[stage], kind="stable"):
            if slots[stage, kind] < 1 or left <= 0:
                break
            have = int(free[part[kind]] // tp[kind])
            take = min(have, -(-left // int(slots[stage, kind])))
            replicas[stage, kind] += take
            free[part[kind]] -= take * tp[kind]
            left -= take * int(slots[stage, kind])
        if left > 0:
            return None
    return replicas
