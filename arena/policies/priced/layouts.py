"""Blocks of time for jobs with deadlines, laid out so that all of them fit. Pure: no I/O, no clock.

Jobs with the latest deadline come first, each as late as possible in the column with the fewest GPU-seconds: that
leaves room before them. That is no exact search, and whoever was promised a deadline must find a block again and again,
though what is known changes a little each time. So where some find none, or one without slack, other ways are tried:
these first; all that run where they are in time go on there; columns with many GPUs, which take the shortest time; as
soon as possible; at last who finds none in turn takes the place of each of the others, which looks for another.

What a job has is a block only from now on, and others cannot use it until then. So a late block with a start in it is
looked for first, if there is time to be stopped before it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from arena.policies.priced.columns import NONE, Floats, Ints
from arena.policies.priced.timetable import Block, Timetable

ORDERS_MAX = 4
"""Times that promised jobs are laid out anew, one that found no block moved to the front each time."""

HARD_MAX = 200
"""With more jobs than this no harder way is tried: each takes as long as the first."""

LAYS_MAX = 4_000
"""Blocks that are looked for at most in the first way, all orders together, but for one order."""

EXCHANGES_MAX = 64
"""Blocks that are tried to be laid elsewhere for those that find none."""

_TOLERANCE_S = 1e-6


class Way(StrEnum):
    """How a block is looked for."""

    LATE = "late"
    SHORT = "short"
    SOON = "soon"


WAYS = (Way.LATE, Way.SHORT, Way.SOON)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Need:
    """What a job with a deadline has to do until then.

    Args:
        due_s: The instant of the deadline.
        at: Its contender; the numbers of jobs outside the market follow theirs.
        columns: Its columns, the fewest GPU-seconds first; -1 for all of a job outside.
        entry: Position of each in the job's table, -1 for what it has.
        usage: What each of them takes of each row; shape (columns, rows).
        ready_s: When there are nodes for each of them at the earliest: what lies around on several cannot be joined.
        lengths_s: How long each of them takes, with slack.
        least_s: The same without.
        is_promised: Whether its deadline was promised when it was submitted.
        kept: Position among its columns of what it has, ``NONE`` where it has nothing or may not keep it. A block in
            it begins when it is ready: who gives up what it has must start again.
        yields_s: A block elsewhere that begins from then on comes before one in what it has: until then others can use
            that. One that begins earlier leaves no time to be stopped and to start again.
    """

    at: int
    due_s: float
    columns: Ints
    entry: Ints
    usage: Floats
    ready_s: Floats
    lengths_s: Floats
    least_s: Floats
    is_promised: bool
    kept: int = NONE
    yields_s: float = -math.inf


@dataclass(frozen=True, slots=True)
class Found:
    """Where a block was found.

    Args:
        at: Position among its job's columns.
        is_tight: Whether it has no slack.
    """

    at: int
    start_s: float
    length_s: float
    is_tight: bool


class Layout:
    """Blocks laid out in some order."""

    def __init__(self, room: Timetable) -> None:
        self.room = room
        self.blocks: dict[int, Block] = {}
        self.tight: set[int] = set()

    def copy(self) -> Layout:
        """Return a value of its own."""
        other = Layout(self.room.copy())
        other.blocks, other.tight = dict(self.blocks), set(self.tight)
        return other

    def lay(self, need: Need, way: Way = Way.LATE) -> bool:
        """Give a job the first block that is found; False where there is none."""
        found = self.found(need, way)
        if found is not None:
            self.put(need, found)
        return found is not None

    def keep(self, need: Need) -> bool:
        """Let a job go on with what it has, if it is in time so and nothing is in the way."""
        if need.kept < 0:
            return False
        length_s = float(need.lengths_s[need.kept])
        start_s = self._goes_on_s(need, length_s)
        if start_s is not None:
            self.put(need, Found(at=need.kept, start_s=start_s, length_s=length_s, is_tight=False))
        return start_s is not None

    def take_out(self, at: int) -> None:
        """Give back a job's block."""
        block = self.blocks.pop(at)
        self.tight.discard(at)
        self.room.take(-block.usage, block.start_s, block.end_s)

    def found(self, need: Need, way: Way = Way.LATE) -> Found | None:
        """Return the first block that is found for a job, None where there is none."""
        for lengths_s, is_tight in ((need.lengths_s, False), (need.least_s, True)):
            order = _ordered(lengths_s, way)
            for place, at in enumerate(order):
                length_s = float(lengths_s[at])
                start_s = self._start_s(need, at, length_s, way)
                if start_s is not None:
                    found = Found(at=at, start_s=start_s, length_s=length_s, is_tight=is_tight)
                    yielding = at == need.kept and way is Way.LATE and not is_tight
                    return (self._elsewhere(need, order[place + 1 :]) if yielding else None) or found
        return None

    def _elsewhere(self, need: Need, order: Sequence[int]) -> Found | None:
        """Return a block with slack for a job that gives up what it has until then, None where there is no time."""
        for at in order:
            length_s = float(need.lengths_s[at])
            start_s = self._start_s(need, at, length_s, Way.LATE)
            if start_s is not None and start_s >= need.yields_s:
                return Found(at=at, start_s=start_s, length_s=length_s, is_tight=False)
        return None

    def _start_s(self, need: Need, at: int, length_s: float, way: Way) -> float | None:
        if at == need.kept:
            return self._goes_on_s(need, length_s)
        usage, ready_s = need.usage[at], float(need.ready_s[at])
        if way is not Way.SOON:
            start_s = self.room.latest(usage, length_s, need.due_s)
            return None if start_s is None or start_s < ready_s - _TOLERANCE_S else start_s
        start_s = self.room.earliest(usage, length_s)
        return None if start_s is None or start_s + length_s > need.due_s or start_s < ready_s else start_s

    def _goes_on_s(self, need: Need, length_s: float) -> float | None:
        """Return the instant from which on a job can go on with what it has for so long: as soon as it can at all."""
        from_s = float(need.ready_s[need.kept])
        is_in_time = from_s + length_s <= need.due_s
        return from_s if is_in_time and self.room.is_free(need.usage[need.kept], from_s, length_s) else None

    def put(self, need: Need, found: Found) -> None:
        """Give a job a block that was found for it."""
        usage, start_s, end_s = need.usage[found.at], found.start_s, found.start_s + found.length_s
        column, entry = int(need.columns[found.at]), int(need.entry[found.at])
        self.blocks[need.at] = Block(column=column, entry=entry, usage=usage, start_s=start_s, end_s=end_s)
        if found.is_tight:
            self.tight.add(need.at)
        self.room.take(usage, start_s, end_s)

    def late(self, needs: Sequence[Need]) -> set[int]:
        """Return which of some jobs have no block, or one without slack."""
        return self.tight | {need.at for need in needs if need.at not in self.blocks}

    @property
    def rank(self) -> tuple[int, int]:
        """How good it is: blocks, then those with slack."""
        return len(self.blocks), -len(self.tight)


