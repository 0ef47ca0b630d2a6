"""What prices prove about all plans: the dual bound. Pure: no I/O, no clock.

Say a step is over by T. A plan is a set of chains (see ``heterogeneous_chains``) that do M micro-batches with the GPUs
there are, so at prices v on GPUs some chain in it costs no more per micro-batch than rho = v x stock / M. If no chain
is that cheap, no plan is done by T. The cheapest chain comes from a dynamic program over (next layer, stages left,
kind): with tau its slowest stage it does c <= 1 + (T - sum of t) / tau micro-batches, and

    v x GPUs - rho c  >=  sum over stages of (v tp + rho t / tau) - rho (1 + T / tau)

is a sum over stages. tau goes through its range in intervals, in which the lower end stands for tau and stages up to
the upper end are allowed; intervals in which a chain might still be cheap enough are cut finer. Bisection over tau
would be wrong: a stage that is not the slowest can be worth shortening. Cuts may differ between chains here but not in
a plan, and c need not be whole, so the bound can be lower than the best plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from arena.planner.candidates import Flags, Floats, Ints
from arena.planner.heterogeneous_tables import NODE_LEVELS, StageTable

_INTERVALS = 12
_FINER = 6
_ROUNDS = 3
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A chain that might be cheap enough: its cuts and kinds, and by how much less than rho c it costs."""

    cuts: tuple[int, ...]
    kinds: tuple[int, ...]
    slack: float


