"""Fits the constants of ``arena.planner.calibration`` again, and scores each source with constants that never saw it.

Whole training steps tell them, by least squares of the logarithm of predicted over measured time with a robust loss. Of
a large source only some rows are taken, evenly, and none counts for more than ``_ROWS_OF_A_VOTE`` rows. A
weak prior draws constants towards what one would take without any run, so that one about which the rows say nothing is
that. What single products and collectives tell is fitted by ``microbenchmarks.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from arena.planner.calibration import CALIBRATION, Calibration, constants
from arena.planner.candidates import Candidates, candidate_of
from arena.planner.cost import iter_times_s
from experiments.planner_accuracy.cases import Case
from experiments.planner_accuracy.predict import cases_of
from experiments.planner_accuracy.rows import MeasuredRow, complete, read_rows
from experiments.planner_accuracy.score import mean_interval_pct

Floats = npt.NDArray[np.float64]

FITTED_ON_RUNS = tuple(one.name for one in constants() if "training runs" in one.fitted_on)
"""Constants that whole steps tell."""

PRIOR = Calibration(**{one.name: one.prior for one in constants()})
"""What one would take without any run; the fit starts elsewhere, but is drawn towards it."""

_ROWS_OF_A_VOTE = 20
_ROWS_MAX = 40
_PRIOR_WEIGHT = 0.14
"""A run's error (7 %) over how far off what one takes without any run may be (a factor of 1.6)."""
_OUTLIER = 0.1
_STEP = 0.02
_BOUNDS = {
    "launch_times": (0.3, 100.0),
    "waited_launch_times": (0.3, 200.0),
    "activation_passes": (1.0, 10.0),
}
_SHARE_BOUNDS = (0.02, 1.0)
_COUNT_BOUNDS = (0.01, 20.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Cases with their plans as arrays, made once.

    Args:
        timed: All cases with a time, also those that are not fitted on.
    """

    cases: tuple[Case, ...]
    candidates: tuple[Candidates, ...]
    weights: Floats
    timed: tuple[Case, ...]

    @classmethod
    def of(cls, cases: Sequence[Case]) -> Fit:
        """Return what to fit on: the 16-bit cases with a measured time."""
        timed = [case for case in cases if case.time_s and case.row.is_sixteen_bit]
        kept = _thinned(timed)
        counts = Counter(case.source for case in kept)
        weights = [min(1.0, np.sqrt(_ROWS_OF_A_VOTE / counts[case.source])) for case in kept]
        return cls(
            cases=tuple(kept),
            candidates=_candidates_of(kept),
            weights=np.array(weights),
            timed=tuple(timed),
        )

    def only(self, source: str) -> Fit:
        """Return all timed cases of a source."""
        cases = tuple(case for case in self.timed if case.source == source)
        return Fit(cases=cases, candidates=_candidates_of(cases), weights=np.ones(len(cases)), timed=cases)

    def log_ratios(self, calibration: Calibration) -> Floats:
        """Return the logarithm of predicted over measured time of each case."""
        return np.array(
            [
                np.log(_time_s(case, candidates, calibration) / (case.time_s or 1.0))
                for case, candidates in zip(self.cases, self.candidates, strict=True)
            ]
        )

    def jacobian(self, at: Calibration) -> Floats:
        """Return slopes of the logarithm of each time by that of each constant, ``[cases, constants]``."""
        logs = logs_of(at)
        base = self.log_ratios(at)
        return np.array(
            [
                (self.log_ratios(with_logs(at, logs + _STEP * unit)) - base) / _STEP
                for unit in np.eye(len(FITTED_ON_RUNS))
            ]
        ).T

    def best(self, start: Calibration, *, slopes: Floats | None = None, evaluations_max: int = 12) -> Calibration:
        """Return the constants that fit best.

        Args:
            slopes: A Jacobian to keep, where the start is near enough to the end that it changes little; by default it
                is made anew at each step.
        """
        prior = logs_of(PRIOR)
        unit = _PRIOR_WEIGHT * np.eye(len(prior))

        def residuals(logs: Floats) -> Floats:
            rows = self.weights * self.log_ratios(with_logs(start, logs))
            return np.concatenate((rows, _PRIOR_WEIGHT * (logs - prior)))

        def jacobian(logs: Floats) -> Floats:
            now = self.jacobian(with_logs(start, logs)) if slopes is None else slopes
            return np.concatenate((self.weights[:, None] * now, unit))

        low, high = np.log([_bounds(name) for name in FITTED_ON_RUNS]).T
        found = least_squares(
            residuals,
            np.clip(logs_of(start), low + 1e-6, high - 1e-6),
            jacobian,
            bounds=(low, high),
            loss="soft_l1",
            f_scale=_OUTLIER,
            max_nfev=evaluations_max,
            xtol=1e-3,
            ftol=1e-3,
        )
        return with_logs(start, found.x)


def logs_of(calibration: Calibration) -> Floats:
    """Return the logarithms of the constants that are fitted on runs."""
    return np.log([getattr(calibration, name) for name in FITTED_ON_RUNS])


def _thinned(cases: list[Case]) -> list[Case]:
    """Return at most ``_ROWS_MAX`` cases of each source, evenly taken."""
    kept: list[Case] = []
    for source in dict.fromkeys(case.source for case in cases):
        same = [case for case in cases if case.source == source]
        every = max(1, -(-len(same) // _ROWS_MAX))
        kept.extend(same[::every])
    return kept


def _bounds(name: str) -> tuple[float, float]:
    return _BOUNDS.get(name, _SHARE_BOUNDS if name.endswith("_share") or "_share_" in name else _COUNT_BOUNDS)


def _candidates_of(cases: Sequence[Case]) -> tuple[Candidates, ...]:
    return tuple(candidate_of(case.plan, case.train.global_batch) for case in cases)


def _time_s(case: Case, candidates: Candidates, calibration: Calibration) -> float:
    times = iter_times_s(
        case.train,
        case.gpu_type,
        case.group,
        candidates,
        implementation=case.implementation,
        calibration=calibration,
    )
    return float(times[0])


def with_logs(start: Calibration, logs: Floats) -> Calibration:
    """Return constants with those fitted on runs set by their logarithms."""
    values = {name: float(np.exp(value)) for name, value in zip(FITTED_ON_RUNS, logs, strict=True)}
    return replace(start, **values)


def leave_one_out(fit: Fit, best: Calibration) -> dict[str, dict[str, Any]]:
    """Return, for each source and over all rows, the error with constants fitted without the row's source."""
    slopes = fit.jacobian(best)
    sources = np.array([case.source for case in fit.cases])
    found: dict[str, dict[str, Any]] = {}
    every: list[Floats] = []
    for source in dict.fromkeys(sources.tolist()):
        others = Fit.of([case for case in fit.cases if case.source != source])
        blind = others.best(best, slopes=slopes[sources != source])
        errors = np.exp(fit.only(source).log_ratios(blind)) - 1.0
        every.append(errors)
        found[source] = _blind_score(errors)
        print(f"without {source[:60]}: {found[source]['time_mape_pct']:.1f} % of {len(errors)}", flush=True)
    found["overall"] = _blind_score(np.concatenate(every))
    return found


def _blind_score(errors: Floats) -> dict[str, Any]:
    return {
        "time_mape_pct": float(100.0 * np.abs(errors).mean()),
        "time_interval_pct": mean_interval_pct(errors),
        "time_bias_pct": float(100.0 * errors.mean()),
        "time_count": len(errors),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, and print the constants; with ``--blind`` also score every source with constants that never saw it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measured", type=Path, nargs="+", help="CSV of measured runs")
    parser.add_argument("--blind", type=Path, help="where the leave-one-source-out errors go (JSON)")
    parser.add_argument("--keep", action="store_true", help="score with the constants in use; do not fit first")
    options = parser.parse_args(arguments)
    rows = [row for path in options.measured for row in read_rows(path) if isinstance(row, MeasuredRow)]
    fit = Fit.of(cases_of(complete(rows))[0])
    best = CALIBRATION if options.keep else fit.best(CALIBRATION)
    errors = np.abs(np.exp(fit.log_ratios(best)) - 1.0)
    print(f"{len(errors)} cases, mean absolute error {100.0 * errors.mean():.2f} %")
    for one in constants(best):
        print(f"{one.name}: {getattr(CALIBRATION, one.name):.4g} -> {one.value:.4g} {one.unit}")
    if options.blind is not None:
        options.blind.write_text(json.dumps(leave_one_out(fit, best), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
