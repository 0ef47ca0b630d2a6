"""One search of ``arena.planner.heterogeneous``: incumbents from cuts, bounds from prices. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol

import numpy as np

from arena.domain.capability import unsupported
from arena.domain.job import TrainSpec
from arena.domain.parallel import ParallelPlan, Replica, Stage
from arena.domain.reason import Reason, ReasonCode, reason
from arena.planner.candidates import Floats, Ints
from arena.planner.heterogeneous_bound import Program
from arena.planner.heterogeneous_chains import (
    Chains,
    Mix,
    chains_of,
    chains_with,
    fill,
    fill_cheaply,
    fill_equally,
    most_work,
)
from arena.planner.heterogeneous_goal import Goal
from arena.planner.heterogeneous_judge import Judgement
from arena.planner.heterogeneous_offer import HeterogeneousResult, Offer, PartKey, Space, Statistics
from arena.planner.heterogeneous_tables import StageTable

_SHARES = (0.0, 0.01, 0.02, 0.03, 0.045, 0.06, 0.09, 0.12, 0.18, 0.25, 0.4, 0.6, 0.8, 0.9)
"""Shares of the best time, beyond the wanted gap, by which a bound gives way until it can be proven."""
_SHARES_OF_MANY = (0.01, 0.024, 0.045, 0.07, 0.1, 0.14, 0.2, 0.3, 0.5, 0.8)
_MANY_GPUS = 64
_SHARES_TRIED = 4
_PARTS_FOR_ALL_SUBSETS = 3
_DEPTHS = (1, 2, 4, 8, 16)
_GRID = 32
_TIME_PRECISION = 1.0005
_JUDGED_MAX = 60
_JUDGED_PER_CUT = 3
_JUDGED_FIRST = 8
_LOOKS_SLACK = 1.3
"""What looks so much slower than another is not looked at further: looks leave out what mixing does to networks."""


class PlanJudge(Protocol):
    """Says what plans take; ``heterogeneous_judge`` is the one that counts."""

    @property
    def train(self) -> TrainSpec:
        """The workload."""
        ...

    @property
    def offer(self) -> Offer:
        """The GPUs."""
        ...

    def judge(self, plan: ParallelPlan) -> Judgement:
        """Return a plan's figures."""
        ...

    def learn(self, plan: ParallelPlan, table: StageTable) -> None:
        """Take over what the search knows of a plan's stages."""
        ...

    def fresh(self) -> PlanJudge:
        """Return a judge that has learned nothing."""
        ...


