"""What prices prove about all plans: the dual bound. Pure: no I/O, no clock.

Say a step is over by T. A plan is a set of chains (see ``chains``) that do M micro-batches with the GPUs
there are, so at prices v on GPUs some chain in it costs no more per micro-batch than rho = v x stock / M. If no chain
is that cheap, no plan is done by T. The cheapest chain comes from a dynamic program over (next layer, stages left,
zone, kind): with tau its slowest stage it does c <= 1 + (T - sum of t) / tau micro-batches, and

    v x GPUs - rho c  >=  sum over stages of (v tp + rho t / tau) - rho (1 + T / tau)

is a sum over stages. tau goes through its range in intervals, in which the lower end stands for tau and stages up to
the upper end are allowed; intervals in which a chain might still be cheap enough are cut finer. Bisection over tau
would be wrong: a stage that is not the slowest can be worth shortening. Cuts may differ between chains here but not in
a plan, and c need not be whole, so the bound can be lower than the best plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from arena.planner.candidates import Floats, Ints
from arena.planner.heterogeneous.recursion import Found, Recursion, Trace
from arena.planner.heterogeneous.sync import NODE_LEVELS
from arena.planner.heterogeneous.tables import StageTable
from arena.planner.pipeline import BACKWARD_SHARE

_INTERVALS = 12
_FINER = 6
_ROUNDS = 3
_REFINED = 2
_COUNTS_MAX = 32
_MULTIPLES = (2.5,)
_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Plans of so many stages that are done by a time, by the class of their first and last stages.

    Args:
        group: The class of first stages, by number.
        level: How many nodes stages span at least, by number.
        after_s: What follows first stages at the least, ``[k, l + 1]``.
        ending_s: What follows last stages at the least, ``[k, l]``.
        least_s: No chain is done with a micro-batch and what follows before.
    """

    group: int
    level: int
    pp: int
    time_s: float
    after_s: Floats
    ending_s: Floats
    least_s: float


