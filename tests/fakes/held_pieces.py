"""What a forked rank writes down of its state, apart from the ranks themselves, whose imports take seconds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float32]]


class HeldPiece(NamedTuple):
    """One block of a logical tensor as a rank holds it."""

    name: str
    shape: tuple[int, ...]
    block: tuple[slice, ...]
    values: Array
    is_written: bool
