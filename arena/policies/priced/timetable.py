"""What there will be of each row, and the blocks of time that are taken out of it. Pure: no I/O, no clock.

Rows of one pool have a line of time of their own: what is taken of one pool splits no interval of another, and a block
is looked for where it would be. A block on several pools is looked for in each line in turn until all agree.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arena.policies.priced.columns import Floats, Ints

_SLACK = 1e-9
_ROOM_MIN = 64
_PROBES = 4
"""Places that are looked at for a block, each as long as it is, before all of the time is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """A column from one instant to another.

    Args:
        column: Number of the column in its market, -1 for a job that does not compete now.
        entry: Its position in its job's table, -1 for what the job has.
        usage: What it takes of each row; shape (rows,).
        end_s: May be infinite.
    """

    column: int
    entry: int
    usage: Floats
    start_s: float
    end_s: float


_Part = tuple[int, Floats, Floats]
"""Of a usage on one line: its number, what it takes, and what must be free at least; shape (rows of the line, 1)."""


class Timetable:
    """What is free of each row, by time; it only ever gets less by ``take``, and more by ``give``.

    Args:
        now_s: Nothing is before it.
        supply: What is free of each row from then on; shape (rows,).
        together: Numbers of the rows that jobs mostly use together, each row once; None for all rows.
    """

    def __init__(self, now_s: float, supply: Floats, together: Sequence[Ints] | None = None) -> None:
        self._now_s = now_s
        self._rows = [np.arange(len(supply))] if together is None else list(together)
        self._lines = [_Line(now_s, supply[rows]) for rows in self._rows]
        self._parts = dict[bytes, list[_Part]]()

    def copy(self) -> Timetable:
        """Return a value of its own."""
        other = Timetable.__new__(Timetable)
        other._now_s, other._rows, other._parts = self._now_s, self._rows, self._parts
        other._lines = [line.copy() for line in self._lines]
        return other

    def take(self, usage: Floats, start_s: float, end_s: float) -> None:
        """Take something from one instant to another."""
        for at, part, _ in self._parts_of(usage):
            self._lines[at].change(-part, start_s, end_s)

    def give(self, usage: Floats, from_s: float) -> None:
        """Add what comes back at an instant and stays."""
        for at, part, _ in self._parts_of(usage):
            self._lines[at].change(part, from_s, math.inf)

    def latest(self, usage: Floats, length_s: float, until_s: float) -> float | None:
        """Return the latest start from which something is free for so long and ends in time, None where it never is."""
        parts = self._parts_of(usage)
        if len(parts) == 1:
            return self._lines[parts[0][0]].latest(parts[0][2], length_s, until_s)
        start_s = until_s - length_s
        while start_s >= self._now_s - _slack(length_s):
            found = [self._lines[at].latest(least, length_s, start_s + length_s) for at, _, least in parts]
            starts_s = [one for one in found if one is not None]
            if len(starts_s) < len(parts):
                return None
            if min(starts_s, default=start_s) >= start_s - _slack(length_s):
                return max(starts_s, default=max(start_s, self._now_s))
            start_s = min(starts_s)
        return None

    def earliest(self, usage: Floats, length_s: float) -> float | None:
        """Return the first instant from which something is free for so long."""
        parts, start_s = self._parts_of(usage), self._now_s
        while True:
            found = [self._lines[at].earliest(least, length_s, start_s) for at, _, least in parts]
            starts_s = [one for one in found if one is not None]
            if len(starts_s) < len(parts):
                return None
            if max(starts_s, default=start_s) <= start_s:
                return start_s
            start_s = max(starts_s)

    def is_free(self, usage: Floats, start_s: float, length_s: float) -> bool:
        """Tell whether something is free for so long from an instant on."""
        until_s = start_s + length_s - _slack(length_s)
        return not any(self._lines[at].is_blocked(least, start_s, until_s) for at, _, least in self._parts_of(usage))

    def least(self, until_s: float) -> Floats:
        """Return the least that is free of each row from now to an instant; shape (rows,)."""
        least = np.empty(sum(len(rows) for rows in self._rows))
        for rows, line in zip(self._rows, self._lines, strict=True):
            least[rows] = line.least(until_s)
        return least

    def _parts_of(self, usage: Floats) -> list[_Part]:
        """Return what something takes, by line; of lines of which it takes nothing there is none."""
        key = usage.tobytes()
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = []
            for at, rows in enumerate(self._rows):
                own = usage[rows][:, None]
                if own.any():
                    found.append((at, own, np.where(own != 0.0, own - _SLACK, -np.inf)))
        return found


def _slack(length_s: float) -> float:
    return _SLACK * max(1.0, length_s)


