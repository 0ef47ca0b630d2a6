"""How well a grid agrees with measured cells: feasibility, times after calibration, regret. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

_RESAMPLES = 1000
_SEED = 20261129


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How often two agree on what is feasible; None where a class is empty.

    Args:
        balanced_pct: Mean of the shares that are right among what runs and among what does not.
        always_yes_pct: What saying yes throughout gets right.
    """

    count: int
    right: int
    balanced_pct: float | None
    plain_pct: float | None
    always_yes_pct: float | None
    ran: int
    ran_said: int
    failed: int
    failed_said: int


def agreement(pairs: Iterable[tuple[bool, bool]]) -> Agreement:
    """Return the agreement of what was said and what is so."""
    known = list(pairs)
    ran = [said for said, truth in known if truth]
    failed = [not said for said, truth in known if not truth]
    right = sum(ran) + sum(failed)
    return Agreement(
        count=len(known),
        right=right,
        balanced_pct=50.0 * (mean(ran) + mean(failed)) if ran and failed else None,
        plain_pct=100.0 * right / len(known) if known else None,
        always_yes_pct=100.0 * len(ran) / len(known) if known else None,
        ran=len(ran),
        ran_said=sum(ran),
        failed=len(failed),
        failed_said=sum(failed),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A time that was predicted and measured.

    Args:
        model: Whose cells are left out together.
    """

    gpu_type: str
    model: Hashable
    family: str
    predicted_s: float
    measured_s: float

    @property
    def ratio(self) -> float:
        """What a prediction must be multiplied with to be right."""
        return self.measured_s / self.predicted_s


def constants(timings: Iterable[Timing]) -> dict[str, float]:
    """Return one factor for each GPU type: the median of measured over predicted time."""
    ratios: dict[str, list[float]] = {}
    for timing in timings:
        ratios.setdefault(timing.gpu_type, []).append(timing.ratio)
    return {gpu_type: median(found) for gpu_type, found in sorted(ratios.items())}


def errors(timings: Sequence[Timing], factors: Mapping[str, float]) -> list[float]:
    """Return the relative errors of calibrated predictions, positive where they are too slow."""
    return [factors[one.gpu_type] * one.predicted_s / one.measured_s - 1.0 for one in timings]


def left_out_errors(timings: Sequence[Timing]) -> list[float]:
    """Return the errors of each model's cells with factors from the other models; NaN where a type has no others."""
    found: dict[int, float] = {}
    for model in {one.model for one in timings}:
        factors = constants(one for one in timings if one.model != model)
        for index, one in enumerate(timings):
            if one.model == model:
                factor = factors.get(one.gpu_type, math.nan)
                found[index] = factor * one.predicted_s / one.measured_s - 1.0
    return [found[index] for index in range(len(timings))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Sizes of some errors, in per cent.

    Args:
        median_interval_pct: Central 95 % of the median over resampled rows (Efron 1979, percentiles).
        bias_pct: Median of the errors with their signs.
    """

    count: int
    median_pct: float | None
    median_interval_pct: tuple[float, float] | None
    mean_pct: float | None
    bias_pct: float | None


def spread(found: Iterable[float]) -> Spread:
    """Return how large some relative errors are."""
    values = np.array([error for error in found if not math.isnan(error)], dtype=np.float64)
    if not len(values):
        return Spread(count=0, median_pct=None, median_interval_pct=None, mean_pct=None, bias_pct=None)
    sizes = 100.0 * np.abs(values)
    drawn = np.random.default_rng(_SEED).choice(sizes, size=(_RESAMPLES, len(sizes)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return Spread(
        count=len(values),
        median_pct=float(np.median(sizes)),
        median_interval_pct=(float(low), float(high)),
        mean_pct=float(sizes.mean()),
        bias_pct=float(100.0 * np.median(values)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrets:
    """How much slower chosen plans are than the judge's best.

    Args:
        without_room: Choices that the judge has no room for; they count for no mean.
        best_chosen: Choices that are the judge's best.
    """

    count: int
    mean_pct: float | None
    worst_pct: float | None
    best_chosen: int
    without_room: int


def regret(chosen_s: float, judged_s: Iterable[float]) -> float:
    """Return by which share a choice is slower than the best by a judge."""
    return chosen_s / min(judged_s) - 1.0


def regrets(found: Iterable[float]) -> Regrets:
    """Return what regrets come to."""
    values = list(found)
    finite = [value for value in values if math.isfinite(value)]
    return Regrets(
        count=len(values),
        mean_pct=100.0 * mean(finite) if finite else None,
        worst_pct=100.0 * max(finite) if finite else None,
        best_chosen=sum(value == 0.0 for value in values),
        without_room=len(values) - len(finite),
    )
