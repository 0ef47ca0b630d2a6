"""How well predictions agree with measurements: errors, order, and how sure of them the rows let us be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.stats import spearmanr

from experiments.planner_accuracy.predict import Prediction

APART = 0.05
"""Pairs of runs whose times differ by more are expected in the right order."""
_RESAMPLES = 1000
_CHOICES_MIN = 3
_SEED = 20261129


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a set of predictions is worth; None where there is nothing to say.

    Args:
        time_interval_pct: Central 95 % of the mean over resampled rows.
        spearman: Rank correlation of predicted and measured throughput per GPU.
        pairs_right_pct: Of ``pair_count`` pairs of runs of one model on equally many of the same GPUs.
        regret_pct: By how much the run that is predicted fastest is slower than the fastest one, on average over models
            on equally many of the same GPUs with three runs or more.
    """

    time_mape_pct: float | None
    time_interval_pct: tuple[float, float] | None
    time_count: int
    time_bias_pct: float | None
    memory_mape_pct: float | None
    memory_interval_pct: tuple[float, float] | None
    memory_count: int
    spearman: float | None
    pairs_right_pct: float | None
    pair_count: int
    regret_pct: float | None


def score(predictions: Sequence[Prediction]) -> Score:
    """Return the score of some predictions."""
    times = _errors(one.time_error for one in predictions)
    memories = _errors(one.memory_error for one in predictions)
    right, count = ordered_pairs(predictions)
    return Score(
        time_mape_pct=_mape(times),
        time_interval_pct=mean_interval_pct(times),
        time_count=len(times),
        time_bias_pct=float(100.0 * times.mean()) if len(times) else None,
        memory_mape_pct=_mape(memories),
        memory_interval_pct=mean_interval_pct(memories),
        memory_count=len(memories),
        spearman=rank_correlation(predictions),
        pairs_right_pct=100.0 * right / count if count else None,
        pair_count=count,
        regret_pct=regret_pct(predictions),
    )


def rank_correlation(predictions: Iterable[Prediction]) -> float | None:
    """Return Spearman's correlation of predicted and measured model operations per second and GPU."""
    measured, predicted = [], []
    for one in predictions:
        if one.case.time_s:
            work = _work(one)
            measured.append(work / one.case.time_s)
            predicted.append(work / one.time_s)
    if len(measured) < 3 or len(set(measured)) < 2 or len(set(predicted)) < 2:
        return None
    return float(spearmanr(measured, predicted).statistic)


def _work(one: Prediction) -> float:
    """Return a step's multiplications with weights, per GPU: enough to compare models of one shape or of several."""
    model = one.case.train.model
    weights = 12.0 * model.layers * model.hidden**2 + model.vocab_size * model.hidden
    return weights * one.case.train.tokens_per_step / one.case.group.gpu_count


def ordered_pairs(predictions: Iterable[Prediction]) -> tuple[int, int]:
    """Return how many pairs of comparable runs are predicted in the right order, and how many there are.

    Comparable: the same source, model shape and sequence, on equally many GPUs of one type; what is compared is time
    per sample. Pairs that differ by at most 5 % count for nothing.
    """
    right = count = 0
    for same in _comparable(predictions):
        for left, other in combinations(same, 2):
            ratio = _per_sample(left, measured=True) / _per_sample(other, measured=True)
            if max(ratio, 1.0 / ratio) > 1.0 + APART:
                count += 1
                guess = _per_sample(left, measured=False) / _per_sample(other, measured=False)
                right += (guess > 1.0) == (ratio > 1.0)
    return right, count


def regret_pct(predictions: Iterable[Prediction]) -> float | None:
    """Return what trusting the model costs on average where it has three comparable runs or more to choose from."""
    lost = []
    for same in _comparable(predictions):
        if len(same) >= _CHOICES_MIN:
            chosen = min(same, key=lambda one: _per_sample(one, measured=False))
            best_s = min(_per_sample(one, measured=True) for one in same)
            lost.append(_per_sample(chosen, measured=True) / best_s - 1.0)
    return float(100.0 * np.mean(lost)) if lost else None


def _comparable(predictions: Iterable[Prediction]) -> list[list[Prediction]]:
    groups: dict[object, list[Prediction]] = {}
    for one in predictions:
        if one.case.time_s:
            key = (one.case.source, one.case.train.model.model_dump_json(), one.case.gpu_type.name, one.case.group)
            groups.setdefault(key, []).append(one)
    return list(groups.values())


def _per_sample(one: Prediction, *, measured: bool) -> float:
    seconds = (one.case.time_s or 0.0) if measured else one.time_s
    return seconds / one.case.train.global_batch


def _errors(values: Iterable[float | None]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([value for value in values if value is not None], dtype=np.float64)


def _mape(errors: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    return float(100.0 * np.abs(errors).mean()) if len(errors) else None


def mean_interval_pct(errors: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float] | None:
    """Return a bootstrap interval of the mean absolute error (Efron 1979, percentiles), in per cent."""
    if len(errors) < 3:
        return None
    drawn = np.random.default_rng(_SEED).choice(np.abs(errors), size=(_RESAMPLES, len(errors)))
    low, high = np.quantile(drawn.mean(axis=1), [0.025, 0.975])
    return float(100.0 * low), float(100.0 * high)


def by_source(predictions: Iterable[Prediction], key: Callable[[Prediction], str]) -> dict[str, list[Prediction]]:
    """Return predictions by a name, in the order in which names first appear."""
    groups: dict[str, list[Prediction]] = {}
    for one in predictions:
        groups.setdefault(key(one), []).append(one)
    return groups
