"""Which samples a step trains on, from the seed and the step alone. Pure: no I/O, no clock.

The order is a stream of positions 0, 1, 2, ...; position ``p`` belongs to epoch ``p // sample_count`` and each epoch
visits every sample once, in an order of its own. Step ``s`` takes positions ``[s * batch, (s + 1) * batch)``, so no
state but the step has to be saved, no layout matters, and an epoch boundary inside a batch loses and repeats nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arena_agent.worker.counter_hash import Words

_ROUND_COUNT = 6
_MASK_64 = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """The endless sample stream of a job.

    Args:
        seed: The job's seed.
        sample_count: Samples of the data set.
        global_batch: Samples per optimizer step.
    """

    seed: int
    sample_count: int
    global_batch: int

    def ids(self, step: int) -> tuple[int, ...]:
        """Return the sample ids of optimizer step ``step`` (0-based), in order."""
        positions = np.arange(step * self.global_batch, (step + 1) * self.global_batch)
        epochs, indices = np.divmod(positions, self.sample_count)
        ids: list[int] = []
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            key = _epoch_key(self.seed, epoch)
            ids += permuted(indices[epochs == epoch], size=self.sample_count, key=key).tolist()
        return tuple(ids)


def permuted(indices: npt.NDArray[np.int64], *, size: int, key: int) -> npt.NDArray[np.int64]:
    """Return where a keyed permutation of ``range(size)`` takes indices, without storing the permutation.

    A balanced Feistel network over the next even power of two, each value walked until it lands inside the range.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    values = _feistel(indices.astype(np.uint64), half_bits, key)
    outside = np.flatnonzero(values >= size)
    while outside.size:
        values[outside] = _feistel(values[outside], half_bits, key)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _feistel(values: Words, half_bits: int, key: int) -> Words:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for round_index in range(_ROUND_COUNT):
        left, right = right, left ^ (_mixed(right, np.uint64((key + round_index) & _MASK_64)) & mask)
    return (left << shift) | right


def _mixed(values: Words, key: np.uint64) -> Words:
    """Scramble 64 bits (the finaliser of SplitMix64, Steele et al. 2014)."""
    state = values * _GOLDEN + key
    state = (state ^ (state >> _SHIFTS[0])) * _FACTORS[0]
    state = (state ^ (state >> _SHIFTS[1])) * _FACTORS[1]
    mixed: Words = state ^ (state >> _SHIFTS[2])
    return mixed


def _epoch_key(seed: int, epoch: int) -> int:
    digest = hashlib.sha256(f"sample-order:{seed}:{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "little")
