"""What makes a job count for more: its priority, and having waited too long. Pure: no I/O, no clock.

*Bound.* A waiting job is late when it has waited for ``wait_max_s`` and as long again as it would take on its fastest
group for the steps that it says it has left, six times ``wait_max_s`` at most. The longer a job, the less a wait is
to it: with one limit for all, jobs of days would take turns of hours on a cluster that is asked for too much, and all
of them would end later. Of the late jobs the one that was late first is worth more than all others together, so it
gets GPUs in the next decision (which is asked for when that time comes: ``next_look_s``) if those of the jobs that
may be stopped suffice. Where they do not, or not together, nodes are kept for it (see ``reservations``): those where
what may not be stopped ends first. What starts there meanwhile is gone by then or can be stopped; but a job that was
submitted ``wait_max_s`` ago or earlier, and has only just got its GPUs, is left them for a quantum, ``wait_max_s / 8``,
lest those that have waited too long displace each other. So it starts within its limit, plus what those that may not
be stopped have left to run on the nodes that are free of them first, plus a quantum, plus a start (what has only just
been started cannot be stopped before it runs) and the time it takes to stop: less than ``wait_max_s`` + its own fastest
run + the longest run of a job that may not be stopped + a quantum + a start + a stop. With k late jobs before it, it is
within k + 1 times what is added to the limit. Where the lengths of those that may not be stopped are declared too
small, the start of the reservation moves by as much. A job that tells no steps has ``wait_max_s`` alone.

A job that can start on no nodes that are known to become free, because what may not be stopped there has no end that
anybody knows, holds up nobody: the next one that has waited too long comes first, and it keeps its nodes meanwhile.

Guaranteed shares go first (see ``shares``): the bound holds on what they leave.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from arena.policies.base import Snapshot
from arena.policies.priced.columns import Floats, firsts
from arena.policies.priced.market import Contender, Market

QUANTUM_SHARE = 1 / 8
"""Of ``wait_max_s``: for so long an old job is left what it has only just got."""

OWN_RUN_WAITS_MAX = 6
"""A job's own run makes its limit longer by so many ``wait_max_s`` at most, however long it says it is."""


def weights(market: Market) -> Floats:
    """Return how much the time of each contender counts."""
    return np.asarray(market.facts["weight"])


def urged(snapshot: Snapshot, market: Market, value: Floats, wait_max_s: float, first: int | None) -> Floats:
    """Return the values of columns where ``first``, which has waited too long, comes first."""
    protected = _protected(snapshot, market, wait_max_s)
    if first is None and not protected.any():
        return value
    bonus = 2.0 * float(np.maximum(np.maximum.reduceat(value, firsts(market.job)), 0.0).sum())
    urged = np.where(protected[market.job], value + bonus, value)
    return urged if first is None else np.where(market.job == first, urged + bonus, urged)


def types_kept_free(market: Market, first: int | None) -> frozenset[str]:
    """Return the GPU types on which nothing that may not be stopped is to start, for who has waited too long."""
    if first is None:
        return frozenset()
    wanted = market.usage[market.job == first].any(axis=0)
    return frozenset(row.pool[0] for row, is_wanted in zip(market.rows, wanted, strict=True) if is_wanted)


def next_look_s(snapshot: Snapshot, market: Market, wait_max_s: float) -> float | None:
    """Return when the next waiting job will have waited too long, None where nothing waits that has not."""
    late_s = late_at_s(snapshot, market, wait_max_s).values()
    return min((at_s for at_s in late_s if at_s > snapshot.now_s), default=None)


def overdue(snapshot: Snapshot, market: Market, wait_max_s: float, barred: Collection[int] = ()) -> list[int]:
    """Return the waiting contenders that have waited too long, the first that had first.

    Args:
        barred: Contenders that can be given nothing, whatever the others have.
    """
    late = late_at_s(snapshot, market, wait_max_s).items()
    return [
        at for _, at in sorted((late_s, at) for at, late_s in late if late_s <= snapshot.now_s and at not in barred)
    ]


def late_at_s(snapshot: Snapshot, market: Market, wait_max_s: float) -> dict[int, float]:
    """Return when each waiting contender has waited too long, by contender."""
    waiting = np.flatnonzero(market.keeping < 0).tolist()
    return {at: _late_at_s(snapshot, market.contenders[at], wait_max_s) for at in waiting}


def _late_at_s(snapshot: Snapshot, contender: Contender, wait_max_s: float) -> float:
    job = snapshot.jobs[contender.job_id]
    since_s = job.submitted_at_s if job.predecessor is None else job.predecessor.ended_at_s
    steps = max((job.spec.step_limit or 0) - job.progress.step, 0)
    return since_s + wait_max_s + min(steps / contender.table.fastest, OWN_RUN_WAITS_MAX * wait_max_s)


def _protected(snapshot: Snapshot, market: Market, wait_max_s: float) -> NDArray[np.bool_]:
    """Tell which running contenders are old and have only just got their GPUs."""
    facts, now_s = market.facts, snapshot.now_s
    is_new = now_s - facts["since_s"] < QUANTUM_SHARE * wait_max_s  # of one that has nothing it is not
    return np.asarray(is_new & (now_s - facts["submitted_at_s"] >= wait_max_s))
