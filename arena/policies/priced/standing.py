"""The blocks of all that were promised deadlines, and what becomes of them with one more. Pure: no I/O, no clock.

Who asks for a promise comes among them by its deadline. All that come before it have the blocks that they have without
it; and where its block fits beside all others, so have those that come after it: each of them takes the latest block
that it finds, and finds the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property

from arena.policies.priced.layouts import Layout, Need, first_order, in_first_order, laid_out
from arena.policies.priced.timetable import Timetable

_STRIDE = 64
"""Between two layouts that are kept there are so many jobs."""


class Standing:
    """Jobs that were promised deadlines, laid out.

    Args:
        needs: Theirs.
        room: What there will be for all of them.
    """

    def __init__(self, needs: Sequence[Need], room: Timetable) -> None:
        self.needs, self.room = needs, room
        self._order = in_first_order(needs)

    @cached_property
    def layout(self) -> Layout:
        """All of them laid out, without one more."""
        return laid_out(self.needs, self.room, self._begun[-1])

    @cached_property
    def _begun(self) -> list[Layout]:
        """The first so many of them laid out in the first order, every so many of them, and all of them at last."""
        found = Layout(self.room.copy())
        kept = list[Layout]()
        for place, need in enumerate(self._order):
            if place % _STRIDE == 0:
                kept.append(found.copy())
            found.lay(need)
        return [*kept, found]

    def with_one(self, need: Need) -> Layout:
        """Return all of them laid out with one more, as ``laid_out`` lays them out."""
        return laid_out([*self.needs, need], self.room, self._begun_with(need))

    def _begun_with(self, need: Need) -> Layout:
        place = bisect_left(self._order, first_order(need), key=first_order)
        layout = self._before(place)
        block = layout.found(need)
        if block is not None:
            all_ = self._begun[-1]
            if not all_.room.is_free(need.usage[block.at], block.start_s, block.length_s):
                layout.put(need, block)
                for other in self._order[place:]:
                    layout.lay(other)
                return layout
        found = self._begun[-1].copy()
        if block is not None:
            found.put(need, block)
        return found

    def _before(self, place: int) -> Layout:
        """Return the first so many of them laid out."""
        nearest = min(place // _STRIDE, len(self._begun) - 1)
        layout = self._begun[nearest].copy() if place < len(self._order) else self._begun[-1].copy()
        for need in self._order[nearest * _STRIDE : place] if place < len(self._order) else ():
            layout.lay(need)
        return layout
