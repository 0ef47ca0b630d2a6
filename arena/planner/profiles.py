"""Measured beats modelled: what a profile says of a layer's time, and of what links reach. Pure: no I/O, no clock.

A profile has a layer's time for some micro-batch sizes and tensor-parallel degrees. Rules for using it:

* A time above that of the same layer with more samples is noise of launches, not work. In its place stands what the
  larger one's work would take, but at least the least time that the layer took anywhere (what its launches take).
* At a size and degree that was measured, the measured time holds. Elsewhere the model's time is corrected by the ratio
  of measured to modelled: that of the nearest degree, between two sizes linear in the logarithm of the size, beyond
  them that of the nearest size.
* Recomputation takes as much of a measured forward pass as the model says.
* Times of links are a latency and a bandwidth that fit the measured messages, by least squares of relative errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.domain.profile import LayerTime, LinkKind, MessageKind, MessageTime, Profile
from arena.planner.candidates import Candidates, Floats, Ints
from arena.planner.model import ModelCost


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Seconds of the forward and of the backward pass of one part, ``[u]`` each."""

    forward_s: Floats
    backward_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What messages take: seconds for each, and for each byte that a rank sends."""

    latency_s: float
    s_per_byte: float


def differences(profile: Profile, train: TrainSpec) -> list[str]:
    """Return in what a profile's layers and precision differ from a workload's, but for how many layers there are."""
    found = []
    if profile.precision != train.precision:
        found.append(f"it was measured in {profile.precision}, the job trains in {train.precision}")
    theirs, ours = profile.model.model_dump(mode="json"), train.model.model_dump(mode="json")
    found += [
        f"its {name} is {theirs[name]}, the job's {ours[name]}"
        for name in ours
        if name != "layers" and theirs[name] != ours[name]
    ]
    return found


def _is_of(profile: Profile, train: TrainSpec) -> bool:
    layers = {"layers": train.model.layers}
    return profile.precision == train.precision and profile.model.model_copy(update=layers) == train.model


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a profile tells of the parts of a model."""

    profile: Profile
    model: ModelCost

    @classmethod
    def of(cls, gpu_type: GpuType, train: TrainSpec, model: ModelCost) -> Told | None:
        """Return what is told of a workload's layers on a GPU type: by a profile of the same shape and precision."""
        alike = (one for one in gpu_type.profiles if _is_of(one, train))
        found = next(alike, None)
        return None if found is None else cls(profile=found, model=model)

    def ratios(
        self, part: int, shards: tuple[Floats, Floats], modelled: Callable[[Floats, Floats], PassTimes]
    ) -> tuple[Floats, Floats]:
        """Return measured over modelled time of a part's two passes, ``[u]`` each; ones where nobody measured it.

        Args:
            part: Index into the model's parts.
            shards: Micro-batch sizes and tensor-parallel degrees to know it for, ``[u]`` each.
            modelled: The model's times for any of them.
        """
        sizes, degrees = shards
        forward, backward = np.ones_like(sizes), np.ones_like(sizes)
        found = self._times_of(part)
        if not found:
            return forward, backward
        known = np.array(sorted({one.tp for one in found}), dtype=np.float64)
        nearest = known[_nearest(degrees, known)]
        for tp in known.tolist():
            times = _without_noise(found, int(tp))
            here, measured_at = nearest == tp, np.array(sorted(times), dtype=np.float64)
            ours = modelled(measured_at, np.full_like(measured_at, tp))
            told = np.array([times[int(size)] for size in measured_at])
            at, points = np.log2(sizes[here]), np.log2(measured_at)
            forward[here] = np.interp(at, points, told[:, 0] / ours.forward_s)
            backward[here] = np.interp(at, points, told[:, 1] / ours.backward_s)
        return forward, backward

    def stage_update_s(self, candidates: Candidates, share: Floats, modelled_s: Floats) -> Floats:
        """Return the optimizer's seconds on each stage, ``[n, p]``: as measured, else as modelled.

        A degree that was not measured takes what the nearest one says, by the share of parameters that a rank has.

        Args:
            share: Of the parameters that a rank holds, those it updates.
        """
        degrees, rows = np.unique(candidates.tp, return_inverse=True)
        tp = degrees.astype(np.float64)
        columns = [self._update_s(part, tp) for part in range(len(self.model.parts))]
        if any(column is None for column in columns):
            return modelled_s
        by_part = np.stack([column for column in columns if column is not None], axis=-1)
        found: Floats = share * candidates.sums(self.model.cumulative(by_part), rows.reshape(candidates.tp.shape))
        return found

    def _update_s(self, part: int, tp: Floats) -> Floats | None:
        """Return the optimizer's seconds for a unit of a part at some degrees; None where nobody measured it."""
        times = [one for one in self._times_of(part) if one.update_s]
        if not times:
            return None
        known = np.array(sorted({one.tp for one in times}), dtype=np.float64)
        medians = np.array([_median(one.update_s for one in times if one.tp == int(degree)) for degree in known])
        near = _nearest(tp, known)
        found: Floats = medians[near] * known[near] / tp
        return found

    def _times_of(self, part: int) -> list[LayerTime]:
        """Return the times of the units that are a part; the ends lie at the profile's own ends."""
        last = self.profile.model.layers + 1
        ends = {0: 0, len(self.model.parts) - 1: last}
        if part in ends:
            return [one for one in self.profile.layers if one.unit == ends[part]]
        units = set(np.flatnonzero(self.model.part_by_unit == part).tolist())
        is_alike = len(self.model.parts) == 3
        return [one for one in self.profile.layers if 0 < one.unit < last and (is_alike or one.unit in units)]


