"""Which samples a step trains on, from the seed and the step alone. Pure: no I/O, no clock.

The order is a stream of positions 0, 1, 2, ...; position ``p`` belongs to epoch ``p // sample_count`` and each epoch
visits every sample once, in an order of its own. Step ``s`` takes positions ``[s * batch, (s + 1) * batch)``, so no
state but the step has to be saved, no layout matters, and an epoch boundary inside a batch loses and repeats nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

_ROUND_COUNT = 6
_MASK_64 = (1 << 64) - 1


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

    def ids(self, step: int, share: range | None = None) -> tuple[int, ...]:
        """Return the sample ids of optimizer step ``step`` (0-based), in order.

        Args:
            step: Which step.
            share: Positions in the global batch; by default all.
        """
        first = step * self.global_batch
        positions = range(self.global_batch) if share is None else share
        return tuple(self.id_at(first + position) for position in positions)

    def id_at(self, position: int) -> int:
        """Return the sample at a position of the stream."""
        epoch, index = divmod(position, self.sample_count)
        return permuted(index, size=self.sample_count, key=_epoch_key(self.seed, epoch))


def permuted(index: int, *, size: int, key: int) -> int:
    """Return where a keyed permutation of ``range(size)`` takes ``index``, without storing the permutation.

    A balanced Feistel network over the next even power of two, walked until it lands inside the range.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    value = index
    while True:
        value = _feistel(value, half_bits, key)
        if value < size:
            return value


def _feistel(value: int, half_bits: int, key: int) -> int:
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for round_index in range(_ROUND_COUNT):
        left, right = right, left ^ (_mixed(right, key + round_index) & mask)
    return (left << half_bits) | right


def _mixed(value: int, key: int) -> int:
    """Scramble 64 bits (the finaliser of SplitMix64, Steele et al. 2014)."""
    state = (value * 0x9E3779B97F4A7C15 + key) & _MASK_64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return state ^ (state >> 31)


def _epoch_key(seed: int, epoch: int) -> int:
    digest = hashlib.sha256(f"sample-order:{seed}:{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "little")
