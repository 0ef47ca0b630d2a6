"""Proofs that no plan is done by a time, and the prices that give them. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from arena.planner.candidates import Floats, Ints
from arena.planner.heterogeneous_bound import Case, Program
from arena.planner.heterogeneous_chains import Chains, chains_of, chains_with, most_work, possible

_PRICES_KEPT = 3
_STEP = 0.5
"""How far prices go from the best ones so far to those of the linear program, which jump from corner to corner."""

Attempt = Callable[[Program, tuple[int, ...]], None]
"""Told a pipeline that may hold a faster plan."""


@dataclass(slots=True, kw_only=True)
class Proofs:
    """Asks programs at prices until none of their chains is cheap enough.

    Args:
        steps_max: How often prices are changed for one case.
        asked: How often a program or a linear program was asked.
    """

    stock: Ints
    steps_max: int
    prices: list[Floats] = field(default_factory=list)
    known: dict[tuple[int, tuple[int, ...]], Chains | None] = field(default_factory=dict)
    asked: int = 0

    def is_proven(self, program: Program, time_s: float, attempt: Attempt | None) -> bool:
        """Tell whether it is certain that no plan of a program is done by a time.

        Args:
            attempt: What is told of pipelines for which it is not.
        """
        cases = program.cases(time_s)
        for price in self._first_prices(program):
            if not cases:
                return True
            self.asked += 1
            slacks = program.slacks(cases, price)
            cases = [case for case, slack in zip(cases, slacks.tolist(), strict=True) if slack < 0]
        return all(self._is_case_proven(program, case, attempt) for case in cases)

    def _first_prices(self, program: Program) -> list[Floats]:
        return [*self.prices, self.normal(speeds(program))]

    def price(self, program: Program) -> Floats:
        """Return the prices that proved something last; all GPUs together cost 1."""
        return self._first_prices(program)[0]

    def normal(self, price: Floats) -> Floats:
        """Scale prices so that all GPUs together cost 1."""
        scaled: Floats = price / float(price @ self.stock)
        return scaled

    def _keep(self, price: Floats) -> None:
        self.prices = [price, *self.prices][:_PRICES_KEPT]

    def _is_case_proven(self, program: Program, case: Case, attempt: Attempt | None) -> bool:
        if case.pp <= 2:
            return self._are_cuts_proven(program, case, attempt)
        if self._is_priced_out(program, case, None):
            return True
        return all(self._is_priced_out(program, one, attempt) for one in program.split(case))

    def _are_cuts_proven(self, program: Program, case: Case, attempt: Attempt | None) -> bool:
        """Ask the linear program over all chains, for one way to cut after the other."""
        layers = program.table.layer_count
        for cuts in [(0, layers)] if case.pp == 1 else [(0, at, layers) for at in range(1, layers)]:
            chains = self.chains(program, cuts)
            if chains is None:
                continue
            for ending in program.table.after.last[:, case.level] if case.pp > 1 else [case.ending_s]:
                if not self._is_cut_proven(program, chains.of_class(case.after_s, ending), case.time_s):
                    if attempt is not None:
                        attempt(program, cuts)
                    return False
        return True

    def _is_cut_proven(self, program: Program, chains: Chains, time_s: float) -> bool:
        for counts in possible(chains, time_s, self.price(program)):
            self.asked += 1
            master = most_work(counts, chains.gpus, self.stock)
            if master.value >= program.table.need:
                return False
            if master.price.any():
                self._keep(self.normal(master.price))
        return True

    def chains(self, program: Program, cuts: tuple[int, ...]) -> Chains | None:
        """Return the chains of a pipeline, None where there are none."""
        known = (id(program), cuts)
        if known not in self.known:
            self.known[known] = chains_of(program.table, cuts, len(self.stock))
        return self.known[known]

    def _is_priced_out(self, program: Program, case: Case, attempt: Attempt | None) -> bool:
        """Move prices until no chain is cheap enough, or until such chains make a whole plan."""
        need, pool = program.table.need, None
        price = best = self.price(program)
        best_slack = -np.inf
        for _ in range(self.steps_max):
            self.asked += 1
            found = program.cheaper_chain(case, price)
            if found is None:
                self._keep(price)
                return True
            if attempt is not None:
                attempt(program, found.cuts)
            if found.slack > best_slack:
                best, best_slack = price, found.slack
            more = chains_with(program.table, found.cuts, np.array([found.kinds]), len(self.stock))
            more = more.of_class(case.after_s, case.ending_s)
            pool = more if pool is None else pool.joined(more)
            master = most_work(pool.counts(case.time_s), pool.gpus, self.stock)
            if master.value >= need:
                return False
            own = self.normal(master.price) if master.price.any() else self.normal(speeds(program))
            price = (1 - _STEP) * best + _STEP * own
        return False


def speeds(program: Program) -> Floats:
    """Return prices in proportion to what a GPU of each part can do."""
    work = program.tp[:, None] * program.time_s
    least = np.array([work[program.part == part].min(initial=np.inf) for part in range(len(program.zone))])
    return np.where(np.isfinite(least), 1.0 / least, 0.0)


def cut_evenly(layers: int, depths: tuple[int, ...], pp_max: int) -> Iterator[tuple[int, ...]]:
    """Yield where to cut for some depths."""
    for pp in depths:
        if pp <= pp_max:
            yield tuple(round(index * layers / pp) for index in range(pp + 1))
