"""Images: the built-in ones are the same everywhere, files are checked before anything is trained on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from arena.domain.job import TrainSpec
from arena_agent.worker.data import DataError, open_corpora

SIZE, CHANNELS, CLASS_COUNT = 8, 3, 5


def train(directory: Path | None = None, *, evaluation: dict[str, Any] | None = None, **model: Any) -> TrainSpec:
    shape = {"family": "vit", "layers": 1, "hidden": 8, "heads": 1, "patch_size": 4}
    shape |= {"image_size": SIZE, "channels": CHANNELS, "class_count": CLASS_COUNT, **model}
    data = {"source": "images", "path": str(directory)} if directory else {"source": "builtin"}
    return TrainSpec.model_validate({"model": shape, "data": data, "global_batch": 1, "evaluation": evaluation})


def write_images(
    directory: Path, images: npt.NDArray[Any] | None = None, labels: npt.NDArray[Any] | None = None
) -> Path:
    random = np.random.default_rng(3)
    directory.mkdir(exist_ok=True)
    if images is None:
        images = random.integers(20, 120, (20, CHANNELS, SIZE, SIZE), dtype=np.uint8)
    np.save(directory / "images.npy", images)
    np.save(directory / "labels.npy", np.arange(20) % CLASS_COUNT if labels is None else labels)
    return directory


def test_the_built_in_images_depend_on_their_number_alone() -> None:
    corpus = open_corpora(train()).training
    together = corpus.batch([3, 9, 4], [0, 1, 2])
    for row, sample in enumerate((3, 9, 4)):
        alone = open_corpora(train()).training.batch([sample], [77])
        np.testing.assert_array_equal(together.inputs[row], alone.inputs[0])
        assert together.targets[row].tolist() == alone.targets[0].tolist() == [sample % CLASS_COUNT]


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"channels": 1, "class_count": 2},
        {"image_size": 4, "class_count": 1},
        {"image_size": 32, "class_count": 100},
        {"image_size": 28, "channels": 4, "class_count": 1000},
    ],
)
def test_the_built_in_images_have_any_shape_and_are_scaled(shape: dict[str, Any]) -> None:
    spec = train(**shape)
    corpus = open_corpora(spec).training
    batch = corpus.batch(range(200), range(200))
    size = spec.model.image_size
    assert batch.inputs.shape == (200, spec.model.channels, size, size)
    assert batch.inputs.dtype == np.float32
    assert abs(float(batch.inputs.mean())) < 0.3
    assert 0.5 < float(batch.inputs.std()) < 1.5
    assert corpus.sample_count >= 4096
    assert len(np.unique(batch.targets)) == min(200, spec.model.class_count or 0)


def test_classes_of_the_built_in_images_differ_more_than_samples_of_one() -> None:
    batch = open_corpora(train(image_size=16, class_count=20)).training.batch(range(2000), range(2000))
    means = np.stack([batch.inputs[batch.targets[:, 0] == label].mean(axis=0) for label in range(20)])
    # The nearest class mean of samples that had no part in it tells the class.
    fresh = open_corpora(train(image_size=16, class_count=20)).training.batch(range(2000, 2200), range(200))
    distances = ((fresh.inputs[:, None] - means[None]) ** 2).sum(axis=(2, 3, 4))
    assert (distances.argmin(axis=1) == fresh.targets[:, 0]).mean() > 0.6


def test_image_files_are_read_and_scaled(tmp_path: Path) -> None:
    directory = write_images(tmp_path)
    corpus = open_corpora(train(directory)).training
    batch = corpus.batch(range(20), range(20))
    assert corpus.sample_count == 20
    assert batch.targets[:, 0].tolist() == [i % CLASS_COUNT for i in range(20)]
    np.testing.assert_allclose(batch.inputs.mean(axis=(0, 2, 3)), np.zeros(CHANNELS), atol=1e-4)
    np.testing.assert_allclose(batch.inputs.std(axis=(0, 2, 3)), np.ones(CHANNELS), atol=1e-4)
    assert batch.inputs.dtype == np.float32
    assert batch.targets.dtype == np.int64
    assert batch.inputs.flags.c_contiguous
    assert batch.inputs.flags.writeable


def test_a_channel_without_contrast_stays_finite(tmp_path: Path) -> None:
    directory = write_images(tmp_path, np.full((20, CHANNELS, SIZE, SIZE), 7, dtype=np.uint8))
    inputs = open_corpora(train(directory)).training.batch(range(20), range(20)).inputs
    assert np.abs(inputs).max() < 1e-3


def test_images_that_are_evaluated_are_scaled_like_those_of_the_training(tmp_path: Path) -> None:
    bright = np.full((20, CHANNELS, SIZE, SIZE), 200, dtype=np.uint8)
    other = write_images(tmp_path / "evaluation", bright)
    directory = write_images(tmp_path / "training")
    data = {"source": "images", "path": str(other)}
    evaluation = open_corpora(train(directory, evaluation={"sample_count": 4, "data": data})).evaluation
    assert evaluation is not None
    assert evaluation.batch([0], [0]).inputs.min() > 2


def test_images_are_held_out(tmp_path: Path) -> None:
    corpora = open_corpora(train(write_images(tmp_path), evaluation={"sample_count": 6}))
    assert corpora.evaluation is not None
    assert (corpora.training.sample_count, corpora.evaluation.sample_count) == (14, 6)
    assert corpora.evaluation.batch(range(6), range(6)).targets[:, 0].tolist() == [4, 0, 1, 2, 3, 4]


def test_other_pixels_or_labels_have_another_fingerprint(tmp_path: Path) -> None:
    images = np.random.default_rng(3).integers(0, 255, (20, CHANNELS, SIZE, SIZE), dtype=np.uint8)
    other = images.copy()
    other[-1, 0, 0, 0] ^= 1
    labels = np.arange(20) % CLASS_COUNT
    prints = {
        open_corpora(train(write_images(tmp_path, *arrays))).training.fingerprint
        for arrays in ((images, labels), (other, labels), (images, labels[::-1]), (images, labels))
    }
    assert len(prints) == 3


GOOD = np.zeros((20, CHANNELS, SIZE, SIZE), dtype=np.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "problem"),
    [
        (GOOD.astype(np.float32), None, "must hold uint8"),
        (GOOD[0], None, r"of shape \[3, 8, 8\]"),
        (np.zeros((20, 3, 8, 9), dtype=np.uint8), None, "3 x 8 x 9, the model takes 3 x 8 x 8"),
        (np.zeros((20, 1, 8, 8), dtype=np.uint8), None, "1 x 8 x 8, the model takes 3 x 8 x 8"),
        (GOOD[:0], None, "holds no image"),
        (GOOD, np.arange(19) % 5, "19 labels for 20 images"),
        (GOOD, np.zeros(20), "must hold integers"),
        (GOOD, np.zeros((20, 1), dtype=np.int64), "must hold integers"),
        (GOOD, np.full(20, 5), "label 5.*class_count is 5"),
        (GOOD, np.full(20, -1), "label -1"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    tmp_path: Path, images: npt.NDArray[Any], labels: npt.NDArray[Any] | None, problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        open_corpora(train(write_images(tmp_path, images, labels)))


@pytest.mark.parametrize("name", ["images.npy", "labels.npy"])
def test_a_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    (write_images(tmp_path) / name).unlink()
    with pytest.raises(DataError, match=f"{name} does not exist"):
        open_corpora(train(tmp_path))


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00v\x00{'descr'"])
def test_a_file_that_is_no_array_is_refused(tmp_path: Path, content: bytes) -> None:
    (write_images(tmp_path) / "images.npy").write_bytes(content)
    with pytest.raises(DataError, match="is no array"):
        open_corpora(train(tmp_path))


def test_a_cut_off_array_and_one_of_objects_are_refused(tmp_path: Path) -> None:
    path = write_images(tmp_path) / "images.npy"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="is no array"):
        open_corpora(train(tmp_path))
    np.save(path, np.array([{}], dtype=object))
    with pytest.raises(DataError, match="is no array"):
        open_corpora(train(tmp_path))
