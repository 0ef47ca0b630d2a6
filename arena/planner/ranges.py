"""The largest value in ranges of a row, for many ranges at once. Pure: no I/O, no clock."""

from __future__ import annotations

import numpy as np

from arena.planner.candidates import Floats, Ints


def largest_in(values: Floats, first: Ints, last: Ints) -> Ints:
    """Return where the largest of ``values[first:last]`` is, for arrays of ranges; ``first`` for an empty range.

    A sparse table (Bender and Farach-Colton 2000): the largest of each run of 1, 2, 4, ... values; a range is the
    union of two such runs.
    """
    table = [np.arange(len(values))]
    while 2 ** len(table) <= len(values):
        half = 2 ** (len(table) - 1)
        before, after = table[-1][:-half], table[-1][half:]
        table.append(np.where(values[after] > values[before], after, before))
    longest = len(values) + 1
    padded = np.stack([np.concatenate((level, np.full(longest - len(level), 0))) for level in table])
    length = np.maximum(last - first, 1)
    level = np.log2(length).astype(np.int64)
    one = padded[level, first]
    other = padded[level, np.maximum(last - 2**level, first)]
    found: Ints = np.where(values[other] > values[one], other, one)
    return found
