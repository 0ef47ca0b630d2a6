"""What a tenant can be promised beside what others are guaranteed. Pure: no I/O, no clock.

Whoever has a guarantee may want it back at any time, so nothing that is promised to others may rest on it: a tenant's
promises use its own share and what nobody is guaranteed. A guarantee of any type may be wanted of each type, one of a
type in each of its zones; they are taken out of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from arena.domain.job import JobId
from arena.policies.base import Snapshot
from arena.policies.priced.columns import Floats
from arena.policies.priced.market import Market, Row
from arena.policies.priced.needs import ends_by_node
from arena.policies.priced.share_nodes import free_counts, rows_of_shares
from arena.policies.priced.timetable import Block, Timetable
from arena.policies.priced.work_left import runs_until_s


def tenant_of(snapshot: Snapshot, job_id: JobId) -> str | None:
    """Return the tenant of a job; all that have no guarantee are one."""
    project = snapshot.jobs[job_id].spec.project
    return project if project in snapshot.tenants else None


def take_others(
    snapshot: Snapshot,
    market: Market,
    room: Timetable,
    tenant: str | None,
    blocks: Mapping[str | None, Sequence[Block]],
) -> None:
    """Take out of what there will be what a tenant cannot be promised.

    Args:
        room: Without what jobs have that may not be stopped, until they end.
        blocks: What was promised before, by tenant: what is beyond a share is taken out as well.
    """
    others = _shares_of(snapshot, market, [name for name in sorted(snapshot.tenants) if name != tenant])
    for shares in others.values():
        for share, start_s, end_s in shares:
            room.take(share, start_s, end_s)
    for name, own in blocks.items():
        if name != tenant:
            shares = others[name] if name is not None else ()
            for beyond, start_s, end_s in _beyond(shares, own, len(market.rows)):
                room.take(beyond, start_s, end_s)


_Steps = Sequence[tuple[Floats, float, float]]
"""Amounts of each row, from when and until when."""


def _shares_of(snapshot: Snapshot, market: Market, names: Sequence[str]) -> Mapping[str, _Steps]:
    """Return what of some guarantees is not in use yet by jobs that may not be stopped, and could be wanted.

    Until something changes on a node, the rest of a share is wanted where it breaks least. Later nobody knows where it
    lies, since what has started meanwhile stays there: it is as if each part broke a whole node.
    """
    ends = {name: _lasting_ends(snapshot, market, name) for name in names}
    back = ends_by_node(snapshot, market)
    first_s = min((at_s for own in back.values() for at_s, _ in own if at_s > snapshot.now_s), default=math.inf)
    left = {name: _left(snapshot, market.rows, name, ends[name], snapshot.now_s) for name in names}
    at_first = rows_of_shares(market.rows, left, free_counts(snapshot.capacity, back, snapshot.now_s))
    found = {name: [(at_first[name], snapshot.now_s, first_s)] for name in names}
    for name in names if first_s < math.inf else ():
        later_s = sorted({end_s for end_s, _ in ends[name] if first_s < end_s < math.inf})
        for start_s, end_s in pairwise([first_s, *later_s, math.inf]):
            share = _left(snapshot, market.rows, name, ends[name], start_s)
            found[name].append((_rows_of_whole_nodes(market.rows, share), start_s, end_s))
    return found


def _left(
    snapshot: Snapshot, rows: Sequence[Row], name: str, ends: Sequence[tuple[float, Mapping[str, int]]], at_s: float
) -> dict[str, int]:
    """Return what is left of a guarantee at an instant beside what is in use of it, by GPU type."""
    guarantee, held = snapshot.tenants[name], [counts for ends_at_s, counts in ends if ends_at_s > at_s]
    types = {row.pool[0] for row in rows}
    if guarantee.is_of_any_type:
        return dict.fromkeys(types, max(guarantee.gpu_count - sum(sum(counts.values()) for counts in held), 0))
    return {
        gpu_type: max(guarantee.of(gpu_type) - sum(counts.get(gpu_type, 0) for counts in held), 0) for gpu_type in types
    }


def _lasting_ends(snapshot: Snapshot, market: Market, name: str) -> list[tuple[float, dict[str, int]]]:
    """Return when jobs of a tenant end that may not be stopped, with their GPUs by type."""
    found = []
    for job_id, holding in snapshot.holding.items():
        spec = snapshot.jobs[job_id].spec
        if spec.preemptible or spec.project != name:
            continue
        ends_at_s, counts = runs_until_s(snapshot, job_id, holding), dict[str, int]()
        for part in holding.group.parts:
            counts[part.gpu_type] = counts.get(part.gpu_type, 0) + part.gpu_count
        found.append((math.inf if ends_at_s is None else max(ends_at_s, snapshot.now_s), counts))
    return found


def _rows_of_whole_nodes(rows: Sequence[Row], count_of_type: Mapping[str, int]) -> Floats:
    """Return what so many GPUs of each type take of each row where nothing else is on their nodes."""
    size = {row.pool: max(other.chunk for other in rows if other.pool == row.pool) for row in rows}
    return np.array(
        [_taken(row.chunk, size[row.pool], count_of_type.get(row.pool[0], 0)) for row in rows], dtype=np.float64
    )


def _taken(chunk: int, size: int, count: int) -> int:
    """Return by how much less of a row there is when so many GPUs are taken, node by node."""
    full, rest = divmod(count, size)
    whole = size // chunk * chunk
    return full * whole + whole - (size - rest) // chunk * chunk


def _beyond(shares: _Steps, blocks: Sequence[Block], row_count: int) -> Iterator[tuple[Floats, float, float]]:
    """Yield what blocks take beyond a share."""
    instants = sorted(
        {block.start_s for block in blocks}
        | {block.end_s for block in blocks}
        | {at_s for _, start_s, end_s in shares for at_s in (start_s, end_s)}
    )
    for start_s, end_s in pairwise(instants):
        used = sum((block.usage for block in blocks if block.start_s <= start_s < block.end_s), np.zeros(row_count))
        share = sum((part for part, from_s, until_s in shares if from_s <= start_s < until_s), np.zeros(row_count))
        beyond = np.maximum(used - share, 0.0)
        if beyond.any():
            yield beyond, start_s, end_s
