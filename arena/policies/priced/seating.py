"""From chosen columns to devices: what stays is not touched, what does not fit is cut. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arena.domain.allocation import Allocation
from arena.domain.job import JobId
from arena.domain.reason import Reason
from arena.policies.base import Snapshot
from arena.policies.choose import choose_cell
from arena.policies.priced.columns import Ints
from arena.policies.priced.market import Market


@dataclass(frozen=True, slots=True, kw_only=True)
class Seats:
    """Devices of the jobs that change.

    Args:
        allocations: By contender.
        cuts: Columns that found no devices, with why.
    """

    allocations: Mapping[int, Allocation]
    cuts: Mapping[int, Reason]


def seated(snapshot: Snapshot, market: Market, chosen: Ints) -> Seats:
    """Find devices for all that change at once; large parts first, which leaves the fewest fragments."""
    capacity = snapshot.capacity
    changed = [at for at in range(len(market.contenders)) if chosen[at] != market.keeping[at]]
    for at in changed:
        holding = market.contenders[at].holding
        if holding is not None:
            capacity = capacity.restore(holding.allocation)
    allocations: dict[int, Allocation] = {}
    cuts: dict[int, Reason] = {}
    for at in sorted((at for at in changed if chosen[at] >= 0), key=lambda at: _size(market, int(chosen[at]))):
        column, contender = int(chosen[at]), market.contenders[at]
        held = None if contender.holding is None else contender.holding.allocation
        found = choose_cell(snapshot, contender.job_id, (market.cell(column),), capacity, held)
        if isinstance(found, Reason):
            cuts[column] = found
            continue
        allocations[at] = found[1]
        capacity = capacity.take_all(found[1])
    return Seats(allocations=allocations, cuts=cuts)


def _size(market: Market, column: int) -> tuple[int, int, JobId]:
    group = market.cell(column).group
    largest = max(part.node_counts[0] for part in group.parts)
    return -largest, -group.gpu_count, market.contenders[int(market.job[column])].job_id
