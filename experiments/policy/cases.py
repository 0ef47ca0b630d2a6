"""From drawn jobs to a replay: the cluster, the load, what the scheduler is told. Pure: no I/O, no clock."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from arena.domain.cluster import ClusterShape
from arena.domain.grid import Grid, GridSource
from arena.domain.job import JobId
from arena.domain.trace import TraceJob
from arena.errors import UserError
from arena.sim.asks import Asked, Asking, Lengths, parted
from arena.sim.costs import ConstantRestart, SimCosts
from arena.sim.sources import ReplayGrids
from arena.sim.study import STUDY_CONFIG, Scenario
from arena_traces.mapping import uniform_number
from arena_traces.parts import from_zero, with_offered_load
from arena_traces.trace import Accounting, Source, Trace
from experiments.policy.arrivals import Drawn
from experiments.policy.disturbed import BelievedGrids, TrueMemory, TruePace, killed_early, limited
from experiments.policy.drawing import log_normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A replay to be made under any policy.

    Args:
        setting: What was done to the draw.
        truth: Grids of the world; those of the scenario are what the policy sees.
        identity: What sets its result apart from others, as JSON.
        load_at_least: Offered load where every job took the least GPU time that its grid knows.
        notes: What was done to the trace, for people.
    """

    scenario: Scenario
    setting: Setting
    truth: GridSource
    seed: int
    identity: dict[str, Any]
    load_at_least: float
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is done to a draw, and what the scheduler is told; terms are those of ``arena replay``.

    Args:
        load: Offered load that arrivals are scaled to; None leaves them as they are.
        counts_least: Whether the load counts the least GPU time that a job's grid knows, and not, as ``arena replay``
            does, the GPU time on what it asks for.
        lengths: ``true``, ``predicted`` or ``none``.
        length_sigma: Of the log-normal error of predicted lengths, whose median is 1.
        restart_s: Seconds of every start, from launch to first step.
        killed_share: Of the jobs, killed early by their users (``experiments.policy.disturbed``).
        bias_sigma: Of the estimates, by model family and GPU type.
        bias_link: Factor of the estimates for groups of several nodes.
        kind: ``malleable``, or ``moldable``: shaped at the start only.
        keeps_type: Whether jobs stay on the GPU type that they ask for, or, where they ask for none, on one that is
            drawn for them.
        plans: ``all``, or ``data-parallel`` alone; the grids that are given go by it.
        no_fit_share: Of the groups of each model family that run out of memory, whatever the grids say.
        decide_after_s: What happens is gathered for so long before it is decided about.
    """

    load: float | None = None
    counts_least: bool = False
    lengths: str = "true"
    length_sigma: float = 1.0
    restart_s: float = 60.0
    killed_share: float = 0.0
    bias_sigma: float = 0.0
    bias_link: float = 1.0
    kind: str = "malleable"
    keeps_type: bool = False
    plans: str = "all"
    no_fit_share: float = 0.0
    decide_after_s: float = 0.0

    @property
    def costs(self) -> SimCosts:
        """What changes take."""
        restart = ConstantRestart(first_s=self.restart_s, again_s=self.restart_s)
        return SimCosts(start_s=0.0, restart=restart, save_s=0.0, exit_s=0.0)

    @property
    def is_biased(self) -> bool:
        """Whether the policy sees other times than the world has."""
        return self.bias_sigma > 0 or self.bias_link != 1


def case_of(
    drawn: Drawn,
    grids: GridSource,
    shape: ClusterShape,
    *,
    setting: Setting,
    seed: int,
    reference: GridSource | None = None,
) -> Case:
    """Return the replay of a draw.

    Args:
        grids: Of the world.
        reference: By which the load counts, where that is not the world.

    Raises:
        UserError: A job can run nowhere on the cluster.
    """
    by_id = _asked(drawn, grids, shape)
    if reference is None:
        trace = _loaded(drawn, by_id, grids, shape, setting)
    else:
        trace = _loaded(drawn, _asked(drawn, reference, shape), reference, shape, setting)
    jobs = tuple(replace(by_id[job.job_id], job=job) for job in trace.jobs)
    scenario = _disturbed(jobs, grids, shape, setting=setting, seed=seed)
    return Case(
        scenario=scenario,
        setting=setting,
        truth=grids,
        seed=seed,
        identity=_identity(drawn, grids, shape, setting) | {"jobs": _digest(scenario)},
        load_at_least=_load_at_least(jobs, grids, shape),
        notes=(*drawn.notes, *trace.changes),
    )


def _disturbed(
    jobs: tuple[Asked, ...], grids: GridSource, shape: ClusterShape, *, setting: Setting, seed: int
) -> Scenario:
    lengths = lengths_of(setting, tuple(one.job for one in jobs), seed)
    jobs = tuple(_limited(one, grids, shape, setting=setting, seed=seed) for one in jobs)
    if setting.killed_share:
        jobs, lengths = killed_early(jobs, lengths, share=setting.killed_share, seed=seed)
    costs, seen = setting.costs, grids
    if setting.is_biased:
        seen = BelievedGrids(truth=grids, sigma=setting.bias_sigma, link=setting.bias_link, seed=seed)
        costs = replace(costs, pace=TruePace(truth=grids, shape=shape))
    if setting.no_fit_share:
        memory = TrueMemory(grids=seen, shape=shape, share=setting.no_fit_share, seed=seed)
        costs = replace(costs, memory=memory)
    config = replace(STUDY_CONFIG, decide_after_s=setting.decide_after_s)
    return Scenario(jobs=jobs, shape=shape, grids=seen, costs=costs, lengths=lengths, config=config)


def _asked(drawn: Drawn, grids: GridSource, shape: ClusterShape) -> dict[JobId, Asked]:
    asking = Asking(grids=ReplayGrids(planner=grids, table=grids), shape=shape)
    asked, unplaceable = parted(map(asking.asked, drawn.jobs))
    if unplaceable:
        raise UserError(f"{len(unplaceable)} jobs can run nowhere on the cluster", why=unplaceable[0].why)
    return {one.job.job_id: one for one in asked}


def _loaded(
    drawn: Drawn, by_id: Mapping[JobId, Asked], grids: GridSource, shape: ClusterShape, setting: Setting
) -> Trace:
    count = len(drawn.jobs)
    source = Source(file="drawn", format_name="drawn", sha256="")
    trace = Trace(source=source, jobs=drawn.jobs, accounting=Accounting(row_count=count, job_count=count))
    if setting.load is not None:

        def gpu_seconds(job: TraceJob) -> float:
            one = by_id[job.job_id]
            if setting.counts_least:
                return least_gpu_seconds(grids.grid(one.spec, shape), one.step_count)
            return one.alone_s * one.gpu_count

        trace = with_offered_load(trace, setting.load, gpu_count=shape.gpu_count, gpu_seconds=gpu_seconds)
    return from_zero(trace)


def _limited(one: Asked, grids: GridSource, shape: ClusterShape, *, setting: Setting, seed: int) -> Asked:
    types = sorted({cell.group.parts[0].gpu_type for cell in grids.grid(one.spec, shape).cells})
    own = one.gpu_type or types[int(uniform_number(seed, one.job.row, purpose="type") * len(types))]
    return limited(one, kind=setting.kind, gpu_type=own if setting.keeps_type else None)


def lengths_of(setting: Setting, jobs: tuple[TraceJob, ...], seed: int) -> Lengths:
    """Return what the scheduler is told of lengths."""
    if setting.lengths != "predicted":
        return Lengths(is_told=setting.lengths == "true")
    return Lengths(factor_by_job={job.job_id: log_normal(setting.length_sigma, seed, job.row) for job in jobs})


def least_gpu_seconds(grid: Grid, step_count: int) -> float:
    """Return the least GPU time in which a job's steps can be made."""
    return step_count * min(cell.best.estimate.iter_time_s * cell.group.gpu_count for cell in grid.cells)


