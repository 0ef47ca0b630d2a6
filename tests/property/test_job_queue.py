"""The queue of waiting jobs against a sorted list."""

from __future__ import annotations

from bisect import insort

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.job import JobId
from arena.engine.queue import JobQueue, QueueKey

keys = st.builds(
    lambda priority, at_s, number: (priority, float(at_s), JobId(f"j{number}")),
    st.integers(-2, 0),
    st.integers(0, 50),
    st.integers(0, 20),
)


def key_of(number: int) -> QueueKey:
    return (0, float(number), JobId(f"j{number:05}"))


@settings(max_examples=60, deadline=None)
@given(st.lists(keys, max_size=60))
def test_keys_come_and_go_as_in_a_sorted_list(changes: list[QueueKey]) -> None:
    """A key that is there goes, one that is not comes; every earlier value stays as it was."""
    queue, expected = JobQueue(), list[QueueKey]()
    for key in changes:
        before, known = queue, list(expected)
        assert queue.has(key) == (key in expected)
        if key in expected:
            queue = queue.without(key)
            expected.remove(key)
        else:
            queue = queue.with_key(key)
            insort(expected, key)
        assert list(queue.keys) == expected
        assert list(queue) == [job_id for _, _, job_id in expected]
        assert len(queue) == len(expected)
        assert list(before.keys) == known
        assert queue == JobQueue(expected)


@pytest.mark.parametrize("step", [1, -1, 7])
def test_thousands_of_keys_in_any_order(step: int) -> None:
    numbers = [index * step % 3000 for index in range(3000)]
    queue = JobQueue()
    for number in numbers:
        queue = queue.with_key(key_of(number))
    assert list(queue.keys) == [key_of(number) for number in range(3000)]
    assert (queue[0], queue[-1], queue[2:4]) == ("j00000", "j02999", ("j00002", "j00003"))
    for number in numbers[:2990]:
        assert queue.has(key_of(number))
        queue = queue.without(key_of(number))
        assert not queue.has(key_of(number))
    assert sorted(queue.keys) == list(queue.keys) == sorted(key_of(number) for number in numbers[2990:])
