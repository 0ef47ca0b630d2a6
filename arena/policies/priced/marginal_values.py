"""What a unit of a job's work is worth: by how much more of it would raise the total flow time. Pure: no I/O, no clock.

Jobs are gone through from the one that ends last to the one that ends first. While job k makes its last step, jobs
1..k are there, and the best use of the machine lowers the total remaining flow time as fast as it accrues:
``max over shares of sum V_i s_i = sum of their weights`` (the Hamilton-Jacobi-Bellman equation of that instant). V_1 to
V_(k-1) are known, so the equation gives V_k: the least over k's shares b of (weight + what the others lose by giving up
b) / speed at b. No exponent has to be guessed: it is heSRPT's optimum for speed-ups k^p (Berg, Vesilo and
Harchol-Balter, "heSRPT", 2020), Smith's rule on one machine and shortest-first on many of them, and for measured
speed-ups that end somewhere it is whatever they make of it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from arena.domain.replacing import quickly_made
from arena.policies.priced.columns import Floats, Ints

Curve = tuple[tuple[float, float], ...]
"""Corners (share of the machine, steps per second) of a concave speed-up, without the origin, shares ascending."""

SAMPLE_MAX = 256
"""Jobs that the first price is worked out from at most, each of them standing for as many as it takes."""

HOLDERS_MAX = 512
"""Jobs that prices then change by at most, each standing for as many as it takes; every job has its own value."""

_NOTHING = 1e-12


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A job as the recursion sees it.

    Args:
        weight: Flow time of it counts so much.
        remaining_steps: What it still has to do.
        curve: Its speed-up; at least one corner.
    """

    weight: float
    remaining_steps: float
    curve: Curve


def concave(points: Iterable[tuple[float, float]]) -> Curve:
    """Return the corners of the least concave curve above some points and the origin."""
    corners = [(0.0, 0.0)]
    for share, speed in sorted(points):
        if speed <= corners[-1][1]:
            continue
        if share <= corners[-1][0] and len(corners) > 1:
            corners.pop()
        while len(corners) > 1 and _rises(corners[-2], corners[-1], (share, speed)):
            corners.pop()
        corners.append((share, speed))
    return tuple(corners[1:])


