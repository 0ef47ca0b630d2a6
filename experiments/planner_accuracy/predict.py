"""What the cost model says of measured cases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

from arena.planner.calibration import CALIBRATION, Calibration
from arena.planner.candidates import candidate_of
from arena.planner.cost import evaluate
from arena.planner.memory import USABLE_SHARE
from experiments.planner_accuracy.cases import Case, UnscorableError, case_of
from experiments.planner_accuracy.rows import MeasuredRow

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscored:
    """A row without a prediction, and why."""

    row: MeasuredRow
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A case with what the model says of it."""

    case: Case
    time_s: float
    memory_gb: float

    @property
    def time_error(self) -> float | None:
        """Relative error of the time; above zero where the model is too slow."""
        return self.time_s / self.case.time_s - 1.0 if self.case.time_s else None

    @property
    def memory_error(self) -> float | None:
        """Relative error of the memory."""
        return self.memory_gb / self.case.memory_gb - 1.0 if self.case.memory_gb else None

    @property
    def is_out_of_memory(self) -> bool:
        """Whether the model says that it does not fit."""
        return self.memory_gb * GB > USABLE_SHARE * self.case.gpu_type.memory_bytes


def cases_of(rows: Iterable[MeasuredRow]) -> tuple[list[Case], list[Unscored]]:
    """Return what can be predicted, repeats merged by their median, and what cannot."""
    cases: list[Case] = []
    unscored: list[Unscored] = []
    for row in rows:
        try:
            cases.append(case_of(row))
        except UnscorableError as error:
            unscored.append(Unscored(row=row, reason=str(error)))
    return merged(cases), unscored


def merged(cases: Iterable[Case]) -> list[Case]:
    """Return one case for each configuration of a source."""
    repeats: dict[object, list[Case]] = {}
    for case in cases:
        key = (
            case.source,
            case.train.model_dump_json(),
            case.plan,
            case.gpu_type.name,
            case.gpu_type.network_bandwidth_bytes_per_s,
            case.group,
            case.implementation,
            case.is_out_of_memory,
        )
        repeats.setdefault(key, []).append(case)
    return [_median(same) for same in repeats.values()]


def _median(same: list[Case]) -> Case:
    times = [case.time_s for case in same if case.time_s is not None]
    memories = [case.memory_gb for case in same if case.memory_gb is not None]
    return replace(
        same[0],
        rows=tuple(case.row for case in same),
        time_s=median(times) if times else None,
        memory_gb=median(memories) if memories else None,
    )


def predict(case: Case, calibration: Calibration = CALIBRATION) -> Prediction:
    """Return the model's prediction of a case."""
    estimates = evaluate(
        case.train,
        case.gpu_type,
        case.group,
        candidate_of(case.plan, case.train.global_batch),
        implementation=case.implementation,
        calibration=calibration,
    )
    return Prediction(
        case=case,
        time_s=float(estimates.iter_time_s[0]),
        memory_gb=float(estimates.memory_bytes_by_stage.max()) / GB,
    )
