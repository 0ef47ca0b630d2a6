"""What no schedule can beat: quick lower bounds of the mean completion time. Pure: no I/O, no clock.

Two relaxations, of which the larger holds; ``priced_bound`` has a third, nearer and slower. Alone: every job runs from
its submission on its fastest group. Pooled: the cluster is one machine that makes as many GPU-seconds a second as it
has GPUs, gives all of them to one job at a time if it likes, and a job needs no more than the least GPU time that any
of its groups takes; there, shortest remaining processing time first is optimal for the mean (Schrage 1968). Each start
costs its time once, nothing moves.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from arena.domain.cluster import ClusterShape
from arena.domain.grid import Cell
from arena.sim.asks import Asked
from arena.sim.costs import SimCosts
from experiments.policy.cases import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCell:
    """A group that a job can run on.

    Args:
        gpu_counts: Of each GPU type, in the order of the cluster's pools.
        time_s: What the whole job takes there, with one start.
    """

    gpu_counts: tuple[int, ...]
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A job as bounds see it.

    Args:
        cells: At least one.
    """

    submitted_at_s: float
    cells: tuple[TimedCell, ...]

    @property
    def alone_s(self) -> float:
        """On its fastest group."""
        return min(cell.time_s for cell in self.cells)

    @property
    def gpu_seconds(self) -> float:
        """The least that any of its groups takes."""
        return min(cell.time_s * sum(cell.gpu_counts) for cell in self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Lower bounds of a mean completion time.

    Args:
        priced_s: That of ``priced_bound``; None where it was not asked for.
    """

    alone_s: float
    pooled_s: float
    priced_s: float | None = None

    @property
    def mean_jct_s(self) -> float:
        """The largest of them."""
        return max(self.alone_s, self.pooled_s, self.priced_s or 0.0)


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


def gpu_counts_of(case: Case) -> tuple[int, ...]:
    """Return the GPUs of each type, in the order of the cells' counts."""
    counts = _counts_by_type(case.scenario.shape)
    return tuple(counts.values())


def _counts_by_type(shape: ClusterShape) -> dict[str, int]:
    counts: dict[str, int] = {}
    for pool in shape.pools:
        counts[pool.gpu_type] = counts.get(pool.gpu_type, 0) + pool.gpus_per_node * pool.node_count
    return counts


def _work(asked: Asked, case: Case) -> Work:
    types = tuple(_counts_by_type(case.scenario.shape))
    cells = case.truth.grid(asked.spec, case.scenario.shape).cells
    return Work(
        submitted_at_s=asked.job.submitted_at_s,
        cells=tuple(_timed(cell, asked, case.scenario.costs, types) for cell in cells),
    )


def _timed(cell: Cell, asked: Asked, costs: SimCosts, types: Sequence[str]) -> TimedCell:
    start_s = costs.start_s + costs.restart.restart_s(asked.spec, cell.group, is_first=True)
    gpus = [sum(part.gpu_count for part in cell.group.parts if part.gpu_type == gpu_type) for gpu_type in types]
    return TimedCell(gpu_counts=tuple(gpus), time_s=start_s + asked.step_count * cell.best.estimate.iter_time_s)
