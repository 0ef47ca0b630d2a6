"""Masking: an exact count in every sample, decided by (key, place) alone, in the shares of the literature."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from arena_agent.worker.counter_hash import key_of
from arena_agent.worker.masking import mask_token, masked, masked_count
from arena_agent.worker.samples import IGNORED_TARGET

FAST = settings(max_examples=60, deadline=None)
places_of_batch = st.lists(st.integers(0, 2**50), min_size=1, max_size=6)


def tokens_of(row_count: int, seq_len: int, vocab_size: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.random.default_rng(row_count * 1000 + seq_len).integers(0, vocab_size - 1, (row_count, seq_len))


@FAST
@given(places_of_batch, st.integers(1, 200), st.integers(2, 300), st.integers(0, 2**31))
def test_each_sample_has_exactly_its_count_and_nothing_is_lost(
    places: list[int], seq_len: int, vocab_size: int, seed: int
) -> None:
    tokens = tokens_of(len(places), seq_len, vocab_size)
    inputs, targets = masked(tokens, np.array(places), key=key_of("masks", seed), vocab_size=vocab_size)
    predicted = targets != IGNORED_TARGET
    assert (predicted.sum(axis=1) == max(1, round(0.15 * seq_len))).all()
    assert (targets[predicted] == tokens[predicted]).all()
    assert (inputs[~predicted] == tokens[~predicted]).all()
    assert inputs.min() >= 0
    assert inputs.max() < vocab_size
    assert masked_count(seq_len) <= seq_len


@FAST
@given(places_of_batch, st.integers(1, 64), st.data())
def test_a_split_of_the_batch_changes_nothing(places: list[int], seq_len: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(places)))
    tokens, spots = tokens_of(len(places), seq_len, 50), np.array(places)
    whole = masked(tokens, spots, key=7, vocab_size=50)
    parts = [masked(tokens[rows], spots[rows], key=7, vocab_size=50) for rows in (slice(cut), slice(cut, None))]
    for index in (0, 1):
        np.testing.assert_array_equal(whole[index], np.concatenate([part[index] for part in parts]))


def test_of_the_chosen_eighty_percent_are_hidden_and_ten_are_drawn() -> None:
    # Fixed key and places: the counts below are the same on every run.
    vocab_size, seq_len, row_count = 1000, 512, 500
    tokens = tokens_of(row_count, seq_len, vocab_size)
    inputs, targets = masked(tokens, np.arange(row_count), key=key_of("masks", 0), vocab_size=vocab_size)
    predicted = targets != IGNORED_TARGET
    shown, original = inputs[predicted], targets[predicted]
    count = len(shown)
    hidden = (shown == mask_token(vocab_size)).sum() / count
    kept = (shown == original).sum() / count
    # Five standard deviations of a share p over the count; a drawn token may be the original, one in a thousand.
    for share, wanted in ((hidden, 0.8), (kept, 0.1001), (1 - hidden - kept, 0.0999)):
        assert abs(share - wanted) < 5 * (wanted * (1 - wanted) / count) ** 0.5
    drawn = shown[(shown != mask_token(vocab_size)) & (shown != original)]
    assert abs(drawn.mean() / (vocab_size / 2) - 1) < 0.05


def test_every_position_is_chosen_equally_often() -> None:
    seq_len, row_count = 20, 20_000
    _, targets = masked(tokens_of(row_count, seq_len, 50), np.arange(row_count), key=3, vocab_size=50)
    frequency = (targets != IGNORED_TARGET).mean(axis=0)
    assert np.abs(frequency - 0.15).max() < 5 * (0.15 * 0.85 / row_count) ** 0.5