def _load_at_least(jobs: tuple[Asked, ...], grids: GridSource, shape: ClusterShape) -> float:
    span_s = jobs[-1].job.submitted_at_s - jobs[0].job.submitted_at_s
    total = math.fsum(least_gpu_seconds(grids.grid(one.spec, shape), one.step_count) for one in jobs)
    return total / (span_s * shape.gpu_count) if span_s else math.inf


def _digest(scenario: Scenario) -> str:
    """Return a SHA-256 over what the jobs are and what is told of their lengths."""
    found = hashlib.sha256()
    for one in scenario.jobs:
        told = scenario.lengths.stop(one).steps
        job = one.job
        values = (job.job_id, job.submitted_at_s, job.outcome.value, one.step_count, told, one.ask)
        # Without defaults: a field that specifications have got since changes no run.
        found.update(f"{values!r} {one.spec.model_dump_json(exclude_defaults=True)}\n".encode())
    return found.hexdigest()


_CAME_LATER = frozenset({"no_fit_share", "decide_after_s"})


def _named(setting: Setting) -> dict[str, Any]:
    """Return a setting as JSON; what came to be one later is left out where it changes nothing: runs stay known."""
    fields = asdict(setting)
    return {name: value for name, value in fields.items() if value or name not in _CAME_LATER}


def _identity(drawn: Drawn, grids: GridSource, shape: ClusterShape, setting: Setting) -> dict[str, Any]:
    pools = [[pool.gpu_type, pool.gpus_per_node, pool.node_count] for pool in shape.pools]
    return {
        "sha256": dict(drawn.sha256),
        "notes": list(drawn.notes),
        "grids": grids.version,
        "pools": pools,
        "setting": _named(setting),
        "job_count": len(drawn.jobs),
    }
