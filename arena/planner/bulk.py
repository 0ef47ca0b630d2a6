"""Time and memory of all layouts on many places at once. Pure: no I/O, no clock.

Layouts are priced in batches of pipelines of similar depth, as arrays are as deep as the deepest. Memory is the same on
all places whose operators keep the same, so it comes first and once for them; times are only asked for plans that fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from arena.domain.job import TrainSpec
from arena.planner.candidates import Candidates, Floats, Ints
from arena.planner.compute import PartTimes
from arena.planner.cost import Estimates, Timing, estimates_of, timing
from arena.planner.layouts import Layouts
from arena.planner.memory import MEMORY_PARTS, operators_of, peaks_by_stage
from arena.planner.model import ModelCost, model_cost
from arena.planner.network import Network, Place
from arena.planner.terms import TIME_PARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Layouts that are priced together.

    Args:
        rows: Which of all layouts, in rising order.
    """

    rows: Ints
    candidates: Candidates


def batches_of(layouts: Layouts) -> tuple[Batch, ...]:
    """Return all layouts in batches: depths up to 1, 2, 4, ... together, odd ones for themselves."""
    keys = layouts.keys((*TIME_PARTS, *MEMORY_PARTS))
    depth = np.ceil(np.log2(layouts.column("pp"))).astype(np.int64)
    kind = 4 * depth + 2 * (layouts.column("virtual_stage_count") > 1) + layouts.is_mixed
    found = []
    for value in np.flatnonzero(np.bincount(kind)).tolist():
        rows = np.flatnonzero(kind == value)
        candidates = replace(layouts.take(rows).candidates(), keys={names: key[rows] for names, key in keys.items()})
        found.append(Batch(rows=rows, candidates=candidates))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """What layouts need on some type's GPUs.

    Args:
        by_stage: Bytes of each stage, for each batch.
        peaks: Of the fullest stage, by layout.
    """

    batches: tuple[Batch, ...]
    by_stage: tuple[Floats, ...]
    peaks: Floats

    @classmethod
    def of(cls, train: TrainSpec, place: Place, batches: tuple[Batch, ...]) -> Memories:
        """Return what layouts need on a place's GPUs, and on all that keep the same."""
        model = model_cost(train.model, operators_of(place.gpu_type))
        by_stage = tuple(peaks_by_stage(model, train, place.gpu_type, one.candidates) for one in batches)
        peaks = np.zeros(sum(len(batch.rows) for batch in batches))
        for batch, memory in zip(batches, by_stage, strict=True):
            peaks[batch.rows] = memory.max(axis=1)
        return cls(batches=batches, by_stage=by_stage, peaks=peaks)

    def of_layout(self, row: int) -> Floats:
        """Return the bytes of each stage of a layout."""
        for batch, memory in zip(self.batches, self.by_stage, strict=True):
            at = int(np.searchsorted(batch.rows, row))
            if at < len(batch.rows) and batch.rows[at] == row:
                found: Floats = memory[at]
                return found
        raise IndexError(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Plans on places, ``[m]``: by place, then by layout.

    Args:
        place: Position among the places.
        row: Which layout.
        batch, at: Where its timing is.
    """

    place: Ints
    row: Ints
    iter_time_s: Floats
    batch: Ints
    at: Ints
    places: tuple[Place, ...]
    memories: Memories
    timings: Mapping[int, Timing]

    def estimates(self, chosen: Ints) -> list[tuple[Ints, Estimates]]:
        """Return which of some plans are in each batch, and what is known of them."""
        prices = np.array([place.usd_per_s for place in self.places])
        found = []
        for index, step in self.timings.items():
            here = np.flatnonzero(self.batch[chosen] == index)
            plans = chosen[here]
            at = np.searchsorted(self.memories.batches[index].rows, self.row[plans])
            memory = self.memories.by_stage[index][at]
            found.append((here, estimates_of(step, self.at[plans], memory, prices[self.place[plans]])))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picks:
    """Layouts of a batch on places that they fit on.

    Args:
        rows: Which of all layouts.
        candidates: With their places.
    """

    batch: int
    place: Ints
    rows: Ints
    candidates: Candidates


def priced(
    train: TrainSpec,
    places: Sequence[tuple[Place, tuple[int, int]]],
    memories: Memories,
    usable_bytes: Sequence[float],
) -> Priced:
    """Time the plans that fit.

    Args:
        places: All of one memory kind, with their ranges of layouts.
        usable_bytes: What a plan may fill of a GPU, for each place.
    """
    where = tuple(place for place, _ in places)
    spans = np.array([span for _, span in places])
    picks = [
        one
        for index, batch in enumerate(memories.batches)
        if (one := _picks(index, batch, memories.peaks[batch.rows], (spans, usable_bytes)))
    ]
    network, model = Network.of(where), model_cost(train.model, operators_of(where[0].gpu_type))
    times = _part_times(train, network, model, [one.candidates for one in picks]) if picks else {}
    timings = {one.batch: timing(train, network, one.candidates, model, part_times=times) for one in picks}
    none = np.zeros(0, dtype=np.int64)
    place = np.concatenate([none, *(one.place for one in picks)])
    row = np.concatenate([none, *(one.rows for one in picks)])
    order = np.lexsort((row, place))
    return Priced(
        place=place[order],
        row=row[order],
        iter_time_s=np.concatenate([np.zeros(0), *(timings[one.batch].iter_time_s for one in picks)])[order],
        batch=np.concatenate([none, *(np.full(len(one.rows), one.batch) for one in picks)])[order],
        at=np.concatenate([none, *(np.arange(len(one.rows)) for one in picks)])[order],
        places=where,
        memories=memories,
        timings=timings,
    )


def _picks(index: int, batch: Batch, peaks: Floats, wanted: tuple[Ints, Sequence[float]]) -> _Picks | None:
    """Return the layouts of a batch that fit on places with some ranges and memory."""
    spans, usable_bytes = wanted
    found: list[Ints] = [np.zeros(0, dtype=np.int64)] * len(spans)
    for size in sorted(set(usable_bytes)):
        fitting = np.flatnonzero(peaks <= size)
        bounds = np.searchsorted(batch.rows[fitting], spans).tolist()
        for position, (start, end) in enumerate(bounds):
            if usable_bytes[position] == size:
                found[position] = fitting[start:end]
    picked = np.concatenate(found)
    if not len(picked):
        return None
    place = np.repeat(np.arange(len(found)), [len(some) for some in found])
    candidates = batch.candidates.take(picked, group=place)
    return _Picks(batch=index, place=place, rows=batch.rows[picked], candidates=candidates)


def _part_times(
    train: TrainSpec, network: Network, model: ModelCost, several: Sequence[Candidates]
) -> dict[str, PartTimes]:
    return {gpu_type.name: PartTimes.of(model, train, gpu_type, several) for gpu_type in network.gpu_types}


def evaluated(train: TrainSpec, places: Sequence[tuple[Place, tuple[int, int]]], batches: tuple[Batch, ...]) -> Priced:
    """Price memory and time of all layouts of places of one memory kind, whether they fit or not."""
    memories = Memories.of(train, places[0][0], batches)
    return priced(train, places, memories, [np.inf] * len(places))
