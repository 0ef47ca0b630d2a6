"""Proofs that no plan is done by a time, and the prices that give them. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from arena.planner.candidates import Floats, Ints
from arena.planner.heterogeneous.bound import Case, Program
from arena.planner.heterogeneous.chains import Chains, chains_of, chains_with, possible
from arena.planner.heterogeneous.master import most_work

_PRICES_KEPT = 3
_STEP = 0.5
"""How far prices go from the best ones so far to those of the linear program, which jump from corner to corner."""

Attempt = Callable[[Program, tuple[int, ...]], bool]
"""Told a pipeline that may hold a faster plan; returns whether a better one than before is known then."""


@dataclass(slots=True, kw_only=True)
class Proofs:
    """Asks programs at prices until none of their chains is cheap enough.

    Args:
        steps_max: How often prices are changed for one case.
        always: What GPUs may cost at most, beside being there: prices of a GPU of each part, and the sum.
        caps: The same, for what is being proven.
        prices: What proved something before: of a GPU of each part, then of what each cap allows.
        asked: How often a program or a linear program was asked.
    """

    stock: Ints
    steps_max: int
    always: list[tuple[Floats, float]] = field(default_factory=list)
    caps: list[tuple[Floats, float]] = field(default_factory=list)
    prices: list[Floats] = field(default_factory=list)
    known: dict[tuple[int, tuple[int, ...]], Chains | None] = field(default_factory=dict)
    done: dict[tuple[int, int, int], float] = field(default_factory=dict)
    speeds: dict[int, Floats] = field(default_factory=dict)
    asked: int = 0

    def is_proven(self, program: Program, time_s: float, attempt: Attempt | None) -> bool:
        """Tell whether it is certain that no plan of a program is done by a time.

        Args:
            attempt: What is told of pipelines for which it is not. Where it knows a better plan then, what is left is
                not asked: with that plan it is easier.
        """
        if self._is_too_much_work(program, time_s):
            return True
        cases = [case for case in program.cases(time_s) if not self._is_done(program, case)]
        for price in self._first_prices(program):
            if not cases:
                return True
            self.asked += 1
            slacks = program.slacks(cases, self._of_gpus(price))
            open_ = [slack < 0 for slack in slacks.tolist()]
            if not self.caps:
                done = [case for case, is_open in zip(cases, open_, strict=True) if not is_open]
                self.done.update({(id(program), case.group, case.pp): case.time_s for case in done})
            cases = [case for case, is_open in zip(cases, open_, strict=True) if is_open]
        is_better = False

        def told(asked: Program, cuts: tuple[int, ...]) -> bool:
            nonlocal is_better
            is_better = attempt is not None and attempt(asked, cuts)
            return is_better

        # All of them, not until one fails: what is met may be worth trying. Few stages first, they are asked soonest.
        is_proven = True
        for case in sorted(cases, key=lambda one: one.pp):
            is_proven &= self._is_case_proven(program, case, told if attempt is not None else None)
            if is_better or (attempt is None and not is_proven):
                return False
        return is_proven

    def _is_too_much_work(self, program: Program, time_s: float) -> bool:
        """Tell whether all GPUs cannot do even the work alone by a time: what they are worth is 1."""
        price = self._of_gpus(self._normal(self._speeds(program)))
        return program.table.need * float(program.work(price).min()) > time_s

    def _is_done(self, program: Program, case: Case) -> bool:
        """Tell whether a case was proven for a later time, without caps on what GPUs cost."""
        return not self.caps and case.time_s <= self.done.get((id(program), case.group, case.pp), -np.inf)

    @property
    def _limits(self) -> Floats:
        """GPUs of each part, then caps."""
        return np.array([*self.stock, *(cap for _, cap in self._all_caps)], dtype=np.float64)

    @property
    def _all_caps(self) -> list[tuple[Floats, float]]:
        return [*self.always, *self.caps]

    def _taken(self, chains: Chains) -> Floats:
        """Return what chains take of the limits, ``[c, limits]``."""
        return np.concatenate((chains.gpus, *(chains.gpus @ price[:, None] for price, _ in self._all_caps)), axis=1)

    def _of_gpus(self, price: Floats) -> Floats:
        """Return what a GPU of each part costs at prices of the limits."""
        found = price[: len(self.stock)].copy()
        for (each, _), own in zip(self._all_caps, price[len(self.stock) :].tolist(), strict=True):
            found += own * each
        return found

    def _first_prices(self, program: Program) -> list[Floats]:
        alone = [self._normal(row) for row in np.eye(len(self._limits))[len(self.stock) :]]
        return [*(self._normal(price) for price in self.prices), self._normal(self._speeds(program)), *alone]

    def price(self, program: Program) -> Floats:
        """Return the prices of GPUs that proved something last; everything that there is costs 1."""
        first = self.prices[0] if self.prices else self._speeds(program)
        return self._of_gpus(self._normal(first))

    def _normal(self, price: Floats) -> Floats:
        scaled: Floats = price / float(price @ self._limits)
        return scaled

    def _speeds(self, program: Program) -> Floats:
        """Return prices in proportion to what a GPU of each part can do."""
        if id(program) not in self.speeds:
            self.speeds[id(program)] = speeds(program)
        return np.concatenate((self.speeds[id(program)], np.zeros(len(self._all_caps))))

    def _keep(self, price: Floats) -> None:
        self.prices = [price, *self.prices][:_PRICES_KEPT]

    def _is_case_proven(self, program: Program, case: Case, attempt: Attempt | None) -> bool:
        if case.pp <= 2:
            is_proven = self._are_cuts_proven(program, case, attempt)
        else:
            is_proven = self._is_priced_out(program, case, None) or all(
                self._is_priced_out(program, one, attempt) for one in program.split(case)
            )
        if is_proven and not self.caps:
            self.done[id(program), case.group, case.pp] = case.time_s
        return is_proven

    def _are_cuts_proven(self, program: Program, case: Case, attempt: Attempt | None) -> bool:
        """Ask the linear program over all chains, for one way to cut after the other."""
        layers, is_proven = program.table.layer_count, True
        for cuts in [(0, layers)] if case.pp == 1 else [(0, at, layers) for at in range(1, layers)]:
            chains = self.chains(program, cuts)
            # Most ways to cut are out whatever the class of the last stage is.
            if chains is None or not len(
                possible(chains.of_class(case.after_s, case.ending_s), case.time_s, self.price(program))
            ):
                continue
            endings = program.table.after.last[:, case.level] if case.pp > 1 else [case.ending_s]
            if all(self._is_cut_proven(program, chains.of_class(case.after_s, one), case.time_s) for one in endings):
                continue
            is_proven = False
            if attempt is None or attempt(program, cuts):
                return False
        return is_proven

    def _is_cut_proven(self, program: Program, chains: Chains, time_s: float) -> bool:
        for counts in possible(chains, time_s, self.price(program)):
            self.asked += 1
            master = most_work(counts, self._taken(chains), self._limits)
            if master.value >= program.table.need:
                return False
            if master.price.any():
                self._keep(self._normal(master.price))
        return True

    def chains(self, program: Program, cuts: tuple[int, ...]) -> Chains | None:
        """Return the chains of a pipeline, None where there are none."""
        known = (id(program), cuts)
        if known not in self.known:
            self.known[known] = chains_of(program.table, cuts, len(self.stock))
        return self.known[known]

    def _is_priced_out(self, program: Program, case: Case, attempt: Attempt | None) -> bool:
        """Move prices until no chain is cheap enough, or until such chains make a whole plan."""
        need, parts = program.table.need, len(self.stock)
        pool: Chains | None = None
        price = best = self._first_prices(program)[0]
        best_value = np.inf
        for _ in range(self.steps_max):
            self.asked += 1
            found = program.cheaper_chains(case, self._of_gpus(price))
            if not found:
                self._keep(price)
                return True
            news = [chains_with(program.table, one.cuts, np.array([one.kinds]), parts) for one in found]
            more = reduce(Chains.joined, (one.of_class(case.after_s, case.ending_s) for one in news))
            if attempt is not None and attempt(program, found[0].cuts):
                return False
            counts = more.counts(case.time_s)
            value = float((counts - self._taken(more) @ price * need).max(initial=0.0))
            if value < best_value:
                best, best_value = price, value
            pool = more if pool is None else pool.joined(more)
            master = most_work(pool.counts(case.time_s), self._taken(pool), self._limits)
            if master.value >= need:
                return False
            own = self._normal(master.price if master.price.any() else self._speeds(program))
            before, price = price, (1 - _STEP) * best + _STEP * own
            if np.allclose(before, price, rtol=1e-6, atol=0.0):
                return False
        return False


def speeds(program: Program) -> Floats:
    """Return prices in proportion to what a GPU of each part can do."""
    work = program.tp[:, None] * program.time_s
    least = np.array([work[program.part == part].min(initial=np.inf) for part in range(len(program.zone))])
    return np.where(np.isfinite(least), 1.0 / least, 0.0)


def cheapest(program: Program, price: Floats) -> float:
    """Return what the GPUs of a chain cost at the least."""
    return float((price[program.part] * program.tp).min())


def cut_evenly(layers: int, depths: tuple[int, ...], pp_max: int) -> Iterator[tuple[int, ...]]:
    """Yield where to cut for some depths."""
    for pp in depths:
        if pp <= pp_max:
            yield tuple(round(index * layers / pp) for index in range(pp + 1))


def cut_in_two(layers: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield ways to cut in two at multiples of a share of the layers."""
    for at in sorted({round(index * layers / count) for index in range(1, count)} - {0, layers}):
        yield 0, at, layers
