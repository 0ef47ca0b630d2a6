"""How much there is of what is scarce, and which part of it each job has. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from arena.policies.capacity import Capacity, Pool
from arena.policies.priced.columns import Floats, Ints
from arena.policies.priced.roster import Roster

if TYPE_CHECKING:
    from arena.policies.priced.market import Row


def free_chunks(capacity: Capacity, rows: Sequence[Row]) -> Floats:
    """Return what is free of each row; shape (rows,)."""
    sizes: dict[Pool, list[tuple[int, int]]] = {}
    for pool, size, nodes in capacity.holes():
        sizes.setdefault(pool, []).append((size, len(nodes)))
    found = [sum(size // row.chunk * row.chunk * count for size, count in sizes.get(row.pool, ())) for row in rows]
    return np.array(found, dtype=np.float64)


def supply_of(roster: Roster, capacity: Capacity, rows: Sequence[Row], holders: Ints) -> tuple[Floats, Floats]:
    """Return what there is of each row if some gave up all they have, and the part of it that each of them holds.

    Of a whole node, those that share it hold parts in proportion to their GPUs: one that is alone on it holds all.

    Args:
        holders: Members that give up what they have.
    """
    supply = free_chunks(capacity, rows)
    kept = np.zeros((len(holders), len(rows)))
    shares = roster.facts["node_count"][holders]
    if not shares.any():
        return supply, kept
    members = [roster.members[at] for at in holders.tolist()]
    node = np.fromiter(chain.from_iterable([one.nodes for one in members]), dtype=np.intp)
    count = np.fromiter(chain.from_iterable([one.counts for one in members]), dtype=np.float64)
    held = np.bincount(node, weights=count, minlength=len(roster.node_pool)).astype(np.float64)
    gained = _gained(roster, capacity, rows, held)
    part = gained[node] * (count / held[node])[:, None]
    first = np.cumsum(shares) - shares
    for rank in range(int(shares.max())):  # a job's nodes one after the other, as sums are told apart by their order
        having = np.flatnonzero(shares > rank)
        kept[having] += part[first[having] + rank]
    return supply + gained.sum(axis=0), kept


def _gained(roster: Roster, capacity: Capacity, rows: Sequence[Row], held: Floats) -> Floats:
    """Return by how much more each node has of each row when it gets back what is held of it; shape (nodes, rows)."""
    pools = {pool: at for at, pool in enumerate(roster.pools)}
    pool_of_row = np.array([pools.get(row.pool, -1) for row in rows])
    chunk, free = np.array([float(row.chunk) for row in rows]), _free(roster, capacity)
    gained = ((free + held)[:, None] // chunk - free[:, None] // chunk) * chunk
    return np.where(roster.node_pool[:, None] == pool_of_row, gained, 0.0)


def _free(roster: Roster, capacity: Capacity) -> Floats:
    """Return how many devices each node has free; shape (nodes,)."""
    free, number = np.zeros(len(roster.node_pool)), roster.node_number
    for _, size, nodes in capacity.holes():
        free[[number[node_id] for node_id in nodes if node_id in number]] = size
    return free