@dataclass(slots=True, kw_only=True)
class Hunt:
    """One search.

    Args:
        incumbent: A score known from elsewhere.
    """

    judge: PlanJudge
    tables: list[StageTable]
    space: Space
    goal: Goal
    incumbent: float = float("inf")
    best: tuple[ParallelPlan, Judgement] | None = None
    programs: list[Program] = field(default_factory=list)
    tried: set[tuple[object, ...]] = field(default_factory=set)
    price: Floats | None = None
    asked: int = 0
    mixes: int = 0
    judged: int = 0
    refusals: dict[str, Reason] = field(default_factory=dict)

    def run(self) -> HeterogeneousResult:
        """Search, and prove how good what was found is."""
        tables = [table for table in self.tables if np.isfinite(table.time_s).any()]
        self.programs = [
            Program(table=table, pp_max=self.space.pp_max, replicas_per_node_max=self._replicas_per_node())
            for table in tables
        ]
        first: list[tuple[float, int, Mix]] = []
        for program in sorted(self.programs, key=self._promise):
            for cuts in self._even_cuts(program):
                if self._looks_tell:
                    first += self._looked_at(program, cuts, len(first), first)
                else:
                    self._try(program, cuts)
        self._judge_best(first, _JUDGED_FIRST)
        if self.goal.is_time:
            return self._result(self._time_bound())
        return self._result(self._work_bound())

    @property
    def keys(self) -> list[PartKey]:
        """Parts of the offer, in the order of all arrays."""
        return sorted(self.judge.offer)

    @property
    def _shares(self) -> tuple[float, ...]:
        return _SHARES_OF_MANY if self.stock.sum() > _MANY_GPUS else _SHARES

    @property
    def stock(self) -> Ints:
        """GPUs of each part."""
        return np.array([self.judge.offer[key].gpu_count for key in self.keys], dtype=np.int64)

    def _replicas_per_node(self) -> int:
        sizes = [self.judge.offer[key].gpus_per_node for key in self.keys]
        return max((sizes[kind.part] // kind.tp for table in self.tables[:1] for kind in table.kinds), default=1)

    def _promise(self, program: Program) -> float:
        """Order tables by the work of a step: those with the least first."""
        work = program.tp[:, None] * program.table.time_s[:, 0, : 1 + program.table.layer_count]
        share = work / np.maximum(np.arange(program.table.layer_count + 1), 1)
        return program.table.need * float(share[:, 1:].min())

    def _even_cuts(self, program: Program) -> Iterator[tuple[int, ...]]:
        layers = program.table.layer_count
        for pp in _DEPTHS:
            if pp <= program.pp_max:
                yield tuple(round(index * layers / pp) for index in range(pp + 1))

    def _latest_s(self) -> float:
        """No plan that takes longer is wanted."""
        latest = self.goal.constraints.iter_time_s_max
        is_time = not self.goal.is_cost and self.goal.value is None
        return min(latest, self.incumbent) if is_time else latest

    def _try(self, program: Program, cuts: tuple[int, ...]) -> None:
        """Fill a pipeline with chains and judge what looks better than the best."""
        self._judge_best(self._looked_at(program, cuts, 0, []), _JUDGED_PER_CUT)

    @property
    def _looks_tell(self) -> bool:
        """Whether looks are near enough to compare pipelines by: not between zones, nor where money counts."""
        return self.goal.is_time and len({zone for _, zone in self.keys}) == 1

    def _looked_at(
        self, program: Program, cuts: tuple[int, ...], serial: int, others: list[tuple[float, int, Mix]]
    ) -> list[tuple[float, int, Mix]]:
        """Return mixes of a pipeline with how good they look, those that look worse than others left out."""
        table = program.table
        known = (table.micro_batch_size, table.recompute, cuts)
        if known in self.tried or self.judged >= _JUDGED_MAX:
            return []
        self.tried.add(known)
        latest = self._latest_s()
        if others:
            latest = min(latest, _LOOKS_SLACK * min(one[0] for one in others))
        level = program.level(len(cuts) - 1, latest) if np.isfinite(latest) else 0
        chains = chains_of(table, cuts, len(self.stock), table.after_s[level])
        if chains is None:
            return []
        found: list[tuple[float, int, Mix]] = []
        for stock in self._stocks():
            for mix in self._mixes(chains, stock, latest):
                self.mixes += 1
                found.append((self._quick(mix), serial + len(found), mix))
        return found

    def _judge_best(self, found: list[tuple[float, int, Mix]], most: int) -> None:
        for quick, _, mix in sorted(found, key=lambda one: one[:2])[:most]:
            if quick < self.incumbent:
                self._judge(mix)

    def _stocks(self) -> Iterator[Ints]:
        """Yield all parts and fewer: a slow part or a far zone can do more harm than good."""
        parts = tuple(range(len(self.stock)))
        zones = [zone for _, zone in self.keys]
        types = [name for name, _ in self.keys]
        subsets: list[tuple[int, ...]] = [parts]
        if len(parts) <= _PARTS_FOR_ALL_SUBSETS:
            subsets += [some for size in range(1, len(parts)) for some in combinations(parts, size)]
        else:
            subsets += [tuple(part for part in parts if zones[part] == zone) for zone in dict.fromkeys(zones)]
            subsets += [tuple(part for part in parts if types[part] == name) for name in dict.fromkeys(types)]
            subsets += [tuple(part for part in parts if part != left) for left in parts]
        for some in dict.fromkeys(subsets):
            yield np.where(np.isin(np.arange(len(parts)), some), self.stock, 0)

    def _mixes(self, chains: Chains, stock: Ints, latest: float) -> Iterator[Mix]:
        fast = self._fastest(chains, stock, latest)
        if fast is None:
            return
        yield fast
        if self.goal.is_time:
            return
        slow_s = chains.table.need * float(chains.slowest_s.max()) + float(chains.sum_s.max())
        slow_s = min(slow_s, self._latest_s())
        for time_s in np.geomspace(fast.time_s, max(slow_s, fast.time_s), _GRID):
            mix = fill_cheaply(chains, stock, float(time_s), self.goal.price)
            if mix is not None:
                yield mix

    def _fastest(self, chains: Chains, stock: Ints, latest: float) -> Mix | None:
        """Return the fastest mix by bisection over the time until which all is done, None where none is wanted."""
        longest = chains.table.need * float(chains.slowest_s.max()) + float(chains.sum_s.max())
        high_s = min(latest * (1 - self.space.gap * bool(np.isfinite(self.incumbent))), longest)
        best = self._filled(chains, stock, high_s)
        if best is None:
            return None
        low_s = float(chains.sum_s.min())
        while high_s > low_s * _TIME_PRECISION:
            middle = (max(low_s, 1e-12) * high_s) ** 0.5
            found = self._filled(chains, stock, middle)
            if found is None:
                low_s = middle
            else:
                best, high_s = found, middle
        return best

    def _filled(self, chains: Chains, stock: Ints, time_s: float) -> Mix | None:
        if not self.space.unequal_micro_batches:
            return fill_equally(chains, stock, time_s)
        return fill(chains, stock, time_s)[0]

    def _quick(self, mix: Mix) -> float:
        usd = mix.time_s * float(self.goal.usd_per_s @ mix.gpu_counts)
        return self.goal.score(mix.time_s, usd, mix.gpu_counts)

    def _judge(self, mix: Mix) -> None:
        if mix.key in self.tried:
            return
        self.tried.add(mix.key)
        plan = plan_of(mix, self.keys, is_equal=not self.space.unequal_micro_batches)
        refusal = None if self.space.allow_unsupported else unsupported(self.judge.train, plan)
        if refusal is not None:
            self.refusals[refusal] = reason(ReasonCode.UNSUPPORTED, detail=refusal)
            return
        self.judged += 1
        self.judge.learn(plan, mix.table)
        judgement = self.judge.judge(plan)
        if judgement.refusal is not None:
            self.refusals[str(judgement.refusal)] = judgement.refusal
            return
        counts = np.array([judgement.gpu_counts.get(key, 0) for key in self.keys], dtype=np.int64)
        score = self.goal.score(judgement.estimate.iter_time_s, judgement.estimate.usd_per_step, counts)
        if score < self.incumbent:
            self.incumbent, self.best = score, (plan, judgement)

    def _time_bound(self) -> float:
        """Prove that no plan is faster than a little less than the best; cuts that are met on the way are tried."""
        if not np.isfinite(self.incumbent):
            return float("inf")
        worst, proven = 0, float("inf")
        for program in self.programs:
            for pp in range(1, program.pp_max + 1):
                while worst < len(self._shares):
                    before = self.incumbent
                    if self._is_proven(program, pp, self._time_at(worst), tries=worst < _SHARES_TRIED):
                        break
                    # A better plan was found on the way: the same share of its time may hold.
                    worst += self.incumbent == before
                proven = min(proven, self._time_at(worst))
        return proven

    def _time_at(self, index: int) -> float:
        if index >= len(self._shares):
            return 0.0
        return self.incumbent * (1.0 - self.space.gap) * (1.0 - self._shares[index])

    def _is_proven(self, program: Program, pp: int, time_s: float, *, tries: bool) -> bool:
        if program.least_sum_s[pp - 1] > time_s:
            return True
        centre = self._normal(self.price if self.price is not None else self._speeds(program))
        if program.work(centre)[pp - 1] * program.table.need >= time_s:
            return True
        proves = self._is_class_proven if pp > 2 else self._are_cuts_proven
        return all(proves(program, pp, time_s, after, tries=tries) for after in program.slowest_parts(pp, time_s))

    def _are_cuts_proven(self, program: Program, pp: int, time_s: float, after: Floats, *, tries: bool) -> bool:
        """Ask the linear program over all chains, for one way to cut after the other."""
        layers = program.table.layer_count
        price = self._normal(self.price if self.price is not None else self._speeds(program))
        for cuts in [(0, layers)] if pp == 1 else [(0, at, layers) for at in range(1, layers)]:
            chains = chains_of(program.table, cuts, len(self.stock), after)
            if chains is None:
                continue
            counts = chains.counts(time_s)
            if (chains.gpus @ price * program.table.need >= counts).all():
                continue
            self.asked += 1
            master = most_work(counts, chains.gpus, self.stock)
            if master.value >= program.table.need:
                if tries:
                    self._try(program, cuts)
                return False
            price = self._normal(master.price) if master.price.any() else price
        self.price = price
        return True

    def _is_class_proven(self, program: Program, pp: int, time_s: float, after: Floats, *, tries: bool) -> bool:
        """Move prices until no chain is cheap enough, or until such chains make a whole plan."""
        layers = program.table.layer_count
        even = tuple(round(index * layers / pp) for index in range(pp + 1))
        pool = chains_of(program.table, even, len(self.stock), after)
        price = centre = self._normal(self.price if self.price is not None else self._speeds(program))
        for step in range(self.space.price_steps_max):
            self.asked += 1
            found = program.cheaper_chain(pp, price, 1.0 / program.table.need, time_s, after)
            if found is None:
                self.price = price
                return True
            if tries:
                self._try(program, found.cuts)
            more = chains_with(program.table, found.cuts, np.array([found.kinds]), len(self.stock), after)
            pool = more if pool is None else pool.joined(more)
            master = most_work(pool.counts(time_s), pool.gpus, self.stock)
            if master.value >= program.table.need:
                return False
            # The program's own prices jump from corner to corner; between them and what held before they settle sooner.
            own = self._normal(master.price) if master.price.any() else self._speeds(program)
            price = 0.4 * centre + 0.6 * self._normal(own)
            centre = price if step % 2 else centre
        return False

    def _normal(self, price: Floats) -> Floats:
        scaled: Floats = price / float(price @ self.stock)
        return scaled

    def _speeds(self, program: Program) -> Floats:
        """Return prices in proportion to what a GPU of each part can do."""
        work = program.tp[:, None] * program.time_s
        least = np.array([work[program.part == part].min() for part in range(len(self.stock))])
        return np.where(np.isfinite(least), 1.0 / least, 0.0)

    def _work_bound(self) -> float:
        """Bound the score by the price of the work on the kinds that do it for the least."""
        price = self.goal.price
        work, time_s = float("inf"), float("inf")
        for program in self.programs:
            work = min(work, program.table.need * float(program.work(price).min()))
            speed = self._speeds(program)
            time_s = min(time_s, program.table.need * float(program.work(speed).min()) / float(speed @ self.stock))
        limit = self.goal.constraints.usd_per_step_max
        if limit is not None and work > limit:
            return float("inf")
        return self.goal.bound_of_work(work, time_s)

    def _result(self, bound: float) -> HeterogeneousResult:
        statistics = Statistics(tables=len(self.tables), programs=self.asked, mixes=self.mixes, judged=self.judged)
        if self.best is None:
            return HeterogeneousResult(
                plan=None,
                estimate=None,
                score=float("inf"),
                bound=bound,
                statistics=statistics,
                reasons=self._reasons(),
            )
        plan, _ = self.best
        judgement = self.judge.fresh().judge(plan)
        return HeterogeneousResult(
            plan=plan,
            estimate=judgement.estimate,
            score=self.incumbent,
            bound=min(bound, self.incumbent),
            transfer_usd_per_step=judgement.transfer_usd,
            statistics=statistics,
        )

    def _reasons(self) -> tuple[Reason, ...]:
        if self.refusals:
            return tuple(self.refusals.values())
        return (reason(ReasonCode.NO_FEASIBLE_PLAN, detail="no pipeline of the offered GPUs fits or keeps the limits"),)


def plan_of(mix: Mix, keys: list[PartKey], *, is_equal: bool) -> ParallelPlan:
    """Return the plan of a mix; counts of micro-batches are left out where an even share gives them."""
    chain = np.repeat(np.arange(len(mix.kinds)), mix.replicas)
    counts = mix.counts[chain]
    if not is_equal:
        counts = _trimmed(counts, mix.slowest_s[chain], mix.table.need)
        chain, counts = chain[counts > 0], counts[counts > 0]
    is_even = is_equal or (counts == counts[0]).all()
    stages: list[Stage] = []
    for stage in range(len(mix.cuts) - 1):
        kinds = [mix.table.kinds[kind] for kind in mix.kinds[chain, stage].tolist()]
        made: dict[tuple[int, int, int | None], Replica] = {}
        replicas: list[Replica] = []
        for kind, count in zip(kinds, counts.tolist(), strict=True):
            known = (kind.part, kind.tp, None if is_even else count)
            if known not in made:
                gpu_type, zone = keys[kind.part]
                made[known] = Replica(tp=kind.tp, gpu_type=gpu_type, zone=zone, micro_batch_count=known[2])
            replicas.append(made[known])
        stages.append(Stage(layer_count=mix.cuts[stage + 1] - mix.cuts[stage], replicas=tuple(replicas)))
    return ParallelPlan(
        stages=tuple(stages), micro_batch_size=mix.table.micro_batch_size, recompute=mix.table.recompute
    )


def _trimmed(slots: Ints, times: np.ndarray, need: int) -> Ints:
    """Take off what is more than needed, where it takes longest."""
    counts = slots.copy()
    excess = int(counts.sum()) - need
    while excess > 0:
        busy = np.where(counts > 0, counts * times, -1.0)
        top = np.flatnonzero(busy >= busy.max() * (1.0 - 1e-9))[:excess]
        counts[top] -= 1
        excess -= len(top)
    return counts
