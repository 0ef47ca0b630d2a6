"""What a heterogeneous search makes small. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arena.planner.candidates import Floats, Ints
from arena.planner.heterogeneous.offer import Constraints, Value

_STEPS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Seconds, dollars, or price minus value.

    Args:
        usd_per_s: Of a GPU of each part, ``[g]``.
        gpu_price: Of a GPU of each part in the unit of ``value``, ``[g]``; None unless a column is wanted.
        value: Worth of a step time; None unless a column is wanted.
        is_cost: Whether dollars count.
    """

    constraints: Constraints
    usd_per_s: Floats
    gpu_price: Floats | None = None
    value: Value | None = None
    is_cost: bool = False

    @property
    def is_time(self) -> bool:
        """Whether nothing counts but the step time, and no budget limits it."""
        return not self.is_cost and self.value is None and self.constraints.usd_per_step_max is None

    @property
    def price(self) -> Floats:
        """Price of a GPU of each part by which plans are made cheap."""
        return self.usd_per_s if self.gpu_price is None else self.gpu_price

    def score(self, iter_time_s: float, usd: float, gpu_counts: Ints) -> float:
        """Return what is made small; infinite where a constraint is broken."""
        limit = self.constraints.usd_per_step_max
        if iter_time_s > self.constraints.iter_time_s_max or (limit is not None and usd > limit):
            return float("inf")
        if not self.constraints.allows(int(gpu_counts.sum())):
            return float("inf")
        if self.value is not None and self.gpu_price is not None:
            return float(self.gpu_price @ gpu_counts) - self.value(iter_time_s)
        return usd if self.is_cost else iter_time_s

    def looks(self, times_s: Floats, usd_per_s: Floats, price: Floats) -> Floats:
        """Return what the scores of plans are at the least, ``[t]``.

        Args:
            times_s: No plan is done before.
            usd_per_s, price: What its GPUs cost at the least.
        """
        found: Floats = times_s
        if self.value is not None:
            found = price - np.array([self.value(float(time_s)) for time_s in times_s])
        elif self.is_cost:
            found = usd_per_s * times_s
        limit = self.constraints.usd_per_step_max
        is_over = times_s > self.constraints.iter_time_s_max
        if limit is not None:
            is_over |= usd_per_s * times_s > limit
        return np.where(is_over, np.inf, found)

    def caps(self, score: float, time_s: float) -> list[tuple[Floats, float]]:
        """Return what GPUs cost at most in a plan that is better than a score and done after a time.

        Each is a price of a GPU of each part, ``[g]``, and the most that all of them may cost.
        """
        found: list[tuple[Floats, float]] = []
        if self.value is not None and self.gpu_price is not None:
            found.append((self.gpu_price, score + self.value(time_s)))
        elif self.is_cost:
            found.append((self.usd_per_s, score / time_s))
        if self.constraints.usd_per_step_max is not None:
            found.append((self.usd_per_s, self.constraints.usd_per_step_max / time_s))
        return found

    def bound_of_work(self, work_price: float, time_s_min: float) -> float:
        """Bound the score by the work: a GPU that computes for a time has to be paid for as long.

        Args:
            work_price: GPU prices times the seconds that a step's micro-batches take on the cheapest kinds.
            time_s_min: No plan is done before.
        """
        if self.is_cost:
            return work_price
        if self.value is None:
            return time_s_min
        # price >= work / T: the lower end of each interval of T counts for the value, the upper one for the price.
        edges = np.append(time_s_min * np.geomspace(1.0, 1e4, _STEPS), np.inf)
        values = np.array([self.value(float(edge)) for edge in edges[:-1]])
        return float((work_price / edges[1:] - values).min())
