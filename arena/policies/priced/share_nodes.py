"""On which nodes the GPUs would be that shares still guarantee, and what that leaves together. Pure: no I/O, no clock.

Whole nodes first, then what is less than one on the node with the fewest GPUs that has as many: beside what runs there
already, so that a tenant's program and the rest of its share break no node each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from arena.domain.launch import NodeId
from arena.policies.capacity import Capacity, Pool
from arena.policies.priced.columns import Floats
from arena.policies.priced.market import Row

FreeCounts = Mapping[Pool, Mapping[int, int]]
"""How many nodes of a pool have so many GPUs that can be had."""


def free_counts(capacity: Capacity, back: Mapping[NodeId, Sequence[tuple[float, int]]], now_s: float) -> FreeCounts:
    """Return how many nodes have how many GPUs that can be had now.

    Args:
        capacity: All GPUs of the usable nodes.
        back: GPUs that cannot be had before an instant, by usable node: (instant, count).
    """
    counts: dict[Pool, Counter[int]] = {}
    for node_id, room in capacity.devices.items():
        gone = sum(count for at_s, count in back.get(node_id, ()) if at_s > now_s)
        counts.setdefault(room.pool, Counter())[len(room.free) - gone] += 1
    return counts


def rows_of_shares(rows: Sequence[Row], left: Mapping[str, Mapping[str, int]], free: FreeCounts) -> dict[str, Floats]:
    """Return by how much less of each row there is for what is left of shares, by tenant; shape (rows,) each.

    Args:
        left: GPUs by tenant and type; they are taken in each zone.
        free: What can be had of the nodes.
    """
    found = {name: np.zeros(len(rows)) for name in left}
    for pool in sorted({row.pool for row in rows}):
        chunks = {at: row.chunk for at, row in enumerate(rows) if row.pool == pool}
        size, there = max(chunks.values()), Counter(free.get(pool, {}))
        pieces = [(piece, name, times) for name in left for piece, times in _pieces(left[name].get(pool[0], 0), size)]
        for piece, name, times in sorted(pieces, key=lambda one: (-one[0], one[1])):
            for at, lost in _lost(there, piece, times, (size, chunks)).items():
                found[name][at] += lost
    return found


def _pieces(count: int, size: int) -> list[tuple[int, int]]:
    """Return how so many GPUs lie on as few nodes as they can: (GPUs of a node, such nodes)."""
    whole, rest = divmod(count, size)
    return [(piece, times) for piece, times in ((size, whole), (rest, 1)) if piece and times]


def _lost(there: Counter[int], piece: int, times: int, row_sizes: tuple[int, Mapping[int, int]]) -> Counter[int]:
    """Take pieces out of nodes and return by how much less of each row there is then.

    Where no node has as many together, it is as if an empty one were broken: nobody knows where they would be.

    Args:
        row_sizes: GPUs of a node, and the chunk of each row.
    """
    size, chunks = row_sizes
    whole = min(times, there[size]) if piece == size else 0
    there[size] -= whole
    lost = Counter({at: whole * (size // chunk * chunk) for at, chunk in chunks.items()})
    for done in range(whole, times):
        if not any(free > 0 and count > 0 for free, count in there.items()):
            lost += Counter(
                {
                    at: (times - done) * (size // chunk * chunk - (size - piece) // chunk * chunk)
                    for at, chunk in chunks.items()
                }
            )
            break
        fits = min((free for free, count in there.items() if count > 0 and free >= piece), default=None)
        for at, chunk in chunks.items():
            hole = size if fits is None else fits
            lost[at] += hole // chunk * chunk - (hole - piece) // chunk * chunk
        _take(there, piece, fits)
    return lost


def _take(there: Counter[int], piece: int, fits: int | None) -> None:
    """Take a piece out of a node of so many GPUs, or out of the largest ones where none has as many."""
    left = piece
    while left > 0:
        hole = fits if fits is not None else max((free for free, count in there.items() if count > 0), default=0)
        if hole <= 0:
            return
        there[hole] -= 1
        there[hole - min(hole, left)] += 1
        left -= min(hole, left)
