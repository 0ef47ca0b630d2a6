"""The built-in image data set: stripes, drawn on demand from the number of a sample. Pure: no I/O, no clock.

A class is a direction of the stripes, then a width, with its own strength in each colour channel; a sample shifts,
tilts and weakens them and adds noise. Within a class the shift stays below a quarter of a stripe's period, so that a
small model learns the classes in a few hundred steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arena.domain.job import ModelSpec
from arena_agent.worker.counter_hash import fractions, hashed, key_of
from arena_agent.worker.samples import Batch

_SAMPLE_COUNT = 4096
_SAMPLES_PER_CLASS_MIN = 16
_DIRECTION_COUNT_MAX = 8
_PERIOD_PIXELS_MIN = 4.0
_CYCLES_MIN = 2.0
_SHIFT_RADIANS_MAX = np.pi / 3
_TILT_SHARE_MAX = 0.2
_NOISE_DEVIATION = 0.6
# Much coarser than the differences between two machines' cosines, so that they draw the same pixels.
_PIXEL_STEPS = 64.0
_KEY = key_of("drawn-images", 1)
_SHIFT, _TILT, _STRENGTH, _CHANNEL, _NOISE = (np.int64(purpose) for purpose in range(5))

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnImages:
    """Striped images of a size; sample ``i`` is of class ``i % class_count``."""

    image_size: int
    channels: int
    class_count: int

    @property
    def sample_count(self) -> int:
        """Images in the data set."""
        return max(_SAMPLE_COUNT, _SAMPLES_PER_CLASS_MIN * self.class_count)

    @property
    def fingerprint(self) -> str:
        """All that the images depend on."""
        return (
            f"{self.sample_count} drawn images (version 1) of {self.channels} x {self.image_size} x "
            f"{self.image_size} in {self.class_count} classes"
        )

    def batch(self, ids: Sequence[int], positions: Sequence[int]) -> Batch:
        """Return images and their classes; they depend on the ids alone."""
        samples = np.asarray(ids, dtype=np.int64)
        classes = samples % self.class_count
        pixels = self._stripes(samples, classes)[:, None] * self._channel_strengths(classes)[:, :, None, None]
        pixels = pixels + _NOISE_DEVIATION * self._noise(samples)
        inputs = (np.rint(pixels * _PIXEL_STEPS) / _PIXEL_STEPS).astype(np.float32)
        return Batch(inputs=inputs, targets=classes[:, None])

    def _stripes(self, samples: Integers, classes: Integers) -> Floats:
        """Return ``[n, height, width]`` of unit variance at full strength."""
        direction_count = min(self.class_count, _DIRECTION_COUNT_MAX)
        tilts = _TILT_SHARE_MAX * (2 * _drawn(samples, _TILT) - 1)
        angles = np.pi * (classes % direction_count + tilts) / direction_count
        shifts = _SHIFT_RADIANS_MAX * (2 * _drawn(samples, _SHIFT) - 1)
        strengths = 0.7 + 0.6 * _drawn(samples, _STRENGTH)
        # Around the middle, so that a tilt turns the stripes and does not move them.
        axis = (np.arange(self.image_size) - (self.image_size - 1) / 2) / self.image_size
        along = np.cos(angles)[:, None, None] * axis + np.sin(angles)[:, None, None] * axis[:, None]
        phases = 2 * np.pi * self._cycles(classes // direction_count)[:, None, None] * along
        stripes: Floats = np.sqrt(2) * strengths[:, None, None] * np.cos(phases + shifts[:, None, None])
        return stripes

    def _cycles(self, width_indices: Integers) -> Floats:
        """Return stripes per image: evenly spaced ratios from few to as many as the pixels can show."""
        width_count = -(-self.class_count // _DIRECTION_COUNT_MAX)
        cycles_max = max(_CYCLES_MIN, self.image_size / _PERIOD_PIXELS_MIN)
        cycles: Floats = _CYCLES_MIN * (cycles_max / _CYCLES_MIN) ** (width_indices / max(1, width_count - 1))
        return cycles

    def _channel_strengths(self, classes: Integers) -> Floats:
        channels = np.arange(self.channels)[None]
        drawn = fractions(hashed(_KEY, np.full((1, 1), _CHANNEL), classes[:, None], channels))
        strengths: Floats = 0.6 + 0.6 * drawn
        return strengths

    def _noise(self, samples: Integers) -> Floats:
        """Return ``[n, channels, height, width]``, even between two bounds, of unit variance."""
        pixel_count = self.channels * self.image_size**2
        words = hashed(_KEY, np.full((1, 1), _NOISE), samples[:, None], np.arange(pixel_count)[None])
        noise = np.sqrt(12.0) * (fractions(words) - 0.5)
        shape = (len(samples), self.channels, self.image_size, self.image_size)
        reshaped: Floats = noise.reshape(shape)
        return reshaped


def _drawn(samples: Integers, purpose: np.int64) -> Floats:
    return fractions(hashed(_KEY, np.full(1, purpose), samples))


def drawn_images(model: ModelSpec) -> DrawnImages:
    """Return the built-in images that fit a model."""
    return DrawnImages(image_size=model.image_size or 1, channels=model.channels, class_count=model.class_count or 1)
