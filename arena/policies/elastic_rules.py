"""When a running job may be changed, and whether that pays. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from arena.domain.job import JobKind
from arena.domain.records import JobRecord
from arena.errors import SpecError
from arena.policies.base import Holding, Snapshot
from arena.policies.lengths import measured_step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticRules:
    """Options of the elastic policy.

    Args:
        change_interval_s: Least time between two changes of one job; None means three restarts, so that a job never
            spends more than a quarter of its time on being changed.
        horizon_s: Remaining time assumed of a job that declares none and has run for less.
        wait_s_max: After so long a waiting job has GPUs drained for it.
        speedup_min: A growth that makes a job less than so many times faster is no use of GPUs.
    """

    change_interval_s: float | None = None
    horizon_s: float = 1800.0
    wait_s_max: float = 1800.0
    speedup_min: float = 1.01

    def __post_init__(self) -> None:
        for name in ("change_interval_s", "horizon_s", "wait_s_max"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise SpecError(f"policy option {name} must be at least 0", why=f"got {value}")
        if not self.speedup_min >= 1:
            raise SpecError("policy option speedup_min must be at least 1", why=f"got {self.speedup_min}")

    def eligible_at_s(self, snapshot: Snapshot, holding: Holding) -> float:
        """Return the instant from which a job may be changed again."""
        interval_s = 3 * snapshot.restart_s if self.change_interval_s is None else self.change_interval_s
        return holding.since_s + interval_s

    def remaining_s(self, job: JobRecord, holding: Holding) -> float:
        """Return how long a running job has still to go as it is laid out now.

        Declared steps at the measured step time (else the estimated one), capped by the time limit. With neither,
        what it has run so far: the best guess for a job of unknown length, and no less than the horizon.
        """
        limits = []
        step_time_s = measured_step_s(job) or (holding.estimate.iter_time_s if holding.estimate else None)
        if job.spec.step_limit is not None and step_time_s is not None:
            limits.append(max(0, job.spec.step_limit - job.progress.step) * step_time_s)
        if job.spec.stop.time_limit_s is not None:
            limits.append(max(0.0, job.spec.stop.time_limit_s - job.run_time_s))
        return min(limits, default=max(self.horizon_s, job.run_time_s))


def is_elastic(job: JobRecord, holding: Holding) -> bool:
    """Tell whether a running job may be resized."""
    return holding.movable and job.spec.kind is JobKind.MALLEABLE and job.spec.preemptible
