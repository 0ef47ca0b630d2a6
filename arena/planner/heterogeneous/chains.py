"""Chains: one data-parallel replica of a whole pipeline, and how many of which make a plan. Pure: no I/O, no clock.

A chain has a kind for each stage. With t_s the time of a micro-batch on stage s it does

    c(T) = 1 + floor((T - sum of t_s) / max of t_s)

micro-batches until T (1F1B over unequal stages, see ``arena.planner.pipeline``), so what is left is to pick chains that
do all micro-batches of a step with the GPUs there are: a linear program with one row per part of the offer, whose few
fractions are rounded down and filled up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from arena.domain.parallel import Recompute
from arena.planner.candidates import Flags, Floats, Ints
from arena.planner.heterogeneous.master import most_work
from arena.planner.heterogeneous.tables import Kind, StageTable
from arena.planner.pipeline import BACKWARD_SHARE

_EPSILON = 1e-9
_ASSIGNMENTS_MAX = 300
_BOUNDS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """Chains of a pipeline with the same cuts.

    Args:
        cuts: First layer of each stage, then the number of layers.
        kinds: Of each stage, ``[c, p]``.
        sum_s, slowest_s, last_s: Of a micro-batch over all stages, on the slowest and on the last, ``[c]``.
        after_s, ending_s: What follows the first and the last stage at the least, ``[c]``.
        gpus: Of each part, ``[c, g]``.
    """

    table: StageTable
    cuts: tuple[int, ...]
    kinds: Ints
    sum_s: Floats
    slowest_s: Floats
    last_s: Floats
    after_s: Floats
    ending_s: Floats
    gpus: Floats

    def counts(self, time_s: float) -> Ints:
        """Return the micro-batches that each chain does until a time if it waits for no other, ``[c]``."""
        return self._counts(time_s, self.after_s)

    def waits(self) -> Floats:
        """Return how long the slowest chain of a plan can take for what follows first stages, ``[w]``."""
        return np.unique(self.after_s[np.isfinite(self.after_s)])

    def counts_waiting(self, time_s: float, wait_s: Floats) -> Ints:
        """Return the micro-batches of each chain if all wait so long, ``[w, c]``; 0 where one itself takes longer."""
        wait = np.where(self.after_s[None, :] <= wait_s[:, None], wait_s[:, None], np.inf)
        return self._counts(time_s, wait)

    def _counts(self, time_s: float, after_s: Floats) -> Ints:
        room = (time_s - self.end_s(after_s)) / self.slowest_s
        found = np.where(room >= -_EPSILON, np.floor(room * (1 + _EPSILON) + _EPSILON) + 1, 0)
        return np.clip(found, 0, self.table.need).astype(np.int64)

    def end_s(self, after_s: Floats) -> Floats:
        """Return when chains are done with one micro-batch; first stages wait for ``after_s``.

        The last stage is done while those before it still run backward.
        """
        earlier_s = BACKWARD_SHARE * (self.sum_s - self.last_s)
        found: Floats = self.sum_s + np.maximum(after_s, self.ending_s - earlier_s)
        return found

    def of_class(self, after: Floats, ending: Floats) -> Chains:
        """Return those whose first and last stages are of a class.

        Args:
            after: What follows first stages, ``[k, l + 1]``.
            ending: What follows last stages, ``[k, l]``.
        """
        first_s, last_s = after[self.kinds[:, 0], self.cuts[1]], ending[self.kinds[:, -1], self.cuts[-2]]
        some = replace(self, after_s=first_s, ending_s=last_s)
        return some.only(np.isfinite(first_s) & np.isfinite(last_s))

    def only(self, which: Flags) -> Chains:
        """Return some of the chains."""
        return replace(
            self,
            kinds=self.kinds[which],
            sum_s=self.sum_s[which],
            slowest_s=self.slowest_s[which],
            last_s=self.last_s[which],
            after_s=self.after_s[which],
            ending_s=self.ending_s[which],
            gpus=self.gpus[which],
        )

    def joined(self, other: Chains) -> Chains:
        """Return both sets; what they have in common is only the number of stages."""
        return replace(
            self,
            kinds=np.concatenate((self.kinds, other.kinds)),
            sum_s=np.concatenate((self.sum_s, other.sum_s)),
            slowest_s=np.concatenate((self.slowest_s, other.slowest_s)),
            last_s=np.concatenate((self.last_s, other.last_s)),
            after_s=np.concatenate((self.after_s, other.after_s)),
            ending_s=np.concatenate((self.ending_s, other.ending_s)),
            gpus=np.concatenate((self.gpus, other.gpus)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """GPUs that a plan may take.

    Args:
        stock: Of each part, ``[g]``.
        least, most: Of all parts together.
    """

    stock: Ints
    least: int = 0
    most: int | None = None

    @property
    def limits(self) -> Ints:
        """GPUs of each part, then of all together where that is limited."""
        return self.stock if self.most is None else np.append(self.stock, self.most)

    def least_cost(self, price: Floats) -> float:
        """Return what the least number of GPUs costs at prices of a GPU of each part."""
        order = np.argsort(price, kind="stable")
        before = np.cumsum(self.stock[order]) - self.stock[order]
        return float(price[order] @ np.clip(self.least - before, 0, self.stock[order]))

    def taken(self, gpus: Floats) -> Floats:
        """Return what chains take of the limits, ``[c, limits]``."""
        return gpus if self.most is None else np.concatenate((gpus, gpus.sum(axis=1, keepdims=True)), axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A plan before it is worth being one: how many of each chain, with how many micro-batches each.

    Args:
        time_s: Until which all are done by the closed form.
    """

    table: StageTable
    cuts: tuple[int, ...]
    kinds: Ints
    replicas: Ints
    counts: Ints
    slowest_s: Floats
    time_s: float
    gpu_counts: Ints

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from others."""
        setting: tuple[int, Recompute] = (self.table.micro_batch_size, self.table.recompute)
        return (*setting, self.cuts, self.kinds.tobytes(), self.replicas.tobytes(), self.counts.tobytes())


def chains_of(table: StageTable, cuts: tuple[int, ...], part_count: int) -> Chains | None:
    """Return chains for a way to cut the layers, None where no kind holds a stage."""
    starts, ends = np.array(cuts[:-1]), np.array(cuts[1:])
    left = np.arange(len(starts), 0, -1)
    fits = table.stages_left_max[:, starts, ends] >= left[None, :]
    times = np.where(fits, table.time_s[:, starts, ends], np.inf).T
    if not np.isfinite(times).any(axis=1).all():
        return None
    kinds = _combinations(times, table.kinds, part_count)
    if not len(kinds):
        return None
    return chains_with(table, cuts, kinds, part_count)


def chains_with(table: StageTable, cuts: tuple[int, ...], kinds: Ints, part_count: int) -> Chains:
    """Return the chains with some kinds, ``[c, p]``."""
    starts, ends = np.array(cuts[:-1]), np.array(cuts[1:])
    tp = np.array([kind.tp for kind in table.kinds], dtype=np.float64)
    part = np.array([kind.part for kind in table.kinds], dtype=np.int64)
    each = table.time_s[kinds, starts[None, :], ends[None, :]]
    if len(starts) > 1:
        one, other = part[kinds[:, :-1]], part[kinds[:, 1:]]
        each[:, :-1] += table.detour_s[one, other, ends[None, :-1]]
        each[:, 1:] += table.detour_s[other, one, ends[None, :-1]]
    gpus = np.stack([np.where(part[kinds] == index, tp[kinds], 0.0).sum(axis=1) for index in range(part_count)], axis=1)
    return Chains(
        table=table,
        cuts=cuts,
        kinds=kinds,
        sum_s=each.sum(axis=1),
        slowest_s=each.max(axis=1),
        last_s=each[:, -1],
        after_s=np.zeros(len(kinds)),
        ending_s=np.zeros(len(kinds)),
        gpus=gpus,
    )


def _combinations(times: Floats, kinds: tuple[Kind, ...], part_count: int) -> Ints:
    """Return combinations of kinds, ``[c, p]``: all of one or two stages, else by parts and bounds on the slowest."""
    usable = [np.flatnonzero(np.isfinite(row)) for row in times]
    if len(times) <= 2:
        return np.array(list(product(*usable)), dtype=np.int64).reshape(-1, len(times))
    part = np.array([kind.part for kind in kinds])
    tp = np.array([kind.tp for kind in kinds])
    bounds = np.unique(times[np.isfinite(times)])
    bounds = bounds[bounds >= times.min(axis=1).max()]
    if len(bounds) > _BOUNDS_MAX:
        bounds = bounds[np.unique(np.linspace(0, len(bounds) - 1, _BOUNDS_MAX).astype(np.int64))]
    assigned = _assignments(len(times), part_count)
    found: list[Ints] = []
    for bound in bounds:
        # The fewest GPUs of each part that keep to the bound, by stage.
        by_part = np.full((len(times), part_count), -1, dtype=np.int64)
        for index in range(part_count):
            own = np.where((times <= bound * (1 + _EPSILON)) & (part == index), tp, np.iinfo(np.int64).max)
            least = own.argmin(axis=1)
            by_part[:, index] = np.where(own[np.arange(len(times)), least] < np.iinfo(np.int64).max, least, -1)
        rows = by_part[np.arange(len(times))[None, :], assigned]
        found.append(rows[(rows >= 0).all(axis=1)])
    return np.unique(np.concatenate(found), axis=0)


def _assignments(pp: int, part_count: int) -> Ints:
    """Return which part each stage of a chain is on: all ways, or those that change part once."""
    if part_count**pp <= _ASSIGNMENTS_MAX:
        return np.array(list(product(range(part_count), repeat=pp)), dtype=np.int64)
    rows = {
        tuple([one] * at + [other] * (pp - at))
        for one in range(part_count)
        for other in range(part_count)
        for at in range(1, pp + 1)
    }
    return np.array(sorted(rows), dtype=np.int64)


def fill(chains: Chains, room: Room, time_s: float, price: Floats) -> Mix | None:
    """Return a whole number of chains that do the step until a time, None where rounding or GPUs do not allow it.

    Args:
        price: Of GPUs, all together at 1: whatever is dearer than its share of the work needs no linear program.
    """
    for counts in possible(chains, time_s, price):
        master = most_work(counts, room.taken(chains.gpus), room.limits)
        if master.value >= chains.table.need * (1 - _EPSILON):
            replicas = np.floor(master.chosen + 1e-6).astype(np.int64)
            found = _completed(chains, counts, replicas, room, worth=counts.astype(np.float64), time_s=time_s)
            if found is not None:
                return found
    return None


def possible(chains: Chains, time_s: float, price: Floats) -> Ints:
    """Return the micro-batches of each chain, ``[w, c]``, for each wait that prices do not rule out."""
    cost = chains.gpus @ price * (chains.table.need * (1 - _EPSILON))
    if not (chains.counts(time_s) > cost).any():
        return np.zeros((0, len(cost)), dtype=np.int64)
    counts = chains.counts_waiting(time_s, chains.waits())
    kept: Ints = counts[(counts > cost[None, :]).any(axis=1)]
    return kept


def fill_cheaply(chains: Chains, room: Room, time_s: float, price: Floats) -> Mix | None:
    """Return chains that do the step until a time, the cheapest for what they do first."""
    cost = np.maximum(chains.gpus @ (price + 1e-15), 1e-300)
    best: Mix | None = None
    for counts in chains.counts_waiting(time_s, chains.waits()):
        replicas = np.zeros(len(counts), dtype=np.int64)
        mix = _completed(chains, counts, replicas, room, worth=counts / cost, time_s=time_s)
        if mix is not None and (best is None or mix.gpu_counts @ price < best.gpu_counts @ price):
            best = mix
    return best


def fill_equally(chains: Chains, room: Room, time_s: float) -> Mix | None:
    """Return chains with the same number of micro-batches each; fewer chains first."""
    need = chains.table.need
    for counts in chains.counts_waiting(time_s, chains.waits()):
        for count in sorted({int(count) for count in np.unique(counts) if count > 0}, reverse=True):
            replicas_min = -(-need // count)
            even = (counts >= count).astype(np.int64)
            master = most_work(even, room.taken(chains.gpus), room.limits)
            if master.value < replicas_min * (1 - _EPSILON):
                continue
            start = np.floor(master.chosen + 1e-6).astype(np.int64)
            worth = even.astype(np.float64)
            found = _completed(chains, even, start, room, worth=worth, time_s=time_s, need=replicas_min)
            if found is not None:
                return replace(found, counts=np.full(len(found.counts), count, dtype=np.int64), time_s=time_s)
    return None


def _completed(
    chains: Chains,
    counts: Ints,
    replicas: Ints,
    room: Room,
    *,
    worth: Floats,
    time_s: float,
    need: int | None = None,
) -> Mix | None:
    """Fill up with what fits, most worth first, and take off what is too much; then add what the least asks for."""
    wanted = chains.table.need if need is None else need
    gpus = room.taken(chains.gpus).astype(np.int64)
    free = room.limits - replicas @ gpus
    missing = wanted - int(replicas @ counts)
    order = np.argsort(-worth, kind="stable")
    order = order[counts[order] > 0]
    while missing > 0:
        fits = (gpus[order] <= free).all(axis=1)
        if not fits.any():
            return None
        at = int(order[fits.argmax()])
        most = int((free[gpus[at] > 0] // gpus[at][gpus[at] > 0]).min())
        take = min(most, -(-missing // int(counts[at])))
        replicas[at] += take
        free = free - take * gpus[at]
        missing -= take * int(counts[at])
    for at in np.argsort(worth, kind="stable"):
        if replicas[at] and counts[at] and missing < 0:
            drop = min(int(replicas[at]), -missing // int(counts[at]))
            replicas[at] -= drop
            missing += drop * int(counts[at])
    if room.least and not _added(chains, replicas, room, order):
        return None
    used = np.flatnonzero(replicas)
    busy_s = chains.end_s(chains.after_s) + (counts - 1) * chains.slowest_s
    return Mix(
        table=chains.table,
        cuts=chains.cuts,
        kinds=chains.kinds[used],
        replicas=replicas[used],
        counts=counts[used],
        slowest_s=chains.slowest_s[used],
        time_s=min(time_s, float(busy_s[used].max())),
        gpu_counts=(replicas @ chains.gpus).astype(np.int64),
    )


def _added(chains: Chains, replicas: Ints, room: Room, order: Ints) -> bool:
    """Add chains, the first in order that fit, up to the least number of GPUs; tell whether that can be.

    Each takes at least one micro-batch, so there are no more chains than these.
    """
    gpus = room.taken(chains.gpus).astype(np.int64)
    size = chains.gpus.sum(axis=1).astype(np.int64)
    missing = room.least - int(replicas @ size)
    while missing > 0:
        fits = (gpus[order] <= room.limits - replicas @ gpus).all(axis=1)
        if not fits.any() or replicas.sum() >= chains.table.need:
            return False
        # What is missing exactly, if anything is: the rest could be too little for any chain.
        exact = fits & (size[order] == missing)
        at = int(order[(exact if exact.any() else fits).argmax()])
        replicas[at] += 1
        missing -= int(size[at])
    return True
