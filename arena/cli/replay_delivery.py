"""Where the results of ``arena replay`` go: the terminal, JSON, and the files of a directory."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from arena.cli.app import App
from arena.cli.json_form import document, dumps
from arena.cli.quoting import escaped, quoted
from arena.cli.replay_inputs import Inputs
from arena.cli.replay_jobs import Prepared
from arena.cli.replay_kept import REPORT_FILES
from arena.cli.replay_results import Study, figures_csv, jobs_csv
from arena.cli.replay_runs import code_digest, write_file
from arena.cli.replay_tables import TextTable, numbers, tables_of
from arena.cli.trace import rows_text, source_fields
from arena.cli.words import hours_text
from arena.domain.trace import TraceOutcome
from arena.rpc.version import software_version
from arena.sim.disturbance_files import DisturbancePlan
from arena.units import HOUR_S, format_count

if TYPE_CHECKING:
    from arena.cli.replay_report import About


def deliver(
    app: App, inputs: Inputs, study: Study, first: Prepared, *, directory: Path | None, has_report: bool
) -> None:
    """Write the results, to files first, so that they are there even if nobody reads the rest."""
    files = {} if directory is None else _write_files(inputs, study, first, directory, has_report=has_report)
    if app.out.json_mode:
        app.out.document(**_document(inputs, study, first), files=files)
        return
    for name, value in _account(inputs, first):
        app.out.sentence(f"{name:<12}{value}", hanging=12)
    for table in tables_of(study):
        app.out.line()
        if table.title:
            app.out.sentence(table.title, style="bold")
        app.out.table(table.columns, table.rows, right=numbers(table.columns))
        if table.note:
            app.out.sentence(table.note, hanging=0)
    if directory is not None:
        app.out.line()
        run_count = sum(len(study.runs_of(policy)) for policy in study.policies)
        named = [*sorted(files), f"runs/ ({format_count(run_count, 'run')})"]
        app.out.sentence(f"kept in {quoted(str(directory))}: {', '.join(named)}")


def _document(inputs: Inputs, study: Study, first: Prepared) -> dict[str, object]:
    return {
        "trace": source_fields(inputs.trace) | {"left_out_count": first.trace.accounting.left_out_count},
        "replayed_job_count": len(first.scenario.jobs),
        "unplaceable_count": first.unplaceable_count,
        "changed_count": first.changed_count,
        "gpu_count": inputs.cluster.shape.gpu_count,
        "seeds": study.seeds,
        **inputs.identity(),
        "disturbances": None if inputs.disturbances is None else inputs.disturbances.spec,
        "policies": study.as_document(),
    }


def _write_files(inputs: Inputs, study: Study, first: Prepared, directory: Path, *, has_report: bool) -> dict[str, str]:
    texts = {
        "results.json": dumps(document(**_document(inputs, study, first))) + "\n",
        "results.csv": figures_csv(study),
        "jobs.csv": jobs_csv(study),
    }
    if has_report:
        from arena.cli.replay_report import report_html

        texts["report.html"] = report_html(study, _about(inputs, study, first))
    for name in REPORT_FILES:
        if name in texts:
            write_file(directory / name, texts[name])
    return {name: str(directory / name) for name in texts}


def _account(inputs: Inputs, first: Prepared) -> list[tuple[str, str]]:
    source, accounting = inputs.trace.source, first.trace.accounting
    rows = [
        ("trace", f"{quoted(source.file)} ({source.format_name}), {rows_text(inputs.trace)}"),
        ("replayed", f"{format_count(len(first.scenario.jobs), 'job')}, {accounting.left_out_count:,} left out"),
        *(("", escaped(change)) for change in first.trace.changes),
        ("cluster", f"{format_count(inputs.cluster.shape.gpu_count, 'GPU')}: {_types_text(inputs)}"),
        ("lengths", _lengths_text(inputs)),
        ("changes", _changes_text(inputs)),
    ]
    if planned_anew := _planned_anew_text(inputs, first):
        rows.append(("log", planned_anew))
    if inputs.options.decide_after_s:
        rows.append(("decisions", f"on what was gathered for {inputs.options.decide_after_s:g} s"))
    if budgets := sum(one.spec.budget_usd is not None for one in first.scenario.jobs):
        rows.append(
            (
                "budgets",
                f"{budgets:,} of the jobs {'has' if budgets == 1 else 'have'} one; who cannot pay on is given up",
            )
        )
    if inputs.disturbances is not None:
        rows += [("nodes" if index == 0 else "", text) for index, text in enumerate(_losses_texts(inputs.disturbances))]
    if inputs.table is None and any(one.spec.workload is not None for one in first.scenario.jobs):
        rows.append(("workloads", "planned as models of the names' sizes: no --grids TABLE has measured them"))
    if all(one.spec.command is not None for one in first.scenario.jobs):
        text = "all rigid: the trace does not say how they run on other GPUs, so no policy can shape them"
        rows.append(("jobs", f"{text} (it can with --mapping and --grids)"))
    if first.changed_count:
        asks = f"{format_count(first.changed_count, 'job')} {'asks' if first.changed_count == 1 else 'ask'}"
        rows.append(("asks", f"{asks} for another GPU type or count than the trace says: the nearest that runs"))
    return rows


def _planned_anew_text(inputs: Inputs, first: Prepared) -> str:
    """Return what training took where the log was written beside what it takes here; nothing where neither is known.

    Of jobs that were not over the log does not say how long their steps would have taken.
    """
    from arena_traces.formats.event_log import ARENA_LOG

    measured = [
        (one, one.job.duration_s)
        for one in first.scenario.jobs
        if one.spec.command is None and one.job.duration_s and one.job.outcome is not TraceOutcome.RUNNING
    ]
    if inputs.trace.source.format_name != ARENA_LOG.name or not measured:
        return ""
    then_gpu_s = inputs.options.steps * sum(one.job.gpu_count * ran_s for one, ran_s in measured)
    now_gpu_s = sum(one.gpu_count * one.alone_s for one, _ in measured)
    source = "the planner" if inputs.table is None else "the table"
    return (
        f"its {format_count(len(measured), 'training job')} that ended trained for "
        f"{hours_text(then_gpu_s / HOUR_S)} GPU-hours; replayed at the speed of {source}, the same steps take "
        f"{hours_text(now_gpu_s / HOUR_S)} on what they ask for"
    )


def _types_text(inputs: Inputs) -> str:
    return ", ".join(
        f"{count:,} {escaped(name)}" for name, count in sorted(inputs.cluster.shape.gpu_count_by_type.items())
    )


def _lengths_text(inputs: Inputs) -> str:
    options = inputs.options
    texts = {
        "true": "told as they are",
        "predicted": f"told with a log-normal error of sigma {options.length_sigma:g}",
        "none": "not told",
    }
    return texts[options.lengths]


def _changes_text(inputs: Inputs) -> str:
    options = inputs.options
    start = f"start {options.restart_s:.3g} s" if options.restart_s == inputs.trace.restart_s else ""
    start = f"{start}, as the log says" if start else f"start {options.restart_s:g} s"
    if options.restart_per_gpu_s is not None:
        start = f"start {options.restart_per_gpu_s:g} s a GPU, {options.restart_s:g} s at most"
    parts = [start]
    if options.program_start_s is not None:
        parts[0] += f"; of programs {options.program_start_s:.3g} s, the mean of the log"
    if options.save_s:
        parts.append(f"save {options.save_s:g} s")
    if options.storage_gb_per_s is not None:
        most = "" if options.storage_job_gb_per_s is None else f", {options.storage_job_gb_per_s:g} for a job"
        parts.append(f"checkpoints at {options.storage_gb_per_s:g} GB/s for a node{most}")
    if options.profile_s:
        parts.append(f"profile {options.profile_s:g} s")
    return "; ".join(parts)


def _losses_texts(plan: DisturbancePlan) -> Iterator[str]:
    spec = plan.spec
    for failures in spec.failures:
        which = _which(failures.type, failures.zone)
        yield f"{which} fail after {failures.mean_uptime_s:,.0f} s, repaired in {failures.mean_repair_s:,.0f} s (means)"
    for lent in spec.reclaims:
        again = "" if lent.repeat_every_s is None else f", again every {lent.repeat_every_s:,.0f} s"
        which = _which(lent.type, lent.zone)
        yield f"{which} are lent by {quoted(lent.trace)}, {lent.grace_s:g} s of grace{again}"
    every = "" if spec.checkpoint_every_s is None else f"; jobs save every {spec.checkpoint_every_s:,.0f} s"
    yield f"given up {spec.node_grace_s:g} s after their loss{every}"


def _which(gpu_type: str | None, zone: str | None) -> str:
    where = "" if zone is None else f" of zone {escaped(zone)}"
    return f"{'all' if gpu_type is None else escaped(gpu_type)} nodes{where}"


def _about(inputs: Inputs, study: Study, first: Prepared) -> About:
    from arena.cli.replay_report import About
    from arena_traces.defects import RULES

    counted = inputs.trace.accounting.counted()
    rows = tuple(
        (str(defect), RULES[defect].says, str(treatment), f"{len(lines):,}") for treatment, defect, lines in counted
    )
    return About(
        title=f"Replay of {Path(inputs.trace.source.file).name}",
        gpu_count=inputs.cluster.shape.gpu_count,
        account=tuple(_account(inputs, first)),
        defects=TextTable(title="Rows", columns=("DEFECT", "WHAT", "DONE", "ROWS"), rows=rows) if rows else None,
        repeat=(
            ("command", shlex.join(["arena", *sys.argv[1:]])),
            ("seeds", ", ".join(map(str, study.seeds))),
            *((f"SHA-256 of the {name}", digest) for name, digest in inputs.digests.items()),
            ("version", software_version()),
            ("SHA-256 of the program's sources", code_digest()),
            ("Python", sys.version.split()[0]),
        ),
    )