def _ordered(lengths_s: Floats, way: Way) -> list[int]:
    """Return the columns in the order in which they are tried; they are given by their GPU-seconds."""
    if way is Way.LATE:
        return list(range(len(lengths_s)))
    order: list[int] = np.argsort(lengths_s, kind="stable").tolist()
    return order


class _Hopes:
    """Of which jobs that are late more could be hoped for, if they came first of all."""

    def __init__(self, needs: Sequence[Need], room: Timetable) -> None:
        self._by_at, self._empty = {need.at: need for need in needs}, Layout(room)
        self._known: dict[tuple[int, bool], bool] = {}

    def has_any(self, layout: Layout, late: Collection[int]) -> bool:
        """Tell whether one of these could have a block, or slack, that has none in a layout."""
        return any(self._has(at, has_block=at in layout.blocks) for at in late)

    def of(self, at: int) -> bool:
        """Tell whether there could be any block for a job."""
        return self._has(at, has_block=False)

    def _has(self, at: int, *, has_block: bool) -> bool:
        if (at, has_block) not in self._known:
            found = self._empty.found(self._by_at[at])
            self._known[at, has_block] = found is not None and not (has_block and found.is_tight)
        return self._known[at, has_block]


def laid_out(needs: Sequence[Need], room: Timetable, begun: Layout | None = None) -> Layout:
    """Lay out the blocks of promised jobs; where some find none, in the way that leaves the fewest without.

    Args:
        begun: All of them in the first order, if that is known.
    """
    hopes = _Hopes(needs, room)
    best = _best_first(needs, room, hopes, begun)
    if len(needs) > HARD_MAX or not hopes.has_any(best, best.late(needs)):
        return best
    for found in _other_layouts(needs, room, hopes):
        best = found if found.rank > best.rank else best
        if not hopes.has_any(best, best.late(needs)):
            return best
    return best if len(best.blocks) == len(needs) else _with_exchanges(needs, best, hopes)