@dataclass(slots=True, kw_only=True)
class Program:
    """The dynamic program over one table; it keeps what does not depend on prices or times.

    Args:
        zone, gpus_per_node: Of each part of the offer.
    """

    table: StageTable
    zone: Ints
    pp_max: int
    gpus_per_node: Ints
    tp: Floats = field(init=False)
    part: Ints = field(init=False)
    distinct: Ints = field(init=False)
    which: Ints = field(init=False)
    time_s: Floats = field(init=False)
    recursion: Recursion = field(init=False)
    ending_s: Floats = field(init=False)
    least_sum_s: Floats = field(init=False)
    least_of_class_s: Floats = field(default_factory=lambda: np.zeros(0))

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
        self.time_s = self._of_stages(table.time_s)
        left_max, is_last = self._of_stages(table.stages_left_max), is_end.reshape(-1)[first]
        fits = [(left_max >= left) & ((left == 1) == is_last) for left in range(1, self.pp_max + 1)]
        zones = np.unique(self.zone)
        inside = [np.flatnonzero(self.zone == zone) for zone in zones]
        ends_s = np.array([[table.detour_s[np.ix_(one, other)].min(axis=(0, 1)) for other in inside] for one in inside])
        self.recursion = Recursion(
            which=self.which,
            fits=fits,
            members=[np.flatnonzero(self.zone[self.part] == zone) for zone in zones],
            home=np.searchsorted(zones, self.zone[self.part]),
            crossing_s=ends_s + ends_s.transpose(1, 0, 2),
        )
        nothing = np.zeros((len(self.tp), layers + 1))
        self.ending_s = table.after.last.min(axis=0)
        self.least_sum_s = self._least_s(nothing[None], nothing[None, :, :-1])[:, 0]

    def _of_stages(self, values: Floats | Ints) -> Floats:
        """Return ``[k, l, l + 1]`` values of distinct stages only, ``[k, u]``; many stages of a model are alike."""
        found: Floats = values.reshape(len(values), -1)[:, self.distinct].astype(np.float64)
        return found

    def _least_s(self, after: Floats, ending: Floats) -> Floats:
        """Return the least time of a micro-batch and of what follows the first and last stage, ``[stages, t]``.

        Args:
            after: Of first stages, ``[t, k, l + 1]``.
            ending: Of last stages, ``[t, k, l]``.
        """
        ahead, last = after[:, None], self._of_last(ending)
        # Chains differ in what follows their first stage only, as long as the same kinds may be last.
        masks, which = np.unique(np.isfinite(ending).reshape(len(ending), -1), axis=0, return_inverse=True)
        first_s = np.empty((self.pp_max, len(after)))
        for index in range(len(masks)):
            own = np.flatnonzero(which.reshape(-1) == index)
            may_end = np.where(np.isfinite(last[own[:1]]), 0.0, np.inf)
            first_s[:, own] = self.recursion.totals(self.time_s[None], ahead[own], np.ones(1), last=may_end)
        share = 1.0 - BACKWARD_SHARE
        times = np.where(np.isfinite(self.time_s), self.time_s, 0.0)
        last_s = self.recursion.totals(
            np.repeat(share * self.time_s[None], len(last), axis=0),
            np.where(np.isfinite(ahead), 0.0, np.inf),
            np.full(len(last), share),
            last=last + BACKWARD_SHARE * times[None],
        )
        return np.maximum(first_s, last_s)

    def _of_last(self, ending: Floats) -> Floats:
        """Return what follows last stages by distinct stages, ``[..., k, u]``."""
        found = np.zeros((*ending.shape[:-1], self.time_s.shape[1]))
        found[..., self.which[:, -1]] = ending
        return found

    def work(self, price: Floats) -> Floats:
        """Return the least price x GPUs x seconds of a micro-batch, by the number of stages."""
        is_stage = np.isfinite(self.time_s)
        cost = (self.tp * price[self.part])[:, None] * np.where(is_stage, self.time_s, 0.0)
        found: Floats = self.recursion.totals(np.where(is_stage, cost, np.inf)[None], None, np.zeros(1))[:, 0]
        return found

    def cases(self, time_s: float) -> list[Case]:
        """Return all plans that could be done by a time, by class of first stages and depth."""
        found: list[Case] = []
        if not len(self.least_of_class_s):
            self.least_of_class_s = self._least_of_classes_s()
        for group, by_level in enumerate(self.table.after.first):
            for pp in range(1, self.pp_max + 1):
                least_s = self.least_of_class_s[pp - 1, group]
                level = 0
                while least_s[level] <= time_s and (further := self._level(pp, time_s, float(least_s[level]))) > level:
                    level = further
                if least_s[level] <= time_s:
                    found.append(
                        Case(
                            group=group,
                            level=level,
                            pp=pp,
                            time_s=time_s,
                            after_s=by_level[level],
                            ending_s=self.ending_s[level],
                            least_s=float(least_s[level]),
                        )
                    )
        return found

    def _least_of_classes_s(self) -> Floats:
        """Return the least time by the number of stages, class of the first one and level."""
        first = self.table.after.first
        ending = np.broadcast_to(self.ending_s[None], (len(first), *self.ending_s.shape))
        found = self._least_s(first.reshape(-1, *first.shape[2:]), ending.reshape(-1, *ending.shape[2:]))
        return found.reshape(-1, *first.shape[:2])

    def level(self, pp: int, time_s: float) -> int:
        """Return how far a first stage spreads at least in plans of so many stages that are done by a time."""
        return self._level(pp, time_s, float(self.least_sum_s[pp - 1]))

    def _level(self, pp: int, time_s: float, least_s: float) -> int:
        least_sum_s = float(self.least_sum_s[pp - 1])
        if not np.isfinite(least_sum_s) or time_s < least_s:
            return len(NODE_LEVELS) - 1
        count_max = np.floor(1.0 + (time_s - least_s) * pp / least_sum_s + _EPSILON)
        replicas = int(np.ceil(self.table.need / count_max))
        is_able = self.time_s[:, self.which[0, -1]] <= time_s if pp == 1 else np.ones(len(self.tp), dtype=np.bool_)
        on_node = int((self.gpus_per_node[self.part] // self.tp)[is_able].max(initial=1))
        nodes = 0 if replicas <= 1 else -(-replicas // on_node)
        return int(np.searchsorted(np.array(NODE_LEVELS), nodes, side="right")) - 1

    def split(self, case: Case) -> list[Case]:
        """Split a case by the class of last stages, and by the parts that take longest for what follows stages.

        All chains of a plan wait for these. Parts that take longer have no such stage then.
        """
        pairs: list[tuple[Floats, Floats]] = []
        for after in self._by_slowest(case.after_s):
            if case.pp == 1:
                pairs.append((after, case.ending_s))
                continue
            for of_class in self.table.after.last[:, case.level]:
                pairs += [(after, ending) for ending in self._by_slowest(of_class)]
        if not pairs:
            return []
        afters, endings = (np.stack(one) for one in zip(*pairs, strict=True))
        least_s = self._least_s(afters, endings)[case.pp - 1].tolist()
        return [
            replace(case, after_s=after, ending_s=ending, least_s=least)
            for (after, ending), least in zip(pairs, least_s, strict=True)
            if least <= case.time_s
        ]

    def _by_slowest(self, values: Floats) -> list[Floats]:
        """Return ``[k, ...]`` values where each part in turn is the slowest, infinite for slower ones."""
        parts = np.unique(self.part)
        least = np.stack([values[self.part == part].min(axis=0) for part in parts])
        found: list[Floats] = []
        for index in range(len(parts)):
            if np.isfinite(least[index]).any():
                is_later = (np.arange(len(parts)) > index)[:, None]
                is_slower = (least > least[index]) | ((least == least[index]) & is_later)
                own = np.maximum(values, least[index][None])
                found.append(np.where(is_slower[np.searchsorted(parts, self.part)], np.inf, own))
        return found

    def slacks(self, cases: list[Case], price: Floats) -> Floats:
        """Return the least of price minus rho c over the chains of each case; where it is not negative, none is done.

        Args:
            cases: Of one time.
            price: Of a GPU of each part; all GPUs together cost 1.
        """
        groups = sorted({case.group for case in cases})
        depth = max(case.pp for case in cases)
        after = np.full((len(groups), depth, *cases[0].after_s.shape), np.inf)
        least_s = np.full((depth, len(groups)), np.inf)
        for case in cases:
            after[groups.index(case.group), case.pp - 1] = case.after_s
            least_s[case.pp - 1, groups.index(case.group)] = case.least_s
        low, high = self._edges(cases)
        slack = self._slack(
            _Asked(
                price=price,
                time_s=cases[0].time_s,
                after_s=np.repeat(after, len(low), axis=0),
                ending_s=self._of_last(np.stack([case.ending_s for case in cases]).min(axis=0)),
                least_s=np.repeat(least_s, len(low), axis=1),
                low=np.tile(low, len(groups)),
                high=np.tile(high, len(groups)),
            )
        )
        least = slack.reshape(len(slack), len(groups), -1).min(axis=2)
        return np.array([least[case.pp - 1, groups.index(case.group)] for case in cases])

    def cheaper_chains(self, case: Case, price: Floats) -> list[Found]:
        """Return chains that might cost less than their share of the work is worth; none where none does.

        The intervals that look worst are cut finer first.
        """
        edges = self._edges([case])
        open_ = self._open(case, price, list(zip(*edges, strict=True)), 0)
        while open_:
            worst, open_ = open_[:_REFINED], open_[_REFINED:]
            if worst[0].turn == _ROUNDS:
                traces: list[Trace] = []
                self._slack(self._question(case, price, [(worst[0].low, worst[0].high)]), traces)
                return sorted({trace(0) for trace in traces}, key=lambda found: (found.cuts, found.kinds))
            finer = [pair for one in worst for pair in pairwise(np.geomspace(one.low, one.high, _FINER + 1))]
            open_ = sorted([*open_, *self._open(case, price, finer, max(one.turn for one in worst))])
        return []

    def _open(self, case: Case, price: Floats, intervals: Sequence[tuple[float, float]], turn: int) -> list[_Interval]:
        """Return the intervals in which a chain might be cheap enough: those cut most, then the worst, first."""
        slack = self._slack(self._question(case, price, intervals))[case.pp - 1].tolist()
        return sorted(
            _Interval(-turn - 1, least, low, high)
            for least, (low, high) in zip(slack, intervals, strict=True)
            if least < -_EPSILON / self.table.need
        )

    def _question(self, case: Case, price: Floats, intervals: Sequence[tuple[float, float]]) -> _Asked:
        return _Asked(
            price=price,
            time_s=case.time_s,
            after_s=case.after_s[None, None],
            ending_s=self._of_last(case.ending_s),
            least_s=np.full((case.pp, 1), case.least_s),
            low=np.array([low for low, _ in intervals]),
            high=np.array([high for _, high in intervals]),
        )

    def _edges(self, cases: list[Case]) -> tuple[Floats, Floats]:
        """Return intervals in which the slowest stage of all cases lies."""
        slowest = float(self.table.time_s[np.isfinite(self.table.time_s)].max())
        least = min(float(self.least_sum_s[case.pp - 1]) / case.pp for case in cases)
        most = max(min(max(case.time_s for case in cases), slowest), least)
        edges = np.geomspace(least * (1 - _EPSILON), most * (1 + _EPSILON), _INTERVALS + 1)
        return edges[:-1], edges[1:]

    def _slack(self, asked: _Asked, traces: list[Trace] | None = None) -> Floats:
        """Return the least of price minus rho c in each interval, ``[stages, t]``.

        A chain is done when its first stage is and when its last is; either way a sum over stages bounds c.
        """
        rho, depth = 1.0 / self.table.need, len(asked.least_s)
        low, time_s = asked.low, asked.time_s
        weight = (rho / low)[:, None, None]
        allowed = self.time_s[None] <= asked.high[:, None, None]
        gpu = np.where(allowed, (asked.price[self.part] * self.tp)[None, :, None], np.inf)
        busy = weight * np.where(np.isfinite(self.time_s), self.time_s, 0.0)[None]
        first = np.where(np.isfinite(asked.after_s), 0.0, np.inf)
        last = np.where(np.isfinite(asked.ending_s), 0.0, np.inf)[None]
        share = 1.0 - BACKWARD_SHARE

        def traced() -> Trace | None:
            if traces is None:
                return None
            traces.append(Trace(which=self.which))
            return traces[-1]

        by_first = self.recursion.totals(
            gpu + busy, asked.after_s * weight[:, None], rho / low, last=last, pp=depth, trace=traced()
        )
        done = rho * (1.0 + time_s / low)
        # A chain never does more than all micro-batches, nor a part of one.
        least_s = np.minimum(asked.least_s, time_s)
        room = np.where(asked.least_s <= time_s, np.floor(1.0 + (time_s - least_s) / low + _EPSILON), 0.0)
        cheapest = self.recursion.totals(gpu, first, np.zeros(len(low)), last=last, pp=depth)
        slack: Floats = np.maximum(by_first - done, cheapest - rho * np.minimum(room, self.table.need))
        some = np.flatnonzero((slack < 0).any(axis=0))
        if not len(some):
            return slack
        by_last = self.recursion.totals(
            (gpu + share * busy)[some],
            first if len(first) == 1 else first[some],
            (share * rho / low)[some],
            last=(weight * asked.ending_s[None] + BACKWARD_SHARE * busy)[some],
            pp=depth,
            trace=traced(),
        )
        slack[:, some] = np.maximum(slack[:, some], by_last - done[some])
        count_max = np.broadcast_to(np.minimum(room, self.table.need), slack.shape)
        open_ = (slack[:, some] < 0).any(axis=0) & (count_max.max(axis=0) <= _COUNTS_MAX)[some]
        still = some[open_]
        if len(still):
            sums = [(0.0, cheapest[:, still]), (1.0, by_first[:, still]), (1.0, by_last[:, open_])]
            after = asked.after_s if len(asked.after_s) == 1 else asked.after_s[still]
            for more in _MULTIPLES:
                heavy = more * busy[still]
                by_first = self.recursion.totals(
                    gpu[still] + heavy,
                    after * more * weight[still, None],
                    more * rho / low[still],
                    last=last,
                    pp=depth,
                    trace=traced(),
                )
                by_last = self.recursion.totals(
                    gpu[still] + share * heavy,
                    first if len(first) == 1 else first[still],
                    share * more * rho / low[still],
                    last=more * weight[still] * asked.ending_s[None] + BACKWARD_SHARE * heavy,
                    pp=depth,
                    trace=traced(),
                )
                sums += [(more, by_first), (more, by_last)]
            by_count = self._by_count(sums, low[still], time_s, count_max[:, still])
            slack[:, still] = np.maximum(slack[:, still], by_count)
        return slack

    def _by_count(self, sums: list[tuple[float, Floats]], low: Floats, time_s: float, count_max: Floats) -> Floats:
        """Return the least of price minus rho c, for each whole number of micro-batches by itself.

        A chain that does c is done with the first by T - (c - 1) tau; whatever price that has, the sum bounds it.

        Args:
            sums: The least of price plus a multiple of rho / tau for each second until the first micro-batch is done.
            count_max: Most micro-batches of a chain, ``[stages, t or 1]``.
        """
        rho = 1.0 / self.table.need
        found = np.full(sums[0][1].shape, np.inf)
        for count in range(1, int(count_max.max()) + 1):
            late_s = (count - 1) * low - time_s
            least = np.max([total + more * rho / low * late_s for more, total in sums], axis=0) - rho * count
            found = np.minimum(found, np.where(count <= count_max, least, np.inf))
        return found


class _Interval(NamedTuple):
    """An interval of the slowest stage in which a chain might be cheap enough; what sorts first is looked at first."""

    minus_turn: int
    slack: float
    low: float
    high: float

    @property
    def turn(self) -> int:
        """How often it was cut."""
        return -self.minus_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One question to the program.

    Args:
        after_s: What follows first stages, ``[t or 1, stages or 1, k, l + 1]``.
        ending_s: What follows last stages, by distinct stages, ``[k, u]``.
        least_s: No chain is done before, ``[stages, t or 1]``.
        low, high: Intervals of the slowest stage, ``[t]``.
    """

    price: Floats
    time_s: float
    after_s: Floats
    ending_s: Floats
    least_s: Floats
    low: Floats
    high: Floats
