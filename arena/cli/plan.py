"""``arena plan``: a job's grid over the groups of a cluster file, without a scheduler."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Timer
from typing import TYPE_CHECKING, Any

import click

from arena.cli.app import App, command
from arena.cli.file_kinds import FileKind, read_as
from arena.cli.numbers import FiniteRange
from arena.cli.plan_explain import Explanation, explain, names_gpus, stage_memory
from arena.cli.plan_grid import (
    Goal,
    LayoutBounds,
    PricedCell,
    Work,
    infeasible_counts,
    layout_bounds,
    merged,
    one_for_each_count,
    priced_cells,
)
from arena.cli.plan_mixed import MixedPlan, best_mixed, explain_mixed
from arena.cli.plan_mixed_tables import write_mixed, write_mixed_explanation
from arena.cli.plan_profiles import with_profiles
from arena.cli.plan_tables import (
    short_text,
    write_details,
    write_explanation,
    write_front,
    write_grid,
    write_infeasible,
    write_layouts,
)
from arena.cli.quoting import escaped, quoted
from arena.cli.submit import field_and_value, read_text, spec_of_file
from arena.cli.words import plan_text
from arena.domain.allocation import GpuGroup
from arena.domain.capability import job_refusals
from arena.domain.grid import Grid
from arena.domain.job import JobSpec, TrainSpec
from arena.domain.parallel import ParallelPlan, parse_plan
from arena.domain.reason import ReasonCode
from arena.errors import InfeasibleError, UserError
from arena.planner.clusterfile import Cluster, parse_cluster
from arena.planner.heterogeneous.limits import none_keeps
from arena.planner.heterogeneous.offer import Constraints
from arena.planner.search import Counts
from arena.planner.source import PlannerGridSource
from arena.units import format_count

if TYPE_CHECKING:
    from rich.console import Console

_BAR_AFTER_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is planned, and where."""

    spec: JobSpec
    train: TrainSpec
    cluster: Cluster
    goal: Goal
    constraints: Constraints
    beyond_worker: bool

    @property
    def work(self) -> Work:
        return Work.of(self.train)


@command(asks_scheduler=False, short_help="What a job would do on each group of a cluster.")
@click.argument("job", metavar="JOB.yaml")
@click.option("--cluster", "cluster_file", metavar="FILE", required=True, help="Nodes and GPU types, in YAML.")
@click.option(
    "--objective",
    type=click.Choice([goal.value for goal in Goal]),
    default=Goal.THROUGHPUT.value,
    show_default=True,
    help="What comes first.",
)
@click.option("--max-usd-per-step", type=FiniteRange(0, min_open=True), help="Only plans within this budget.")
@click.option("--min-steps-per-s", type=FiniteRange(0, min_open=True), help="Only plans at least so fast.")
@click.option("--deadline-s", type=FiniteRange(0, min_open=True), help="Only plans that end in time.")
@click.option("--gpus", type=click.IntRange(1), help="Only groups of so many GPUs, whatever the job says.")
@click.option("--type", "types", multiple=True, help="Only this GPU type, whatever the job says; may be repeated.")
@click.option("--explain", "plan", metavar="PLAN", help="Price this plan, e.g. 'dp4 tp2 pp1 mb1 zero1'.")
@click.option("--profile", "profiles", metavar="FILE", multiple=True, help="Measured layer times; may be repeated.")
@click.option("--png", metavar="FILE", help="Draw GPU types by GPU counts (needs matplotlib).")
@click.option("--all", "shows_all", is_flag=True, help="Every node shape, not only the best of each type and count.")
@click.option("--details", is_flag=True, help="Time breakdown and memory by stage of every group, not of the best.")
@click.option("--also-unsupported", is_flag=True, help="Also models and precisions that Arena's worker does not train.")
@click.option("--set", "overrides", metavar="FIELD=VALUE", multiple=True, help="Replace a field of the job.")
def plan(app: App, job: str, **options: Any) -> int | None:
    """Show the best plan of a job on each group of a cluster; no scheduler is needed.

    \b
    arena plan job.yaml --cluster cluster.yaml
    arena plan job.yaml --cluster cluster.yaml --gpus 8 --objective cost
    arena plan job.yaml --cluster cluster.yaml --explain 'dp2 tp4 pp1 mb1'
    """  # noqa: D301 - click wants the backspace itself
    if options["png"] is not None:
        from arena.cli.drawing import check_matplotlib

        check_matplotlib("--png", instead="use --json")
        if options["plan"] is not None:
            raise UserError("--png draws a grid, --explain has none", fix="give one of them")
    asked = _asked(job, options)
    if options["plan"] is not None:
        return _explain(app, asked, options["plan"])
    return _plan(app, asked, options)


