"""From jobs of a trace to jobs of a replay: what each asks for, what the scheduler is told, how it really goes.

A job is one of three kinds: a specification of the source's own (Arena's log), a workload of which a table or the
planner knows how fast it is, or, where only its duration is known, a rigid command that makes a step a second.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape
from arena.domain.grid import Cell, Grid
from arena.domain.job import CommandSpec, GpuLimits, JobId, JobKind, JobSpec, StopSpec
from arena.domain.reason import Reason
from arena.domain.tenants import Guarantees
from arena.domain.trace import TraceJob, TraceOutcome
from arena.errors import UserError
from arena.policies.beside_shares import never_beside_shares
from arena.policies.greedy_rosters import Ask
from arena.sim.replay import ReplayJob
from arena.sim.sources import ReplayGrids
from arena.sim.world import Fate

TRACED = CommandSpec(argv=("traced",))
"""What a job runs of which nothing but its duration is known."""

_TERMS = ("priority", "weight", "budget_usd", "preemptible", "grace_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A job of a trace, and what it asks for on a cluster.

    Args:
        spec: What it is, without its end; ``gpus`` are the limits of a job that may be shaped.
        step_count: Steps it really makes.
        gpu_type: GPU type that it asks for; None where any will do.
        group: The fastest of what it asks for.
        step_s: Seconds per step there.
        is_as_traced: Whether type and count are those of the trace, and not the nearest that can run it.
    """

    job: TraceJob
    spec: JobSpec
    step_count: int
    gpu_type: str | None
    group: GpuGroup
    step_s: float
    is_as_traced: bool = True

    @property
    def gpu_count(self) -> int:
        """GPUs that it asks for."""
        return self.group.gpu_count

    @property
    def alone_s(self) -> float:
        """Time of its steps on what it asks for."""
        return self.step_count * self.step_s

    @property
    def ask(self) -> Ask:
        """Type and count; the empty type is any."""
        return (self.gpu_type or "", self.gpu_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaceable:
    """A job that can never run here, and why.

    Args:
        is_shut_out: Whether groups of the cluster could run it, but it can never start beside the shares of others.
    """

    job: TraceJob
    why: str
    is_shut_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Makes jobs of a trace ask for something that a cluster has.

    Args:
        step_share: Steps of a job, as a share of what the trace states.
        specs: Specifications of the source's own.
        needs_data_parallel: A job must also have a data-parallel plan: a policy of the study knows no others.
        shares: GPUs that a policy of the study guarantees to projects.
        is_rigid: Whether that policy is told that jobs get what they ask for.
    """

    grids: ReplayGrids
    shape: ClusterShape
    step_share: float = 1.0
    specs: Mapping[JobId, JobSpec] = field(default_factory=dict)
    needs_data_parallel: bool = False
    shares: Guarantees = field(default_factory=dict)
    is_rigid: bool = False
    _steps: dict[tuple[object, ...], _Found | str] = field(default_factory=dict, repr=False)

    def asked(self, job: TraceJob) -> Asked | Unplaceable:
        """Return what a job asks for.

        Raises:
            UserError: The trace says neither how long it runs nor what it has to do, or its workload is not known.
        """
        spec, step_count = self._spec(job)
        found = self._found(job, spec)
        if isinstance(found, str):
            return Unplaceable(job=job, why=found)
        asked = Asked(
            job=job,
            spec=spec,
            step_count=max(1, round(step_count * self.step_share)),
            gpu_type=found.gpu_type,
            group=found.group,
            step_s=found.step_s,
            is_as_traced=found.group.gpu_count == job.gpu_count and found.gpu_type == job.gpu_type,
        )
        never = self._never(asked)
        return asked if never is None else Unplaceable(job=job, why=str(never), is_shut_out=True)

    def _never(self, asked: Asked) -> Reason | None:
        """Return why a job, as a policy that keeps shares is told of it, could wait forever for what others have."""
        if not self.shares or asked.spec.preemptible:
            return None
        told = _told(asked, Telling(is_rigid=self.is_rigid, lengths=Lengths()))
        return never_beside_shares(told, self.grids.grid(told, self.shape), self.shares, self.shape)

    def _spec(self, job: TraceJob) -> tuple[JobSpec, float]:
        own = self.specs.get(job.job_id)
        if own is not None and own.train is not None and job.step_count is not None:
            return own.model_copy(update={"stop": StopSpec()}), job.step_count
        fields: dict[str, Any] = {"name": _name(job), "deadline_s": job.deadline_s}
        fields |= {"project": job.project} if job.project else {}
        if job.workload is not None and job.step_count is not None:
            return JobSpec(workload=job.workload, kind=JobKind.MALLEABLE, **fields), job.step_count
        if job.duration_s is None:
            raise UserError(
                f"job {job.job_id} (line {job.row}) states neither a workload with steps nor a duration",
                fix="leave it out of the trace, or say with --mapping what its kind of job trains",
            )
        gpus = GpuLimits(count=job.gpu_count)
        if own is not None:  # what its user said of it beside what it runs
            fields |= {name: getattr(own, name) for name in _TERMS}
        return JobSpec(command=TRACED, kind=JobKind.RIGID, gpus=gpus, **fields), job.duration_s

    def _found(self, job: TraceJob, spec: JobSpec) -> _Found | str:
        key = (spec.workload, spec.train, spec.gpus, spec.parallel, job.gpu_type, job.gpu_count)
        if key not in self._steps:
            self._steps[key] = self._lacking(spec) or _asked_for(self.grids.grid(spec, self.shape), job)
        return self._steps[key]

    def _lacking(self, spec: JobSpec) -> str:
        """Return why a job can have no data-parallel plan where it needs one, empty where it can."""
        if not self.needs_data_parallel or spec.command is not None:
            return ""
        if spec.workload is not None and not self.grids.knows_plans(spec):
            raise UserError(
                f"which plans of {spec.workload.name} are data-parallel is not known",
                why="a table has the time of a step, and not by which plan",
                fix="leave out the policy that knows no others, or the table: what workloads name is then planned",
            )
        grid = self.grids.grid(data_parallel(spec), self.shape)
        return "" if grid.cells else "it has no data-parallel plan on this cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    gpu_type: str | None
    group: GpuGroup
    step_s: float


def _name(job: TraceJob) -> str:
    """Return a name that a specification may have; ids of traces may be anything."""
    return f"line-{job.row}"


def _asked_for(grid: Grid, job: TraceJob) -> _Found | str:
    """Return the cell nearest to what the trace says: its type where there is one, the count or the next larger."""
    if not grid.cells:
        return str(grid.infeasible[0].reason) if grid.infeasible else "no group of the cluster fits it"
    alike = [cell for cell in grid.cells if cell.group.parts[0].gpu_type == job.gpu_type]
    best = min(alike or grid.cells, key=lambda cell: _distance(cell, job.gpu_count))
    gpu_type = job.gpu_type if alike else None
    return _Found(gpu_type=gpu_type, group=best.group, step_s=best.best.estimate.iter_time_s)


def _distance(cell: Cell, gpu_count: int) -> tuple[bool, int, float]:
    """At least as many GPUs before fewer, then the nearest count, then the fastest."""
    count = cell.group.gpu_count
    return count < gpu_count, abs(count - gpu_count), cell.best.estimate.iter_time_s


def parted(found: Iterable[Asked | Unplaceable]) -> tuple[tuple[Asked, ...], tuple[Unplaceable, ...]]:
    """Return the jobs that can run somewhere, and those that cannot."""
    asked, unplaceable = [], []
    for one in found:
        if isinstance(one, Asked):
            asked.append(one)
        else:
            unplaceable.append(one)
    return tuple(asked), tuple(unplaceable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """What the scheduler is told of the length of jobs.

    Args:
        is_told: False tells nothing.
        factor_by_job: By which what is told is wrong; who is missing is told right.
    """

    is_told: bool = True
    factor_by_job: Mapping[JobId, float] = field(default_factory=dict)

    def stop(self, asked: Asked) -> StopSpec:
        """Return the end that a job declares."""
        if not self.is_told:
            return StopSpec()
        factor = self.factor_by_job.get(asked.job.job_id, 1.0)
        return StopSpec(steps=max(1, round(asked.step_count * factor)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """How a policy is told of jobs.

    Args:
        is_rigid: Whether jobs get what they ask for; else their count may be chosen for them, where a job allows it.
        is_data_parallel: Whether their replicas stay whole on one GPU, where a job is described and not measured.
    """

    is_rigid: bool
    lengths: Lengths
    is_data_parallel: bool = False


def replay_jobs(jobs: Sequence[Asked], telling: Telling) -> Iterator[ReplayJob]:
    """Yield the jobs as a scheduler is told of them."""
    for asked in jobs:
        job = asked.job
        yield ReplayJob(
            job_id=job.job_id,
            submitted_at_s=job.submitted_at_s,
            spec=_told(asked, telling),
            fate=_fate(asked),
            user=job.user or "trace",
        )


def _fate(asked: Asked) -> Fate:
    outcome = asked.job.outcome
    return Fate(
        step_count=asked.step_count,
        is_cancelled=outcome is TraceOutcome.CANCELLED,
        is_failed=outcome is TraceOutcome.FAILED,
    )


def _told(asked: Asked, telling: Telling) -> JobSpec:
    update: dict[str, object] = {"stop": telling.lengths.stop(asked)}
    types = (asked.gpu_type,) if asked.gpu_type is not None else ()
    if asked.spec.kind is JobKind.RIGID:
        update["gpus"] = asked.spec.gpus.model_copy(update={"types": types or asked.spec.gpus.types})
    elif telling.is_rigid:
        limits = {"count": asked.gpu_count, "min": None, "max": None, "types": types or asked.spec.gpus.types}
        update |= {"kind": JobKind.RIGID, "gpus": asked.spec.gpus.model_copy(update=limits)}
    spec = asked.spec.model_copy(update=update)
    return data_parallel(spec) if telling.is_data_parallel else spec


def data_parallel(spec: JobSpec) -> JobSpec:
    """Return a job whose replicas stay whole on one GPU; a command has none."""
    if spec.command is not None:
        return spec
    return spec.model_copy(
        update={"parallel": spec.parallel.model_copy(update={"tp_max": 1, "pp_max": 1, "zero": (0,)})}
    )