def _best_first(needs: Sequence[Need], room: Timetable, hopes: _Hopes, begun: Layout | None) -> Layout:
    best: Layout | None = None
    for found in _late_layouts(needs, room, hopes, begun=begun):
        best = found if best is None or found.rank > best.rank else best
    assert best is not None
    return best


def in_first_order(needs: Sequence[Need]) -> list[Need]:
    """Return jobs in the order in which they are laid out first."""
    return sorted(needs, key=first_order)


def first_order(need: Need) -> tuple[float, int]:
    """Return the place of a job in the order in which all are laid out first: the latest deadlines come first."""
    return -need.due_s, need.at


def _late_layouts(
    needs: Sequence[Need],
    room: Timetable,
    hopes: _Hopes,
    way: Way = Way.LATE,
    *,
    keeps: bool = False,
    begun: Layout | None = None,
) -> Iterator[Layout]:
    """Yield layouts, those first that found nothing in the one before, until nothing better can be hoped for.

    Args:
        keeps: Whether those that run go on as they are wherever they are in time so.
        begun: The first one, if it is known.
    """
    order = in_first_order(needs)
    for _ in range(min(ORDERS_MAX, max(LAYS_MAX // max(len(order), 1), 1))):
        found, begun = begun or _laid(order, room, way, keeps=keeps), None
        yield found
        late = found.late(order)
        if not hopes.has_any(found, late):
            return
        order.sort(key=lambda need: need.at not in late)


def _laid(order: Sequence[Need], room: Timetable, way: Way, *, keeps: bool) -> Layout:
    found = Layout(room.copy())
    kept = {need.at for need in order if found.keep(need)} if keeps else set()
    for need in order:
        if need.at not in kept:
            found.lay(need, way)
    return found


def _other_layouts(needs: Sequence[Need], room: Timetable, hopes: _Hopes) -> Iterator[Layout]:
    yield from _late_layouts(needs, room, hopes, keeps=True)
    yield from _late_layouts(needs, room, hopes, Way.SHORT)
    found = Layout(room.copy())
    for need in sorted(needs, key=lambda need: (need.due_s, need.at)):
        found.lay(need, Way.SOON)
    yield found


def _with_exchanges(needs: Sequence[Need], layout: Layout, hopes: _Hopes) -> Layout:
    """Return a layout with blocks for those that found none, if one other each can be laid elsewhere."""
    by_at, tries = {need.at: need for need in needs}, EXCHANGES_MAX
    missed = [one for one in needs if one.at not in layout.blocks and hopes.of(one.at)]
    for need in sorted(missed, key=lambda one: (one.due_s, one.at)):
        others = [at for at, block in layout.blocks.items() if block.start_s < need.due_s]
        for at in sorted(others, key=lambda at: (-by_at[at].due_s, at))[:tries]:
            tries -= 1
            found = _exchanged(layout, need, by_at[at])
            if found is not None:
                layout = found
                break
    return layout


def _exchanged(layout: Layout, need: Need, other: Need) -> Layout | None:
    """Return a layout in which a job has a block, and another one elsewhere; None where there is none."""
    opened = layout.copy()
    opened.take_out(other.at)
    for way in WAYS:
        with_need = opened.copy()
        if not with_need.lay(need, way):
            return None
        for other_way in WAYS:
            found = with_need.copy()
            if found.lay(other, other_way):
                return found
    return None
