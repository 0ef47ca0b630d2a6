"""The linear program over chains: the most work with the GPUs that there are, by the simplex method. Pure: no I/O.

It has a row for each part of an offer and few columns, so dense arrays are quicker than a solver's call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arena.planner.candidates import Floats, Ints

_EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """Answer of the linear program: most micro-batches, chains of each sort, prices of parts."""

    value: float
    chosen: Floats
    price: Floats


def most_work(counts: Ints, gpus: Floats, stock: Ints | Floats) -> Master:
    """Return how to do the most micro-batches: maximise counts x n subject to gpus' n <= stock, by the simplex method.

    Ties go to the lowest index (Bland), so that it ends.
    """
    rows, size = len(stock), len(counts)
    scale = np.where(stock > 0, stock, 1).astype(np.float64)
    body = np.concatenate((gpus.T / scale[:, None], np.eye(rows)), axis=1)
    right = stock / scale
    gain = np.concatenate((counts.astype(np.float64), np.zeros(rows)))
    basis = list(range(size, size + rows))
    reduced = gain.copy()
    for turn in range(200):
        entering = int(reduced.argmax()) if turn < 100 else int((reduced > _EPSILON).argmax())
        if reduced[entering] <= _EPSILON:
            break
        column = body[:, entering].copy()
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(column > _EPSILON, right / column, np.inf)
        leaving = int(ratio.argmin())
        if not np.isfinite(ratio[leaving]):
            break
        pivot = column[leaving]
        body[leaving] /= pivot
        right[leaving] /= pivot
        column[leaving] = 0.0
        right -= column * right[leaving]
        body -= column[:, None] * body[leaving]
        reduced = reduced - reduced[entering] * body[leaving]
        basis[leaving] = entering
    chosen = np.zeros(size + rows)
    chosen[basis] = np.maximum(right, 0.0)
    price = np.maximum(-reduced[size:], 0.0) / scale
    return Master(value=float(counts @ chosen[:size]), chosen=chosen[:size], price=price)