def _nearest(values: Floats, known: Floats) -> Ints:
    """Return which known degree is nearest to each, by ratio."""
    found: Ints = np.abs(np.log2(values[:, None]) - np.log2(known)[None, :]).argmin(axis=1)
    return found


def _without_noise(times: Sequence[LayerTime], tp: int) -> dict[int, tuple[float, float]]:
    """Return the two times by micro-batch size at a degree, the median of units that are alike."""
    medians: dict[int, tuple[float, float]] = {}
    least = [min(each) for each in zip(*((one.forward_s, one.backward_s) for one in times), strict=True)]
    for size in sorted({one.micro_batch_size for one in times if one.tp == tp}):
        same = [one for one in times if one.tp == tp and one.micro_batch_size == size]
        medians[size] = _median(one.forward_s for one in same), _median(one.backward_s for one in same)
    sizes = sorted(medians, reverse=True)
    for larger, size in pairwise(sizes):
        kept = (
            own if own <= above else max(floor, above * size / larger)
            for own, above, floor in zip(medians[size], medians[larger], least, strict=True)
        )
        forward, backward = kept
        medians[size] = forward, backward
    return medians


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


def link_of(gpu_type: GpuType, kind: MessageKind, link: LinkKind) -> Link | None:
    """Return what fits the messages of a kind that were measured over a link.

    None where there are fewer than two sizes, or where larger ones took no longer: that is noise of latencies.
    """
    found = [one for profile in gpu_type.profiles for one in profile.messages if (one.kind, one.link) == (kind, link)]
    if len({one.size_bytes for one in found}) < 2:
        return None
    moved = np.array([one.size_bytes * _share_moved(one) for one in found])
    seconds = np.array([one.seconds for one in found])
    equations = np.stack([1.0 / seconds, moved / seconds], axis=-1)
    scale = np.abs(equations).max(axis=0)
    solved, *_ = np.linalg.lstsq(equations / scale, np.ones(len(found)), rcond=None)
    latency_s, s_per_byte = (solved / scale).tolist()
    if latency_s < 0.0:
        latency_s, s_per_byte = 0.0, float((moved / seconds).sum() / ((moved / seconds) ** 2).sum())
    if s_per_byte <= 0.0:
        return None
    return Link(latency_s=latency_s, s_per_byte=s_per_byte)


def _share_moved(one: MessageTime) -> float:
    """Return the share of a message's bytes that each rank sends."""
    return 1.0 if one.kind is MessageKind.SEND else 2.0 * (one.ranks - 1.0) / one.ranks
