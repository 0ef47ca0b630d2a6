"""Whether a newcomer's deadline can be promised. Pure: no I/O, no clock.

It must find a block in all of these: what there will be of the rows that decisions look at, of fine rows too (so many
GPUs together on one node, whatever the number), and where there are guarantees, beside those of other tenants.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from arena.domain.job import JobId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.base import Admission, Snapshot
from arena.policies.priced.columns import Floats
from arena.policies.priced.deadlines import earliest_end_s
from arena.policies.priced.layouts import Need
from arena.policies.priced.market import Market
from arena.policies.priced.needs import due_at_s, needs_of, room_of
from arena.policies.priced.pace import pace_on
from arena.policies.priced.promised_shares import take_others, tenant_of
from arena.policies.priced.standing import Standing
from arena.policies.priced.timetable import Block

NAMED_MAX = 5
"""Jobs or projects that are named as being in the way."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class View:
    """A market as it is looked at.

    Args:
        power: What a GPU of each row does; shape (rows,).
        offered: Columns that may be had at all.
    """

    market: Market
    power: Floats
    offered: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Place:
    """What a newcomer must find a block in.

    Args:
        before: Who comes before it there, and the room for all of them.
        is_beside_shares: Whether what other tenants are guaranteed is left out of the room.
    """

    need: Need
    before: Standing
    is_beside_shares: bool = False


def admitted(snapshot: Snapshot, views: Sequence[View], job_id: JobId) -> Admission | None:
    """Return whether a waiting job's deadline can be promised, and the earliest end that could be.

    Returns:
        None where nothing can be said: the job does not compete, has no deadline, or nobody knows its length.
    """
    due_s = due_at_s(snapshot, job_id) if job_id in snapshot.jobs else None
    found = [places for view in views if (places := _places(snapshot, view, job_id)) is not None]
    if due_s is None or len(found) < len(views):
        return None
    places = [place for one in found for place in one]
    if _are_promisable(places, due_s):
        return Admission(is_promised=True, earliest_end_s=due_s)
    ends_s = {end_s for one in places for end_s in _ends_s(one, snapshot.now_s) if due_s < end_s < math.inf}
    earliest_s = next((end_s for end_s in sorted(ends_s) if _are_promisable(places, end_s)), None)
    # Where no later end can be promised either, it is not time that is short: what is in the way of the latest one is.
    asked_s = due_s if earliest_s is not None else max(ends_s, default=due_s)
    cause = _in_the_way(snapshot, views[0].market, places, asked_s)
    if earliest_s is None and cause.code is ReasonCode.DEADLINE_BESIDE_SHARES:
        cause = replace(cause, code=ReasonCode.DEADLINE_NEVER_BESIDE_SHARES)
    return Admission(is_promised=False, earliest_end_s=earliest_s, reason=cause)


def _in_the_way(snapshot: Snapshot, market: Market, places: Sequence[_Place], due_s: float) -> Reason:
    """Return why a deadline cannot be promised.

    Args:
        market: The first view's, whose columns the need of the first place has.
    """
    need, left_s = places[0].need, due_s - snapshot.now_s
    quickest = int(np.argmin(need.lengths_s))
    column = int(need.columns[quickest])
    needed_s, group = float(need.lengths_s[quickest]), str(market.group(column))
    if needed_s > left_s:
        pace = pace_on(market, column)
        if pace < 1.0:
            return reason(ReasonCode.DEADLINE_TOO_SLOW, needed_s=needed_s, group=group, pace=pace, left_s=left_s)
        return reason(ReasonCode.DEADLINE_TOO_SOON, needed_s=needed_s, group=group, left_s=left_s)
    own = [one for one in places if not one.is_beside_shares]
    if not _are_promisable([_alone(one) for one in own], due_s):
        return reason(ReasonCode.DEADLINE_TAKEN, left_s=left_s, jobs=_named(_fixed(snapshot, market)))
    facts: dict[str, float | str] = {"needed_s": needed_s, "group": group, "left_s": left_s}
    if not _are_promisable(own, due_s):
        competing = [*market.contenders, *market.outside]
        promised = sorted(places[0].before.needs, key=lambda one: (one.due_s, one.at))
        jobs = _named([competing[one.at].job_id for one in promised])
        return reason(ReasonCode.DEADLINE_BEHIND_PROMISES, jobs=jobs, **facts)
    project = snapshot.jobs[market.contenders[need.at].job_id].spec.project
    others = _named([name for name in sorted(snapshot.tenants) if name != project])
    return reason(ReasonCode.DEADLINE_BESIDE_SHARES, project=project, projects=others, **facts)


def _fixed(snapshot: Snapshot, market: Market) -> list[str]:
    """Return the jobs that have what this decision may not take."""
    competing = {contender.job_id for contender in market.contenders}
    return sorted(job_id for job_id in snapshot.holding if job_id not in competing)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return (", ".join(names[:NAMED_MAX]) or "others") + more


def _places(snapshot: Snapshot, view: View, job_id: JobId) -> list[_Place] | None:
    """Return what a newcomer must find blocks in, None where it does not compete or nobody knows its length."""
    market = view.market
    at = next((at for at, contender in enumerate(market.contenders) if contender.job_id == job_id), None)
    if at is None:
        return None
    found = {need.at: need for need in needs_of(snapshot, market, view.power, view.offered)}
    need = found.pop(at, None)
    if need is None:
        return None
    need = replace(need, least_s=need.lengths_s)
    before, room = [one for one in found.values() if one.is_promised], room_of(snapshot, market)
    places = [_Place(need=need, before=Standing(before, room))]
    if snapshot.tenants:
        places.append(_beside_shares(snapshot, market, places[0], job_id))
    return places


def _beside_shares(snapshot: Snapshot, market: Market, place: _Place, job_id: JobId) -> _Place:
    """Return what its tenant can be promised beside the shares of others."""
    competing = [*market.contenders, *market.outside]
    tenant = {need.at: tenant_of(snapshot, competing[need.at].job_id) for need in place.before.needs}
    blocks: dict[str | None, list[Block]] = {}
    for at, block in place.before.layout.blocks.items():
        blocks.setdefault(tenant[at], []).append(block)
    own, beside = tenant_of(snapshot, job_id), place.before.room.copy()
    take_others(snapshot, market, beside, own, blocks)
    same = [need for need in place.before.needs if tenant[need.at] == own]
    return replace(place, before=Standing(same, beside), is_beside_shares=True)


def _alone(place: _Place) -> _Place:
    return replace(place, before=Standing((), place.before.room))


def _are_promisable(places: Sequence[_Place], due_s: float) -> bool:
    return all(_is_promisable(one, due_s) for one in places)


def _is_promisable(place: _Place, due_s: float) -> bool:
    """Tell whether a newcomer finds a block that ends in time, and takes none from those before it, nor their slack."""
    need = replace(place.need, due_s=due_s)
    together, alone = place.before.with_one(need), place.before.layout
    return together.blocks.keys() >= {need.at, *alone.blocks} and together.tight - {need.at} <= alone.tight


def _ends_s(place: _Place, now_s: float) -> Iterator[float]:
    """Yield ends that could be promised: after all other blocks there is room for the one that it would be given."""
    alone = place.before.layout
    last_s = max([block.end_s for block in alone.blocks.values()], default=now_s)
    first_s = earliest_end_s(place.need, alone.room)
    yield from () if first_s is None else (first_s,)
    yield last_s + float(place.need.lengths_s.min())
    yield last_s + float(place.need.lengths_s[0])
