"""What every data set of the worker offers: samples by id, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from arena.errors import UserError

IGNORED_TARGET = -100
"""Target of a position where nothing is predicted; such positions add exactly zero to loss and gradient."""


class DataError(UserError):
    """The job's data cannot be read as the spec says."""

    code = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples, one a row, in contiguous arrays of its own that may be written to.

    Args:
        inputs: Tokens, int64 ``[n, seq_len]``; or images of roughly zero mean and unit variance, float32
            ``[n, channels, height, width]``.
        targets: int64 ``[n, seq_len]``, ``IGNORED_TARGET`` where nothing is predicted; for images their classes,
            ``[n, 1]``.
    """

    inputs: npt.NDArray[np.int64] | npt.NDArray[np.float32]
    targets: npt.NDArray[np.int64]


class Corpus(Protocol):
    """A data set of samples that are numbered from 0."""

    @property
    def sample_count(self) -> int:
        """Samples in the data set."""
        ...

    @property
    def fingerprint(self) -> str:
        """What tells this data set from another: its size and a digest of its two ends."""
        ...

    def batch(self, ids: Sequence[int], positions: Sequence[int]) -> Batch:
        """Return samples.

        Args:
            ids: Which samples.
            positions: Their places in the endless training stream (``step * global_batch + row``), one for each id.
                They key whatever is random about a sample, so that it depends on the seed and the place alone.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOfCorpus:
    """Consecutive samples of a data set, numbered from 0.

    Args:
        inner: The whole data set.
        first: Its sample that is number 0 here.
        sample_count: Samples of this part.
    """

    inner: Corpus
    first: int
    sample_count: int

    @property
    def fingerprint(self) -> str:
        """The whole data set's, and which part of it this is."""
        return f"{self.inner.fingerprint}, {self.sample_count} samples from {self.first}"

    def batch(self, ids: Sequence[int], positions: Sequence[int]) -> Batch:
        """Return samples of this part."""
        outside = [sample for sample in ids if not 0 <= sample < self.sample_count]
        if outside:
            raise IndexError(f"sample {outside[0]} of {self.sample_count}")
        return self.inner.batch([self.first + sample for sample in ids], positions)