def _asked(job: str, options: dict[str, Any]) -> _Asked:
    spec = spec_of_file(job, [field_and_value(item) for item in options["overrides"]])
    if spec.train is None:
        raise UserError(
            f"job {spec.name} runs a command, which lays itself out",
            why="only a job with `train` has plans",
            fix="describe its model under `train` (arena/cli/job-file.md)",
        )
    file = options["cluster_file"]
    cluster_text = read_text(file, command="plan")
    with read_as(FileKind.CLUSTER, cluster_text, source=file):
        cluster = parse_cluster(cluster_text, source=file)
    if options["profiles"]:
        cluster = replace(cluster, gpu_types=with_profiles(cluster.gpu_types, options["profiles"], spec.train))
    asked = _Asked(
        spec=spec,
        train=spec.train,
        cluster=cluster,
        goal=Goal(options["objective"]),
        constraints=_constraints(spec, options),
        beyond_worker=options["also_unsupported"],
    )
    limits = spec.gpus.model_copy(update=_limits(asked, options))
    return replace(asked, spec=spec.model_copy(update={"gpus": limits}))


def _constraints(spec: JobSpec, options: dict[str, Any]) -> Constraints:
    """Return what the options ask for, or else the job itself: its deadline, and its budget shared over its steps."""
    steps = spec.step_limit
    if options["deadline_s"] is not None and steps is None:
        raise UserError(
            "a deadline needs to know how many steps there are",
            fix="set stop.steps in the job, or --set stop.steps=N",
        )
    own_budget = spec.budget_usd / steps if spec.budget_usd is not None and steps is not None else None
    deadline_s = options["deadline_s"] or (spec.deadline_s if steps is not None else None)
    return Constraints(
        usd_per_step_max=options["max_usd_per_step"] or own_budget,
        steps_per_s_min=options["min_steps_per_s"],
        deadline_s=deadline_s,
        steps=steps if deadline_s is not None else None,
    )


def _limits(asked: _Asked, options: dict[str, Any]) -> dict[str, Any]:
    """Return what the options replace of the job's GPU limits."""
    limits: dict[str, Any] = {}
    count, types, pinned = options["gpus"], options["types"], asked.spec.parallel.plan
    if count is not None and options["plan"] is not None:
        raise UserError("--gpus and --explain exclude each other", why="a plan has its own size")
    if count is not None:
        if pinned is not None:
            raise UserError(
                f"the job pins plan '{pinned}', which has its own size",
                fix=f"leave out --gpus {count}, or take the plan out of the file",
            )
        limits |= {"count": count, "min": None, "max": None}
    present = sorted(asked.cluster.shape.gpu_count_by_type)
    unknown = sorted(set(types) - set(present))
    if unknown:
        raise UserError(f"no {', '.join(unknown)} GPUs in this cluster", fix=f"--type is one of {', '.join(present)}")
    return limits | ({"types": tuple(types)} if types else {})