def _rises(first: tuple[float, float], middle: tuple[float, float], last: tuple[float, float]) -> bool:
    """Tell whether the middle lies on or below the line of the others."""
    return (last[1] - middle[1]) * (middle[0] - first[0]) >= (middle[1] - first[1]) * (last[0] - middle[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crew:
    """Jobs as the recursion sees them, in arrays.

    Args:
        weight: As of a ``Worker``; shape (jobs,).
        remaining_steps: The same.
        curves: The speed-ups that there are.
        which: Of each job, the number of its own among these.
    """

    weight: Floats
    remaining_steps: Floats
    curves: Sequence[Curve]
    which: Ints

    @classmethod
    def of(cls, workers: Sequence[Worker]) -> Crew:
        """Return jobs in arrays."""
        curves = {id(worker.curve): worker.curve for worker in workers}
        number = {key: at for at, key in enumerate(curves)}
        return cls(
            weight=np.array([worker.weight for worker in workers], dtype=np.float64),
            remaining_steps=np.array([worker.remaining_steps for worker in workers], dtype=np.float64),
            curves=list(curves.values()),
            which=np.array([number[id(worker.curve)] for worker in workers], dtype=np.intp),
        )

    @property
    def workers(self) -> list[Worker]:
        """The jobs one by one."""
        numbers = zip(self.weight.tolist(), self.remaining_steps.tolist(), self.which.tolist(), strict=True)
        return [
            Worker(weight=weight, remaining_steps=steps, curve=self.curves[which]) for weight, steps, which in numbers
        ]


def marginal_values(workers: Sequence[Worker], outlook: float = 0.0) -> tuple[list[float], float]:
    """Return the same as ``values_of`` of jobs one by one."""
    found = values_of(Crew.of(workers), outlook)
    return found.steps.tolist(), found.price


class Values(NamedTuple):
    """What steps and the machine are worth, in seconds of weighted flow time a second.

    Args:
        steps: A step of each job; shape (jobs,).
        price: The whole machine, by what its last bit brings.
        early_price: The same as a sample of the jobs shows it, if nobody else comes.
    """

    steps: Floats
    price: float
    early_price: float


def values_of(crew: Crew, outlook: float = 0.0) -> Values:
    """Return the value of a step of each job, and that of the whole machine.

    The order of ends is that of the time each would take at a price of the machine; a first round is made at the price
    of a machine that all share, a second at the price that this gave. The first needs no more than a sample: a price
    that is off by a hundredth moves the order of ends by less.

    Args:
        outlook: What the machine will be worth when the last of these jobs ends, because others will have come, as a
            share of what it is worth now; 0 if nobody comes any more. It raises what large jobs are worth.
    """
    offers, count = _Offers.of(crew), len(crew.which)
    order = offers.order(float(np.cumsum(crew.weight)[-1]))
    stands_for = -(-count // SAMPLE_MAX)
    _, early_price = _recursion(_jobs(crew, order[::stands_for], stands_for))
    order = offers.order(early_price)
    found, price = _recursion(_jobs(crew, order, 1), outlook * early_price)
    values = np.empty(count)
    values[order] = found
    return Values(steps=values, price=price, early_price=early_price)


def _jobs(crew: Crew, order: Ints, count: int) -> list[tuple[float, tuple[_Rise, ...]]]:
    """Return weight and steps of some jobs, each of them as so many."""
    which = crew.which[order].tolist()
    rises = {at: _rises_of(crew.curves[at], count) for at in set(which)}
    return [(weight * count, rises[at]) for weight, at in zip(crew.weight[order].tolist(), which, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Offers:
    """What a unit of remaining work costs, for jobs that have weight and curve in common.

    Args:
        weight: Of each of these kinds; shape (kinds, 1).
        share: Of the corners, 0 where there are fewer; shape (kinds, corners).
        speed: The same, nan.
        kind: Of each job; shape (jobs,).
    """

    weight: Floats
    share: Floats
    speed: Floats
    kind: Ints
    remaining_steps: Floats

    @classmethod
    def of(cls, crew: Crew) -> _Offers:
        """Return those of some jobs."""
        weights, rank = np.unique(crew.weight, return_inverse=True)
        kinds, kind = np.unique(crew.which * len(weights) + rank, return_inverse=True)
        curves = [crew.curves[at] for at in (kinds // len(weights)).tolist()]
        corners = max(map(len, curves))
        share, speed = np.zeros((len(curves), corners)), np.full((len(curves), corners), np.nan)
        for at, curve in enumerate(curves):
            share[at, : len(curve)], speed[at, : len(curve)] = zip(*curve, strict=True)
        weight = weights[kinds % len(weights)][:, None]
        return cls(weight=weight, share=share, speed=speed, kind=kind, remaining_steps=crew.remaining_steps)

    def order(self, price: float) -> Ints:
        """Return who ends after whom at a price of the machine, the last first.

        By the least cost of each job's remaining work, time and machine, by unit of weight.
        """
        costs = np.nanmin((self.weight + price * self.share) / self.speed, axis=1) / self.weight[:, 0]
        return np.argsort(-(self.remaining_steps * costs[self.kind]), kind="stable")


_Rise = tuple[float, float, float, float]
"""Share and speed of a corner, the width of the step up to it, and the speed gained there by unit of share."""


def _rises_of(curve: Curve, count: int) -> tuple[_Rise, ...]:
    """Return the steps of so many jobs of a curve, which go together."""
    rises = []
    share_before = speed_before = 0.0
    for share, speed in curve:
        width = share - share_before
        slope = (speed - speed_before) / width if width > 0.0 else math.inf
        rises.append((share * count, speed * count, width * count, slope))
        share_before, speed_before = share, speed
    return tuple(rises)


def _recursion(jobs: Sequence[tuple[float, tuple[_Rise, ...]]], begins_at: float = 0.0) -> tuple[list[float], float]:
    """Return the values of jobs, given by weight and steps, last end first, and the worth of the machine's last bit."""
    held = _Held(worths=[-begins_at], widths=[1.0], free=0.0) if begins_at > 0.0 else _Held(worths=[], widths=[])
    stands_for = -(-len(jobs) // HOLDERS_MAX)
    values = []
    for at, (weight, own) in enumerate(jobs):
        value, best = _value(weight, own, held) if len(own) > 1 else (_only_value(weight, own[0], held), 0)
        values.append(value)
        if at % stands_for == 0:
            held.put(value, own, best, min(stands_for, len(jobs) - at))
    return values, -held.worths[-1] if held.worths and held.free <= _NOTHING else 0.0


@dataclass(slots=True, kw_only=True)
class _Held:
    """What of the machine is in use.

    Args:
        worths: Worth of a unit of each piece, negative, so that the least worth comes last.
        widths: Its share of the machine.
    """

    worths: list[float]
    widths: list[float]
    free: float = 1.0

    def put(self, value: float, own: Sequence[_Rise], best: int, count: int = 1) -> None:
        """Give room to a job's steps, or to those of so many like it, from whatever is worth least, itself included.

        Nothing beyond the step after its best corner is worth what would have to give way for it, unless some room is
        free.
        """
        worths, widths = self.worths, self.widths
        end = best + 2 if self.free - own[best][0] * count <= 0.0 else len(own)
        for _, _, width, slope in own[:end]:
            if width > 0.0:  # what takes no room has none to give
                worth = -value * slope
                position = bisect_right(worths, worth)
                worths.insert(position, worth)
                widths.insert(position, width * count)
                self.free -= width * count
        while self.free < -_NOTHING:
            width = widths[-1]
            if width > _NOTHING - self.free:
                widths[-1] = width + self.free
                self.free = 0.0
            else:
                worths.pop()
                widths.pop()
                self.free += width


def _only_value(weight: float, rise: _Rise, held: _Held) -> float:
    """Return the same as ``_value`` for a job with one corner: most jobs of a cluster of scripts."""
    _, speed, need, _ = rise
    loss, width, worth, position = 0.0, max(held.free, 0.0), 0.0, len(held.worths)
    while need > width and position:
        loss += width * worth
        need -= width
        position -= 1
        worth, width = -held.worths[position], held.widths[position]
    return weight / speed if need > width + _NOTHING else (weight + (loss + need * worth)) / speed


def _value(weight: float, own: Sequence[_Rise], held: _Held) -> tuple[float, int]:
    """Return the least of (weight + loss of the others) / speed over the corners that the machine holds, and which."""
    best, best_at, loss = math.inf, 0, 0.0
    width, worth, position = max(held.free, 0.0), 0.0, len(held.worths)
    for at, (_, speed, step, _) in enumerate(own):
        need = step
        while need > width and position:
            loss += width * worth
            need -= width
            position -= 1
            worth, width = -held.worths[position], held.widths[position]
        if need > width + _NOTHING:
            break
        loss += need * worth
        width -= need
        value = (weight + loss) / speed
        if value > best * (1 + _NOTHING):  # a convex loss over a concave speed has one minimum
            break
        best, best_at = value, at
    return (best, best_at) if best < math.inf else (weight / own[0][1], 0)
