"""What the study finds, as plain data: feasibility, times, regret, memory of replicas, and every cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from arena.units import GIB
from experiments.arena_data.data import Cell, Outcome
from experiments.arena_data.predict import PlanPrediction, Prediction, chosen_by_estimates
from experiments.arena_data.score import (
    Timing,
    agreement,
    constants,
    errors,
    left_out_errors,
    regret,
    regrets,
    spread,
)


def results(predictions: Sequence[Prediction], memory_errors: Sequence[float]) -> dict[str, Any]:
    """Return everything the study finds."""
    tried = [one for one in predictions if one.cell.outcome is not Outcome.UNTRIED]
    return {
        "feasibility": feasibility(tried),
        "times": times(timings_of(tried)),
        "times_of_all_that_ran": times(timings_of(tried, fitting=False)),
        "regret": regret_of(predictions),
        "memory": asdict(spread(memory_errors)),
        "wrongly_feasible": [str(one.cell) for one in tried if one.is_feasible and not _ran(one.cell)],
        "wrongly_infeasible": [_shortage(one) for one in tried if not one.is_feasible and _ran(one.cell)],
        "cells": [_row(one) for one in predictions],
    }


def feasibility(tried: Sequence[Prediction]) -> dict[str, Any]:
    """Return how often what runs is told from what does not."""
    estimated = [one.cell for one in tried if one.cell.estimates_s is not None]
    return {
        "ours": asdict(agreement((one.is_feasible, _ran(one.cell)) for one in tried)),
        "ours_by_memory_alone": asdict(agreement((one.best is not None, _ran(one.cell)) for one in tried)),
        "arena_estimates": asdict(agreement((cell.is_estimated_feasible, _ran(cell)) for cell in estimated)),
        "ours_where_arena_estimates": asdict(
            agreement((one.is_feasible, _ran(one.cell)) for one in tried if one.cell.estimates_s is not None)
        ),
    }


def timings_of(tried: Iterable[Prediction], *, fitting: bool = True) -> list[Timing]:
    """Return the cells that ran and have a prediction; without ``fitting``, of a plan that may need more memory."""
    found: list[Timing] = []
    for one in tried:
        workload, plan = one.cell.workload, one.best or (None if fitting else one.quickest)
        if plan is not None and one.cell.time_s is not None:
            timing = Timing(
                gpu_type=one.cell.hardware.gpu_type,
                model=(workload.family, workload.size),
                family=workload.family,
                predicted_s=plan.time_s,
                measured_s=one.cell.time_s,
            )
            found.append(timing)
    return found


def times(timings: Sequence[Timing]) -> dict[str, Any]:
    """Return the errors of times after one factor for each GPU type, also with factors from other models."""
    factors = constants(timings)
    fitted = errors(timings, factors)
    return {
        "factors": factors,
        "overall": asdict(spread(fitted)),
        "other_models_factors": asdict(spread(left_out_errors(timings))),
        "without_factors": asdict(spread(errors(timings, dict.fromkeys(factors, 1.0)))),
        "by_gpu_type": _grouped([one.gpu_type for one in timings], fitted),
        "by_family": _grouped([one.family for one in timings], fitted),
    }


def _grouped(names: Sequence[str], found: Sequence[float]) -> dict[str, Any]:
    return {
        name: asdict(spread(error for other, error in zip(names, found, strict=True) if other == name))
        for name in sorted(set(names))
    }


def regret_of(predictions: Iterable[Prediction]) -> dict[str, Any]:
    """Return how good our choices are by the estimates of plans."""
    judged = [one for one in predictions if one.cell.is_estimated_feasible]
    found = [(one, chosen_by_estimates(one)) for one in judged]
    ours: dict[str, list[float]] = {}
    for one, plan in found:
        if plan is not None and plan.fits:
            ours.setdefault(one.cell.workload.family, []).append(_regret(one.cell, plan))
    every = [_regret(one.cell, plan) for one, plan in found if plan is not None]
    return {
        "ours": asdict(regrets(value for values in ours.values() for value in values)),
        "by_family": {family: asdict(regrets(values)) for family, values in sorted(ours.items())},
        "with_leanest_where_none_fits": asdict(regrets(every)),
        "none_fits": sum(plan is None or not plan.fits for _, plan in found),
    }


def _regret(cell: Cell, plan: PlanPrediction) -> float:
    estimates: Mapping[Any, float] = cell.estimates_s or {}
    return regret(estimates[plan.layout.degrees], estimates.values())


def _ran(cell: Cell) -> bool:
    return cell.outcome is Outcome.RAN


def _shortage(one: Prediction) -> dict[str, Any]:
    least = min((plan.memory_bytes for plan in one.plans if plan.is_searched), default=math.inf)
    return {"cell": str(one.cell), "least_gib": least / GIB, "limit_gib": one.limit_bytes / GIB}


def _row(one: Prediction) -> dict[str, Any]:
    best, chosen = one.best, chosen_by_estimates(one) if one.cell.is_estimated_feasible else None
    return {
        "workload": str(one.cell.workload),
        "hardware": str(one.cell.hardware),
        "outcome": one.cell.outcome.value,
        "measured_s": one.cell.time_s,
        "is_feasible": one.is_feasible,
        "is_refused": one.is_refused,
        "predicted_s": best.time_s if best else None,
        "plan": str(best.layout) if best else None,
        "judged_plan": str(chosen.layout) if chosen else None,
        "regret": _finite(_regret(one.cell, chosen)) if chosen else None,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
