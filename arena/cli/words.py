"""Plans, places, progress and times in the words that people read. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

from arena.cli.quoting import escaped, quoted
from arena.domain.allocation import Allocation, GpuGroup
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import Reason, ReasonCode
from arena.domain.records import JobState
from arena.rpc.views import JobView
from arena.units import format_duration

NOTHING = "-"
_WITH_SPARE = 1.2
"""A budget that is advised, as a multiple of what a job is estimated to cost in all."""


def named(job: JobView) -> str:
    """Return a job's id with its name beside it."""
    return named_text(job.job_id, job.name)


def named_text(job_id: str, name: str | None) -> str:
    """Return an id with the name beside it that a person gave; a name that is not known or the same is left out."""
    return quoted(job_id) if name in (None, "", job_id) else f"{quoted(job_id)} ({quoted(name or '')})"


def plan_text(plan: ParallelPlan | None, group: GpuGroup | None) -> str:
    """Return a plan's short form; a command job that runs has a group but a layout of its own."""
    if plan is not None:
        return escaped(str(plan))
    return "own layout" if group is not None else NOTHING


def group_text(group: GpuGroup | None) -> str:
    """Return a group's short form."""
    return escaped(str(group)) if group is not None else NOTHING


def places_text(allocation: Allocation | None) -> str:
    """Return the nodes of an allocation with how many devices on each: ``n1:2 n2:1``."""
    if allocation is None or not allocation.shares:
        return NOTHING
    return " ".join(f"{quoted(share.node_id)}:{len(share.device_ids)}" for share in allocation.shares)


def tells_steps(job: JobView) -> bool:
    """Return whether a job has steps, as far as is known: a program of one's own tells of none."""
    return bool(job.progress.step) or job.progress.loss is not None or job.step_limit is not None


def is_command(job: JobView) -> bool:
    """Return whether a job is its user's own program; of others' jobs only plans are known."""
    return job.spec.command is not None if job.spec is not None else job.plan is None and job.group is not None


def is_program(job: JobView) -> bool:
    """Return whether a job is a program that tells nothing of how far it is."""
    return is_command(job) and not tells_steps(job)


def step_text(job: JobView) -> str:
    """Return how far a job is: ``120/200``, ``120`` when steps do not end it, or nothing where it tells of none."""
    if not tells_steps(job):
        return NOTHING
    step = str(job.progress.step)
    return f"{step}/{job.step_limit}" if job.step_limit is not None else step


def number_text(value: float | None, form: str) -> str:
    """Return a number that may be unknown."""
    return NOTHING if value is None else format(value, form)


def short_text(value: float) -> str:
    """Return a number with at most three digits that matter, never with an exponent; what is next to nothing is 0."""
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.4f}".rstrip("0").rstrip(".") if abs(rounded) >= 0.00005 else "0"


def hours_text(hours: float) -> str:
    """Return hours with a tenth of one, and what is below ten with three digits that matter."""
    return f"{hours:,.1f}" if hours >= 9.95 or not hours else short_text(hours)


def age_text(at_s: float | None, now_s: float) -> str:
    """Return how long ago an instant of the scheduler's clock was."""
    return NOTHING if at_s is None else f"{format_duration(max(0.0, now_s - at_s))} ago"


def span_text(from_s: float | None, to_s: float | None) -> str:
    """Return the time between two instants, or nothing where one is unknown."""
    return NOTHING if from_s is None or to_s is None else format_duration(max(0.0, to_s - from_s))


def duration_text(duration_s: float | None) -> str:
    """Return a duration that may be unknown."""
    return NOTHING if duration_s is None else format_duration(duration_s)


def time_text(at_s: float | None) -> str:
    """Return an instant in this terminal's time zone."""
    if at_s is None or not math.isfinite(at_s):
        return NOTHING
    try:
        return datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # as deadlines in files may be, which have no limit
        return "beyond the year 9999"


def reasons_text(reasons: Iterable[Reason]) -> str:
    """Return reasons as one sentence."""
    return "; ".join(escaped(str(reason)) for reason in reasons) or NOTHING


def way_on(job: JobView, reasons: Iterable[Reason] | None = None) -> str:
    """Return the command that has a job go on, or reach its end, where its budget keeps it from that; else nothing.

    Args:
        reasons: What is said of it, where that is not what its view holds.
    """
    budget_usd = job.budget_usd
    for one in job.reasons if reasons is None else reasons:
        if budget_usd is None or one.code not in {ReasonCode.BUDGET_SPENT, ReasonCode.BUDGET_TOO_SMALL}:
            continue
        needed_usd = _WITH_SPARE * (job.spent_usd + one.numbers.get("needed_usd", 0.0))
        # Of one that was stopped nobody tells what it needs to its end.
        is_about_its_end = one.code is ReasonCode.BUDGET_TOO_SMALL
        more_usd = needed_usd if is_about_its_end else 2.0 * budget_usd
        is_waiting = job.state in {JobState.QUEUED, JobState.HELD}
        aim = "to reach its end" if is_about_its_end and not is_waiting else "to go on"
        return f"{aim}: `arena release {quoted(job.job_id)} --budget {_rounded_up(more_usd):.6g}`"
    return ""


def _rounded_up(value: float) -> float:
    """Return a number of two digits that is no less."""
    step: float = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / step - 1e-9) * step
