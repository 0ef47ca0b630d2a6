"""What there will be of each row, and the blocks of time that are taken out of it. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arena.policies.priced.columns import Floats

_SLACK = 1e-9
_ROOM_MIN = 64
_LOOKED_AT = 64
"""Intervals before an instant that are looked at first."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """A column from one instant to another.

    Args:
        column: Number of the column in its market, -1 for a job that does not compete now.
        usage: What it takes of each row; shape (rows,).
        end_s: May be infinite.
    """

    column: int
    usage: Floats
    start_s: float
    end_s: float


class Timetable:
    """What is free of each row, by time; it only ever gets less by ``take``, and more by ``give``.

    Args:
        now_s: Nothing is before it.
        supply: What is free of each row from then on; shape (rows,).
    """

    def __init__(self, now_s: float, supply: Floats) -> None:
        self._count = 1
        self._at_s = np.zeros(_ROOM_MIN)  # longer than what is in use: blocks are put in all the time
        self._free = np.zeros((len(supply), _ROOM_MIN))  # one row after the other is looked at
        self._at_s[0], self._free[:, 0] = now_s, supply

    def copy(self) -> Timetable:
        """Return a value of its own."""
        other = Timetable.__new__(Timetable)
        other._count, other._at_s, other._free = self._count, self._at_s.copy(), self._free.copy()
        return other

    def take(self, usage: Floats, start_s: float, end_s: float) -> None:
        """Take something from one instant to another."""
        self._change(-usage, start_s, end_s)

    def give(self, usage: Floats, from_s: float) -> None:
        """Add what comes back at an instant and stays."""
        self._change(usage, from_s, math.inf)

    def latest(self, usage: Floats, length_s: float, until_s: float) -> float | None:
        """Return the latest start from which something is free for so long and ends in time, None where it never is."""
        count, width = self._place_of(until_s), _LOOKED_AT
        while width < count:  # mostly there is room shortly before: no need to look at all of the time
            begins_s, ends_s = self._runs(usage, length_s, until_s, count - width)
            if len(begins_s):
                return max(float(ends_s[-1]) - length_s, float(begins_s[-1]))
            width *= 8
        begins_s, ends_s = self._runs(usage, length_s, until_s)
        return max(float(ends_s[-1]) - length_s, float(begins_s[-1])) if len(begins_s) else None

    def earliest(self, usage: Floats, length_s: float) -> float | None:
        """Return the first instant from which something is free for so long."""
        begins_s, _ = self._runs(usage, length_s, math.inf)
        return float(begins_s[0]) if len(begins_s) else None

    def least(self, until_s: float) -> Floats:
        """Return the least that is free of each row from now to an instant; shape (rows,)."""
        count = max(self._place_of(until_s), 1)
        least: Floats = self._free[:, :count].min(axis=1)
        return least

    def _runs(self, usage: Floats, length_s: float, until_s: float, first: int = 0) -> tuple[Floats, Floats]:
        """Return begins and ends of the stretches up to an instant in which something is free for so long.

        Args:
            first: The interval from which on they are looked for.
        """
        count = self._place_of(until_s)
        blocked = np.flatnonzero(~self._fits(usage, first, count))
        at_s = np.append(self._at_s[first:count], until_s)
        begins_s, ends_s = at_s[np.append(0, blocked + 1)], at_s[np.append(blocked, count - first)]
        is_long = (begins_s < until_s) & (begins_s + length_s <= ends_s + _SLACK * max(1.0, length_s))
        return begins_s[is_long], ends_s[is_long]

    def _fits(self, usage: Floats, first: int, count: int) -> NDArray[np.bool_]:
        fits = np.ones(count - first, dtype=bool)
        for row in np.flatnonzero(usage).tolist():
            fits &= self._free[row, first:count] >= usage[row] - _SLACK
        return fits

    def _change(self, change: Floats, start_s: float, end_s: float) -> None:
        first = self._split(start_s)
        last = self._count if end_s == math.inf else self._split(end_s)
        self._free[:, first:last] += change[:, None]

    def _place_of(self, at_s: float) -> int:
        """Return how many intervals begin before an instant."""
        return int(np.searchsorted(self._at_s[: self._count], at_s))

    def _split(self, at_s: float) -> int:
        """Return the interval that begins at an instant, made where there is none; what is past begins now."""
        at, count = self._place_of(at_s), self._count
        if at == 0 or (at < count and self._at_s[at] == at_s):
            return at
        if count == len(self._at_s):
            self._at_s = np.concatenate([self._at_s, np.zeros(count)])
            self._free = np.concatenate([self._free, np.zeros_like(self._free)], axis=1)
        self._at_s[at + 1 : count + 1] = self._at_s[at:count]
        self._free[:, at + 1 : count + 1] = self._free[:, at:count]
        self._at_s[at], self._free[:, at] = at_s, self._free[:, at - 1]
        self._count += 1
        return at
