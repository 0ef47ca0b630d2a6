"""``arena trace``: what is wrong with a trace, and what it is like; no scheduler is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click

from arena.cli.app import App, LocalGroup, command, flags_of, shared_options
from arena.cli.quoting import escaped, quoted
from arena.cli.settings import Flags
from arena.cli.words import NOTHING, hours_text
from arena.errors import UserError
from arena.units import format_count, format_duration

if TYPE_CHECKING:
    from arena_traces.statistics import TraceStatistics
    from arena_traces.trace import Trace

_SHOWN_LINES_MAX = 5
_JSON_LINES_MAX = 100
_GPU_COUNT_MAX = 10**9


@click.group(cls=LocalGroup, short_help="Check traces of clusters, and what they are like.")
@shared_options
@click.pass_context
def trace(context: click.Context, /, **options: Any) -> None:
    """Traces of clusters: who submitted what, when.

    FILE is a table or a log, plain or packed by gz or zip; traces/arena_traces/README.md has the formats, and what is
    done about rows with defects.
    """
    outer = context.obj if isinstance(context.obj, Flags) else Flags()
    context.obj = flags_of(options).over(outer)


def reading_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what says how a trace is read."""
    drop = click.option(
        "--drop",
        "dropped",
        metavar="DEFECT",
        multiple=True,
        help="Drop rows with this defect and go on; may be repeated.",
    )
    name = click.option(
        "--format", "format_name", metavar="NAME", help="Format of the file, where its first line lies."
    )
    return name(drop(function))


@command(asks_scheduler=False, short_help="What format a trace has, and what is wrong with it.")
@click.argument("file", metavar="FILE")
@reading_options
def check(app: App, file: str, **options: Any) -> None:
    """Read a trace to its end and give account of every row that was dropped or repaired.

    A trace that cannot be read ends with the line that is to blame.
    """
    read = read_with_options(file, options)
    if app.out.json_mode:
        app.out.document(**source_fields(read), ignored_columns=read.source.ignored_columns, defects=_defects(read))
        return
    _write_check(app, read)


@command(asks_scheduler=False, short_help="Jobs, arrivals, GPUs, durations and load of a trace.")
@click.argument("file", metavar="FILE")
@click.option(
    "--gpus", "gpu_count", type=click.IntRange(1, _GPU_COUNT_MAX), help="GPUs of the cluster that it is offered to."
)
@reading_options
def stats(app: App, file: str, gpu_count: int | None, **options: Any) -> None:
    """Show what a trace is like."""
    from arena_traces.statistics import statistics

    read = read_with_options(file, options)
    found = statistics(read, gpu_count=gpu_count)
    if app.out.json_mode:
        app.out.document(**source_fields(read), gpu_count=gpu_count, statistics=found)
        return
    for name, value in _stats_rows(found, gpu_count):
        app.out.sentence(f"{name:<18}{value}", hanging=18)
    if read.accounting.dropped_count or read.accounting.repaired_count:
        app.out.sentence(rows_text(read) + "; see `arena trace check`")


trace.add_command(check)
trace.add_command(stats)


def read_with_options(file: str, options: dict[str, Any]) -> Trace:
    """Read a trace as ``reading_options`` say."""
    from arena_traces.defects import RULES, Defect
    from arena_traces.reading import read_trace

    names = options["dropped"]
    unknown = [name for name in names if name not in set(Defect)]
    if unknown:
        droppable = [one for one in Defect if RULES[one].can_drop]
        close = get_close_matches(unknown[0], droppable, n=1)
        meant = f"did you mean {close[0]}? These" if close else "these"
        fix = f"{meant} can be dropped: {', '.join(droppable)}"
        raise UserError(f"--drop {quoted(unknown[0])}: there is no defect of that name", fix=fix)
    return read_trace(file, format=options["format_name"], dropped=frozenset(Defect(name) for name in names))


def source_fields(read: Trace) -> dict[str, object]:
    """Return where a trace comes from and how many of its rows are jobs, as JSON has it."""
    accounting = read.accounting
    return {
        "file": read.source.file,
        "format": read.source.format_name,
        "sha256": read.source.sha256,
        "row_count": accounting.row_count,
        "job_count": accounting.job_count,
        "dropped_count": accounting.dropped_count,
        "repaired_count": accounting.repaired_count,
    }


