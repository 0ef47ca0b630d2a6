"""What retention removes, and what it never does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from arena_agent.checkpoints.retention import Stored, names_to_remove


@st.composite
def places(draw: st.DrawFn) -> list[Stored]:
    steps = draw(st.lists(st.integers(0, 30), unique=True, max_size=10))
    return [
        Stored(
            name=f"step-{step}", step=step, size_bytes=draw(st.integers(0, 9)), is_complete=draw(st.integers(0, 3)) > 0
        )
        for step in steps
    ]


options = {"keep": st.integers(0, 6), "quota_bytes": st.none() | st.integers(1, 60)}


def kept(place: list[Stored], removed: tuple[str, ...]) -> list[Stored]:
    return sorted((item for item in place if item.name not in removed), key=lambda item: -item.step)


@settings(deadline=None)
@given(places(), options["keep"], options["quota_bytes"])
def test_the_newest_two_complete_ones_always_stay(place: list[Stored], keep: int, quota_bytes: int | None) -> None:
    removed = names_to_remove(place, keep=keep, quota_bytes=quota_bytes)
    complete = [item.name for item in kept(place, ()) if item.is_complete]
    assert not set(complete[:2]) & set(removed)
    assert len([item for item in kept(place, removed) if item.is_complete]) <= max(keep, 2)


@settings(deadline=None)
@given(places(), options["keep"], options["quota_bytes"])
def test_older_ones_go_first_and_incomplete_ones_with_them(
    place: list[Stored], keep: int, quota_bytes: int | None
) -> None:
    removed = names_to_remove(place, keep=keep, quota_bytes=quota_bytes)
    stays = kept(place, removed)
    steps = {item.name: item.step for item in place}
    assert [steps[name] for name in removed] == sorted(steps[name] for name in removed)
    if removed:
        assert max(steps[name] for name in removed) < min(item.step for item in stays)
        assert stays[-1].is_complete


@settings(deadline=None)
@given(places(), options["keep"], st.integers(1, 60))
def test_the_quota_holds_unless_two_alone_are_above_it(place: list[Stored], keep: int, quota_bytes: int) -> None:
    stays = kept(place, names_to_remove(place, keep=keep, quota_bytes=quota_bytes))
    is_within = sum(item.size_bytes for item in stays) <= quota_bytes
    assert is_within or len([item for item in stays if item.is_complete]) <= 2
    # Nor does it take more than it must.
    removed_for_size = [
        item.name
        for item in place
        if item.name in names_to_remove(place, keep=keep, quota_bytes=quota_bytes)
        and item.name not in names_to_remove(place, keep=keep)
    ]
    if removed_for_size:
        newest = max(
            (item for item in place if item.name in removed_for_size and item.is_complete), key=lambda i: i.step
        )
        with_it = [item for item in place if item.step >= newest.step]
        assert sum(item.size_bytes for item in with_it) > quota_bytes


@settings(deadline=None)
@given(places(), options["keep"], options["quota_bytes"])
def test_done_once_there_is_nothing_left_to_do(place: list[Stored], keep: int, quota_bytes: int | None) -> None:
    stays = kept(place, names_to_remove(place, keep=keep, quota_bytes=quota_bytes))
    assert names_to_remove(stays, keep=keep, quota_bytes=quota_bytes) == ()
