"""Blocks of jobs with deadlines: on rows of several pools, and with one more among those that are laid out."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.policies.priced.columns import NONE
from arena.policies.priced.layouts import Layout, Need, laid_out
from arena.policies.priced.standing import Standing
from arena.policies.priced.timetable import Timetable

sized = settings(max_examples=60, deadline=None)
SUPPLY = np.array([4.0, 3.0])
TOGETHER = [np.array([0]), np.array([1])]
ALL_S = 300

pieces = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 60), st.integers(1, 30)), min_size=0, max_size=12
)


@sized
@given(
    taken=pieces, one=st.integers(0, 3), other=st.integers(0, 3), length=st.integers(1, 40), until=st.integers(1, 110)
)
def test_a_block_on_two_pools_is_where_a_search_second_by_second_finds_it(
    taken: list[tuple[int, int, int, int]], one: int, other: int, length: int, until: int
) -> None:
    room, free = Timetable(0.0, SUPPLY, TOGETHER), np.repeat(SUPPLY[:, None], ALL_S, axis=1)
    for first, second, start, duration in taken:
        amount = np.array([float(first), float(second)])
        room.take(amount, float(start), float(start + duration))
        free[:, start : start + duration] -= amount[:, None]
    usage = np.array([float(one), float(other)])
    used = np.flatnonzero(usage)
    starts = [at for at in range(200) if (free[used, at : at + length] >= usage[used, None]).all()]
    fitting = [at for at in starts if at + length <= until]
    assert room.latest(usage, float(length), float(until)) == (max(fitting) if fitting else None)
    assert room.earliest(usage, float(length)) == min(starts)
    assert [room.is_free(usage, float(at), float(length)) for at in range(60)] == [at in starts for at in range(60)]


shapes = st.lists(st.tuples(st.integers(1, 4), st.integers(5, 60)), min_size=1, max_size=3)
wishes = st.lists(st.tuples(st.integers(20, 200), shapes, st.booleans()), min_size=1, max_size=9)


def need_of(at: int, due: int, columns: list[tuple[int, int]], *, has_something: bool) -> Need:
    """A job that could have so many GPUs for so long, the last of which it has."""
    lengths_s = np.array([float(length) for _, length in columns])
    last = len(columns) - 1
    return Need(
        at=at,
        due_s=float(due),
        columns=np.arange(len(columns)),
        entry=np.array([NONE if has_something and place == last else place for place in range(len(columns))]),
        usage=np.array([[float(count), 0.0] for count, _ in columns]),
        ready_s=np.zeros(len(columns)),
        lengths_s=1.2 * lengths_s,
        least_s=lengths_s,
        is_promised=True,
        kept=last if has_something else NONE,
    )


def shown(layout: Layout) -> tuple[object, ...]:
    blocks = {at: (block.column, block.start_s, block.end_s) for at, block in sorted(layout.blocks.items())}
    return blocks, sorted(layout.tight)


@sized
@given(asked=wishes)
def test_one_more_is_laid_out_among_the_others_as_if_all_were_laid_out_anew(
    asked: list[tuple[int, list[tuple[int, int]], bool]],
) -> None:
    room = Timetable(0.0, SUPPLY, TOGETHER)
    needs = [need_of(at, due, columns, has_something=has) for at, (due, columns, has) in enumerate(asked)]
    for one in needs:
        others = [need for need in needs if need is not one]
        standing = Standing(others, room)
        assert shown(standing.with_one(one)) == shown(laid_out([*others, one], room))
        assert shown(standing.layout) == shown(laid_out(others, room))


@sized
@given(asked=wishes)
def test_blocks_are_in_time_and_never_take_more_than_there_is(
    asked: list[tuple[int, list[tuple[int, int]], bool]],
) -> None:
    needs = [need_of(at, due, columns, has_something=has) for at, (due, columns, has) in enumerate(asked)]
    found = laid_out(needs, Timetable(0.0, SUPPLY, TOGETHER))
    for at, block in found.blocks.items():
        assert block.end_s <= needs[at].due_s + 1e-6
        assert block.entry != NONE or block.start_s == 0.0
        together = [one.usage for one in found.blocks.values() if one.start_s <= block.start_s < one.end_s]
        assert (np.sum(together, axis=0) <= SUPPLY + 1e-6).all()
