"""The split whose heaviest stage is lightest, against all splits."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena.planner.splits import balanced_split

weights = st.sampled_from([0.0, 0.1, 0.65, 1.0, 2.0, 5.0]) | st.floats(0.0, 4.0)
models = st.lists(weights.filter(lambda weight: weight > 0), min_size=1, max_size=9)


def heaviest(layers: list[float], ends: tuple[float, float], split: tuple[int, ...]) -> float:
    stages, at = [], 0
    for count in split:
        stages.append(sum(layers[at : at + count]))
        at += count
    stages[0] += ends[0]
    stages[-1] += ends[1]
    return max(stages)


@given(layers=models, ends=st.tuples(weights, weights), data=st.data())
def test_no_split_has_a_lighter_heaviest_stage(
    layers: list[float], ends: tuple[float, float], data: st.DataObject
) -> None:
    pp = data.draw(st.integers(1, len(layers)))
    found = balanced_split([ends[0], *layers, ends[1]], pp)
    assert len(found) == pp
    assert sum(found) == len(layers)
    assert min(found) >= 1
    splits = [
        tuple(end - start for start, end in pairwise((0, *cuts, len(layers))))
        for cuts in combinations(range(1, len(layers)), pp - 1)
    ]
    assert heaviest(layers, ends, found) <= min(heaviest(layers, ends, split) for split in splits) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("ending", "pp", "split"),
    [(5.4, 4, (3, 4, 4, 1)), (0.65, 5, (5, 7, 7, 7, 6)), (0.0, 1, (32,))],
)
def test_layers_go_behind_where_that_costs_nothing(ending: float, pp: int, split: tuple[int, ...]) -> None:
    assert balanced_split([0.0, *[1.0] * sum(split), ending], pp) == split
