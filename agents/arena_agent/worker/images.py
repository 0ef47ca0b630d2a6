"""A directory of labelled images: ``images.npy`` and ``labels.npy``, memory-mapped."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from arena.domain.job import ModelSpec
from arena_agent.worker.samples import Batch, DataError

_FINGERPRINT_PART_BYTES = 1 << 20
_SCALING_IMAGES_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What makes pixels of a data set zero mean and unit variance: both float32 ``[channels, 1, 1]``."""

    mean: npt.NDArray[np.float32]
    deviation: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCorpus:
    """Labelled images.

    Args:
        images: uint8 ``[n, channels, height, width]``.
        labels: Integers ``[n]``.
        scaling: By what pixels are scaled.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.integer[Any]]
    scaling: Scaling

    @property
    def sample_count(self) -> int:
        """Images in the data set."""
        return len(self.images)

    @property
    def fingerprint(self) -> str:
        """Shape and digest of the two ends and all labels, so that huge files are not read whole."""
        part = max(1, _FINGERPRINT_PART_BYTES // max(1, self.images[:1].nbytes))
        digest = hashlib.sha256(self.images[:part].tobytes())
        digest.update(self.images[-part:].tobytes())
        digest.update(self.labels.astype("<i8").tobytes())
        size = " x ".join(map(str, self.images.shape))
        return f"{size} images, sha256 of both ends {digest.hexdigest()[:16]}"

    def batch(self, ids: Sequence[int], positions: Sequence[int]) -> Batch:
        """Return images and their classes; nothing about them is random."""
        rows = np.asarray(ids, dtype=np.int64)
        pixels = self.images[rows].astype(np.float32)
        return Batch(
            inputs=(pixels - self.scaling.mean) / self.scaling.deviation,
            targets=self.labels[rows].astype(np.int64)[:, None],
        )


def open_images(model: ModelSpec, directory: str, *, scaling: Scaling | None = None) -> ImageCorpus:
    """Open a directory of images.

    Args:
        model: What the images must fit.
        directory: Holds ``images.npy`` and ``labels.npy``.
        scaling: Of the training data, for images that are evaluated; None measures it.

    Raises:
        DataError: A file is missing or no array, or the arrays do not fit each other or the model.
    """
    images_path, labels_path = Path(directory) / "images.npy", Path(directory) / "labels.npy"
    images, labels = _map_array(images_path), _map_array(labels_path)
    _check_images(images, images_path, model)
    _check_labels(labels, labels_path, image_count=len(images), class_count=model.class_count or 0)
    return ImageCorpus(images=images, labels=labels, scaling=scaling or measured_scaling(images))


def measured_scaling(images: npt.NDArray[np.uint8]) -> Scaling:
    """Return mean and deviation of each channel, from images spread over the data set.

    The sums are of integers and so the same on every machine.
    """
    picked = images[np.linspace(0, len(images) - 1, min(len(images), _SCALING_IMAGES_MAX)).astype(np.int64)]
    pixels = picked.astype(np.int64)
    count = pixels.size // pixels.shape[1]
    mean = pixels.sum(axis=(0, 2, 3)) / count
    variance = (pixels * pixels).sum(axis=(0, 2, 3)) / count - mean * mean
    # A channel without contrast stays near zero instead of blowing up.
    deviation = np.sqrt(np.maximum(variance, 1.0))
    shape = (-1, 1, 1)
    return Scaling(mean=mean.astype(np.float32).reshape(shape), deviation=deviation.astype(np.float32).reshape(shape))


def _map_array(path: Path) -> npt.NDArray[Any]:
    if not path.is_file():
        raise DataError(
            f"data file {path} does not exist",
            why="image data is a directory with images.npy and labels.npy",
            fix="use a path that every node of the job sees",
        )
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataError(f"data file {path} is no array", why=str(error), fix="write it with numpy.save") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"data file {path} is no array", why="it is an archive", fix="write it with numpy.save")
    return array


def _check_images(images: npt.NDArray[Any], path: Path, model: ModelSpec) -> None:
    if images.dtype != np.uint8 or images.ndim != 4:
        raise DataError(
            f"{path} must hold uint8 [n, channels, height, width]",
            why=f"it holds {images.dtype} of shape {list(images.shape)}",
        )
    size = model.image_size or 0
    if images.shape[1:] != (model.channels, size, size):
        raise DataError(
            f"the images of {path} are {_size_text(images.shape[1:])}, the model takes "
            f"{_size_text((model.channels, size, size))}",
            why="channels x height x width",
            fix="set model.channels and model.image_size, or resize the images",
        )
    if len(images) == 0:
        raise DataError(f"{path} holds no image")


def _check_labels(labels: npt.NDArray[Any], path: Path, *, image_count: int, class_count: int) -> None:
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise DataError(f"{path} must hold integers [n]", why=f"it holds {labels.dtype} of shape {list(labels.shape)}")
    if len(labels) != image_count:
        raise DataError(f"{path} holds {len(labels)} labels for {image_count} images")
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= class_count:
        raise DataError(
            f"{path} holds label {lowest if lowest < 0 else highest}",
            why=f"model.class_count is {class_count}, labels are 0 to {class_count - 1}",
        )


def _size_text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