def _explain(app: App, asked: _Asked, text: str) -> int | None:
    plan = parse_plan(text, layer_count=asked.train.model.layers)
    if names_gpus(plan):
        return _explain_mixed(app, asked, plan)
    found = explain(
        plan,
        asked.spec,
        asked.train,
        shape=asked.cluster.shape,
        gpu_types=asked.cluster.gpu_types,
        beyond_worker=asked.beyond_worker,
    )
    if app.out.json_mode:
        app.out.document(job=asked.spec.name, **_work_fields(asked.work), **_explanation_fields(found))
    else:
        write_explanation(app.out, found, asked.work)
    return None if found.runs_somewhere else InfeasibleError.exit_code


def _explain_mixed(app: App, asked: _Asked, plan: ParallelPlan) -> int | None:
    found = explain_mixed(plan, asked.spec, asked.train, asked.cluster, beyond_worker=asked.beyond_worker)
    if app.out.json_mode:
        app.out.document(job=asked.spec.name, **_work_fields(asked.work), mixed=found)
    else:
        write_mixed_explanation(app.out, found, asked.work)
    return InfeasibleError.exit_code if found.refusals else None


def _explanation_fields(found: Explanation) -> dict[str, Any]:
    return {"plan": found.plan, "refusals": found.refusals, "groups": found.groups}


def _work_fields(work: Work) -> dict[str, Any]:
    return {"unit": work.unit, "units_per_step": work.units_per_step}


def _plan(app: App, asked: _Asked, options: dict[str, Any]) -> int | None:
    grid, counts = _grid(asked, shows_progress=not app.out.json_mode and sys.stderr.isatty())
    every = priced_cells(grid, asked.work, asked.cluster.gpu_types, asked.goal)
    rows = tuple(row for row in every if asked.constraints.keeps(row.best.estimate))
    bounds = (
        layout_bounds(asked.train, asked.spec.parallel, _groups(asked, grid)) if options["gpus"] is not None else ()
    )
    mixed = best_mixed(
        asked.spec,
        asked.train,
        asked.cluster,
        asked.goal,
        constraints=asked.constraints,
        beyond_worker=asked.beyond_worker,
    )
    if every and not rows and mixed is None:
        raise none_keeps(asked.constraints, [row.best.estimate for row in every])
    drawn = _drawn(asked, grid, rows, options["png"])
    if app.out.json_mode:
        _write_json(app, asked, grid, rows=rows, layouts=bounds, mixed=mixed, png=drawn, counts=counts)
    else:
        _write_text(app, asked, grid, rows=rows, layouts=bounds, mixed=mixed, options=options)
        if counts.judged:
            fit = "of them fits" if counts.timed == 1 else "of them fit"
            app.out.line()
            app.out.line(f"{format_count(counts.judged, 'plan')} evaluated, {counts.timed:,} {fit}")
        if len(rows) < len(every):
            have = f"{len(every) - len(rows)} of {format_count(len(every), 'group')}"
            app.out.sentence(
                f"{have} {'has' if len(every) - len(rows) == 1 else 'have'} no plan that keeps the constraints"
            )
        if drawn is not None:
            app.out.line()
            app.out.line(f"drawn in {quoted(drawn)}")
    return None if rows or mixed else InfeasibleError.exit_code


def _grid(asked: _Asked, *, shows_progress: bool) -> tuple[Grid, Counts]:
    """Return the grid of each GPU type, put together, with what was looked at; a type says why if it has no group."""
    source = PlannerGridSource(gpu_types=asked.cluster.gpu_types, beyond_worker=asked.beyond_worker)
    types = sorted(asked.spec.gpus.types or asked.cluster.shape.gpu_count_by_type)
    grids: list[Grid] = []
    counts = Counts()
    for gpu_type in with_progress(types, _error_console()) if shows_progress else types:
        limits = asked.spec.gpus.model_copy(update={"types": (gpu_type,)})
        grid, more = source.counted_grid(asked.spec.model_copy(update={"gpus": limits}), asked.cluster.shape)
        grids.append(grid)
        counts = counts.plus(more)
    return merged(grids), counts


