"""One search of ``arena.planner.heterogeneous``: incumbents from cuts, bounds from prices. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from arena.domain.capability import unsupported
from arena.domain.job import TrainSpec
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import Reason, ReasonCode, reason
from arena.planner.candidates import Floats, Ints
from arena.planner.heterogeneous.bound import Program
from arena.planner.heterogeneous.chains import (
    Chains,
    Mix,
    Room,
    fill,
    fill_equally,
)
from arena.planner.heterogeneous.goal import Goal
from arena.planner.heterogeneous.judge import Judgement
from arena.planner.heterogeneous.looks import Look, looks_of, times_between
from arena.planner.heterogeneous.money import MoneyProof
from arena.planner.heterogeneous.offer import HeterogeneousResult, Offer, PartKey, Space, Statistics
from arena.planner.heterogeneous.plan import plan_of
from arena.planner.heterogeneous.proof import Proofs, cut_evenly, cut_in_two, speeds
from arena.planner.heterogeneous.tables import StageTable

_SHARES = (0.0, 0.02, 0.045, 0.07, 0.1, 0.14, 0.2, 0.3, 0.45, 0.6, 0.8, 0.9)
"""Shares of the best time, beyond the wanted gap, by which a bound gives way until it can be proven."""
_DEPTHS = (1, 2, 4, 8, 16)
_LOOKS_MAX = 40
_STEPS = (-4, -2, -1, 1, 2, 4)
_TIME_PRECISION = 1.0005
_SIZES_MAX = 4
_UNEVEN = 8
_JUDGED_MAX = 60
_JUDGED_PER_CUT = 3
_JUDGED_FIRST = 8
_LOOKS_SLACK = 1.3
"""What looks so much slower than another is not looked at further: looks leave out what mixing does to networks."""


class PlanJudge(Protocol):
    """Says what plans take; ``judge`` is the one that counts."""

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
    proofs: Proofs = field(init=False)
    mixes: int = 0
    judged: int = 0
    refusals: dict[str, Reason] = field(default_factory=dict)
    best_pipeline: tuple[Program, tuple[int, ...]] = field(init=False)
    failed_s: dict[int, float] = field(default_factory=dict)

    def run(self) -> HeterogeneousResult:
        """Search, and prove how good what was found is."""
        tables = [table for table in self.tables if np.isfinite(table.time_s).any()]
        self.programs = [
            Program(
                table=table,
                zone=self._zone_by_part(),
                pp_max=self.space.pp_max,
                gpus_per_node=np.array([self.judge.offer[key].gpus_per_node for key in self.keys]),
            )
            for table in tables
        ]
        self.proofs = Proofs(stock=self.stock, steps_max=self.space.price_steps_max, always=self._limits())
        if self.goal.is_time:
            self._hunt_for_time()
            return self._result(self._time_bound() if self.space.proves else self._money_proof().work_bound())
        if (not self.goal.is_cost and self.goal.value is None) or self.room.least > 1:
            self._hunt_for_time()  # where GPUs must be taken, cheap chains alone do not make a plan
        self._hunt_for_money()
        if self.best is None and np.isfinite(self.goal.constraints.iter_time_s_max):
            self._take_fastest()
        proof = self._money_proof()
        is_provable = self.space.proves and np.isfinite(self.incumbent)
        return self._result(proof.bound() if is_provable else proof.work_bound())

    def _take_fastest(self) -> None:
        """Take the fastest plan where none that is cheap is done in time."""
        goal = Goal(constraints=self.goal.constraints.of_gpus, usd_per_s=self.goal.usd_per_s)
        other = Hunt(judge=self.judge, tables=self.tables, space=replace(self.space, proves=False), goal=goal)
        other.run()
        if other.best is not None:
            self._weigh(*other.best)

    def _hunt_for_time(self) -> None:
        first: list[tuple[float, int, Mix]] = []
        for program, cuts in self._pipelines():
            if self._looks_tell:
                first += self._looked_at(program, cuts, len(first), first)
            else:
                self._try(program, cuts)
        self._judge_best(first, _JUDGED_FIRST)
        self._climb()

    def _climb(self) -> None:
        """Move the cuts of the best plan, one at a time, as long as that helps."""
        before = float("inf")
        while self.incumbent < before and self.best is not None:
            before = self.incumbent
            for program, cuts in self._near_best():
                self._try(program, cuts)

    def _hunt_for_money(self) -> None:
        """Look at all pipelines and many times, then fill and judge what looks best until it looks worse than that."""
        longest = [program.table.need * float(program.least_sum_s.min()) for program in self.programs]
        first_s = min((float(program.least_sum_s.min()) for program in self.programs), default=np.inf)
        if not np.isfinite(first_s):
            return
        times_s = times_between(first_s, min(max(one for one in longest if np.isfinite(one)), self._latest_s()))
        self._fill_looks(self._pipelines(), times_s)
        before = float("inf")
        while self.incumbent < before and self.best is not None:
            before = self.incumbent
            self._fill_looks(self._near_best(), times_s)

    def _fill_looks(self, pipelines: Iterable[tuple[Program, tuple[int, ...]]], times_s: Floats) -> None:
        """Fill and judge what looks best of some pipelines.

        Args:
            times_s: From and until when to be done, ``[t, 2]``.
        """
        looks: list[Look] = []
        for program, cuts in pipelines:
            known = ("looks", id(program), cuts)
            if known in self.tried:
                continue
            self.tried.add(known)
            levels = np.array([program.level(len(cuts) - 1, float(time_s)) for _, time_s in times_s])
            for level in np.unique(levels).tolist():
                for chains in self._chains(program, cuts, level):
                    some = times_s[levels == level]
                    looks += looks_of(chains, some, self.goal, self.room, self.proofs.price(program), serial=len(looks))
        for look in sorted(looks)[:_LOOKS_MAX]:
            if look.score >= self.incumbent:
                break
            made = list(look.mixes(self.goal, self.room))
            self.mixes += len(made)
            self._judge_best([(self._quick(mix), index, mix) for index, mix in enumerate(made)], _JUDGED_PER_CUT)

    def _near_best(self) -> Iterator[tuple[Program, tuple[int, ...]]]:
        """Yield the pipelines in which one cut of the best plan is moved."""
        program, cuts = self.best_pipeline
        for near in _neighbours(cuts):
            yield program, near

    def _pipelines(self) -> Iterator[tuple[Program, tuple[int, ...]]]:
        # Where a proof follows, it meets what the first looks leave out: what looks best first leaves out most.
        programs = sorted(self.programs, key=self._work_s) if self.space.proves else self.programs
        for program in programs:
            for cuts in cut_evenly(program.table.layer_count, _DEPTHS, program.pp_max):
                yield program, cuts
            if self.room.least > 1 and program.pp_max > 1:
                # Who must take slow GPUs too gives them few layers: that is far from even.
                for cuts in cut_in_two(program.table.layer_count, _UNEVEN):
                    yield program, cuts

    @property
    def keys(self) -> list[PartKey]:
        """Parts of the offer, in the order of all arrays."""
        return sorted(self.judge.offer)

    @property
    def stock(self) -> Ints:
        """GPUs of each part."""
        return np.array([self.judge.offer[key].gpu_count for key in self.keys], dtype=np.int64)

    @property
    def room(self) -> Room:
        """GPUs that a plan may take."""
        limits = self.goal.constraints
        return Room(stock=self.stock, least=limits.gpu_count_min or 0, most=limits.gpu_count_max)

    def _limits(self) -> list[tuple[Floats, float]]:
        """Return what a plan takes of what is limited beside the stock: the GPUs of all parts."""
        most = self.goal.constraints.gpu_count_max
        return [] if most is None else [(np.ones(len(self.keys)), float(most))]

    def _zone_by_part(self) -> Ints:
        zones = sorted({zone for _, zone in self.keys})
        return np.array([zones.index(zone) for _, zone in self.keys], dtype=np.int64)

    def _latest_s(self) -> float:
        """No plan that takes longer is wanted."""
        latest = self.goal.constraints.iter_time_s_max
        is_time = not self.goal.is_cost and self.goal.value is None
        return min(latest, self.incumbent) if is_time else latest

    def _try(self, program: Program, cuts: tuple[int, ...]) -> bool:
        """Fill a pipeline with chains, judge what looks better than the best, and tell whether that is better."""
        before = self.incumbent
        self._judge_best(self._looked_at(program, cuts, 0, []), _JUDGED_PER_CUT)
        return self.incumbent < before

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
            slack = _LOOKS_SLACK if self.room.least <= 1 else 2 * _LOOKS_SLACK
            latest = min(latest, slack * min(one[0] for one in others))
        level = program.level(len(cuts) - 1, latest) if np.isfinite(latest) else 0
        found: list[tuple[float, int, Mix]] = []
        for chains in self._chains(program, cuts, level):
            mix = self._fastest(chains, self.proofs.price(program), latest)
            if mix is not None:
                self.mixes += 1
                found.append((self._quick(mix), serial + len(found), mix))
        return found

    def _chains(self, program: Program, cuts: tuple[int, ...], level: int) -> Iterator[Chains]:
        """Yield the chains of a pipeline by the classes of first and last stages."""
        chains = self.proofs.chains(program, cuts)
        if chains is None:
            return
        known: set[bytes] = set()
        after = program.table.after
        for first in after.first[:, level]:
            for last in after.last[:, level] if len(cuts) > 2 else [program.ending_s[level]]:
                for some in self._of_sizes(chains.of_class(first, last)):
                    key = some.kinds.tobytes() + some.after_s.tobytes() + some.ending_s.tobytes()
                    if len(some.kinds) and key not in known:
                        known.add(key)
                        yield some

    def _of_sizes(self, chains: Chains) -> Iterator[Chains]:
        """Yield chains; where a plan must have so many GPUs, those with more of them apart as well."""
        yield chains
        if self.room.least > 1:
            sizes = chains.gpus.sum(axis=1)
            for size in np.unique(sizes[sizes <= self.room.least])[1:][-_SIZES_MAX:]:
                yield chains.only(sizes >= size)

    def _judge_best(self, found: list[tuple[float, int, Mix]], most: int) -> None:
        for quick, _, mix in sorted(found, key=lambda one: one[:2])[:most]:
            if quick < self.incumbent:
                self._judge(mix)

    def _fastest(self, chains: Chains, price: Floats, latest: float) -> Mix | None:
        """Return the fastest mix by bisection over the time until which all is done, None where none is wanted."""
        longest = chains.table.need * float(chains.slowest_s.max()) + float(chains.end_s(chains.after_s).max())
        high_s = min(latest * (1 - self.space.gap * bool(np.isfinite(self.incumbent))), longest)
        best = self._filled(chains, price, high_s)
        if best is None:
            return None
        low_s = float(chains.end_s(chains.after_s).min())
        while high_s > low_s * _TIME_PRECISION:
            middle = (max(low_s, 1e-12) * high_s) ** 0.5
            found = self._filled(chains, price, middle)
            if found is None:
                low_s = middle
            else:
                best, high_s = found, middle
        return best

    def _filled(self, chains: Chains, price: Floats, time_s: float) -> Mix | None:
        if not self.space.unequal_micro_batches:
            return fill_equally(chains, self.room, time_s)
        return fill(chains, self.room, time_s, price)

    def _quick(self, mix: Mix) -> float:
        usd = mix.time_s * float(self.goal.usd_per_s @ mix.gpu_counts)
        return self.goal.score(mix.time_s, usd, mix.gpu_counts)

    def _judge(self, mix: Mix) -> None:
        if mix.key in self.tried:
            return
        self.tried.add(mix.key)
        plan = plan_of(
            mix,
            self.keys,
            is_equal=not self.space.unequal_micro_batches,
            keeps_all=self.goal.constraints.gpu_count_min is not None,
        )
        refusal = unsupported(self.judge.train, plan, beyond_worker=self.space.allow_unsupported)
        if refusal is not None:
            self.refusals[refusal] = reason(ReasonCode.UNSUPPORTED, detail=refusal)
            return
        self.judged += 1
        self.judge.learn(plan, mix.table)
        judgement = self.judge.judge(plan)
        if judgement.refusal is not None:
            self.refusals[str(judgement.refusal)] = judgement.refusal
            return
        if self._weigh(plan, judgement):
            self.best_pipeline = next(one for one in self.programs if one.table is mix.table), mix.cuts

    def _weigh(self, plan: ParallelPlan, judgement: Judgement) -> bool:
        """Keep a plan if it is the best, and tell whether it is."""
        counts = np.array([judgement.gpu_counts.get(key, 0) for key in self.keys], dtype=np.int64)
        score = self.goal.score(judgement.estimate.iter_time_s, judgement.estimate.usd_per_step, counts)
        is_best = score < self.incumbent
        if is_best:
            self.incumbent, self.best = score, (plan, judgement)
        return is_best

    def _time_bound(self) -> float:
        """Prove that no plan is faster than a little less than the best; cuts that are met on the way are tried."""
        if not np.isfinite(self.incumbent):
            return float("inf")
        # What is met on the way can be better, which makes all proofs easier: first all programs once, then the rest.
        open_ = [one for one in sorted(self.programs, key=self._work_s) if not self._is_proven(one, 0)]
        worst = 0
        for program in open_:
            while worst < len(_SHARES) and not self._is_proven(program, worst):
                worst += 1
        return self._time_at(worst)

    def _is_proven(self, program: Program, index: int) -> bool:
        """Tell whether no plan of a program is faster than a share of the best, though better ones are met."""
        while self._time_at(index) < self.failed_s.get(id(program), np.inf):
            before = self.incumbent
            if self.proofs.is_proven(program, self._time_at(index), self._try):
                return True
            if self.incumbent == before:
                self.failed_s[id(program)] = self._time_at(index)
            else:
                self._climb()
        return False

    def _work_s(self, program: Program) -> float:
        """Return what the work alone takes on all GPUs at the least."""
        speed = speeds(program)
        return program.table.need * float(program.work(speed).min()) / float(speed @ self.stock)

    def _time_at(self, index: int) -> float:
        if index >= len(_SHARES):
            return 0.0
        return self.incumbent * (1.0 - self.space.gap) * (1.0 - _SHARES[index])

    def _money_proof(self) -> MoneyProof:
        return MoneyProof(
            programs=self.programs, proofs=self.proofs, goal=self.goal, incumbent=self.incumbent, gap=self.space.gap
        )

    def _result(self, bound: float) -> HeterogeneousResult:
        statistics = Statistics(
            tables=len(self.tables), programs=self.proofs.asked, mixes=self.mixes, judged=self.judged
        )
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


def _neighbours(cuts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield cuts of which one is moved."""
    for index in range(1, len(cuts) - 1):
        for step in _STEPS:
            at = cuts[index] + step
            if cuts[index - 1] < at < cuts[index + 1]:
                yield (*cuts[:index], at, *cuts[index + 1 :])
