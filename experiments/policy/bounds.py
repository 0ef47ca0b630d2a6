"""What no schedule can beat: lower bounds of the mean completion time. Pure: no I/O, no clock.

Two relaxations, of which the larger holds. Alone: every job runs from its submission on its fastest group. Pooled: the
cluster is one machine that makes as many GPU-seconds a second as it has GPUs, gives all of them to one job at a time if
it likes, and a job needs no more than the least GPU time that any of its groups takes; there, shortest remaining
processing time first is optimal for the mean (Schrage 1968). Each start costs its time once, nothing moves.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from arena.sim.asks import Asked
from experiments.policy.cases import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A job as bounds see it; both times have one start in them.

    Args:
        alone_s: On its fastest group.
        gpu_seconds: The least that any of its groups takes.
    """

    submitted_at_s: float
    alone_s: float
    gpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Lower bounds of a mean completion time."""

    alone_s: float
    pooled_s: float

    @property
    def mean_jct_s(self) -> float:
        """The larger of the two."""
        return max(self.alone_s, self.pooled_s)


def bound_of(works: Sequence[Work], *, gpu_count: int) -> Bound:
    """Return the bounds of jobs on a cluster of so many GPUs."""
    alone_s = math.fsum(one.alone_s for one in works) / len(works)
    return Bound(alone_s=alone_s, pooled_s=srpt_mean_s(works, gpu_count=gpu_count))


def srpt_mean_s(works: Sequence[Work], *, gpu_count: int) -> float:
    """Return the mean flow time under shortest remaining processing time first on the pooled machine."""
    now_s, flow_s = -math.inf, []
    left: list[tuple[float, float]] = []
    arrivals = sorted((one.submitted_at_s, one.gpu_seconds / gpu_count) for one in works)
    for index, (at_s, work_s) in enumerate(arrivals):
        now_s = max(now_s, at_s)
        heapq.heappush(left, (work_s, at_s))
        next_s = arrivals[index + 1][0] if index + 1 < len(arrivals) else math.inf
        while left and now_s < next_s:
            least_s, since_s = heapq.heappop(left)
            spent_s = min(least_s, next_s - now_s)
            now_s += spent_s
            if spent_s < least_s:
                heapq.heappush(left, (least_s - spent_s, since_s))
            else:
                flow_s.append(now_s - since_s)
    return math.fsum(flow_s) / len(flow_s)


def works_of(case: Case) -> tuple[Work, ...]:
    """Return the jobs of a replay as bounds see them."""
    return tuple(_work(one, case) for one in case.scenario.jobs)


def _work(asked: Asked, case: Case) -> Work:
    costs, cells = case.scenario.costs, case.truth.grid(asked.spec, case.scenario.shape).cells
    restart_s = [costs.restart.restart_s(asked.spec, cell.group, is_first=True) for cell in cells]
    times_s = [
        costs.start_s + start_s + asked.step_count * cell.best.estimate.iter_time_s
        for start_s, cell in zip(restart_s, cells, strict=True)
    ]
    least = min(time_s * cell.group.gpu_count for time_s, cell in zip(times_s, cells, strict=True))
    return Work(submitted_at_s=asked.job.submitted_at_s, alone_s=min(times_s), gpu_seconds=least)
