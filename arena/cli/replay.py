"""``arena replay``: a trace under several policies, by the production engine on a virtual clock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from arena.cli.app import App, command
from arena.cli.numbers import FiniteRange
from arena.cli.quoting import escaped
from arena.cli.trace import read_with_options, reading_options, rows_text
from arena.errors import UserError

if TYPE_CHECKING:
    from arena.cli.replay_inputs import Inputs
    from arena.cli.replay_jobs import Prepared
    from arena.cli.replay_options import ReplayOptions
    from arena.cli.replay_runs import Order
    from arena.engine.ports import Step
    from arena_traces.trace import Trace


@command(asks_scheduler=False, short_help="Replay a trace of a cluster under several policies; no scheduler needed.")
@click.argument("file", metavar="TRACE")
@click.option("--cluster", "cluster_file", metavar="FILE", required=True, help="Nodes and GPU types, in YAML.")
@click.option(
    "--policy",
    "policies",
    metavar="A,B,...",
    default="fcfs",
    show_default=True,
    help="The first is the one that others are compared to.",
)
@click.option("--load", type=FiniteRange(0, min_open=True), help="Scale arrivals to this offered load, e.g. 0.9.")
@click.option("--first", "first_count", type=click.IntRange(1), help="Only the first so many jobs.")
@click.option(
    "--window", type=(float, float), metavar="FROM TO", help="Only jobs submitted from FROM to before TO seconds."
)
@click.option(
    "--grids",
    metavar="planner|mixed|TABLE",
    default="planner",
    show_default=True,
    help="How fast jobs are: the planner, it with groups of several GPU types, or a file of step times.",
)
@click.option("--mapping", metavar="default|FILE", help="Give jobs workloads by their GPU-hours.")
@click.option(
    "--steps",
    type=FiniteRange(0, 1e6, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of the steps that the trace states.",
)
@click.option(
    "--kind",
    type=click.Choice(["auto", "rigid", "malleable"]),
    default="auto",
    show_default=True,
    help="Whether jobs get what they ask for; auto: as the policy was published.",
)
@click.option(
    "--lengths",
    type=click.Choice(["true", "predicted", "none"]),
    default="true",
    show_default=True,
    help="What the scheduler is told of the length of jobs.",
)
@click.option(
    "--length-sigma",
    type=FiniteRange(0, 10),
    default=1.0,
    show_default=True,
    help="Of the log-normal error of predicted lengths.",
)
@click.option(
    "--restart-s",
    type=FiniteRange(0, 1e9),
    help="Seconds of every start and restart; default: what the log of a scheduler says (what starts of programs took, "
    "and what it went by for others), else 60.",
)
@click.option(
    "--restart-per-gpu-s", type=FiniteRange(0, 1e9), help="So many seconds for each GPU instead, up to --restart-s."
)
@click.option(
    "--storage-gb-per-s",
    type=FiniteRange(1e-6, 1e6),
    help="Checkpoints are saved and loaded at so many GB/s for each node of a job, beside --restart-s and --save-s.",
)
@click.option("--storage-job-gb-per-s", type=FiniteRange(1e-6, 1e6), help="At most so many for one job.")
@click.option(
    "--save-s", type=FiniteRange(0, 1e9), default=0.0, show_default=True, help="Seconds of a save before a stop."
)
@click.option(
    "--profile-s",
    type=FiniteRange(0, 1e9),
    default=0.0,
    show_default=True,
    help="Seconds on one more GPU, charged to the job, until it is known how fast it would be; commands need none.",
)
@click.option(
    "--decide-after",
    "decide_after_s",
    type=FiniteRange(0, 1e9),
    metavar="SECONDS",
    default=0.0,
    show_default=True,
    help="Gather what happens for so long before each decision, as `arena scheduler --decide-after`.",
)
@click.option("--ignore-budgets", is_flag=True, help="Jobs of a scheduler's log may cost whatever they cost.")
@click.option(
    "--disturbances",
    "disturbances_file",
    metavar="FILE",
    help="Failures of nodes, and lent nodes that are taken back, in YAML.",
)
@click.option("--tenants", "tenants_file", metavar="FILE", help="GPUs that projects are guaranteed, in YAML.")
@click.option(
    "--project",
    "projects",
    metavar="NAME=SHARE",
    multiple=True,
    help="Deal this share of the jobs, where the trace names no project, to this one; may be repeated.",
)
@click.option(
    "--seeds",
    "seed_count",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Draws of workloads and of errors of lengths.",
)
@click.option(
    "--until",
    "until_s",
    type=FiniteRange(0, min_open=True),
    help="Cut the run so many seconds after the first submission.",
)
@click.option(
    "--jobs",
    "process_count",
    type=click.IntRange(-1),
    default=1,
    show_default=True,
    help="Runs at the same time; -1: one for each core.",
)
@click.option("--drop-unplaceable", is_flag=True, help="Leave out jobs that can never run there, and count them.")
@click.option("--check", "checks_all", is_flag=True, help="Examine the engine's whole state after every event; slow.")
@click.option("--out", metavar="DIR", help="Keep results there (JSON, CSV, HTML), and go on where a study stopped.")
@click.option("--force", is_flag=True, help="With --out: replace the report of another replay there.")
@click.option("--no-report", is_flag=True, help="With --out: no HTML.")
@reading_options
def replay(app: App, file: str, **options: Any) -> None:
    """Replay a trace under several policies and compare them over all jobs.

    \b
    arena replay cluster03.csv --cluster cluster.yaml --policy fcfs,elastic
    arena replay cluster03.csv --cluster cluster.yaml --policy fcfs,arena-greedy --grids steps.csv \\
        --mapping default --load 0.9 --seeds 5 --jobs 4 --out results
    """  # noqa: D301 - click wants the backspace itself
    from arena.cli.replay_delivery import deliver
    from arena.cli.replay_inputs import Files, grids_of, read_inputs
    from arena.cli.replay_jobs import prepared
    from arena.cli.replay_kept import require_same_replay
    from arena.cli.replay_results import Study
    from arena.cli.replay_runs import check_writable, run_all

    policies = _policies(options["policies"])
    directory = _directory(options)
    settings = _settings(options, policies)
    trace = _part(read_with_options(file, options), options)
    if options["restart_s"] is None:
        restart_s = settings.restart_s if trace.restart_s is None else trace.restart_s
        settings = replace(settings, restart_s=restart_s, program_start_s=trace.program_start_s)
    files = Files(
        cluster=options["cluster_file"],
        grids=options["grids"],
        mapping=options["mapping"],
        disturbances=options["disturbances_file"],
        tenants=options["tenants_file"],
    )
    inputs = read_inputs(trace, files, settings)
    seeds = _seeds(inputs, options["seed_count"])
    if directory is not None:
        if not options["force"]:
            require_same_replay(directory, inputs, policies, seeds)
        check_writable(directory)
    grids = grids_of(inputs)
    made = {seed: prepared(inputs, grids, seed=seed) for seed in seeds}
    orders = _orders(inputs, policies, made)
    with _progress(app, orders, options["process_count"]) as (watch_of, tell):
        runs = run_all(
            orders,
            process_count=options["process_count"],
            directory=directory,
            watch_of=watch_of,
            tell=tell,
        )
    study = Study(policies=policies, seeds=seeds, runs=tuple(runs))
    deliver(app, inputs, study, made[seeds[0]], directory=directory, has_report=not options["no_report"])


def _policies(text: str) -> tuple[str, ...]:
    from arena.sim.study import policy_named

    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UserError("--policy names no policy", fix="give one or several, e.g. --policy fcfs,elastic")
    if len(set(names)) < len(names):
        raise UserError(f"--policy {text} names one twice", fix="give each once")
    for name in names:
        policy_named(name)
    return names


def _directory(options: dict[str, Any]) -> Path | None:
    if options["out"] is None:
        return None
    if not options["no_report"]:
        from arena.cli.drawing import check_matplotlib

        check_matplotlib("a report", instead="add --no-report")
    path = Path(options["out"])
    if path.exists() and not path.is_dir():
        raise UserError(f"--out {options['out']} is a file", fix="name a directory")
    return path


def _settings(options: dict[str, Any], policies: Sequence[str]) -> ReplayOptions:
    from arena.cli.replay_options import ReplayOptions
    from arena.cli.replay_tenants import project_shares
    from arena.policies.registry import keeps_shares
    from arena.sim.study import is_data_parallel, policy_named

    if options["process_count"] == 0:
        raise UserError("--jobs 0 runs nothing", fix="give a number from 1 on, or -1 for one for each core")
    options["projects"] = project_shares(options["projects"])
    own = {field.name: options[field.name] for field in fields(ReplayOptions) if options.get(field.name) is not None}
    return ReplayOptions(
        drops_unplaceable=options["drop_unplaceable"],
        ignores_budgets=options["ignore_budgets"],
        needs_data_parallel=any(is_data_parallel(policy_named(name)) for name in policies),
        keeps_shares=any(keeps_shares(policy_named(name).name) for name in policies),
        **own,
    )


def _part(trace: Trace, options: dict[str, Any]) -> Trace:
    from arena_traces.parts import first_jobs, window

    if options["window"] is not None:
        from_s, to_s = options["window"]
        trace = window(trace, from_s=from_s, to_s=to_s)
    if options["first_count"] is not None:
        trace = first_jobs(trace, options["first_count"])
    if not trace.jobs:
        raise UserError(f"{trace.source.file} has no jobs to replay", why=rows_text(trace), fix="see arena trace check")
    return trace


def _seeds(inputs: Inputs, count: int) -> tuple[int, ...]:
    if count > 1 and not inputs.draws:
        raise UserError(
            f"--seeds {count} would run the same thing {count} times",
            why="nothing is drawn: the trace has its own jobs, their lengths are told as they are, and no node fails",
            fix="leave out --seeds, or draw something with --mapping, --lengths predicted, --project or --disturbances",
        )
    return tuple(range(count))


def _orders(inputs: Inputs, policies: Sequence[str], made: dict[int, Prepared]) -> list[Order]:
    from arena.cli.replay_runs import Order, key_of

    identity = inputs.identity()
    return [
        Order(
            policy=policy,
            seed=seed,
            scenario=one.scenario,
            key=key_of(identity, policy=policy, seed=seed, trace_changes=one.trace.changes),
        )
        for policy in policies
        for seed, one in made.items()
    ]


Progress = tuple["Callable[[Order], Callable[[Step], None]]", "Callable[[Order, bool], None]"]


@contextmanager
def _progress(app: App, orders: Sequence[Order], process_count: int) -> Iterator[Progress]:
    """Show how far the study is: by jobs that ended where one run goes at a time, else by runs."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    is_shown = not app.out.json_mode and sys.stderr.isatty()
    by_jobs = process_count == 1
    total = sum(len(order.scenario.jobs) for order in orders) if by_jobs else len(orders)
    with Bar(console=console, transient=True, disable=not is_shown) as bar:
        task = bar.add_task("replaying", total=total)

        def watch_of(order: Order) -> Callable[[Step], None]:
            bar.update(task, description=escaped(f"{order.policy}, seed {order.seed}"))

            def watch(step: Step) -> None:
                ended = sum(job.state.is_terminal for job in step.jobs)
                if ended:
                    bar.advance(task, ended)

            return watch

        def tell(order: Order, is_kept: bool) -> None:
            if not by_jobs:
                bar.advance(task)
            elif is_kept:
                bar.advance(task, len(order.scenario.jobs))

        yield watch_of, tell
