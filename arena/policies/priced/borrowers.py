"""Which borrowers must go so that a tenant's job finds its GPUs together. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from arena.domain.allocation import NodeShare
from arena.domain.launch import NodeId
from arena.policies.base import Snapshot
from arena.policies.priced.allocation import Answer
from arena.policies.priced.columns import Columns, Ints
from arena.policies.priced.market import Market
from arena.policies.priced.seating import Seats


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A settled choice with the rows of shares it was made under.

    Args:
        market: With these rows.
        columns: With what they take of them; those of borrowers that had to go are worth nothing.
    """

    market: Market
    columns: Columns
    answer: Answer
    seats: Seats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """What a node has for those that claim it.

    Args:
        room: GPUs that nobody with a claim has.
        free: Of these, what nobody keeps.
        borrowed: What borrowers keep here, by contender.
    """

    room: int
    free: int
    borrowed: Mapping[int, int]


def borrowers_in_the_way(snapshot: Snapshot, found: Shared, claimed: Ints, unserved: Sequence[int]) -> set[int]:
    """Return contenders that must give up what they have so that others find what they claim.

    On each node that a claim needs, those go that are worth least for their GPUs, and of the nodes those are taken
    where the least is lost. None go for a claim that would not fit even then.

    Args:
        claimed: Column that each contender claims, ``NONE`` for none.
        unserved: Contenders that claim something and found no devices.
    """
    nodes = _nodes(snapshot, found, claimed)
    gone = set[int]()
    for at in unserved:
        taken: dict[NodeId, int] = {}
        for pool, count in _parts(found.market, int(claimed[at])):
            offers = [
                (_loss(found, leaving), node_id, leaving)
                for node_id, node in nodes.items()
                if node_id not in taken and snapshot.capacity.devices[node_id].pool == pool and node.room >= count
                for leaving in [_leaving(found, node, count, gone)]
            ]
            if not offers:
                break
            _, node_id, leaving = min(offers, key=lambda offer: offer[:2])
            taken[node_id] = count
            gone |= set(leaving)
        else:
            nodes = {
                node_id: _Node(
                    room=node.room - taken.get(node_id, 0),
                    free=node.free - taken.get(node_id, 0),
                    borrowed=node.borrowed,
                )
                for node_id, node in nodes.items()
            }
    return gone


def _parts(market: Market, column: int) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield the pool and the GPUs of each node that a column needs, large ones first."""
    table, entry = market.contenders[int(market.job[column])].table, int(market.entry[column])
    for part, zone in zip(table.cells[entry].group.parts, table.zones[entry], strict=True):
        for count in part.node_counts:
            yield (part.gpu_type, zone), count


def _nodes(snapshot: Snapshot, found: Shared, claimed: Ints) -> dict[NodeId, _Node]:
    market, chosen, capacity = found.market, found.answer.chosen, snapshot.capacity
    room = {node_id: len(capacity.free_on(node_id)) for node_id in capacity.devices}
    kept: dict[NodeId, dict[int, int]] = {}
    for at, contender in enumerate(market.contenders):
        if contender.holding is None:
            continue
        is_claimed = claimed[at] >= 0
        stays = chosen[at] == market.keeping[at] or (is_claimed and chosen[at] < 0)  # what it was to have is not there
        for node_id, count in _counts(contender.holding.allocation.shares, room):
            room[node_id] += 0 if stays and is_claimed else count
            if stays and not is_claimed:
                kept.setdefault(node_id, {})[at] = count
    for at, allocation in found.seats.allocations.items():
        if claimed[at] >= 0:
            for node_id, count in _counts(allocation.shares, room):
                room[node_id] -= count
    return {
        node_id: _Node(room=count, free=count - sum(kept.get(node_id, {}).values()), borrowed=kept.get(node_id, {}))
        for node_id, count in sorted(room.items())
    }


def _counts(shares: Iterable[NodeShare], known: Mapping[NodeId, int]) -> Iterator[tuple[NodeId, int]]:
    for share in shares:
        if share.node_id in known:
            yield share.node_id, len(share.device_ids)


def _leaving(found: Shared, node: _Node, count: int, gone: set[int]) -> tuple[int, ...]:
    """Return who must leave a node so that so many GPUs are free, beside those that leave anyway."""
    values, keeping = found.columns.value, found.market.keeping
    missing = count - node.free - sum(node.borrowed.get(at, 0) for at in gone)
    leaving = []
    for at in sorted(node.borrowed, key=lambda at: (float(values[keeping[at]]) / node.borrowed[at], at)):
        if missing <= 0:
            break
        if at not in gone:
            leaving.append(at)
            missing -= node.borrowed[at]
    return tuple(leaving)


def _loss(found: Shared, leaving: Iterable[int]) -> float:
    return float(sum(found.columns.value[found.market.keeping[at]] for at in leaving))
