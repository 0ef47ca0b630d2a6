"""Which GPU groups of a cluster a job could be given. Pure: no I/O, no clock.

For each GPU type and count: balanced over as few nodes as possible, and over one node more (any number of nodes where
there are few), so that a cluster with holes is not idle. Counts get coarser as they grow, and their number is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape
from arena.domain.parallel import even_split

COUNTS_PER_TYPE_MAX = 64
SPREAD_NODES_EXTRA = 1
FEW_NODES = 4


def node_sizes(shape: ClusterShape, gpu_type: str) -> tuple[tuple[int, ...], ...]:
    """Return, for each zone with the type, the GPUs of its nodes, largest first; groups stay in one zone."""
    sizes: dict[str, list[int]] = {}
    for pool in shape.pools:
        if pool.gpu_type == gpu_type:
            sizes.setdefault(pool.zone, []).extend([pool.gpus_per_node] * pool.node_count)
    return tuple(sorted({tuple(sorted(zone, reverse=True)) for zone in sizes.values()}, reverse=True))


def groups_of(
    shape: ClusterShape, gpu_type: str, counts: Iterable[int], *, nodes_max: int | None, spread: bool = True
) -> Iterator[GpuGroup]:
    """Yield the groups of one type with the given counts that some zone can hold."""
    zones = node_sizes(shape, gpu_type)
    for count in counts:
        shapes: set[tuple[int, ...]] = set()
        for sizes in zones:
            shapes.update(_splits(sizes, count, nodes_max, spread))
        for node_counts in sorted(shapes, key=lambda split: (len(split), split)):
            yield GpuGroup.of(gpu_type, node_counts)


def counts_between(first: int, last: int, node_size: int) -> list[int]:
    """Return the counts worth looking at: all up to two nodes, then half nodes, then whole ones, then coarser."""
    counts = set(range(first, min(last, 2 * node_size) + 1))
    step = max(1, node_size // 2)
    at = 2 * node_size
    while at < last:
        at = (at // step + 1) * step
        counts.add(at)
        if at >= 8 * node_size:
            step = max(step, node_size, at // 8)
    counts.update((first, last))
    kept = sorted(count for count in counts if first <= count <= last)
    return kept if len(kept) <= COUNTS_PER_TYPE_MAX else _thin(kept)


def _thin(counts: Sequence[int]) -> list[int]:
    """Keep both ends and an even choice between them."""
    last = len(counts) - 1
    picks = {round(index * last / (COUNTS_PER_TYPE_MAX - 1)) for index in range(COUNTS_PER_TYPE_MAX)}
    return [counts[pick] for pick in sorted(picks)]


def _splits(sizes: Sequence[int], count: int, nodes_max: int | None, spread: bool) -> Iterator[tuple[int, ...]]:
    fewest = _fewest_nodes(sizes, count)
    if fewest is None:
        return
    extra = FEW_NODES if len(sizes) <= FEW_NODES else SPREAD_NODES_EXTRA
    most = min(len(sizes), count, nodes_max or count, fewest + extra * spread)
    for node_count in range(fewest, most + 1):
        even = tuple(even_split(count, node_count))
        yield even if _holds(sizes, even) else _filled(sizes, count, node_count)


def _fewest_nodes(sizes: Sequence[int], count: int) -> int | None:
    room = 0
    for index, size in enumerate(sizes):
        room += size
        if room >= count:
            return index + 1
    return None


def _holds(sizes: Sequence[int], split: Sequence[int]) -> bool:
    """Tell whether nodes (largest first) hold a split (largest first)."""
    return len(split) <= len(sizes) and all(part <= size for part, size in zip(split, sizes, strict=False))


def _filled(sizes: Sequence[int], count: int, node_count: int) -> tuple[int, ...]:
    """Spread over the largest nodes as evenly as their sizes allow: small nodes are full, the others share."""
    split: list[int] = []
    left = count
    for index in range(node_count - 1, -1, -1):
        part = min(sizes[index], left // (index + 1))
        split.append(part)
        left -= part
    return tuple(sorted(split, reverse=True))
