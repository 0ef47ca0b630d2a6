"""What is wrong with what a scheduler believes, and what jobs permit: studies change one thing at a time.

Estimates: the policy sees grids whose times are off by a log-normal factor for each (model family, GPU type), so that
a whole family is believed faster on a type than it is, and the order of types is wrong; and, where ``link`` is not 1,
by a further factor for groups of several nodes (0.7: believed to take 0.7 of the true time). The world keeps the truth.

Users: a share of the jobs is killed by its user after a part of its steps, uniform in (0, 1); the scheduler is told the
full length, or its prediction of it.

Memory: a share of the groups cannot hold the model that its grid says they hold, drawn for each model family and group,
alike for all jobs of a draw; who runs there dies at the first step. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape
from arena.domain.grid import Cell, Grid, GridSource
from arena.domain.job import GpuLimits, JobId, JobKind, JobSpec
from arena.domain.trace import TraceOutcome
from arena.errors import InternalError
from arena.sim.asks import Asked, Lengths
from arena_traces.mapping import uniform_number
from experiments.policy.drawing import log_normal


@dataclass(frozen=True, slots=True, kw_only=True)
class BelievedGrids:
    """Grids as the policy sees them.

    Args:
        truth: The world's.
        sigma: Of the log-normal factor of each family and type.
        link: Factor of groups of several nodes.
        seed: Of the draws.
    """

    truth: GridSource
    sigma: float
    link: float
    seed: int
    _made: dict[tuple[object, ...], Grid] = field(default_factory=dict, repr=False, compare=False)

    @property
    def version(self) -> str:
        """The truth's, and what is wrong."""
        return f"{self.truth.version}, off by sigma {self.sigma:g} and {self.link:g} on links, seed {self.seed}"

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        """Return the job's grid with wrong times, in the order that these give."""
        key = (spec.workload, spec.gpus, shape)
        if key not in self._made:
            true = self.truth.grid(spec, shape)
            cells = [self._believed(spec, cell) for cell in true.cells]
            cells.sort(key=lambda cell: (cell.group.gpu_count, cell.best.estimate.iter_time_s, cell.group))
            self._made[key] = replace(true, cells=tuple(cells), source=self.version)
        return self._made[key]

    def factor(self, spec: JobSpec, group: GpuGroup) -> float:
        """Return believed over true time."""
        family = spec.workload.name.split("__")[0] if spec.workload is not None else ""
        purpose = f"bias of {family} on {group.parts[0].gpu_type}"
        link = self.link if group.node_count > 1 else 1.0
        return log_normal(self.sigma, self.seed, 0, purpose=purpose) * link

    def _believed(self, spec: JobSpec, cell: Cell) -> Cell:
        estimate = cell.best.estimate
        wrong = replace(estimate, iter_time_s=estimate.iter_time_s * self.factor(spec, cell.group))
        return replace(cell, best=replace(cell.best, estimate=wrong), others=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TruePace:
    """Steps take as long as the true grids say, whatever was believed."""

    truth: GridSource
    shape: ClusterShape

    def step_s(self, spec: JobSpec, group: GpuGroup, *, estimated_s: float) -> float:
        """Return the true seconds of a step."""
        cell = self.truth.grid(spec, self.shape).cell(group)
        if cell is None:
            raise InternalError(f"{spec.name} runs on {group}, which its true grid does not know ({estimated_s:g} s)")
        return cell.best.estimate.iter_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueMemory:
    """Some groups run out of memory; of each job's grid one never does, the slowest of those with the most GPUs.

    Args:
        share: Of the groups, drawn for each model family.
        seed: Of the draws.
    """

    grids: GridSource
    shape: ClusterShape
    share: float
    seed: int

    def runs_out(self, spec: JobSpec, group: GpuGroup) -> bool:
        """Tell whether a job does not fit."""
        family = spec.workload.name.split("__")[0] if spec.workload is not None else ""
        if uniform_number(self.seed, 0, purpose=f"memory of {family} on {group}") >= self.share:
            return False
        return group != self.grids.grid(spec, self.shape).cells[-1].group


def killed_early(
    jobs: tuple[Asked, ...], lengths: Lengths, *, share: float, seed: int
) -> tuple[tuple[Asked, ...], Lengths]:
    """Return the jobs of which a share is killed before its end, and what is told of their lengths."""
    cut: dict[JobId, float] = {}
    for one in jobs:
        if uniform_number(seed, one.job.row, purpose="killed") < share:
            cut[one.job.job_id] = uniform_number(seed, one.job.row, purpose="killed after")
    changed = tuple(_cut(one, cut.get(one.job.job_id)) for one in jobs)
    return changed, replace(lengths, factor_by_job=_told(jobs, changed, lengths))


def _cut(asked: Asked, part: float | None) -> Asked:
    if part is None:
        return asked
    job = replace(asked.job, outcome=TraceOutcome.CANCELLED)
    return replace(asked, job=job, step_count=max(1, round(asked.step_count * part)))


def _told(before: tuple[Asked, ...], after: tuple[Asked, ...], lengths: Lengths) -> Mapping[JobId, float]:
    """Return factors to the steps that are really made, so that the same is told as before."""
    return {
        old.job.job_id: lengths.factor_by_job.get(old.job.job_id, 1.0) * old.step_count / new.step_count
        for old, new in zip(before, after, strict=True)
    }


def limited(asked: Asked, *, kind: str, gpu_type: str | None) -> Asked:
    """Return a job that permits less.

    Args:
        kind: ``malleable`` as it is, ``moldable`` shaped at its start only.
        gpu_type: On which alone it runs; None leaves it as it is.
    """
    update: dict[str, object] = {}
    if kind == JobKind.MOLDABLE:
        update["kind"] = JobKind.MOLDABLE
    if gpu_type is not None:
        update["gpus"] = GpuLimits(types=(gpu_type,))
    return replace(asked, spec=asked.spec.model_copy(update=update))
