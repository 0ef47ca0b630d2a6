"""Who is to blame is found among many by few tries."""

from __future__ import annotations

from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from arena.engine.blame import to_blame


@given(count=st.integers(1, 300), data=st.data())
def test_exactly_those_are_blamed_on_whom_it_fails(count: int, data: st.DataObject) -> None:
    guilty = data.draw(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=3))
    tries = []

    def mends(without: frozenset[int]) -> bool:
        tries.append(without)
        return guilty <= without

    assert to_blame(range(count), mends) == guilty
    assert len(tries) <= len(guilty) * 2 * (ceil(log2(count)) + 1)


@given(count=st.integers(2, 100), data=st.data())
def test_of_two_that_would_do_alone_the_first_is_blamed(count: int, data: st.DataObject) -> None:
    """A job that runs is not harmed by being left out; one that waits is."""
    either = data.draw(st.frozensets(st.integers(0, count - 1), min_size=2, max_size=2))
    assert to_blame(range(count), lambda without: bool(either & without)) == {min(either)}
