"""The jobs that each seed makes of what ``arena replay`` is given."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from arena.cli.replay_inputs import Inputs
from arena.cli.replay_options import ReplayOptions
from arena.cli.replay_tenants import with_projects
from arena.domain.job import JobId, JobSpec, RetrySpec
from arena.domain.trace import TraceJob
from arena.engine.config import EngineConfig
from arena.errors import UserError
from arena.sim.asks import Asked, Asking, Lengths, Unplaceable, parted
from arena.sim.costs import checkpoint_bytes
from arena.sim.disturbance_files import DisturbancePlan
from arena.sim.sources import ReplayGrids
from arena.sim.study import STUDY_CONFIG, Scenario
from arena.units import format_count

if TYPE_CHECKING:
    from arena_traces.trace import Trace

RESTARTS_MAX = 1_000
"""Losses in a row, without a checkpoint between them, after which a job of a trace fails: no retry is without end."""

_NAMED_MAX = 3
_HALF_BIT = 2.0**-54
"""Keeps a draw of [0, 1) off the end where a normal number would be infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a seed makes of the inputs.

    Args:
        trace: The jobs that are replayed, with the account of all others.
        unplaceable_count: Jobs that can never run on the cluster, left out.
        changed_count: Jobs that ask for another GPU type or count than the trace says.
    """

    scenario: Scenario
    trace: Trace
    unplaceable_count: int
    changed_count: int


def prepared(inputs: Inputs, grids: ReplayGrids, *, seed: int) -> Prepared:
    """Return the jobs that a seed makes of a trace.

    Raises:
        UserError: A job can run nowhere, or nothing says how fast or how long it is.
    """
    from arena_traces.mapping import with_workloads
    from arena_traces.parts import from_zero

    options, shape = inputs.options, inputs.cluster.shape
    trace = inputs.trace
    if inputs.mapping is not None:
        trace = with_workloads(trace, inputs.mapping, seed=seed)
    trace = with_projects(trace, options.projects, seed=seed)
    asked, unplaceable = _asked(trace, inputs, grids)
    if unplaceable:
        trace = _without(trace, unplaceable, inputs)
    trace = from_zero(_loaded(trace, asked, inputs))
    by_id = {one.job.job_id: one for one in asked}
    jobs = tuple(replace(by_id[job.job_id], job=job) for job in trace.jobs)
    plan = inputs.disturbances
    if plan is not None:
        jobs = tuple(_hardened(job, plan) for job in jobs)
    scenario = Scenario(
        jobs=jobs,
        shape=shape,
        grids=grids,
        costs=options.costs,
        lengths=_lengths(options, trace.jobs, seed),
        disturbances=() if plan is None else plan.of_seed(seed),
        is_rigid=options.is_rigid,
        until_s=math.inf if options.until_s is None else options.until_s,
        checks_all=options.checks_all,
        config=_config(inputs, jobs),
    )
    return Prepared(
        scenario=scenario,
        trace=trace,
        unplaceable_count=len(unplaceable),
        changed_count=sum(not one.is_as_traced for one in jobs),
    )


def _config(inputs: Inputs, jobs: Sequence[Asked]) -> EngineConfig:
    config = replace(STUDY_CONFIG, decide_after_s=inputs.options.decide_after_s, tenants=inputs.tenants)
    if inputs.trace.restart_s is not None:  # the scheduler of the log went by it, so the replayed one may
        config = replace(config, restart_s=inputs.options.restart_s)
    if any(one.spec.budget_usd is not None for one in jobs):
        prices = {name: gpu_type.usd_per_hour for name, gpu_type in inputs.cluster.gpu_types.items()}
        config = replace(config, usd_per_hour=prices)
    plan = inputs.disturbances
    return config if plan is None else replace(config, node_grace_s=plan.spec.node_grace_s)


def _asked(trace: Trace, inputs: Inputs, grids: ReplayGrids) -> tuple[tuple[Asked, ...], tuple[Unplaceable, ...]]:
    """Return what the jobs of a trace ask for, and those that can run nowhere."""
    options = inputs.options
    asking = Asking(
        grids=grids,
        shape=inputs.cluster.shape,
        step_share=options.steps,
        specs=_without_budgets(trace.spec_by_job) if options.ignores_budgets else trace.spec_by_job,
        needs_data_parallel=options.needs_data_parallel,
        shares=inputs.tenants if options.keeps_shares else {},
        is_rigid=bool(options.is_rigid),
    )
    asked, unplaceable = parted(map(asking.asked, trace.jobs))
    if options.kind == "malleable":
        _require_shapes(asked)
    if options.storage is not None:
        for one in asked:
            checkpoint_bytes(one.spec)
    return asked, unplaceable


def _without_budgets(specs: Mapping[JobId, JobSpec]) -> dict[JobId, JobSpec]:
    return {job_id: spec.model_copy(update={"budget_usd": None}) for job_id, spec in specs.items()}


def _hardened(asked: Asked, plan: DisturbancePlan) -> Asked:
    """Return a job as it is where nodes break: it saves every so often, and goes on after every loss.

    A specification of the trace's own keeps its budget of restarts.
    """
    spec, every_s = asked.spec, plan.spec.checkpoint_every_s
    update: dict[str, object] = {}
    if every_s is not None:
        steps = max(1, round(every_s / asked.step_s))
        update["checkpoint"] = spec.checkpoint.model_copy(update={"interval_steps": steps})
    if spec.train is None:
        update["retry"] = RetrySpec(launch_failures_max=RESTARTS_MAX, restarts_max=RESTARTS_MAX)
    return replace(asked, spec=spec.model_copy(update=update))


def _require_shapes(asked: Sequence[Asked]) -> None:
    fixed = [one for one in asked if one.spec.command is not None]
    if fixed:
        raise UserError(
            f"{len(fixed):,} of {format_count(len(asked), 'job')} cannot be malleable",
            why="the trace says how long they ran on what they had, and nothing of other GPUs",
            fix="say what they train with --mapping and how fast that is with --grids, or leave out --kind malleable",
        )


def _without(trace: Trace, unplaceable: tuple[Unplaceable, ...], inputs: Inputs) -> Trace:
    if not inputs.options.drops_unplaceable or len(unplaceable) == len(trace.jobs):
        raise _nowhere(trace, unplaceable)
    gone = {one.job.job_id for one in unplaceable}
    accounting = trace.accounting
    return replace(
        trace,
        jobs=tuple(job for job in trace.jobs if job.job_id not in gone),
        accounting=replace(
            accounting,
            job_count=accounting.job_count - len(gone),
            left_out_count=accounting.left_out_count + len(gone),
        ),
        draws=tuple(draw for draw in trace.draws if draw.job_id not in gone),
        spec_by_job={job_id: spec for job_id, spec in trace.spec_by_job.items() if job_id not in gone},
        changes=(*trace.changes, *_left_out(unplaceable)),
    )


def _nowhere(trace: Trace, unplaceable: Sequence[Unplaceable]) -> UserError:
    """Return the error of a trace with jobs that can never run."""
    listed = "; ".join(f"{one.job.job_id} (line {one.job.row}): {one.why}" for one in unplaceable[:_NAMED_MAX])
    more = ", ..." if len(unplaceable) > _NAMED_MAX else ""
    ways = ["make the cluster larger"]
    where = "run nowhere on this cluster"
    if any(one.is_shut_out for one in unplaceable):
        ways += ["leave out --tenants, or guarantee less there"]
        is_all_shut_out = all(one.is_shut_out for one in unplaceable)
        where = "never start beside the shares of others" if is_all_shut_out else f"{where}, or not beside its shares"
    if len(unplaceable) < len(trace.jobs):
        ways += ["leave such jobs out with --drop-unplaceable"]
    return UserError(
        f"{len(unplaceable):,} of {format_count(len(trace.jobs), 'job')} can {where}",
        why=listed + more,
        fix=", or ".join(ways),
    )


def _left_out(unplaceable: Sequence[Unplaceable]) -> Iterator[str]:
    """Yield which jobs are left out, by why."""
    shut_out = [one.job.job_id for one in unplaceable if one.is_shut_out]
    if len(shut_out) < len(unplaceable):
        yield f"left out {format_count(len(unplaceable) - len(shut_out), 'job')} that no group of the cluster can run"
    if shut_out:
        more = f" and {len(shut_out) - _NAMED_MAX:,} more" if len(shut_out) > _NAMED_MAX else ""
        named = ", ".join(shut_out[:_NAMED_MAX]) + more
        may = "may not be stopped and can never start beside the shares of others"
        yield f"left out {format_count(len(shut_out), 'job')} that {may}: {named}"


def _loaded(trace: Trace, asked: tuple[Asked, ...], inputs: Inputs) -> Trace:
    """Return the trace with the wished load; where it states no duration, by the time of the steps on what is asked."""
    from arena_traces.parts import with_offered_load

    if inputs.options.load is None:
        return trace
    by_id = {one.job.job_id: one for one in asked}

    def gpu_seconds(job: TraceJob) -> float:
        if job.duration_s is not None:
            return job.duration_s * job.gpu_count * inputs.options.steps
        return by_id[job.job_id].alone_s * by_id[job.job_id].gpu_count

    gpu_count = inputs.cluster.shape.gpu_count
    return with_offered_load(trace, inputs.options.load, gpu_count=gpu_count, gpu_seconds=gpu_seconds)


def _lengths(options: ReplayOptions, jobs: tuple[TraceJob, ...], seed: int) -> Lengths:
    if options.lengths != "predicted":
        return Lengths(is_told=options.lengths == "true")
    return Lengths(factor_by_job={job.job_id: length_factor(options, job, seed) for job in jobs})


def length_factor(options: ReplayOptions, job: TraceJob, seed: int) -> float:
    """Return by which a job's length is predicted wrong: log-normal, median 1, drawn by seed and row alone."""
    from arena_traces.mapping import uniform_number

    number = uniform_number(seed, job.row, purpose="length") + _HALF_BIT
    return math.exp(options.length_sigma * NormalDist().inv_cdf(min(number, 1 - _HALF_BIT)))
