"""What ``arena replay`` is given: files and options, and the jobs that each seed makes of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from arena.cli.replay_options import ReplayOptions
from arena.cli.submit import read_text
from arena.domain.job import RetrySpec
from arena.domain.trace import TraceJob
from arena.errors import UserError
from arena.planner.clusterfile import Cluster, parse_cluster
from arena.planner.source import PlannerGridSource
from arena.planner.table_files import parse_table
from arena.planner.tables import TableGrids
from arena.sim.asks import Asked, Asking, Lengths, Unplaceable, parted
from arena.sim.costs import checkpoint_bytes
from arena.sim.disturbance_files import DisturbancePlan, parse_disturbances
from arena.sim.sources import ReplayGrids
from arena.sim.study import STUDY_CONFIG, Scenario

if TYPE_CHECKING:
    from arena_traces.mapping import WorkloadMapping
    from arena_traces.trace import Trace

PLANNER = "planner"
DEFAULT_MAPPING = "default"
TABLE_BYTES_MAX = 256 * 1024**2
RESTARTS_MAX = 1_000
"""Losses in a row, without a checkpoint between them, after which a job of a trace fails: no retry is without end."""

_NAMED_MAX = 3
_HALF_BIT = 2.0**-54
"""Keeps a draw of [0, 1) off the end where a normal number would be infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Files that were read, and options.

    Args:
        digests: SHA-256 of each file, by what it is.
    """

    trace: Trace
    cluster: Cluster
    table: TableGrids | None
    mapping: WorkloadMapping | None
    disturbances: DisturbancePlan | None
    options: ReplayOptions
    digests: Mapping[str, str]

    @property
    def draws(self) -> bool:
        """Whether a seed makes a difference."""
        has_choice = self.mapping is not None and any(len(one.workloads) > 1 for one in self.mapping.classes)
        fails = self.disturbances is not None and bool(self.disturbances.spec.failures)
        return has_choice or fails or (self.options.lengths == "predicted" and self.options.length_sigma > 0)

    def identity(self) -> dict[str, Any]:
        """Return what sets this study apart from others, as JSON."""
        return {"sha256": dict(self.digests), "trace_changes": self.trace.changes, "options": asdict(self.options)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a seed makes of the inputs.

    Args:
        trace: The jobs that are replayed, with the account of all others.
        unplaceable_count: Jobs that no group of the cluster can run, left out.
        changed_count: Jobs that ask for another GPU type or count than the trace says.
    """

    scenario: Scenario
    trace: Trace
    unplaceable_count: int
    changed_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Files beside the trace, as the command line names them; None is none."""

    cluster: str
    grids: str = PLANNER
    mapping: str | None = None
    disturbances: str | None = None


def read_inputs(trace: Trace, files: Files, options: ReplayOptions) -> Inputs:
    """Read the files beside the trace.

    Raises:
        UserError: One of them cannot be read, or they do not go together.
    """
    cluster_text = read_text(files.cluster, command="replay")
    digests = {"trace": trace.source.sha256, "cluster": _sha256(cluster_text)}
    cluster = parse_cluster(cluster_text, source=files.cluster)
    table = found = disturbances = None
    if files.grids != PLANNER:
        text = _large_text(files.grids)
        table, digests["table"] = parse_table(text, source=files.grids), _sha256(text)
    if files.mapping is not None:
        found = _mapping(files.mapping)
        digests["mapping"] = found.digest
    if files.disturbances is not None:
        disturbances = _disturbances(files.disturbances, cluster, digests)
    inputs = Inputs(
        trace=trace,
        cluster=cluster,
        table=table,
        mapping=found,
        disturbances=disturbances,
        options=options,
        digests=digests,
    )
    _check(inputs)
    return inputs


def _disturbances(file: str, cluster: Cluster, digests: dict[str, str]) -> DisturbancePlan:
    """Read what is to happen to nodes; the digests of it and of what it names are added."""
    text = read_text(file, command="replay")
    digests["disturbances"] = _sha256(text)

    def read_beside(name: str) -> str:
        found = read_text(str(Path(file).parent / name), command="replay")
        digests[f"availability {name}"] = _sha256(found)
        return found

    return parse_disturbances(text, cluster.shape, source=file, read_text=read_beside)


def _check(inputs: Inputs) -> None:
    names_workloads = any(job.workload is not None for job in inputs.trace.jobs)
    file = inputs.trace.source.file
    if inputs.table is not None and inputs.mapping is None and not names_workloads:
        raise UserError(
            f"{file} names no workloads, so that --grids {inputs.table.name} says nothing of its jobs",
            fix="say what they train with --mapping default (or a FILE), or leave out --grids: "
            "each job then runs as long as in the trace, on as many GPUs",
        )


def _mapping(name: str) -> WorkloadMapping:
    from arena_traces.mapping import default_mapping, parse_mapping

    if name == DEFAULT_MAPPING:
        return default_mapping()
    return parse_mapping(read_text(name, command="replay"), source=name)


def _large_text(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            data = file.read(TABLE_BYTES_MAX + 1)
        if len(data) > TABLE_BYTES_MAX:
            raise UserError(f"{name} is larger than {TABLE_BYTES_MAX // 1024**2} MiB", why="a table is no trace")
        return data.decode("utf-8")
    except OSError as error:
        fix = f"--grids is {PLANNER}, or a file with step times (arena/cli/replay.md)"
        raise UserError(f"cannot read {name}", why=str(error.strerror), fix=fix) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is no UTF-8 text", why=f"byte {error.start}: {error.reason}") from error


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def grids_of(inputs: Inputs) -> ReplayGrids:
    """Return where grids come from."""
    gpu_types = inputs.cluster.gpu_types
    return ReplayGrids(
        planner=PlannerGridSource(gpu_types=gpu_types),
        table=inputs.table,
        # Named models are of the trace's world, and may want what the worker does not do (fp16).
        named=PlannerGridSource(gpu_types=gpu_types, beyond_worker=True),
    )


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
    asking = Asking(
        grids=grids,
        shape=shape,
        step_share=options.steps,
        specs=trace.spec_by_job,
        needs_data_parallel=options.needs_data_parallel,
    )
    asked, unplaceable = parted(map(asking.asked, trace.jobs))
    if options.kind == "malleable":
        _require_shapes(asked)
    if options.storage is not None:
        for one in asked:
            checkpoint_bytes(one.spec)
    if unplaceable:
        trace = _without(trace, unplaceable, inputs)
    trace = from_zero(_loaded(trace, asked, inputs))
    by_id = {one.job.job_id: one for one in asked}
    jobs = tuple(replace(by_id[job.job_id], job=job) for job in trace.jobs)
    plan, config = inputs.disturbances, STUDY_CONFIG
    if plan is not None:
        jobs = tuple(_hardened(job, plan) for job in jobs)
        config = replace(config, node_grace_s=plan.spec.node_grace_s)
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
        config=config,
    )
    return Prepared(
        scenario=scenario,
        trace=trace,
        unplaceable_count=len(unplaceable),
        changed_count=sum(not one.is_as_traced for one in jobs),
    )


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
            f"{len(fixed):,} of {len(asked):,} jobs cannot be malleable",
            why="the trace says how long they ran on what they had, and nothing of other GPUs",
            fix="say what they train with --mapping and how fast that is with --grids, or leave out --kind malleable",
        )


def _without(trace: Trace, unplaceable: tuple[Unplaceable, ...], inputs: Inputs) -> Trace:
    if not inputs.options.drops_unplaceable or len(unplaceable) == len(trace.jobs):
        listed = "; ".join(f"{one.job.job_id} (line {one.job.row}): {one.why}" for one in unplaceable[:_NAMED_MAX])
        more = ", ..." if len(unplaceable) > _NAMED_MAX else ""
        raise UserError(
            f"{len(unplaceable):,} of {len(trace.jobs):,} jobs can run nowhere on this cluster",
            why=listed + more,
            fix="make the cluster larger, or leave such jobs out with --drop-unplaceable",
        )
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
        changes=(*trace.changes, f"left out {len(gone):,} jobs that no group of the cluster can run"),
    )


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
