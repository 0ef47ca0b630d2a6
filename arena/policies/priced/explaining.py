"""Why a job has what it has, and what would have to give way for more, in numbers. Pure: no I/O, no clock.

What a job that waits would displace comes from solving the allocation again with the job forced in.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from arena.domain.job import JobId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.priced.allocation import Answer, Effort, solve
from arena.policies.priced.columns import Columns, Ints
from arena.policies.priced.market import Contender, Market

DISPLACED_NAMED_MAX = 5
GROUPS_FORCED_MAX = 3
TIE_SHARE = 0.005
"""A job that is worth less than others by no more than this is told so: both numbers look the same to people."""


def explained(market: Market, columns: Columns, answer: Answer, job_id: JobId, effort: Effort) -> tuple[Reason, ...]:
    """Return the reasons of one job; none of one that does not compete.

    Args:
        market: What the answer is about.
        columns: With the values that the answer was found for.
        answer: What everybody gets.
        effort: How hard to look for what gives way.
    """
    at = next((at for at, contender in enumerate(market.contenders) if contender.job_id == job_id), None)
    if at is None:
        return ()
    own, kept = np.flatnonzero(market.job == at), int(market.keeping[at])
    ranked = own[np.argsort(-answer.priced.reduced[own], kind="stable")]
    if kept < 0:
        return (
            offer_of(market, columns, answer, int(ranked[0]), ReasonCode.OUTBID),
            *_displaced(market, columns, answer, ranked[:GROUPS_FORCED_MAX], effort),
        )
    has = offer_of(market, columns, answer, kept, ReasonCode.KEPT)
    others = [int(column) for column in ranked if column != kept]
    return (has, *(offer_of(market, columns, answer, column, ReasonCode.NEXT_BEST) for column in others[:1]))


def offer_of(market: Market, columns: Columns, answer: Answer, column: int, code: ReasonCode) -> Reason:
    """Return what a column is worth beside what others would do with its GPUs."""
    value = float(columns.value[column])
    price = value - float(answer.priced.reduced[column])
    if code is ReasonCode.OUTBID and value > price * (1.0 - TIE_SHARE):
        code = ReasonCode.TIED
    return reason(code, group=str(market.group(column)), value=value, price=price)


def cause_of(market: Market, contender: Contender, column: int) -> Reason:
    """Return why a job that runs gets something else than it has."""
    assert contender.holding is not None
    group, before = market.group(column), contender.holding.group.gpu_count
    if group.gpu_count == before:
        return reason(ReasonCode.MOVED, group=str(group))
    if group.gpu_count < before:
        return reason(ReasonCode.SHRANK, before=before, after=group.gpu_count, job="jobs that gain more")
    speedup = float(market.speed[column] / market.speed[market.keeping[market.job[column]]])
    return reason(ReasonCode.GREW, before=before, after=group.gpu_count, speedup=speedup)


def _displaced(market: Market, columns: Columns, answer: Answer, forced: Ints, effort: Effort) -> tuple[Reason, ...]:
    """Return who gives way where one of a job's columns is forced in, for the column that costs all jobs least."""
    at = int(market.job[forced[0]])
    others = replace(columns, value=np.where(market.job == at, -1.0, columns.value))
    best: tuple[float, int, Ints] | None = None
    for column in forced.tolist():
        left = market.supply - columns.usage[column]
        if (left < 0).any():
            continue
        found = solve(others, left, guess=answer.priced.prices, effort=effort)
        loss = answer.value - found.value - float(columns.value[column])
        if best is None or loss < best[0]:
            best = loss, column, found.chosen
    if best is None:
        short = np.flatnonzero(market.supply < columns.usage[int(forced[0])])
        if len(short) and all(market.rows[row].kept_for or market.rows[row].is_lasting for row in short.tolist()):
            return ()  # shares alone are in the way, which is told beside
        return (reason(ReasonCode.UNMOVABLE, group=str(market.group(int(forced[0])))),)
    loss, column, chosen = best
    names = _giving_way(market, answer.chosen, chosen, at)
    who = ", ".join(names[:DISPLACED_NAMED_MAX]) or "nobody"
    more = f" and {len(names) - DISPLACED_NAMED_MAX} more" if len(names) > DISPLACED_NAMED_MAX else ""
    return (reason(ReasonCode.DISPLACES, group=str(market.group(column)), jobs=who + more, loss=max(loss, 0.0)),)


def _giving_way(market: Market, before: Ints, after: Ints, at: int) -> list[str]:
    """Return the jobs that have less than before, each with what is left to it."""
    names = []
    for other, contender in enumerate(market.contenders):
        old, new = int(before[other]), int(after[other])
        if other == at or old < 0 or old == new:
            continue
        if new < 0:
            names.append(f"{contender.job_id} (all of it)")
        elif market.speed[new] < market.speed[old]:
            names.append(f"{contender.job_id} (down to {market.group(new)})")
    return names
