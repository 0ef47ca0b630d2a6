"""Ways to split a model's layers over pipeline stages. Pure: no I/O, no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import inf

from arena.domain.job import ModelSpec
from arena.domain.parallel import even_split
from arena.planner.model import model_cost

EVEN, BALANCED, GIVEN = 0, 1, 2
"""Numbers of the ways: as ``even_split`` does, or so that the stage with the most operations has the fewest; or, from
``GIVEN`` on, two stages of which the first has one layer, two layers, ..."""

_ROUNDING = 1e-12


@lru_cache(maxsize=4096)
def split_of(model: ModelSpec, pp: int, way: int) -> tuple[int, ...]:
    """Return the layers of each of ``pp`` stages."""
    if way == EVEN:
        return tuple(even_split(model.layers, pp))
    if way >= GIVEN:
        first = way - GIVEN + 1
        return first, model.layers - first
    return balanced_split(_weights(model), pp)


@lru_cache(maxsize=4096)
def proportional(model: ModelSpec, first_gpus: int, behind_gpus: int) -> int:
    """Return the way to split layers over two stages so that the operations of a GPU are alike."""
    sums = [0.0, *accumulate(_weights(model))]

    def heaviest(layers: int) -> float:
        return max(sums[layers + 1] / first_gpus, (sums[-1] - sums[layers + 1]) / behind_gpus)

    return GIVEN + min(range(1, model.layers), key=heaviest) - 1


@lru_cache(maxsize=64)
def _weights(model: ModelSpec) -> tuple[float, ...]:
    cost = model_cost(model)
    weights: list[float] = cost.by_unit(part.flops_per_sample for part in cost.parts).tolist()
    return tuple(weights)


def balanced_split(weights: Sequence[float], pp: int) -> tuple[int, ...]:
    """Return the layers of each stage so that the heaviest stage is as light as it can be.

    Of the splits that do so, the one with the fewest layers in front, where most micro-batches are in flight.

    Args:
        weights: Of the model's beginning, of each layer, and of its ending.
        pp: Stages, at most one for each layer.
    """
    sums = [0.0, *accumulate(weights)]
    heaviest = max(*weights[1:-1], sums[-1] / pp)
    while True:
        starts, heavier = _fill(sums, pp, heaviest)
        first = sums[starts[0]] if starts else sums[-1]
        if first <= heaviest * (1.0 + _ROUNDING):
            ends = [1, *starts, len(weights) - 1]
            return tuple(end - start for start, end in pairwise(ends))
        heaviest = min(heavier, first)


def _fill(sums: Sequence[float], pp: int, heaviest: float) -> tuple[list[int], float]:
    """Fill stages from the last on, each up to a weight, and leave the rest to the first.

    Returns:
        The first unit of each stage but the first, and the least weight with which some stage would take one more.
    """
    end, heavier = len(sums) - 1, inf
    starts: list[int] = []
    for stage in range(pp - 1, 0, -1):
        # The beginning and a layer for each stage stand before, and one layer stands in this stage.
        least, most = stage + 1, min(end - 1, len(sums) - 3)
        start = bisect_left(sums, sums[end] - heaviest * (1.0 + _ROUNDING), least, most)
        if start > least:
            heavier = min(heavier, sums[end] - sums[start - 1])
        starts.append(start)
        end = start
    return starts[::-1], heavier
