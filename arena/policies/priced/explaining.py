"""Why a job has what it has, and what would have to give way for more, in numbers. Pure: no I/O, no clock.

What a job that waits would displace comes from solving the allocation again with the job forced in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from arena.domain.job import JobId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.base import Snapshot
from arena.policies.priced.allocation import Answer, Effort, solve
from arena.policies.priced.columns import Columns, Ints
from arena.policies.priced.market import Contender, Market
from arena.policies.priced.pace import pace_on

DISPLACED_NAMED_MAX = 5
GROUPS_FORCED_MAX = 3
NEXT_BEST_TOLD_MAX = 4
TIE_SHARE = 0.005
"""A job that is worth less or more than others by no more than this is told so: the numbers look alike to people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who is asked about, and how.

    Args:
        effort: How hard to look for what gives way.
        usd_per_hour: Price of a GPU hour of each type.
    """

    job_id: JobId
    effort: Effort
    usd_per_hour: Mapping[str, float] = field(default_factory=dict)


def explained(
    market: Market, columns: Columns, answer: Answer, asked: Asked, is_offer: NDArray[np.bool_]
) -> tuple[Reason, ...]:
    """Return the reasons of one job; none of one that does not compete.

    Args:
        market: What the answer is about.
        columns: With the values that the answer was found for.
        answer: What everybody gets.
        is_offer: Columns that find devices if others give way; what it has need not be among them.
    """
    at = next((at for at, contender in enumerate(market.contenders) if contender.job_id == asked.job_id), None)
    if at is None:
        return ()
    own, kept = np.flatnonzero(market.job == at), int(market.keeping[at])
    offered = own[is_offer[own]]
    ranked = offered[np.argsort(-answer.priced.reduced[offered], kind="stable")]
    if kept < 0 and not len(ranked):
        return ()
    first, code = (int(ranked[0]), ReasonCode.OUTBID) if kept < 0 else (kept, ReasonCode.KEPT)
    others = list(islice(_told_apart(market, ranked.tolist(), first), NEXT_BEST_TOLD_MAX))
    told = [(first, code), *((column, ReasonCode.NEXT_BEST) for column in others if columns.value[column] > 0.0)]
    offers = [
        _described(market, offer_of(market, columns, answer, column, code), column, asked.usd_per_hour)
        for column, code in told
    ]
    if kept >= 0:
        return tuple(offers)
    return (*offers, *_displaced(market, columns, answer, ranked[:GROUPS_FORCED_MAX], asked.effort))


def _told_apart(market: Market, ranked: Sequence[int], first: int) -> Iterator[int]:
    """Yield the best column of each number of GPUs of each type and place: further ones would look the same."""
    seen = {_looks(market, first)}
    for column in ranked:
        looks = _looks(market, column)
        if looks not in seen:
            seen.add(looks)
            yield column


def _looks(market: Market, column: int) -> tuple[tuple[str, int, str], ...]:
    """Return what a person sees of a column: GPUs of each type, and where they are if that is not the same for all."""
    group, zones = market.group(column), _zones(market, column)
    return tuple((part.gpu_type, part.gpu_count, zone) for part, zone in zip(group.parts, zones, strict=True))


def _zones(market: Market, column: int) -> tuple[str, ...]:
    """Return the zone of each part of a column, empty where its type is in one zone only or nobody says."""
    group, entry = market.group(column), int(market.entry[column])
    chosen = market.contenders[int(market.job[column])].table.zones[entry] if entry >= 0 else ()
    where: dict[str, set[str]] = {}
    for row in market.rows:
        if row.pool[1]:  # rows of shares are of all zones
            where.setdefault(row.pool[0], set()).add(row.pool[1])
    padded = [*chosen, *[""] * (len(group.parts) - len(chosen))]
    return tuple(
        zone if len(where.get(part.gpu_type, ())) > 1 else "" for part, zone in zip(group.parts, padded, strict=True)
    )


def _described(market: Market, offer: Reason, column: int, usd_per_hour: Mapping[str, float]) -> Reason:
    """Return an offer with what tells it from others: its size, its nodes, its speed and its price."""
    group = market.group(column)
    facts = {
        "gpu_count": float(group.gpu_count),
        "node_count": float(group.node_count),
        "steps_per_s": float(market.speed[column]),
    }
    if usd_per_hour:
        facts["usd_per_hour"] = sum(part.gpu_count * usd_per_hour.get(part.gpu_type, 0.0) for part in group.parts)
    zones = ", ".join(filter(None, dict.fromkeys(_zones(market, column))))
    names = {**offer.names, **({"zone": zones} if zones else {})}
    return replace(offer, numbers={**offer.numbers, **facts}, names=names)


def measured_pace(snapshot: Snapshot, market: Market, at: int) -> tuple[Reason, ...]:
    """Return at which pace a contender with a deadline is counted, where that is not as estimated.

    Of what it has, else of the quickest that it could have.
    """
    if snapshot.jobs[market.contenders[at].job_id].spec.deadline_s is None:
        return ()
    own = np.flatnonzero(market.job == at)
    column = int(market.keeping[at]) if market.keeping[at] >= 0 else int(own[np.argmax(market.speed[own])])
    pace = pace_on(market, column)
    return () if pace == 1.0 else (reason(ReasonCode.MEASURED_PACE, group=str(market.group(column)), pace=pace),)


def offer_of(market: Market, columns: Columns, answer: Answer, column: int, code: ReasonCode) -> Reason:
    """Return what a column is worth beside what others would do with its GPUs."""
    value = float(columns.value[column])
    price = value - float(answer.priced.reduced[column])
    if code is ReasonCode.OUTBID and value > price * (1.0 + TIE_SHARE):
        code = ReasonCode.INDIVISIBLE
    elif code is ReasonCode.OUTBID and value > price * (1.0 - TIE_SHARE):
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
        return ()  # shares or deadlines are in the way, which is told beside
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
