"""``arena status``: GPUs, jobs, who runs where, what waits and why, and what needs attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

import click

from arena.cli import words
from arena.cli.app import App, command
from arena.cli.output import Output
from arena.cli.quoting import escaped, quoted
from arena.cli.reason_texts import said_of, sentence
from arena.domain.records import JobState
from arena.domain.tenants import Guarantee
from arena.rpc.views import GpuCounts, JobView, StatusView, TenantShare
from arena.units import format_duration

_BAR_CELLS = 20
_SHARES_IN_LINE_MAX = 4
"""Projects with shares that have a line of their own; more are a table."""
_GPU_MARKS = (("used", "#"), ("draining", "-"), ("dirty", "x"), ("down", "!"), ("free", "."))
_WHERE_SHOWN: Mapping[str, str] = {JobState.FAILED: "arena jobs --state failed"}
"""Of jobs that are over, those that somebody should look at."""
State = TypeVar("State", bound=StrEnum)


@command(short_help="The cluster at a glance.")
@click.option("--limit", type=click.IntRange(0), default=0, help="Most jobs in each list (0: the scheduler's choice).")
def status(app: App, limit: int) -> None:
    """Show the cluster at a glance."""
    with app.client() as client:
        view = client.status(job_count_max=limit)
    if app.out.json_mode:
        app.out.document(status=view)
    else:
        write_status(app.out, view)


def write_status(out: Output, view: StatusView) -> None:
    """Write the status for a person."""
    out.sentence(_headline(view))
    for warning in _warnings(view):
        out.sentence(f"WARNING  {warning}", hanging=9, style="bold red")
    out.line()
    _write_gpus(out, view.gpus)
    out.line()
    out.sentence(f"JOBS   {_counts_text(view.job_count_by_state, _WHERE_SHOWN)}", hanging=7)
    out.sentence(f"NODES  {_counts_text(view.node_count_by_state)}", hanging=7)
    if len(view.tenants) <= _SHARES_IN_LINE_MAX:
        for index, tenant in enumerate(view.tenants):
            out.sentence(f"{'SHARES' if index == 0 else '':<6} {_share_text(tenant)}", hanging=9)
    else:
        _write_tenants(out, view.tenants)
    _write_active(out, view)
    _write_waiting(out, view)


def _headline(view: StatusView) -> str:
    decided = "no decision yet"
    if view.decided_at_s is not None:
        age = words.age_text(view.decided_at_s, view.now_s)
        decided = f"decision {view.decision_index} {age} took {view.decision_time_s * 1000:.1f} ms"
    up = format_duration(max(0.0, view.now_s - view.started_at_s))
    return f"arena {escaped(view.scheduler_version)}, policy {escaped(view.policy)}, up {up}, {decided}"


def _warnings(view: StatusView) -> list[str]:
    warnings = [escaped(warning) for warning in view.warnings]
    if view.read_only_cause is not None:
        warnings.insert(0, f"read-only, submissions are refused: {escaped(view.read_only_cause)}")
    for job in view.active_jobs:
        if job.progress.stalled_since_s is not None:
            age = words.age_text(job.progress.stalled_since_s, view.now_s)
            warnings.append(f"job {quoted(job.job_id)} stalled {age}, at step {job.progress.step}")
    return warnings


def _write_gpus(out: Output, counts: Sequence[GpuCounts]) -> None:
    if not counts:
        out.line("GPUS   none: no agent has registered yet; start one with `arena agent`")
        return
    columns = ("GPUS", "TOTAL", "USED", "FREE", "DRAINING", "DIRTY", "DOWN", "")
    rows = [
        (
            escaped(item.gpu_type),
            *(str(number) for number in (item.total, item.used, item.free, item.draining, item.dirty, item.down)),
            f"[{gpu_bar(item)}]",
        )
        for item in counts
    ]
    out.table(columns, rows, right=columns[1:7])


def _share_text(tenant: TenantShare) -> str:
    """Return what a project uses of its share, in words; what is nothing is left out."""
    told = [f"uses {tenant.used}{f' of {_guaranteed_text(tenant)}' if tenant.guaranteed else ''}"]
    if borrowed := _borrowed(tenant):
        told.append(f"{borrowed} borrowed")
    if tenant.lent:
        told.append(f"{tenant.lent} lent")
    jobs = ((tenant.running_jobs, "running"), (tenant.waiting_jobs, "waiting"))
    told += [f"{count} {what}" for count, what in jobs if count]
    return f"{_project_text(tenant)} {', '.join(told)}"


def _project_text(tenant: TenantShare) -> str:
    return quoted(tenant.project) if tenant.project else "(others)"


def _borrowed(tenant: TenantShare) -> int:
    """Return the GPUs that a project has beyond its share; who has none has only what is nobody's or others'."""
    return max(tenant.used - sum(tenant.guaranteed.values()), 0) if tenant.guaranteed else 0


def _write_tenants(out: Output, tenants: Sequence[TenantShare]) -> None:
    """Write the guaranteed shares, and who has borrowed of them."""
    rows = [
        (
            _project_text(one),
            _guaranteed_text(one),
            str(one.used),
            str(max(one.used - sum(one.guaranteed.values()), 0)),
            str(one.lent),
            str(one.running_jobs),
            str(one.waiting_jobs),
        )
        for one in tenants
    ]
    columns = ("PROJECT", "GUARANTEED", "USED", "BORROWED", "LENT", "RUNNING", "WAITING")
    out.line()
    out.table(columns, rows, right=columns[2:])


def _guaranteed_text(tenant: TenantShare) -> str:
    if not tenant.guaranteed:
        return "-"
    return escaped(str(Guarantee(gpu_count_by_type=tenant.guaranteed)))


def gpu_bar(counts: GpuCounts, cell_count: int = _BAR_CELLS) -> str:
    """Return a bar of ``#`` used, ``-`` draining, ``x`` dirty, ``!`` down and ``.`` free, none of them rounded away."""
    numbers = {name: int(getattr(counts, name)) for name, _ in _GPU_MARKS}
    total = sum(numbers.values())
    if total == 0:
        return ""
    cell_count = min(cell_count, total)
    cells = {name: max(1, round(cell_count * number / total)) for name, number in numbers.items() if number}
    while sum(cells.values()) != cell_count:
        step = 1 if sum(cells.values()) < cell_count else -1
        # Correct where the share is off most; what is there keeps at least one cell.
        name = max(
            (name for name in cells if step > 0 or cells[name] > 1),
            key=lambda name: (step * (cell_count * numbers[name] / total - cells[name]), name),
        )
        cells[name] += step
    return "".join(mark * cells.get(name, 0) for name, mark in _GPU_MARKS)


