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
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Curve = tuple[tuple[float, float], ...]
"""Corners (share of the machine, steps per second) of a concave speed-up, without the origin, shares ascending."""

_NOTHING = 1e-12


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


def marginal_values(workers: Sequence[Worker]) -> tuple[list[float], float]:
    """Return the value of a step of each job, in seconds of weighted flow time, and that of the whole machine.

    The order of ends is that of the time each would take at a price of the machine; a first round is made at the price
    of a machine that all share, a second at the price that this gave.
    """
    values = [0.0] * len(workers)
    price = sum(worker.weight for worker in workers)
    for _ in range(2):
        sizes = [_size(worker, price) for worker in workers]
        order = sorted(range(len(workers)), key=lambda at: (-sizes[at], at))
        price = _recursion(workers, order, values)
    return values, price


def _size(worker: Worker, price: float) -> float:
    """Return the least cost of a job's remaining work, time and machine, by unit of weight."""
    cost = min((worker.weight + price * share) / speed for share, speed in worker.curve)
    return worker.remaining_steps * cost / worker.weight


def _recursion(workers: Sequence[Worker], order: Sequence[int], values: list[float]) -> float:
    """Fill in the values, last end first; return what the last bit of the machine is worth."""
    held: list[tuple[float, float]] = []  # (-worth of a unit, share) of what is in use, the least worth last
    free = 1.0
    for at in order:
        worker = workers[at]
        value = _value(worker, held, free)
        values[at] = value
        share_before = speed_before = 0.0
        for share, speed in worker.curve:
            width = share - share_before
            if width > 0.0:  # what takes no room has none to give
                insort(held, (-value * (speed - speed_before) / width, width))
            share_before, speed_before = share, speed
        free -= share_before
        while free < -_NOTHING:
            worth, width = held.pop()
            if width > -free + _NOTHING:
                held.append((worth, width + free))
                free = 0.0
            else:
                free += width
    return -held[-1][0] if held and free <= _NOTHING else 0.0


def _value(worker: Worker, held: Sequence[tuple[float, float]], free: float) -> float:
    """Return the least of (weight + loss of the others) / speed over the corners that the machine holds."""
    best, loss, reached = math.inf, 0.0, 0.0
    width, worth, position = max(free, 0.0), 0.0, len(held)
    for share, speed in worker.curve:
        need = share - reached
        while need > width and position:
            loss += width * worth
            need -= width
            position -= 1
            worth, width = -held[position][0], held[position][1]
        if need > width + _NOTHING:
            break
        loss += need * worth
        width -= need
        reached = share
        value = (worker.weight + loss) / speed
        if value > best * (1 + _NOTHING):  # a convex loss over a concave speed has one minimum
            break
        best = value
    return best if best < math.inf else worker.weight / worker.curve[0][1]
