"""What became of tenants' guaranteed shares in a run: an account kept step by step. Pure: no I/O, no clock.

A tenant is below its share while it has a job that wants GPUs and would have, in the smallest group of its grid, no
more than what the tenant has left of its share. GPUs count as had from the launch of an attempt to its verified end, so
the time that borrowers take to save and stop counts as time below the share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from arena.domain.events import built_grid
from arena.domain.grid import Grid
from arena.domain.job import JobId
from arena.domain.launch import AttemptId
from arena.domain.records import AttemptRecord, JobRecord, JobState, Wish
from arena.domain.tenants import Guarantee, Guarantees
from arena.engine.ports import Step

_Need = tuple[tuple[str, int], ...]
"""The fewest GPUs that a job can start with, of each type by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFigures:
    """How a project fared.

    Args:
        project: Empty for all projects together that are guaranteed nothing.
        job_count: Jobs that ended.
        gpu_hours: That its jobs had.
        borrowed_gpu_hours: Of these, beyond its guarantee.
        below_share_s: Time during which it had less than its share and work for it.
        below_share_s_max: The longest of these times at a stretch.
        avg_jct_s: Mean of the completion times of its jobs that ended.
    """

    project: str
    guaranteed: Mapping[str, int] = field(default_factory=dict)
    job_count: int = 0
    gpu_hours: float = 0.0
    borrowed_gpu_hours: float = 0.0
    below_share_s: float = 0.0
    below_share_s_max: float = 0.0
    avg_jct_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Tenant:
    """One project, up to the present step."""

    share: Guarantee | None
    used: Counter[str] = field(default_factory=Counter)
    waiting: Counter[_Need] = field(default_factory=Counter)
    gpu_seconds: float = 0.0
    borrowed_gpu_seconds: float = 0.0
    below_s: float = 0.0
    below_s_max: float = 0.0
    below_since_s: float | None = None
    jct_s: float = 0.0
    job_count: int = 0

    def is_below(self) -> bool:
        """Return whether a job waits that would fit what is left of the share."""
        return any(count > 0 and self._fits(need) for need, count in self.waiting.items())

    def _fits(self, need: _Need) -> bool:
        if self.share is None:
            return False
        if self.share.is_of_any_type:
            left = self.share.gpu_count - self.used.total()
            return any(count <= left for _, count in need)
        return any(count <= self.share.of(kind) - self.used[kind] for kind, count in need)

    def pass_to(self, from_s: float, to_s: float) -> None:
        """Account for the time between two steps."""
        used, width_s = self.used.total(), to_s - from_s
        self.gpu_seconds += used * width_s
        guaranteed = 0 if self.share is None else self.share.gpu_count
        self.borrowed_gpu_seconds += max(used - guaranteed, 0) * width_s
        if self.below_since_s is not None:
            self.below_s += width_s
            self.below_s_max = max(self.below_s_max, to_s - self.below_since_s)


@dataclass(slots=True, kw_only=True)
class TenantLedger:
    """Reads every step of a run.

    Args:
        tenants: Guaranteed GPUs by project.
    """

    tenants: Guarantees
    _at_s: float = 0.0
    _known: dict[str, _Tenant] = field(default_factory=dict)
    _needs: dict[JobId, _Need] = field(default_factory=dict)
    _project: dict[JobId, str] = field(default_factory=dict)
    _wanting: dict[JobId, _Need] = field(default_factory=dict)
    _live: set[AttemptId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._known = {name: _Tenant(share=share) for name, share in sorted(self.tenants.items())}
        self._known[""] = _Tenant(share=None)

    def watch(self, step: Step) -> None:
        """Take a step into account."""
        if step.at_s > self._at_s:
            for tenant in self._known.values():
                tenant.pass_to(self._at_s, step.at_s)
            self._at_s = step.at_s
        built = built_grid(step.event)
        if built is not None:
            self._needs[built.job_id] = _need_of(built.grid)
        for job in step.jobs:
            self._project[job.job_id] = job.spec.project if job.spec.project in self.tenants else ""
        for attempt in step.attempts:
            self._attempt(attempt)
        for job in step.jobs:
            self._job(job)
        if built is not None:
            self._want(built.job_id, built.job_id in self._wanting)
        for tenant in self._known.values():
            is_below = tenant.is_below()
            if is_below is not (tenant.below_since_s is not None):
                tenant.below_since_s = step.at_s if is_below else None

    def _attempt(self, attempt: AttemptRecord) -> None:
        is_known = attempt.attempt_id in self._live
        if attempt.is_live is is_known:
            return
        used = self._known[self._project[attempt.job_id]].used
        for part in attempt.group.parts:
            used[part.gpu_type] += part.gpu_count if attempt.is_live else -part.gpu_count
        (self._live.add if attempt.is_live else self._live.discard)(attempt.attempt_id)

    def _job(self, job: JobRecord) -> None:
        is_wanting = job.state is JobState.QUEUED and job.wish is Wish.RUN and job.not_before_s <= self._at_s
        self._want(job.job_id, is_wanting)
        if job.ended_at_s is not None:
            tenant = self._known[self._project.pop(job.job_id)]
            self._needs.pop(job.job_id, None)
            tenant.job_count += 1
            tenant.jct_s += job.ended_at_s - job.submitted_at_s

    def _want(self, job_id: JobId, is_wanting: bool) -> None:
        """Count a job among those that want GPUs, or no longer; one without a grid yet fits nowhere."""
        waiting = self._known[self._project[job_id]].waiting
        before = self._wanting.pop(job_id, None)
        if before is not None:
            waiting[before] -= 1
            if not waiting[before]:
                del waiting[before]
        if is_wanting:
            need = self._wanting[job_id] = self._needs.get(job_id, ())
            waiting[need] += 1

    def figures(self) -> tuple[TenantFigures, ...]:
        """Return the account of every tenant, and of all other projects together if they had jobs."""
        return tuple(self._figures())

    def _figures(self) -> Iterator[TenantFigures]:
        for name, one in self._known.items():
            if name in self.tenants or one.job_count or one.gpu_seconds:
                yield TenantFigures(
                    project=name,
                    guaranteed={} if one.share is None else one.share.gpu_count_by_type,
                    job_count=one.job_count,
                    gpu_hours=one.gpu_seconds / 3600.0,
                    borrowed_gpu_hours=one.borrowed_gpu_seconds / 3600.0,
                    below_share_s=one.below_s,
                    below_share_s_max=one.below_s_max,
                    avg_jct_s=one.jct_s / one.job_count if one.job_count else 0.0,
                )


def _need_of(grid: Grid) -> _Need:
    """Return the smallest group of each type; a job that runs on several types at once is left to those."""
    least: dict[str, int] = {}
    for cell in grid.cells:
        if len(cell.group.parts) == 1:
            (part,) = cell.group.parts
            least[part.gpu_type] = min(part.gpu_count, least.get(part.gpu_type, part.gpu_count))
    return tuple(sorted(least.items()))
