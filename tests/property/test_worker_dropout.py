"""Which elements are dropped depends on the sample and the place in the model, never on who computes them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from arena_agent.worker.dropout import dropped, dropped_heads, row_keys

SHARE = 0.25


def keys(rows: int, *, seed: int = 1, first: int = 0) -> Tensor:
    return row_keys(seed, torch.arange(first, first + rows))


def mask(rows: int, *shape: int, seed: int = 1, site: str = "mlp.0", position: int = 0, share: float = SHARE) -> Tensor:
    return dropped(torch.ones(rows, *shape), share, keys(rows, seed=seed, first=position), first=0, site=site) == 0


@settings(deadline=None)
@given(
    rows=st.integers(1, 6),
    cut=st.integers(0, 6),
    length=st.integers(1, 4).map(lambda each: each * 12),
    tp=st.sampled_from([1, 2, 3, 4]),
)
def test_cutting_rows_and_the_sequence_changes_nothing(rows: int, cut: int, length: int, tp: int) -> None:
    width, of_rows = 5, keys(rows)
    x = torch.randn(rows, length, width, generator=torch.Generator().manual_seed(0))
    whole = dropped(x, SHARE, of_rows, first=0, site="embed")
    runs = [range(length * index // tp, length * (index + 1) // tp) for index in range(tp)]
    halves = [part for part in (slice(0, cut), slice(cut, rows)) if len(x[part])]
    parts = [
        torch.cat(
            [
                dropped(x[half, run.start : run.stop], SHARE, of_rows[half], first=run.start * width, site="embed")
                for run in runs
            ],
            dim=1,
        )
        for half in halves
    ]
    assert torch.equal(torch.cat(parts), whole)


@settings(deadline=None)
@given(rows=st.integers(1, 4), tp=st.sampled_from([1, 2, 4]), length=st.integers(1, 9))
def test_cutting_heads_changes_nothing(rows: int, tp: int, length: int) -> None:
    heads = 4
    x = torch.ones(rows, heads, length, length)
    whole = dropped_heads(x, SHARE, keys(rows), first_head=0, site="attention.1")
    each = heads // tp
    parts = [
        dropped_heads(
            x[:, index * each : (index + 1) * each], SHARE, keys(rows), first_head=index * each, site="attention.1"
        )
        for index in range(tp)
    ]
    assert torch.equal(torch.cat(parts, dim=1), whole)


@settings(deadline=None)
@given(share=st.sampled_from([0.05, 0.1, 0.5, 0.9]), seed=st.integers(0, 2**31 - 1), site=st.text(max_size=8))
def test_what_is_kept_is_scaled_so_that_the_mean_stays(share: float, seed: int, site: str) -> None:
    result = dropped(torch.full((2, 300), 3.0), share, keys(2, seed=seed), first=0, site=site)
    kept = result[result != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 3.0 / (1 - share)))


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
def test_the_share_that_is_dropped_is_the_one_asked_for(share: float) -> None:
    """Over a million elements of one seed, within four standard deviations; and so for each row and each column."""
    rows, count = 250, 4000
    drawn = mask(rows, count, share=share).double()
    for means, size in ((drawn.mean(), rows * count), (drawn.mean(1), count), (drawn.mean(0), rows)):
        allowed = (4 if size == rows * count else 5) * math.sqrt(share * (1 - share) / size)
        assert float((means - share).abs().max()) < allowed


def test_seeds_places_sites_and_steps_have_masks_of_their_own() -> None:
    """Two masks that had nothing to do with each other agree on about a share of elements, no more and no less."""
    drawn = [
        mask(1, 20_000),
        mask(1, 20_000, seed=2),
        mask(1, 20_000, site="mlp.1"),
        mask(1, 20_000, site="attn.0"),
        mask(1, 20_000, position=1),
        # The same place in the next step, and one whose lower 32 bits are the same.
        mask(1, 20_000, position=6),
        mask(1, 20_000, position=2**32),
    ]
    agreeing = SHARE**2 + (1 - SHARE) ** 2
    for one, other in itertools.combinations(drawn, 2):
        assert abs(float((one == other).double().mean()) - agreeing) < 5 * 0.5 / math.sqrt(20_000)


def test_rows_of_a_batch_and_neighbouring_elements_are_independent() -> None:
    drawn = mask(400, 400)
    agreeing = SHARE**2 + (1 - SHARE) ** 2
    for one, other in ((drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1])):
        assert abs(float((one == other).double().mean()) - agreeing) < 5 * 0.5 / 400
