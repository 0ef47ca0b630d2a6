"""Random numbers from counters: a hash of (key, counters), the same in whatever order and batches they are asked for.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_FRACTION_SHIFT = np.uint64(11)
_FRACTION_UNIT = 2.0**-53


def key_of(*names: object) -> int:
    """Return a 64-bit key for a stream of its own, from what it is for and the numbers it depends on."""
    digest = hashlib.sha256(":".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "little")


def hashed(key: int, *counters: npt.NDArray[np.int64]) -> Words:
    """Return 64 random bits for each combination of counters; their shapes broadcast.

    Each counter goes through one round of SplitMix64 (Steele et al. 2014).
    """
    state = np.full((1,) * max(counter.ndim for counter in counters), key, dtype=np.uint64)
    for counter in counters:
        state = _mixed(state + _mixed(counter.astype(np.uint64)))
    return state


def fractions(words: Words) -> npt.NDArray[np.float64]:
    """Return random words as numbers in [0, 1), of their upper 53 bits."""
    return (words >> _FRACTION_SHIFT).astype(np.float64) * _FRACTION_UNIT


def _mixed(words: Words) -> Words:
    state = words + _GOLDEN
    state = (state ^ (state >> _SHIFTS[0])) * _FACTORS[0]
    state = (state ^ (state >> _SHIFTS[1])) * _FACTORS[1]
    mixed: Words = state ^ (state >> _SHIFTS[2])
    return mixed
