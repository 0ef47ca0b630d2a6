"""Blocks of time for jobs with deadlines, laid out so that all of them fit. Pure: no I/O, no clock.

Jobs with the latest deadline come first, each as late as possible in the column with the fewest GPU-seconds: that
leaves room before them. That is no exact search, and whoever was promised a deadline must find a block again and again,
though what is known changes a little each time. So where some find none, or one without slack, other ways are tried:
these first; all that run where they are in time go on there; columns with many GPUs, which take the shortest time; as
soon as possible; at last who finds none in turn takes the place of each of the others, which looks for another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        usage: What each of them takes of each row; shape (columns, rows).
        ready_s: When there are nodes for each of them at the earliest: what lies around on several cannot be joined.
        lengths_s: How long each of them takes, with slack.
        least_s: The same without.
        is_promised: Whether its deadline was promised when it was submitted.
        kept: Position among its columns of what it has, ``NONE`` where it has nothing or may not keep it.
    """

    at: int
    due_s: float
    columns: Ints
    usage: Floats
    ready_s: Floats
    lengths_s: Floats
    least_s: Floats
    is_promised: bool
    kept: int = NONE


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
        for lengths_s, is_tight in ((need.lengths_s, False), (need.least_s, True)):
            for at in _ordered(lengths_s, way):
                start_s = self._start_s(need, at, float(lengths_s[at]), way)
                if start_s is not None:
                    self._put(need, at, (start_s, float(lengths_s[at])), is_tight=is_tight)
                    return True
        return False

    def keep(self, need: Need, now_s: float) -> bool:
        """Let a job go on with what it has, if it is in time so and nothing is in the way."""
        if need.kept < 0:
            return False
        length_s = float(need.lengths_s[need.kept])
        if now_s + length_s > need.due_s or self.room.earliest(need.usage[need.kept], length_s) != now_s:
            return False
        self._put(need, need.kept, (now_s, length_s), is_tight=False)
        return True

    def take_out(self, at: int) -> None:
        """Give back a job's block."""
        block = self.blocks.pop(at)
        self.tight.discard(at)
        self.room.take(-block.usage, block.start_s, block.end_s)

    def _start_s(self, need: Need, at: int, length_s: float, way: Way) -> float | None:
        usage, ready_s = need.usage[at], float(need.ready_s[at])
        if way is not Way.SOON:
            start_s = self.room.latest(usage, length_s, need.due_s)
            return None if start_s is None or start_s < ready_s - _TOLERANCE_S else start_s
        start_s = self.room.earliest(usage, length_s)
        return None if start_s is None or start_s + length_s > need.due_s or start_s < ready_s else start_s

    def _put(self, need: Need, at: int, when: tuple[float, float], *, is_tight: bool) -> None:
        start_s, length_s = when
        block = Block(column=int(need.columns[at]), usage=need.usage[at], start_s=start_s, end_s=start_s + length_s)
        self.blocks[need.at] = block
        self.tight |= {need.at} if is_tight else set()
        self.room.take(block.usage, block.start_s, block.end_s)

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


def laid_out_first(needs: Sequence[Need], room: Timetable) -> Layout:
    """Lay out the blocks of promised jobs; where some find none, in the order that leaves the fewest without."""
    best: Layout | None = None
    for found in _late_layouts(needs, room, Way.LATE):
        best = found if best is None or found.rank > best.rank else best
    assert best is not None
    return best


def laid_out_again(needs: Sequence[Need], room: Timetable, now_s: float) -> Layout:
    """Lay out the blocks of promised jobs as ``laid_out_first`` does, and harder where some find none."""
    best = laid_out_first(needs, room)
    if len(needs) > HARD_MAX:
        return best
    for found in _other_layouts(needs, room, now_s):
        if best.rank == (len(needs), 0):
            return best
        best = found if found.rank > best.rank else best
    return best if len(best.blocks) == len(needs) else _with_exchanges(needs, best)


def _late_layouts(
    needs: Sequence[Need], room: Timetable, way: Way, kept_from_s: float | None = None
) -> Iterator[Layout]:
    """Yield layouts, those first that found nothing in the one before, until all have slack.

    Args:
        kept_from_s: The instant from which on those that run go on as they are; None where that need not be.
    """
    order = sorted(needs, key=lambda need: (-need.due_s, need.at))
    for _ in range(min(ORDERS_MAX, max(LAYS_MAX // max(len(order), 1), 1))):
        found = Layout(room.copy())
        kept = [] if kept_from_s is None else [need.at for need in order if found.keep(need, kept_from_s)]
        missed = [need.at for need in order if need.at not in kept and not found.lay(need, way)]
        yield found
        late = found.tight | set(missed)
        if not late:
            return
        order.sort(key=lambda need: need.at not in late)


def _other_layouts(needs: Sequence[Need], room: Timetable, now_s: float) -> Iterator[Layout]:
    yield from _late_layouts(needs, room, Way.LATE, now_s)
    yield from _late_layouts(needs, room, Way.SHORT)
    found = Layout(room.copy())
    for need in sorted(needs, key=lambda need: (need.due_s, need.at)):
        found.lay(need, Way.SOON)
    yield found


def _with_exchanges(needs: Sequence[Need], layout: Layout) -> Layout:
    """Return a layout with blocks for those that found none, if one other each can be laid elsewhere."""
    by_at, tries = {need.at: need for need in needs}, EXCHANGES_MAX
    for need in sorted((one for one in needs if one.at not in layout.blocks), key=lambda one: (one.due_s, one.at)):
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
