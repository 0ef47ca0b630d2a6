"""What makes a job count for more: its priority, and having waited too long. Pure: no I/O, no clock.

*Bound.* Of the jobs that have waited for ``wait_max_s`` or longer, the one that has waited longest is worth more than
all others together, so it gets GPUs in the next decision (which is asked for when that time comes: ``next_look_s``) if
those of the jobs that may be stopped suffice. Where they do not, or not together, nodes are kept for it (see
``reservations``): those where what may not be stopped ends first. What starts there meanwhile is gone by then or can be
stopped. So it starts within ``wait_max_s``, plus what those that may not be stopped have left to run on the nodes that
are free of them first, plus a start (what has only just been started cannot be stopped before it runs) and the time it
takes to stop: less than ``wait_max_s`` + the longest run of a job that may not be stopped + a start + a stop. With k
overdue jobs before it, it is within k times what is added to ``wait_max_s``, and their quanta: a job that waited so
long is not suspended again for ``wait_max_s / 8``. Where the lengths of those that may not be stopped are declared too
small, the start of the reservation moves by as much.

A job that can start on no nodes that are known to become free, because what may not be stopped there has no end that
anybody knows, holds up nobody: the next one that has waited too long comes first, and it keeps its nodes meanwhile.

Guaranteed shares go first (see ``shares``): the bound holds on what they leave.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from arena.domain.job import JobId
from arena.policies.base import Snapshot
from arena.policies.priced.columns import Floats, firsts
from arena.policies.priced.market import Market

QUANTUM_SHARE = 1 / 8
PRIORITY_MAX = 30


def weights(market: Market) -> Floats:
    """Return how much the time of each contender counts: twice as much for each step of priority."""
    return np.asarray(np.exp2(np.clip(market.facts["priority"], -PRIORITY_MAX, PRIORITY_MAX)))


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
    waiting = np.flatnonzero(market.keeping < 0).tolist()
    instants = [waiting_since_s(snapshot, market.contenders[at].job_id) + wait_max_s for at in waiting]
    return min((at_s for at_s in instants if at_s > snapshot.now_s), default=None)


def overdue(snapshot: Snapshot, market: Market, wait_max_s: float, barred: Collection[int] = ()) -> list[int]:
    """Return the waiting contenders that have waited too long, the longest wait first.

    Args:
        barred: Contenders that can be given nothing, whatever the others have.
    """
    waits = sorted(
        (waiting_since_s(snapshot, market.contenders[at].job_id), at)
        for at in np.flatnonzero(market.keeping < 0).tolist()
        if at not in barred
    )
    return [at for since_s, at in waits if snapshot.now_s - since_s >= wait_max_s]


def _protected(snapshot: Snapshot, market: Market, wait_max_s: float) -> NDArray[np.bool_]:
    """Tell which running contenders are old and have only just got their GPUs."""
    facts, now_s = market.facts, snapshot.now_s
    is_new = now_s - facts["since_s"] < QUANTUM_SHARE * wait_max_s  # of one that has nothing it is not
    return np.asarray(is_new & (now_s - facts["submitted_at_s"] >= wait_max_s))


def waiting_since_s(snapshot: Snapshot, job_id: JobId) -> float:
    """Return when a waiting job last had GPUs, else when it was submitted."""
    job = snapshot.jobs[job_id]
    return job.submitted_at_s if job.predecessor is None else job.predecessor.ended_at_s
