"""The dual bound where money counts: costs, budgets, prices of GPUs. Pure: no I/O, no clock.

A plan that is better than a score and done in a stretch of time may cost only so much (``Goal.caps``); that is one more
thing of which there is no more than so much, beside the GPUs of each part, and ``Proofs`` prices it like these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from arena.planner.heterogeneous.bound import Program
from arena.planner.heterogeneous.goal import Goal
from arena.planner.heterogeneous.proof import Proofs, cheapest, speeds

_RATIOS = (4.0, 2.0, 1.4, 1.15, 1.05, 1.02)
"""How long a stretch of time is that is proven at once: until over from."""
_STRETCHES_MAX = 120
_SHARES = (0.0, 0.01, 0.025, 0.06, 0.15, 0.3, 0.5)
"""Shares of the best score, beyond the wanted gap, by which a bound gives way until it can be proven."""


@dataclass(slots=True, kw_only=True)
class MoneyProof:
    """Bounds the score of a search.

    Args:
        incumbent: The best score.
        gap: Share of it by which the bound may be lower.
    """

    programs: Sequence[Program]
    proofs: Proofs
    goal: Goal
    incumbent: float
    gap: float

    def bound(self) -> float:
        """Return what no score is below."""
        known = self.work_bound()
        return known if known >= self._score_at(0) else max(known, self._by_stretches(known))

    def _by_stretches(self, known: float) -> float:
        """Prove, for one stretch of time after the other, that no better plan is done in it with what it may cost."""
        worst, at = 0, 0
        time_s = min(float(program.least_sum_s.min()) for program in self.programs)
        for count in range(_STRETCHES_MAX):
            score = self._score_at(worst)
            if score <= known or self._is_past(score, time_s):
                return score
            until_s = min(time_s * _RATIOS[at], self._latest_at(score))
            self.proofs.caps = self.goal.caps(score, time_s)
            if self._is_too_dear(until_s) or all(
                self.proofs.is_proven(program, until_s, None) for program in self.programs
            ):
                time_s, at = until_s, max(at - 1, 0)
            else:
                # Stretches that end with the last time that is wanted are all the same.
                while at < len(_RATIOS) and time_s * _RATIOS[at] >= until_s:
                    at += 1
                if at >= (len(_RATIOS) if count < _STRETCHES_MAX // 2 else len(_RATIOS) - 2):
                    worst, at = worst + 1, 1
        return -np.inf

    def _is_too_dear(self, time_s: float) -> bool:
        """Tell whether the work alone, on the GPUs that do it for the least, costs more than it may."""
        return any(
            all(program.table.need * float(program.work(price).min()) / time_s > cap for program in self.programs)
            for price, cap in self.proofs.caps
        )

    def _score_at(self, index: int) -> float:
        """Return a score that is better than the best by the wanted gap and a share."""
        if index >= len(_SHARES):
            return -np.inf
        return self.incumbent - (self.gap + _SHARES[index]) * abs(self.incumbent)

    def _latest_at(self, score: float) -> float:
        """No plan that is better than a score takes longer."""
        is_time = not self.goal.is_cost and self.goal.value is None
        return min(self.goal.constraints.iter_time_s_max, score if is_time else np.inf)

    def _is_past(self, score: float, time_s: float) -> bool:
        """Tell whether no plan that takes longer than a time can be better than a score."""
        if time_s >= self._latest_at(score):
            return True
        return any(
            all(cheapest(program, price) > cap for program in self.programs)
            for price, cap in self.goal.caps(score, time_s)
        )

    def work_bound(self) -> float:
        """Bound the score by the price of the work on the kinds that do it for the least."""
        price = self.goal.price
        work, time_s = float("inf"), float("inf")
        for program in self.programs:
            work = min(work, program.table.need * float(program.work(price).min()))
            speed = speeds(program)
            time_s = min(
                time_s, program.table.need * float(program.work(speed).min()) / float(speed @ self.proofs.stock)
            )
        limit = self.goal.constraints.usd_per_step_max
        if limit is not None and work > limit:
            return float("inf")
        return self.goal.bound_of_work(work, time_s)
