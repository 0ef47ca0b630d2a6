"""What was saved under one cut of the state is read under any other, bit by bit."""

from __future__ import annotations

import itertools
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from arena_agent.checkpoints.boxes import Box, box_slices, boxes_of_range
from arena_agent.checkpoints.files import RankIndex, Reader, rank_file_name, write_rank_file
from arena_agent.checkpoints.manifest import CheckpointError, Manifest
from arena_agent.checkpoints.place import assembled
from tests.fakes.checkpoint_places import manifest_of

Tensors = dict[str, np.ndarray]
Cut = dict[str, list[list[Box]]]
"""The boxes of each rank, by tensor."""


def chunks(shape: tuple[int, ...], dimension: int, count: int) -> list[list[Box]]:
    """Cut as torch does: all of the rounded-up size but the last ones, which may be short or empty."""
    length = -(-shape[dimension] // count)
    parts = []
    for rank in range(count):
        start = min(rank * length, shape[dimension])
        offsets, sizes = [0] * len(shape), list(shape)
        offsets[dimension], sizes[dimension] = start, min(length, shape[dimension] - start)
        parts.append([Box(tuple(offsets), tuple(sizes))])
    return parts


def flat_runs(shape: tuple[int, ...], count: int) -> list[list[Box]]:
    cuts = [math.prod(shape) * rank // count for rank in range(count + 1)]
    return [list(boxes_of_range(shape, start, stop)) for start, stop in itertools.pairwise(cuts)]


def write(directory: Path, tensors: Tensors, cut: Cut, rank_count: int) -> Manifest:
    indexes: list[RankIndex] = []
    for rank in range(rank_count):
        pieces = [(name, box, tensors[name][box_slices(box)]) for name in tensors for box in cut[name][rank]]
        indexes.append(write_rank_file(directory, rank, pieces))
    manifest = manifest_of(1, shapes={name: tensor.shape for name, tensor in tensors.items()})
    return assembled(manifest, indexes)


@pytest.mark.parametrize("size", range(1, 10))
def test_every_small_size_and_rank_count_along_every_dimension(size: int, tmp_path: Path) -> None:
    """Sizes 1 to 9 on 1 to 5 ranks, cut along each of up to three dimensions and as flat runs, read on 1 to 5 ranks."""
    random = np.random.default_rng(size)
    made = {f"cut-{dimension}-of-{count}": (dimension, count) for count in (1, 2, 3) for dimension in range(count)}
    shapes = {
        name: tuple(size if i == dimension else 3 for i in range(count)) for name, (dimension, count) in made.items()
    }
    tensors: Tensors = {name: random.random(shape, dtype=np.float32) for name, shape in shapes.items()}
    tensors |= {f"{name}-flat": tensor for name, tensor in tensors.items()}

    def cut(rank_count: int) -> Cut:
        whole = {name: chunks(shapes[name], made[name][0], rank_count) for name in made}
        return whole | {f"{name}-flat": flat_runs(shapes[name], rank_count) for name in made}

    for saving in range(1, 6):
        directory = tmp_path / str(saving)
        directory.mkdir()
        reader = Reader(directory, write(directory, tensors, cut(saving), saving))
        for loading in range(1, 6):
            for name, ranks in cut(loading).items():
                for box in itertools.chain(*ranks):
                    read = reader.read(name, box)
                    assert read.shape == box.sizes
                    assert read.tobytes() == tensors[name][box_slices(box)].tobytes()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_runs_read_back_as_any_box(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 9), min_size=0, max_size=3).map(tuple))
    count = math.prod(shape)
    rank_count = data.draw(st.integers(1, 5))
    inner = sorted(data.draw(st.lists(st.integers(0, count), min_size=rank_count - 1, max_size=rank_count - 1)))
    cut = [list(boxes_of_range(shape, *run)) for run in itertools.pairwise([0, *inner, count])]
    bits = data.draw(st.integers(0, 2**31))
    # Any bit pattern, among them NaNs with a payload and minus zero.
    tensor = np.random.default_rng(bits).integers(0, 2**32, count, dtype=np.uint32).view(np.float32).reshape(shape)
    with tempfile.TemporaryDirectory() as folder:
        reader = Reader(Path(folder), write(Path(folder), {"model.a": tensor}, {"model.a": cut}, rank_count))
        offsets = tuple(data.draw(st.integers(0, size)) for size in shape)
        sizes = tuple(data.draw(st.integers(0, size - at)) for size, at in zip(shape, offsets, strict=True))
        box = Box(offsets, sizes)
        assert reader.read("model.a", box).tobytes() == tensor[box_slices(box)].tobytes()
        assert reader.whole("model.a").tobytes() == tensor.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_types_stay_and_the_library_reads_our_files(dtype: str, tmp_path: Path) -> None:
    values = np.arange(6).astype(dtype).reshape(2, 3).T
    index = write_rank_file(tmp_path, 3, [("model.a", Box((4, 0), (3, 2)), values)])
    found = load_file(tmp_path / rank_file_name(3))
    assert index.dtypes == {"model.a": dtype}
    assert list(found) == ["model.a@4,0"]
    assert found["model.a@4,0"].dtype == dtype
    np.testing.assert_array_equal(found["model.a@4,0"], values)


def test_what_a_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    tensors = {"model.a": np.zeros((2, 3), dtype=np.float32)}
    reader = Reader(tmp_path, write(tmp_path, tensors, {"model.a": [[Box((0, 0), (2, 3))]]}, 1))
    with pytest.raises(CheckpointError, match=r"lacks the tensor model\.b"):
        reader.whole("model.b")
    with pytest.raises(CheckpointError, match=r"model\.a in shape \[2, 3\]"):
        reader.read("model.a", Box((0, 0), (3, 3)))


def test_a_hole_is_never_read_as_numbers(tmp_path: Path) -> None:
    tensors = {"model.a": np.ones(4, dtype=np.float32)}
    manifest = write(tmp_path, tensors, {"model.a": [[Box((0,), (2,)), Box((2,), (2,))]]}, 1)
    entry = manifest.tensors["model.a"]
    manifest = replace(manifest, tensors={"model.a": replace(entry, pieces=entry.pieces[:1])})
    with pytest.raises(CheckpointError, match="1 elements are missing"):
        Reader(tmp_path, manifest).read("model.a", Box((1,), (2,)))
