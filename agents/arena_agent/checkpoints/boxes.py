"""Boxes: axis-aligned blocks of a tensor's elements, which pieces of a checkpoint are. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Extents = npt.NDArray[np.int64]
"""Boxes as numbers, ``[boxes, 2, dimensions]``: where each begins and ends."""


@dataclass(frozen=True, slots=True)
class Box:
    """A block of a row-major tensor; one of no dimensions is a scalar's only element.

    Args:
        offsets: First index, by dimension.
        sizes: Extent, by dimension; zero anywhere makes it empty.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.offsets) != len(self.sizes) or min((*self.offsets, *self.sizes), default=0) < 0:
            raise ValueError(f"no box: offsets {self.offsets}, sizes {self.sizes}")

    @property
    def element_count(self) -> int:
        """Elements in it."""
        return math.prod(self.sizes)

    @property
    def ends(self) -> tuple[int, ...]:
        """The index behind the last one, by dimension."""
        return tuple(offset + size for offset, size in zip(self.offsets, self.sizes, strict=True))


def whole_box(shape: Sequence[int]) -> Box:
    """Return the box of a whole tensor."""
    return Box((0,) * len(shape), tuple(shape))


def is_within(box: Box, shape: Sequence[int]) -> bool:
    """Return whether a tensor of this shape has all elements of a box."""
    return len(shape) == len(box.sizes) and all(end <= size for end, size in zip(box.ends, shape, strict=True))


def intersection(a: Box, b: Box) -> Box | None:
    """Return the elements that two boxes of one tensor share, None when there are none."""
    offsets = tuple(map(max, a.offsets, b.offsets))
    ends = tuple(map(min, a.ends, b.ends))
    sizes = tuple(end - offset for offset, end in zip(offsets, ends, strict=True))
    return Box(offsets, sizes) if min(sizes, default=1) > 0 else None


def box_slices(box: Box, within: Box | None = None) -> tuple[slice, ...]:
    """Return the index expression of a box in its tensor, or in an array that holds the larger box ``within``."""
    origin = within.offsets if within is not None else (0,) * len(box.offsets)
    spans = zip(box.offsets, box.sizes, origin, strict=True)
    return tuple(slice(offset - first, offset - first + size) for offset, size, first in spans)


def boxes_of_range(shape: Sequence[int], start: int, stop: int) -> tuple[Box, ...]:
    """Return the run ``[start, stop)`` of a row-major tensor as the fewest boxes, in run order.

    At most ``2 * dimensions - 1``; each is itself one run of memory.
    """
    if not 0 <= start <= stop <= math.prod(shape):
        raise ValueError(f"no run of a tensor of shape {tuple(shape)}: [{start}, {stop})")
    return tuple(_run_boxes(tuple(shape), start, stop)) if start < stop else ()


def _run_boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    if len(shape) <= 1:
        yield Box((start,), (stop - start,)) if shape else Box((), ())
        return
    inner = shape[1:]
    row_size = math.prod(inner)
    first, start_in_row = divmod(start, row_size)
    last, stop_in_row = divmod(stop, row_size)
    if first == last:
        yield from _in_row(first, _run_boxes(inner, start_in_row, stop_in_row))
        return
    if start_in_row:
        yield from _in_row(first, _run_boxes(inner, start_in_row, row_size))
        first += 1
    if first < last:
        yield Box((first, *(0 for _ in inner)), (last - first, *inner))
    if stop_in_row:
        yield from _in_row(last, _run_boxes(inner, 0, stop_in_row))


def _in_row(row: int, boxes: Iterator[Box]) -> Iterator[Box]:
    for box in boxes:
        yield Box((row, *box.offsets), (1, *box.sizes))


class Flaw(StrEnum):
    """How boxes fail to make up a tensor."""

    OUTSIDE = "outside"
    TWICE = "twice"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class CoverageFault:
    """Why boxes do not hold every element of a tensor exactly once.

    Args:
        flaw: What is wrong.
        boxes: The box that lies outside, or the two that overlap.
        missing_count: Elements that no box holds.
    """

    flaw: Flaw
    boxes: tuple[Box, ...] = ()
    missing_count: int = 0

    def __str__(self) -> str:
        places = " and ".join(f"{list(box.sizes)} at {list(box.offsets)}" for box in self.boxes)
        match self.flaw:
            case Flaw.OUTSIDE:
                return f"the part {places} lies outside the tensor"
            case Flaw.TWICE:
                return f"the parts {places} overlap"
            case Flaw.MISSING:
                return f"{self.missing_count} elements are missing"


def coverage_fault(shape: Sequence[int], boxes: Sequence[Box]) -> CoverageFault | None:
    """Return why boxes do not hold every element of a tensor exactly once, None when they do.

    Boxes that lie inside, are disjoint and have as many elements together as the tensor are a partition of it, so
    the tensor itself is never built.
    """
    filled = [box for box in boxes if box.element_count]
    for box in filled:
        if not is_within(box, shape):
            return CoverageFault(Flaw.OUTSIDE, (box,))
    overlapping = overlap(filled)
    if overlapping is not None:
        return CoverageFault(Flaw.TWICE, overlapping)
    missing_count = math.prod(shape) - sum(box.element_count for box in filled)
    return CoverageFault(Flaw.MISSING, missing_count=missing_count) if missing_count else None


def overlap(boxes: Sequence[Box]) -> tuple[Box, Box] | None:
    """Return two of some filled boxes of one tensor that share elements, None when all are disjoint.

    Boxes are parted along one dimension after the other wherever a plane cuts none of them, which takes shards and
    runs apart completely; only what no plane parts is compared pair by pair.
    """
    if len(boxes) < 2:
        return None
    if not boxes[0].sizes:
        return boxes[0], boxes[1]
    extents = np.array([(box.offsets, box.ends) for box in boxes], dtype=np.int64)
    dimension_count = len(boxes[0].sizes)
    # What is left to do: boxes by index, the dimension to try next, and how many in a row have parted nothing.
    todo: list[tuple[npt.NDArray[np.intp], int, int]] = [(np.arange(len(boxes)), 0, 0)]
    while todo:
        indices, dimension, futile_count = todo.pop()
        if futile_count == dimension_count:
            pair = _overlapping_pair(extents, indices)
            if pair is not None:
                return boxes[pair[0]], boxes[pair[1]]
            continue
        groups = _parted(extents, indices, dimension)
        futile_count = futile_count + 1 if len(groups) == 1 else 0
        todo += [(group, (dimension + 1) % dimension_count, futile_count) for group in groups if len(group) > 1]
    return None


def _parted(extents: Extents, indices: npt.NDArray[np.intp], dimension: int) -> list[npt.NDArray[np.intp]]:
    """Part boxes at the planes across a dimension that cut none of them."""
    ordered = indices[np.argsort(extents[indices, 0, dimension], kind="stable")]
    starts = extents[ordered, 0, dimension]
    reached = np.maximum.accumulate(extents[ordered, 1, dimension])
    return np.split(ordered, np.flatnonzero(starts[1:] >= reached[:-1]) + 1)


def _overlapping_pair(extents: Extents, indices: npt.NDArray[np.intp]) -> tuple[int, int] | None:
    for position, index in enumerate(indices[:-1]):
        others = indices[position + 1 :]
        is_apart = (extents[others, 0] >= extents[index, 1]) | (extents[others, 1] <= extents[index, 0])
        hits = np.flatnonzero(~is_apart.any(axis=1))
        if hits.size:
            return int(index), int(others[hits[0]])
    return None
