"""Who is to blame is found among many by few tries, and nobody else, however few the tries."""

from __future__ import annotations

from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from arena.domain.job import JobId
from arena.engine.blame import Blamed, to_blame

Some = frozenset[JobId]


def suspects(count: int) -> list[JobId]:
    return [JobId(f"j{at:04}") for at in range(count)]


def blamed(count: int, guilty: Some, tries_max: int = 10_000) -> tuple[Blamed[Some], int]:
    """Search where it fails with any of the guilty; what works is who is left out."""
    tries: list[Some] = []

    def without(left_out: Some) -> Some | None:
        tries.append(left_out)
        return left_out if guilty <= left_out else None

    return to_blame(suspects(count), without, tries_max=tries_max), len(tries)


def some_of(count: int, *, at_most: int) -> st.SearchStrategy[Some]:
    return st.frozensets(st.sampled_from(suspects(count)), min_size=1, max_size=at_most)


@given(count=st.integers(1, 300), data=st.data())
def test_exactly_those_are_blamed_on_whom_it_fails(count: int, data: st.DataObject) -> None:
    guilty = data.draw(some_of(count, at_most=3))
    found, tries = blamed(count, guilty)
    assert found == Blamed(guilty=guilty, answer=guilty, left_out=guilty)
    assert tries <= len(guilty) * 2 * (ceil(log2(count)) + 1)


@given(count=st.integers(2, 100), data=st.data())
def test_of_two_that_would_do_alone_the_first_is_blamed(count: int, data: st.DataObject) -> None:
    """A job that runs is not harmed by being left out; one that waits is."""
    either = data.draw(st.frozensets(st.sampled_from(suspects(count)), min_size=2, max_size=2))
    found = to_blame(suspects(count), lambda left_out: left_out & either or None, tries_max=1_000)
    assert found.guilty == {min(either)}


@given(count=st.integers(1, 300), tries_max=st.integers(1, 40), data=st.data())
def test_where_the_tries_are_over_nobody_is_blamed_who_was_not_singled_out(
    count: int, tries_max: int, data: st.DataObject
) -> None:
    guilty = data.draw(some_of(count, at_most=20))
    found, tries = blamed(count, guilty, tries_max)
    assert tries <= tries_max
    assert found.guilty <= guilty <= found.left_out == found.answer


def test_where_nothing_mends_it_nobody_is_blamed() -> None:
    assert to_blame(suspects(9), lambda _: None, tries_max=100) == Blamed()
