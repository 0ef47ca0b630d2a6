"""The cheapest pipeline at given prices, and what it proves about all plans. Pure: no I/O, no clock.

Take a plan whose busiest stage works X seconds. A replica of kind k, stage [i, j), does at most floor(X / t_k(i, j))
micro-batches, so each of the M micro-batches of a step costs that stage at least tp / floor(X / t_k) GPUs. With a price
on every part's GPUs and capacities relaxed (Lagrange), stages only meet at their layers, and a dynamic program over
(next layer, stages left) finds the pipeline with the least

    sum over stages of (M tp price / floor(X / t_k) + t_k) - t of one stage + what follows the first stage

(one stage is the busiest, whose own time is X). Adding X and taking off price x capacity bounds the step time of every
plan with that X. X is split into intervals: the lower end counts as time, the upper one for the floor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from arena.planner.candidates import Flags, Floats, Ints
from arena.planner.heterogeneous_tables import NODE_LEVELS, StageTable

_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What the program found.

    Args:
        value: Its cost.
        cuts: First layer of each stage, then the number of layers.
        kinds: Index of each stage's kind.
    """

    value: float
    cuts: tuple[int, ...]
    kinds: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Program:
    """The dynamic program over one table; it keeps what does not depend on prices."""

    table: StageTable
    pp_max: int
    replicas_per_node_max: int
    tp: Floats = field(init=False)
    part: Ints = field(init=False)
    fits: list[Flags] = field(init=False)
    is_same: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        table = self.table
        self.tp = np.array([kind.tp for kind in table.kinds], dtype=np.float64)
        self.part = np.array([kind.part for kind in table.kinds], dtype=np.int64)
        depth = min(self.pp_max, table.layer_count)
        is_end = np.arange(table.layer_count + 1) == table.layer_count
        self.fits = [
            (table.stages_left_max >= left) & ((left == 1) == is_end)[None, None, :] for left in range(1, depth + 1)
        ]
        self.is_same = [
            left > 1 and bool(np.array_equal(self.fits[left], self.fits[left - 1])) for left in range(depth)
        ]

    def slots(self, upper_s: float) -> Floats:
        """Return the micro-batches that a replica does in so many seconds, ``[k, l, l + 1]``."""
        found: Floats = np.floor(upper_s / self.table.time_s * (1.0 + _EPSILON) + _EPSILON)
        return found

    def gpus_per_stage(self, slots: Floats) -> Floats:
        """Return the GPUs, at the least, that do all micro-batches of a stage, ``[k, l, l + 1]``."""
        with np.errstate(divide="ignore"):
            found: Floats = self.table.need * self.tp[:, None, None] / slots
        return found

    def after_first_s(self, slots: Floats) -> Floats:
        """Return what follows first stages at the least, ``[k, l + 1]``."""
        most = np.where(np.isfinite(self.table.time_s[:, 0]), slots[:, 0], 0.0).max(axis=0)
        replicas = np.ceil(self.table.need / np.maximum(most, 1.0))
        nodes = np.where(replicas <= 1, 0, np.ceil(replicas / self.replicas_per_node_max)).astype(np.int64)
        level = np.searchsorted(np.array(NODE_LEVELS), nodes, side="right") - 1
        ends = np.arange(self.table.layer_count + 1)
        found: Floats = self.table.after_s[level, :, ends].T
        return found

    def cheapest(self, price: Floats, after: Floats | None, *, counts_time: bool) -> Pipeline | None:
        """Return the cheapest pipeline.

        Args:
            price: Of a stage on a kind, ``[k, l, l + 1]``.
            after: Added to first stages, ``[k, l + 1]``.
            counts_time: Whether stage times count, all but the one of the busiest stage.
        """
        whole, dropped = price + self.table.time_s if counts_time else price, price
        layers = self.table.layer_count
        rest = np.full((2, layers + 1), np.inf)
        rest[0, layers] = 0.0
        steps: list[_Step] = []
        best: tuple[float, int] = (float("inf"), 0)
        counted: _Costs | None = None
        for index, fits in enumerate(self.fits):
            if counted is None or not self.is_same[index]:
                counted = _costs(whole, dropped, fits, after)
            step = _step(counted, rest)
            steps.append(step)
            best = min(best, (float(step.first[1]), index))
            rest = step.rest
        if not np.isfinite(best[0]):
            return None
        return _traced(steps, best[1], best[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Costs:
    """Least over kinds, with its kind: time counted or not; first stages apart: ``[2, l, l + 1]``, ``[2, l + 1]``."""

    cost: Floats
    kind: Ints
    first: Floats
    first_kind: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One more stage in front: costs to go by whether a stage is left out, where they go, and with which kind."""

    rest: Floats
    end: Ints
    is_dropped: Flags
    first: Floats
    first_end: Ints
    first_dropped: Flags
    costs: _Costs


def _costs(whole: Floats, dropped: Floats, fits: Flags, after: Floats | None) -> _Costs:
    both = np.where(fits, np.stack((whole, dropped)), np.inf)
    both = np.nan_to_num(both, nan=np.inf, posinf=np.inf)
    kind = both.argmin(axis=1)
    first = both[:, :, 0] if after is None else both[:, :, 0] + after
    first_kind = first.argmin(axis=1)
    return _Costs(
        cost=np.take_along_axis(both, kind[:, None], axis=1)[:, 0],
        kind=kind,
        first=np.take_along_axis(first, first_kind[:, None], axis=1)[:, 0],
        first_kind=first_kind,
    )


def _step(costs: _Costs, rest: Floats) -> _Step:
    kept = costs.cost[0] + rest[0]
    one_out = np.stack((costs.cost[0] + rest[1], costs.cost[1] + rest[0]))
    out = one_out.min(axis=0)
    end = np.stack((kept.argmin(axis=1), out.argmin(axis=1)))
    rows = np.arange(len(kept))
    layers = rest.shape[1]
    found = np.full((2, layers), np.inf)
    found[0, : layers - 1], found[1, : layers - 1] = kept[rows, end[0]], out[rows, end[1]]
    first_kept = costs.first[0] + rest[0]
    first_one = np.stack((costs.first[0] + rest[1], costs.first[1] + rest[0]))
    first_out = first_one.min(axis=0)
    first_end = np.array([first_kept.argmin(), first_out.argmin()])
    return _Step(
        rest=found,
        end=end,
        is_dropped=one_out[1, rows, end[1]] <= one_out[0, rows, end[1]],
        first=np.array([first_kept[first_end[0]], first_out[first_end[1]]]),
        first_end=first_end,
        first_dropped=np.array([False, bool(first_one[1, first_end[1]] <= first_one[0, first_end[1]])]),
        costs=costs,
    )


def _traced(steps: list[_Step], last: int, value: float) -> Pipeline:
    step, has_out = steps[last], 1
    end, drops = int(step.first_end[1]), bool(step.first_dropped[1])
    kinds = [int(step.costs.first_kind[int(drops), end])]
    cuts = [0, end]
    has_out -= drops
    for index in range(last - 1, -1, -1):
        step, at = steps[index], cuts[-1]
        end = int(step.end[has_out, at])
        drops = bool(has_out) and bool(step.is_dropped[at])
        kinds.append(int(step.costs.kind[int(drops), at, end]))
        cuts.append(end)
        has_out -= drops
    return Pipeline(value=value, cuts=tuple(cuts), kinds=tuple(kinds))
