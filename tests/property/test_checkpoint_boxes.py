"""Boxes against numpy: runs, intersections, and whether boxes make up a tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena_agent.checkpoints.boxes import (
    Box,
    Flaw,
    box_slices,
    boxes_of_range,
    coverage_fault,
    intersection,
    is_within,
    whole_box,
)

Shape = tuple[int, ...]

shapes = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


@st.composite
def boxes_in(draw: st.DrawFn, shape: Shape) -> Box:
    """Draw a box that may be empty or stick out by one."""
    offsets = tuple(draw(st.integers(0, size)) for size in shape)
    sizes = tuple(draw(st.integers(0, size - offset + 1)) for size, offset in zip(shape, offsets, strict=True))
    return Box(offsets, sizes)


@st.composite
def partitions(draw: st.DrawFn, shape: Shape) -> list[Box]:
    """Draw boxes that make up a tensor, by cutting again and again; some are empty."""
    boxes = [whole_box(shape)]
    for _ in range(draw(st.integers(0, 6)) if shape else 0):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        dimension = draw(st.integers(0, len(shape) - 1))
        size = draw(st.integers(0, box.sizes[dimension]))
        lower, upper = list(box.sizes), list(box.sizes)
        lower[dimension], upper[dimension] = size, box.sizes[dimension] - size
        offsets = list(box.offsets)
        offsets[dimension] += size
        boxes += [Box(box.offsets, tuple(lower)), Box(tuple(offsets), tuple(upper))]
    return draw(st.permutations(boxes))


def elements(shape: Sequence[int], box: Box) -> set[int]:
    """Return the elements of a box by their numbers in row-major order."""
    return set(np.arange(math.prod(shape)).reshape(shape)[box_slices(box)].reshape(-1).tolist())


@st.composite
def runs(draw: st.DrawFn, size_max: int = 5) -> tuple[Shape, int, int]:
    shape = draw(st.lists(st.integers(1, size_max), min_size=0, max_size=4).map(tuple))
    start = draw(st.integers(0, math.prod(shape)))
    return shape, start, draw(st.integers(start, math.prod(shape)))


@settings(deadline=None)
@given(runs())
def test_a_run_is_its_boxes_one_after_the_other(run: tuple[Shape, int, int]) -> None:
    shape, start, stop = run
    values = np.arange(math.prod(shape)).reshape(shape)
    boxes = boxes_of_range(shape, start, stop)
    parts = [values[box_slices(box)].reshape(-1) for box in boxes]
    assert np.concatenate([np.arange(0), *parts]).tolist() == list(range(start, stop))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)
    assert all(box.element_count for box in boxes)


@settings(deadline=None)
@given(runs(size_max=3))
def test_no_fewer_boxes_make_up_a_run(run: tuple[Shape, int, int]) -> None:
    """The fewest, found by trying every way to cut the run into runs that are boxes."""
    shape, start, stop = run
    fewest = {start: 0}
    for end in range(start + 1, stop + 1):
        fewest[end] = min(fewest[first] + 1 for first in range(start, end) if is_box(shape, first, end))
    assert len(boxes_of_range(shape, start, stop)) == fewest[stop]


def is_box(shape: Shape, start: int, stop: int) -> bool:
    if not shape:
        return True
    indices = np.stack(np.unravel_index(np.arange(start, stop), shape))
    return math.prod((indices.max(axis=1) - indices.min(axis=1) + 1).tolist()) == stop - start


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 7)])
def test_what_is_no_run_is_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="no run"):
        boxes_of_range((2, 3), start, stop)


@settings(deadline=None)
@given(st.data())
def test_an_intersection_is_what_both_hold(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    a, b = data.draw(boxes_in(shape)), data.draw(boxes_in(shape))
    larger = tuple(size + 1 for size in shape)
    shared = intersection(a, b)
    both = elements(larger, a) & elements(larger, b)
    assert (elements(larger, shared) if shared else set()) == both
    assert shared is None or shared.element_count
    assert intersection(b, a) == shared


@settings(deadline=None)
@given(st.data())
def test_coverage_is_every_element_once(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    boxes = data.draw(partitions(shape))
    change = data.draw(st.sampled_from(["none", "drop", "add", "replace"]))
    if change in ("drop", "replace"):
        boxes.pop()
    if change in ("add", "replace"):
        boxes.append(data.draw(boxes_in(shape)))
    counts = np.zeros(tuple(size + 1 for size in shape), dtype=int)
    for box in boxes:
        counts[box_slices(box)] += 1
    inside = counts[box_slices(whole_box(shape))]
    fault = coverage_fault(shape, boxes)
    assert (fault is None) == bool((inside == 1).all() and counts.sum() == inside.sum())
    if fault is not None and fault.flaw is Flaw.OUTSIDE:
        assert not is_within(fault.boxes[0], shape)
    if fault is not None and fault.flaw is Flaw.TWICE:
        assert intersection(*fault.boxes) is not None
    if fault is not None and fault.flaw is Flaw.MISSING:
        assert fault.missing_count == (inside == 0).sum()


PINWHEEL = [Box((0, 0), (1, 2)), Box((0, 2), (2, 1)), Box((2, 1), (1, 2)), Box((1, 0), (2, 1)), Box((1, 1), (1, 1))]


def test_what_no_plane_parts_is_compared_box_by_box() -> None:
    assert coverage_fault((3, 3), PINWHEEL) is None
    fault = coverage_fault((3, 3), [*PINWHEEL[:-1], Box((1, 1), (2, 1))])
    assert fault is not None
    assert fault.flaw is Flaw.TWICE


def test_large_tensors_are_never_built() -> None:
    """A tensor of 10^12 elements in runs of equal length, and in a grid."""
    shape, count = (10**6, 10**6), 997
    cuts = [math.prod(shape) * part // count for part in range(count + 1)]
    boxes = [box for start, stop in itertools.pairwise(cuts) for box in boxes_of_range(shape, start, stop)]
    assert coverage_fault(shape, boxes) is None
    grid = [Box((row * 10**5, column * 10**4), (10**5, 10**4)) for row in range(10) for column in range(100)]
    assert coverage_fault(shape, grid) is None
    assert coverage_fault(shape, [*grid[1:], grid[1]]) is not None
