"""heSRPT: the least mean flow time of malleable jobs with one concave speed-up k^p. Pure: no I/O, no clock.

Berg, Vesilo and Harchol-Balter, heSRPT: Parallel scheduling to minimize mean slowdown, Performance Evaluation 144
(2020): all jobs are there from the beginning, a job on k of N servers runs at speed k^p, 0 < p < 1, and shares may be
any real number. With m jobs left, the i-th largest gets (i/m)^c - ((i-1)/m)^c of the servers, c = 1 / (1 - p).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise


def optimal_mean_flow_s(sizes: Sequence[float], *, exponent: float, gpu_count: int) -> float:
    """Return the least mean flow time, by the closed form.

    The total is, over jobs from the largest to the smallest, sizes x_1 >= x_2 >= ...:
    sum of x_k (k (1 + w_k)^p - (k - 1) w_k^p) / N^p, where w_k = 1 / ((k / (k - 1))^c - 1) and w_1 = 0.

    Args:
        sizes: Times that jobs take on one GPU.
        exponent: p.
    """
    total = 0.0
    for rank, size in enumerate(sorted(sizes, reverse=True), start=1):
        share = _others_share(rank, exponent)
        total += size * (rank * (1 + share) ** exponent - (rank - 1) * share**exponent)
    speed: float = gpu_count**exponent
    return total / speed / len(sizes)


def _others_share(rank: int, exponent: float) -> float:
    """Return w_k: what all larger jobs have together, over what job k has."""
    if rank == 1:
        return 0.0
    return 1.0 / math.expm1(math.log(rank / (rank - 1)) / (1 - exponent))


def shares(left: int, *, exponent: float) -> tuple[float, ...]:
    """Return the shares of the servers, from the largest job's to the smallest's."""
    power = 1 / (1 - exponent)
    ends = [(rank / left) ** power for rank in range(left + 1)]
    return tuple(after - before for before, after in pairwise(ends))