def _defects(read: Trace) -> list[dict[str, object]]:
    from arena_traces.defects import RULES

    return [
        {
            "treatment": treatment,
            "defect": defect,
            "says": RULES[defect].says,
            "row_count": len(lines),
            "lines": lines[:_JSON_LINES_MAX],
        }
        for treatment, defect, lines in read.accounting.counted()
    ]


def _write_check(app: App, read: Trace) -> None:
    from arena_traces.defects import RULES

    source = read.source
    app.out.sentence(f"{quoted(source.file)}: {source.format_name}, sha256 {source.sha256}")
    app.out.sentence(rows_text(read))
    if source.ignored_columns:
        app.out.sentence(f"columns that the format does not read: {', '.join(map(escaped, source.ignored_columns))}")
    rows = [
        (str(treatment), str(defect), f"{len(lines):,}", _lines_text(lines), RULES[defect].says)
        for treatment, defect, lines in read.accounting.counted()
    ]
    if rows:
        app.out.line()
        app.out.table(("DONE", "DEFECT", "ROWS", "LINES", "WHAT IT IS"), rows, right=("ROWS",))


def rows_text(read: Trace) -> str:
    """Return what became of all rows."""
    accounting = read.accounting
    rows, jobs = format_count(accounting.row_count, "row"), format_count(accounting.job_count, "job")
    repaired = f"{accounting.repaired_count:,} of the jobs repaired"
    return f"{rows}: {jobs}, {accounting.dropped_count:,} dropped; {repaired}"


def _lines_text(lines: Sequence[int]) -> str:
    text = ", ".join(map(str, lines[:_SHOWN_LINES_MAX]))
    return f"{text}, ..." if len(lines) > _SHOWN_LINES_MAX else text


def _stats_rows(found: TraceStatistics, gpu_count: int | None) -> Iterator[tuple[str, str]]:
    yield "jobs", f"{found.job_count:,}"
    yield "span", f"{format_duration(found.span_s)} ({found.span_days:.2f} days)"
    yield "jobs per hour", f"{_number(found.jobs_per_hour, '.2f')} (fullest clock hour: {found.peak_jobs_per_hour:,})"
    yield "arrival CV", f"{_number(found.arrival_cv, '.2f')} (Poisson: 1)"
    yield "GPUs per job", f"{_number(found.gpu_count_mean, '.2f')} ({_percent(found.multi_gpu_share)} ask for several)"
    histogram = "  ".join(f"{count}: {jobs:,}" for count, jobs in found.job_count_by_gpu_count.items())
    yield "jobs by GPUs", histogram or NOTHING
    yield "durations", _durations_text(found)
    yield "jobs with steps", f"{found.step_job_count:,}"
    yield "GPU-hours", NOTHING if found.gpu_hours is None else hours_text(found.gpu_hours)
    yield "busy GPUs", f"{_number(found.busy_gpus_mean, ',.1f')} on average over the span"
    if gpu_count is not None:
        load = _percent(found.offered_load)
        count = found.too_large_count or 0
        too_large = f"{format_count(count, 'job')} {'asks' if count == 1 else 'ask'} for more than all"
        yield "offered load", f"{load} of {format_count(gpu_count, 'GPU')} ({too_large})"
    yield "outcomes", "  ".join(f"{name}: {jobs:,}" for name, jobs in found.job_count_by_outcome.items()) or NOTHING


def _durations_text(found: TraceStatistics) -> str:
    duration = found.duration
    if duration is None:
        return "not stated"
    points = (("p10", duration.p10_s), ("p50", duration.p50_s), ("p90", duration.p90_s), ("p99", duration.p99_s))
    text = "  ".join(f"{name} {value:,.0f} s" for name, value in (*points, ("max", duration.max_s)))
    return (
        text
        if found.duration_job_count == found.job_count
        else f"{text}  (of {format_count(found.duration_job_count, 'job')})"
    )


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.1%}"