def _error_console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def with_progress(types: Sequence[str], console: Console, *, after_s: float = _BAR_AFTER_S) -> Iterator[str]:
    """Yield GPU types; when that takes longer than ``after_s``, with a bar that is gone at the end."""
    from rich.progress import Progress

    progress = Progress(console=console, transient=True)
    # With one type there is no telling how far it is: the bar pulses.
    task = progress.add_task("", total=len(types) if len(types) > 1 else None)
    start = Timer(after_s, progress.start)
    start.daemon = True
    start.start()
    try:
        for gpu_type in types:
            progress.update(task, description=f"planning on {escaped(gpu_type)}")
            yield gpu_type
            progress.advance(task)
    finally:
        start.cancel()
        start.join()
        if progress.live.is_started:
            progress.stop()


def _groups(asked: _Asked, grid: Grid) -> list[GpuGroup]:
    """Return the groups that the cluster has, feasible or not."""
    there = [item for item in grid.infeasible if item.reason.code is not ReasonCode.EXCEEDS_CLUSTER]
    groups = [*(cell.group for cell in grid.cells), *(item.group for item in there)]
    return [group for group in groups if group.parts[0].gpu_type in asked.cluster.shape.gpu_count_by_type]


def _drawn(asked: _Asked, grid: Grid, rows: Iterable[PricedCell], path: str | None) -> str | None:
    """Draw the grid if that was asked for and there is something to draw; return where."""
    best = one_for_each_count(rows)
    if path is None or not best:
        return None
    from arena.cli.plan_heatmap import write_heatmap

    write_heatmap(path, best, _groups(asked, grid), work=asked.work, goal=asked.goal)
    return path


def _is_only_untrained(asked: _Asked, grid: Grid) -> bool:
    """Whether it is what the worker trains, and not the size, that keeps the job from every group."""
    is_refused = any(job_refusals(asked.train)) and not any(job_refusals(asked.train, beyond_worker=True))
    return is_refused and {item.reason.code for item in grid.infeasible} == {ReasonCode.UNSUPPORTED}


def _write_json(
    app: App,
    asked: _Asked,
    grid: Grid,
    *,
    rows: tuple[PricedCell, ...],
    layouts: tuple[LayoutBounds, ...],
    mixed: MixedPlan | None,
    png: str | None,
    counts: Counts,
) -> None:
    app.out.document(
        job=asked.spec.name,
        objective=asked.goal,
        **_work_fields(asked.work),
        cells=rows,
        front=[str(row.group) for row in rows if row.is_on_front],
        infeasible=grid.infeasible,
        layouts=layouts,
        mixed=mixed,
        source=grid.source,
        plans_evaluated=counts.judged,
        plans_fitting=counts.timed,
        png=png,
    )


def _write_text(
    app: App,
    asked: _Asked,
    grid: Grid,
    *,
    rows: tuple[PricedCell, ...],
    layouts: tuple[LayoutBounds, ...],
    mixed: MixedPlan | None,
    options: dict[str, Any],
) -> None:
    shown = rows if options["shows_all"] else one_for_each_count(rows)
    if rows:
        write_grid(app.out, shown, asked.work, left_out=len(rows) - len(shown))
        write_front(app.out, rows, asked.work, asked.goal)
        for row in shown if options["details"] else shown[:1]:
            _write_best(app, asked, row)
    else:
        app.out.line("no group of this cluster can hold the job", style="red")
        if _is_only_untrained(asked, grid):
            app.out.sentence("Arena's worker does not train such a model; --also-unsupported plans it nevertheless")
    if mixed is not None:
        write_mixed(app.out, mixed, asked.work, asked.goal)
    write_infeasible(app.out, infeasible_counts(grid))
    if layouts:
        write_layouts(app.out, layouts)


def _write_best(app: App, asked: _Asked, row: PricedCell) -> None:
    assert row.best.plan is not None, "a training job has plans"
    stages = stage_memory(row.best.plan, asked.train, asked.cluster.gpu_types[row.group.parts[0].gpu_type])
    title = f"{short_text(row.group)}: {plan_text(row.best.plan, row.group)}"
    write_details(app.out, row, row.best.estimate, stages, title=title)
