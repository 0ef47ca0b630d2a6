"""The sample stream: a permutation per epoch, without gaps at epoch ends, from seed and step alone."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from arena_agent.worker.sample_order import SampleOrder, permuted


@given(size=st.integers(1, 300), key=st.integers(0, 2**64 - 1))
def test_permuted_is_a_permutation(size: int, key: int) -> None:
    assert sorted(permuted(np.arange(size), size=size, key=key).tolist()) == list(range(size))


@given(sample_count=st.integers(1, 40), global_batch=st.integers(1, 50), epochs=st.integers(1, 4))
def test_each_epoch_visits_every_sample_once(sample_count: int, global_batch: int, epochs: int) -> None:
    order = SampleOrder(seed=5, sample_count=sample_count, global_batch=global_batch)
    step_count = -(-sample_count * epochs // global_batch)
    stream = [sample for step in range(step_count) for sample in order.ids(step)]
    for epoch in range(epochs):
        part = stream[epoch * sample_count : (epoch + 1) * sample_count]
        assert sorted(part) == list(range(sample_count))


def test_the_order_is_a_function_of_seed_and_step() -> None:
    """Pinned: a new version that orders samples otherwise would silently change running jobs."""
    order = SampleOrder(seed=1, sample_count=1000, global_batch=6)
    assert order.ids(0) == (791, 11, 811, 669, 956, 215)
    assert order.ids(400) == (439, 657, 47, 326, 361, 998)
    assert order.ids(0) != SampleOrder(seed=2, sample_count=1000, global_batch=6).ids(0)


def test_the_order_is_well_mixed() -> None:
    """Neighbours in the stream are as far apart as chance would have them: a third of the range on average."""
    order = SampleOrder(seed=0, sample_count=10_000, global_batch=10_000)
    ids = order.ids(0)
    distance = sum(abs(left - right) for left, right in itertools.pairwise(ids)) / len(ids)
    assert abs(distance - 10_000 / 3) < 100
    tenths = Counter(sample // 1000 for sample in ids[:1000])
    assert all(60 < count < 140 for count in tenths.values())