@dataclass(slots=True, kw_only=True)
class Program:
    """The dynamic program over one table; it keeps what does not depend on prices or times."""

    table: StageTable
    pp_max: int
    replicas_per_node_max: int
    tp: Floats = field(init=False)
    part: Ints = field(init=False)
    distinct: Ints = field(init=False)
    which: Ints = field(init=False)
    time_s: Floats = field(init=False)
    fits: list[Flags] = field(init=False)
    least_sum_s: Floats = field(init=False)

    def __post_init__(self) -> None:
        table = self.table
        self.tp = np.array([kind.tp for kind in table.kinds], dtype=np.float64)
        self.part = np.array([kind.part for kind in table.kinds], dtype=np.int64)
        self.pp_max = min(self.pp_max, table.layer_count)
        layers = table.layer_count
        is_end = np.broadcast_to(np.arange(layers + 1) == layers, (layers, layers + 1))
        columns = np.concatenate(
            (
                table.time_s.reshape(len(self.tp), -1),
                table.stages_left_max.reshape(len(self.tp), -1),
                is_end.reshape(1, -1),
            )
        )
        _, first, which = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        self.distinct, self.which = first, which.reshape(layers, layers + 1)
        self.time_s = self.of_stages(table.time_s)
        left_max, is_last = self.of_stages(table.stages_left_max), is_end.reshape(-1)[first]
        self.fits = [(left_max >= left) & ((left == 1) == is_last) for left in range(1, self.pp_max + 1)]
        self.least_sum_s = self._totals(self.time_s[None], None)[:, 0]

    def of_stages(self, values: Floats | Ints) -> Floats:
        """Return ``[k, l, l + 1]`` values of distinct stages only, ``[k, u]``; many stages of a model are alike."""
        found: Floats = values.reshape(len(values), -1)[:, self.distinct].astype(np.float64)
        return found

    def level(self, pp: int, time_s: float) -> int:
        """Return how far a first stage spreads at least in plans of so many stages that are done by a time."""
        least = float(self.least_sum_s[pp - 1])
        if not np.isfinite(least) or time_s < least:
            return len(NODE_LEVELS) - 1
        count_max = np.floor(1.0 + (time_s - least) * pp / least + _EPSILON)
        replicas = int(np.ceil(self.table.need / count_max))
        nodes = 0 if replicas <= 1 else -(-replicas // self.replicas_per_node_max)
        return int(np.searchsorted(np.array(NODE_LEVELS), nodes, side="right")) - 1

    def work(self, price: Floats) -> Floats:
        """Return the least price x GPUs x seconds of a micro-batch, by the number of stages."""
        is_stage = np.isfinite(self.time_s)
        cost = (self.tp * price[self.part])[:, None] * np.where(is_stage, self.time_s, 0.0)
        found: Floats = self._totals(np.where(is_stage, cost, np.inf)[None], None)[:, 0]
        return found

    def slowest_parts(self, pp: int, time_s: float) -> list[Floats]:
        """Return what follows first stages, ``[k, l + 1]``, for each part that could be their slowest to do so.

        All chains of a plan wait for the slowest. Parts that take longer have no first stage then: infinite.
        """
        after = self.table.after_s[self.level(pp, time_s)]
        parts = np.unique(self.part)
        least = np.stack([after[self.part == part].min(axis=0) for part in parts])
        found: list[Floats] = []
        for index in range(len(parts)):
            is_slower = (least > least[index]) | ((least == least[index]) & (np.arange(len(parts)) > index)[:, None])
            own = np.maximum(after, least[index][None])
            found.append(np.where(is_slower[np.searchsorted(parts, self.part)], np.inf, own))
        return found

    def cheaper_chain(self, pp: int, price: Floats, rho: float, time_s: float, after: Floats) -> Found | None:
        """Return a chain of so many stages that might cost less than rho a micro-batch by a time, None if none does.

        Args:
            after: What follows first stages, ``[k, l + 1]``.
        """
        if pp == 1:
            return self._whole(price, rho, time_s, after)
        least = float(self.least_sum_s[pp - 1])
        if not np.isfinite(least) or least > time_s:
            return None
        slowest = min(time_s, float(self.table.time_s[np.isfinite(self.table.time_s)].max()))
        edges = np.geomspace(least / pp * (1 - _EPSILON), max(slowest, least / pp) * (1 + _EPSILON), _INTERVALS + 1)
        low, high = edges[:-1], edges[1:]
        for turn in range(_ROUNDS):
            slack, traced = self._slack((pp, rho, time_s), price, after, low, high)
            open_ = np.flatnonzero(slack < -_EPSILON * rho)
            if not len(open_):
                return None
            if turn == _ROUNDS - 1:
                return traced(int(open_[slack[open_].argmin()]))
            steps = np.geomspace(low[open_], high[open_], _FINER + 1)
            low, high = steps[:-1].ravel(), steps[1:].ravel()
        return None

    def _whole(self, price: Floats, rho: float, time_s: float, after: Floats) -> Found | None:
        """Chains of one stage, exactly."""
        layers = self.table.layer_count
        whole = self.which[0, layers]
        each = np.where(self.fits[0][:, whole], self.time_s[:, whole], np.inf)
        room = np.where(np.isfinite(after[:, layers]), time_s - after[:, layers], 0.0) / each
        counts = np.minimum(np.floor(np.maximum(room, 0.0) * (1 + _EPSILON) + _EPSILON), self.table.need)
        slack = np.where(counts > 0, price[self.part] * self.tp - rho * counts, np.inf)
        best = int(slack.argmin())
        if slack[best] >= -_EPSILON * rho:
            return None
        return Found(cuts=(0, layers), kinds=(best,), slack=float(slack[best]))

    def _slack(
        self, asked: tuple[int, float, float], price: Floats, after: Floats, low: Floats, high: Floats
    ) -> tuple[Floats, _Trace]:
        """Return the least of price minus rho c over chains in each interval, and how to trace it."""
        pp, rho, time_s = asked
        times = self.time_s[None]
        allowed = times <= high[:, None, None]
        weight = (rho / low)[:, None, None]
        gpu = (price[self.part] * self.tp)[None, :, None]
        cost = np.where(allowed, gpu + weight * np.where(np.isfinite(times), times, 0.0), np.inf)
        weighted = after[None] * weight
        trace = _Trace(which=self.which)
        total = self._totals(cost, weighted, pp=pp, trace=trace)[pp - 1]
        slack: Floats = total - rho * (1.0 + time_s / low)
        trace.slack = slack
        # A chain never does more than all micro-batches, nor a part of one.
        room = np.floor(1.0 + (time_s - self.least_sum_s[pp - 1]) / low + _EPSILON)
        least_price = self._totals(np.where(allowed, gpu, np.inf), None, pp=pp)[pp - 1]
        whole = least_price - rho * np.minimum(room, self.table.need)
        return np.maximum(slack, whole), trace

    def _totals(
        self, cost: Floats, after: Floats | None, *, pp: int | None = None, trace: _Trace | None = None
    ) -> Floats:
        """Return the least sums over chains of 1, 2, ... stages, ``[stages, intervals]``; cost is ``[t, k, u]``."""
        layers, depth = self.table.layer_count, pp or self.pp_max
        found = np.full((depth, len(cost)), np.inf)
        rest = np.full((len(cost), layers + 1), np.inf)
        rest[:, layers] = 0.0
        ahead_of = self.which[0]
        for index in range(depth):
            if index < 2 or not np.array_equal(self.fits[index], self.fits[index - 1]):
                masked = np.where(self.fits[index][None], cost, np.inf)
                kind = masked.argmin(axis=1)
                least = np.take_along_axis(masked, kind[:, None], axis=1)[:, 0]
                stages = least[:, self.which]
                first = masked[:, :, ahead_of] + (0.0 if after is None else after)
            flat = (first + rest[:, None, :]).reshape(len(cost), -1)
            through = stages + rest[:, None, :]
            if trace is None:
                found[index] = flat.min(axis=1)
                rest = np.concatenate((through.min(axis=2), np.full((len(cost), 1), np.inf)), axis=1)
                continue
            end, front = through.argmin(axis=2), flat.argmin(axis=1)
            found[index] = flat[np.arange(len(cost)), front]
            trace.first.append(front)
            trace.end.append(end)
            trace.kind.append(kind)
            rest = np.full((len(cost), layers + 1), np.inf)
            rest[:, :layers] = np.take_along_axis(through, end[:, :, None], axis=2)[:, :, 0]
        return found


@dataclass(slots=True, kw_only=True)
class _Trace:
    """Where the program went, by stage from the last; called with an interval it returns the chain."""

    which: Ints
    first: list[Ints] = field(default_factory=list)
    end: list[Ints] = field(default_factory=list)
    kind: list[Ints] = field(default_factory=list)
    slack: Floats = field(default_factory=lambda: np.zeros(0))

    def __call__(self, interval: int) -> Found:
        width = self.end[0].shape[1] + 1
        kind, end = divmod(int(self.first[-1][interval]), width)
        kinds, cuts = [kind], [0, end]
        for index in range(len(self.end) - 2, -1, -1):
            at = cuts[-1]
            end = int(self.end[index][interval, at])
            kinds.append(int(self.kind[index][interval, self.which[at, end]]))
            cuts.append(end)
        return Found(cuts=tuple(cuts), kinds=tuple(kinds), slack=float(self.slack[interval]))