def _counts_text(counts: Mapping[State, int], where_shown: Mapping[str, str] | None = None) -> str:
    """Return how many are in each state, with the command that shows those that no list below has.

    Args:
        where_shown: The command, by state.
    """
    told = [
        f"{count} {state.value}{f' (see `{command}`)' if (command := (where_shown or {}).get(state)) else ''}"
        for state, count in counts.items()
        if count
    ]
    return ", ".join(told) or "none"


def _write_active(out: Output, view: StatusView) -> None:
    if not view.active_jobs:
        return
    columns = ("RUNNING", "NAME", "USER", "STATE", "GROUP", "PLAN", "ON", "STEP", "LOSS", "TOKENS/S", "RESTARTS")
    rows = [
        (
            *_identity(job),
            job.state.value,
            words.group_text(job.group),
            words.plan_text(job.plan, job.group),
            words.places_text(job.allocation),
            words.step_text(job),
            words.number_text(job.progress.loss, ".4f"),
            words.number_text(job.progress.tokens_per_s, ",.0f"),
            str(job.restart_count),
            words.age_text(job.progress.durable_at_s, view.now_s),
        )
        for job in view.active_jobs
    ]
    out.line()
    spare = ("RESTARTS", "CHECKPOINT", "USER", "TOKENS/S", "ON", "LOSS", "PLAN", "GROUP")
    out.table((*columns, "CHECKPOINT"), rows, right=("STEP", "LOSS", "TOKENS/S", "RESTARTS"), spare=spare)
    _write_left_out(out, view, view.active_jobs, waiting=False)


def _write_waiting(out: Output, view: StatusView) -> None:
    if not view.waiting_jobs:
        return
    rows = [
        (
            *_identity(job),
            job.state.value,
            words.span_text(job.changed_at_s or job.submitted_at_s, view.now_s),
            "; ".join(filter(None, (sentence(said_of(job)), words.way_on(job)))),
        )
        for job in view.waiting_jobs
    ]
    out.line()
    out.table(("WAITING", "NAME", "USER", "STATE", "SINCE", "WHY"), rows, spare=("USER", "SINCE"))
    _write_left_out(out, view, view.waiting_jobs, waiting=True)


def _write_left_out(out: Output, view: StatusView, shown: Sequence[JobView], *, waiting: bool) -> None:
    """Say how many jobs the scheduler left out of a list, so that a short list never passes for all."""
    total = sum(
        count
        for state, count in view.job_count_by_state.items()
        if not state.is_terminal and (state.value in {"queued", "held"}) == waiting
    )
    if total > len(shown):
        out.line(f"... and {total - len(shown)} more; see `arena jobs`")


def _identity(job: JobView) -> tuple[str, str, str]:
    return quoted(job.job_id), quoted(job.name), quoted(job.user)