class _Line:
    """What is free of some rows from instant to instant.

    Args:
        now_s: The first instant.
        supply: What is free from then on; shape (rows,).
    """

    __slots__ = ("_at_s", "_free", "_times_s")

    def __init__(self, now_s: float, supply: Floats) -> None:
        self._at_s = [now_s]  # to search in; the same as an array to compute with is as long as the room for more
        self._times_s = np.full(_ROOM_MIN, now_s)
        self._free = np.empty((len(supply), _ROOM_MIN))
        self._free[:, 0] = supply

    def copy(self) -> _Line:
        other = _Line.__new__(_Line)
        other._at_s, other._times_s, other._free = self._at_s.copy(), self._times_s.copy(), self._free.copy()
        return other

    def change(self, change: Floats, start_s: float, end_s: float) -> None:
        """Add something from one instant to another; shape (rows, 1)."""
        first = self._split(start_s)
        last = len(self._at_s) if end_s == math.inf else self._split(end_s)
        self._free[:, first:last] += change

    def is_blocked(self, least: Floats, start_s: float, until_s: float) -> bool:
        """Tell whether less is free somewhere between two instants."""
        first = max(bisect_right(self._at_s, start_s) - 1, 0)
        return bool((self._free[:, first : bisect_left(self._at_s, until_s)] < least).any())

    def _blocked(self, least: Floats, first: int, last: int) -> NDArray[np.bool_]:
        """Tell of intervals whether less is free there."""
        found: NDArray[np.bool_] = np.logical_or.reduce(self._free[:, first:last] < least, axis=0)
        return found

    def latest(self, least: Floats, length_s: float, until_s: float) -> float | None:
        """Return the latest start from which so much is free for so long until an instant, None where it never is."""
        at_s, slack_s = self._at_s, _slack(length_s)
        end_s, last = until_s, bisect_left(at_s, until_s)
        for _ in range(_PROBES):  # mostly there is room shortly before
            start_s = end_s - length_s
            if start_s < at_s[0] - slack_s:
                return None
            first = max(bisect_right(at_s, start_s) - 1, 0)
            backwards = self._blocked(least, first, last)[::-1]
            behind = int(backwards.argmax()) if len(backwards) else 0
            if not len(backwards) or not backwards[behind]:
                return max(start_s, at_s[0])
            after = last - behind  # the interval after the last one that is blocked
            if after < last and at_s[after] <= start_s + slack_s:
                return at_s[after]
            more = backwards[behind:]
            open_ = int(more.argmin())
            last = first if more[open_] else after - open_
            end_s = at_s[last]
        return self._latest_of_all(least, length_s, last, end_s)

    def _latest_of_all(self, least: Floats, length_s: float, last: int, end_s: float) -> float | None:
        begins_s, ends_s = self._runs(least, last, end_s)
        places = np.flatnonzero((begins_s < end_s) & (begins_s + length_s <= ends_s + _slack(length_s)))
        return max(float(ends_s[places[-1]]) - length_s, float(begins_s[places[-1]])) if len(places) else None

    def earliest(self, least: Floats, length_s: float, from_s: float) -> float | None:
        """Return the first start not before an instant from which so much is free for so long."""
        begins_s, ends_s = self._runs(least, len(self._at_s), math.inf)
        begins_s = np.maximum(begins_s, from_s)
        places = np.flatnonzero((begins_s < ends_s) & (begins_s + length_s <= ends_s + _slack(length_s)))
        return float(begins_s[places[0]]) if len(places) else None

    def _runs(self, least: Floats, last: int, end_s: float) -> tuple[Floats, Floats]:
        """Return begins and ends of the stretches of intervals before one in which so much is free; some are empty."""
        blocked = np.flatnonzero(self._blocked(least, 0, last))
        begins_s, ends_s = np.empty(len(blocked) + 1), np.empty(len(blocked) + 1)
        begins_s[0], begins_s[1:] = self._at_s[0], self._times_s[1 : last + 1][blocked]
        ends_s[-1], ends_s[:-1] = end_s, self._times_s[:last][blocked]
        if len(blocked) and blocked[-1] == last - 1:
            begins_s[-1] = end_s
        return begins_s, ends_s

    def least(self, until_s: float) -> Floats:
        """Return the least that is free of each row to an instant; shape (rows,)."""
        least: Floats = self._free[:, : max(bisect_left(self._at_s, until_s), 1)].min(axis=1)
        return least

    def _split(self, at_s: float) -> int:
        """Return the interval that begins at an instant, made where there is none; what is past begins now."""
        at, count = bisect_left(self._at_s, at_s), len(self._at_s)
        if at == 0 or (at < count and self._at_s[at] == at_s):
            return at
        times_s, free = self._times_s, self._free
        if count + 1 == len(times_s):
            times_s = self._times_s = np.concatenate([times_s, np.zeros(count)])
            free = self._free = np.concatenate([free, np.zeros_like(free)], axis=1)
        self._at_s.insert(at, at_s)
        times_s[at + 1 : count + 1] = times_s[at:count]
        free[:, at + 1 : count + 1] = free[:, at:count]
        times_s[at], free[:, at] = at_s, free[:, at - 1]
        return at
