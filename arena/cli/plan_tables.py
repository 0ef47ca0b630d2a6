"""How `arena plan` writes grids, fronts and explanations for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from arena.cli.output import Output
from arena.cli.plan_explain import Explanation, PlanOnGroup, StageMemory
from arena.cli.plan_grid import FirstFit, Goal, LayoutBounds, PricedCell, Work, reason_text
from arena.cli.quoting import escaped
from arena.cli.words import NOTHING, group_text, plan_text
from arena.domain.allocation import GpuGroup
from arena.domain.divisors import format_set
from arena.domain.grid import Estimate, InfeasibleGroup
from arena.units import GIB, format_count

_PLAN_COLUMN = 1
_NODES_LISTED_MAX = 4
_SHARE_SHOWN_MIN = 0.0005
_MEMORY_COLUMNS = ("STAGE", "STATE", "GATHERED", "ACTIVATIONS", "WORKING", "LOGITS", "EXCHANGE", "CONTEXT", "PEAK")


def write_grid(out: Output, rows: Sequence[PricedCell], work: Work, *, left_out: int) -> None:
    """Write the feasible groups, the best first."""
    columns = _columns(work)
    _table(out, columns, [_row(row) for row in rows], flexible=_PLAN_COLUMN, spare=("SURE", "MEMORY", columns[4]))
    note = "MEMORY is of the fullest stage, and what a plan may fill; * is on the Pareto front"
    if any(row.group.node_count > _NODES_LISTED_MAX for row in rows):
        note += "; 16x8 is 16 nodes of 8 GPUs"
    out.sentence(f"{note}{f'; node shapes left out: {left_out} (--all)' if left_out else ''}", hanging=0, style="dim")


def _columns(work: Work) -> tuple[str, ...]:
    units = f"{work.unit.upper()}S"
    return ("GROUP", "PLAN", "STEP", f"{units}/S", f"USD/M {units}", "MEMORY", "SURE")


def _row(row: PricedCell) -> tuple[str, ...]:
    estimate = row.best.estimate
    return (
        short_text(row.group) + (" *" if row.is_on_front else ""),
        plan_text(row.best.plan, row.group),
        seconds_text(estimate.iter_time_s),
        number_text(row.units_per_s),
        number_text(row.usd_per_million_units),
        f"{gib(estimate.memory_bytes)}/{gib(row.usable_memory_bytes)} GiB",
        _sure(estimate),
    )


def write_front(out: Output, rows: Sequence[PricedCell], work: Work, goal: Goal) -> None:
    """Write the groups that no other beats on throughput and price."""
    on_front = [row for row in rows if row.is_on_front]
    first = on_front[0]
    out.line()
    out.line("PARETO FRONT of throughput against cost", style="bold")
    columns = ("GROUP", f"{work.unit.upper()}S/S", f"USD/M {work.unit.upper()}S", "USD/STEP", "SPEED", "COST")
    cells = [
        (
            short_text(row.group),
            number_text(row.units_per_s),
            number_text(row.usd_per_million_units),
            number_text(row.best.estimate.usd_per_step),
            f"{row.units_per_s / first.units_per_s:.2f}x",
            _ratio(row.usd_per_million_units, first.usd_per_million_units),
        )
        for row in on_front
    ]
    _table(out, columns, cells)
    named = "fastest" if goal is Goal.THROUGHPUT else "cheapest"
    out.sentence(f"SPEED and COST are against the {named}, {short_text(first.group)}", style="dim")


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.2f}x" if base > 0 else NOTHING


def write_infeasible(out: Output, items: Sequence[tuple[InfeasibleGroup, FirstFit | None]]) -> None:
    """Write the groups that cannot hold the job, each with its reason."""
    if not items:
        return
    out.line()
    out.line("DO NOT FIT", style="bold")
    told = [(item.group, _with_short(item.group, reason_text(item.reason, first))) for item, first in items]
    runs = groupby(told, key=lambda one: (one[0].parts[0].gpu_type, one[1]))
    out.table(("GROUP", "WHY"), [(_span([group for group, _ in same]), text) for (_, text), same in runs])


def _span(groups: Sequence[GpuGroup]) -> str:
    """Return one group, or a run of counts of a type."""
    first, last = groups[0], groups[-1]
    if len(groups) == 1:
        return short_text(first)
    return f"{escaped(first.parts[0].gpu_type)} {first.gpu_count}..{last.gpu_count} GPUs"


def _with_short(group: GpuGroup, text: str) -> str:
    """Return a sentence about a group with its name in the short form."""
    return escaped(text.replace(str(group), short_text(group)))


def short_text(group: GpuGroup) -> str:
    """Return a group's short form, with many nodes that are alike as ``a100-80 16x8``: 16 nodes of 8."""
    part = group.parts[0]
    if len(part.node_counts) <= _NODES_LISTED_MAX:
        return group_text(group)
    return f"{escaped(part.gpu_type)} {shape_text(part.node_counts)}"


def shape_text(node_counts: Sequence[int]) -> str:
    """Return the GPUs of each node, ``4+4``, or ``14x8+7`` where there are many nodes."""
    if len(node_counts) <= _NODES_LISTED_MAX:
        return "+".join(map(str, node_counts))
    runs = [(count, len(list(same))) for count, same in groupby(node_counts)]
    return "+".join(f"{nodes}x{count}" if nodes > 1 else str(count) for count, nodes in runs)


def write_layouts(out: Output, layouts: Sequence[LayoutBounds]) -> None:
    """Write which tensor-parallel degrees groups allow and what keeps others out."""
    out.line()
    out.line("LAYOUTS", style="bold")
    for one in layouts:
        nodes = shape_text([count for part in one.group.parts for count in part.node_counts])
        allowed = format_set(list(one.tp)) if one.tp else "none"
        out.sentence(f"{nodes} GPU{'' if nodes == '1' else 's'}: tp in {allowed}")
        for bound in one.bounds:
            out.sentence(f"    {_with_short(one.group, bound)}", hanging=8)


def write_details(
    out: Output, row: PricedCell | PlanOnGroup, estimate: Estimate, stages: Sequence[StageMemory], *, title: str
) -> None:
    """Write where the time of a plan goes, and the memory of each stage by part."""
    out.line()
    out.line(title, style="bold")
    parts = sorted(estimate.breakdown_s.items(), key=lambda item: (-item[1], item[0]))
    shown = [
        f"{name} {seconds_text(part_s)} ({part_s / estimate.iter_time_s:.1%})"
        for name, part_s in parts
        if part_s >= _SHARE_SHOWN_MIN * estimate.iter_time_s
    ]
    out.sentence(f"time    {seconds_text(estimate.iter_time_s)} {_sure(estimate)}: {', '.join(shown)}", hanging=8)
    out.sentence(f"memory  GiB of one GPU, {gib(row.usable_memory_bytes)} may be filled", hanging=8)
    _table(out, _MEMORY_COLUMNS, [_stage_row(index, stage) for index, stage in enumerate(stages)])


def _stage_row(index: int, stage: StageMemory) -> tuple[str, ...]:
    parts = (
        *(stage.state_bytes, stage.gathered_bytes, stage.activations_bytes, stage.working_bytes),
        *(stage.logits_bytes, stage.exchange_bytes, stage.context_bytes, stage.total_bytes),
    )
    return (str(index), *(gib(size) for size in parts))


def write_explanation(out: Output, found: Explanation, work: Work) -> None:
    """Write what a plan of the user's own does on each group, or why it cannot run."""
    out.sentence(f"{escaped(str(found.plan))} on {format_count(found.plan.gpu_count, 'GPU')}")
    for refusal in found.refusals:
        out.sentence(f"  cannot run: {escaped(refusal)}", hanging=4, style="red")
    for one in found.groups:
        _write_on_group(out, one, work, general=found.refusals)
    if any(one.estimate for one in found.groups):
        out.line("PEAK counts only the largest of WORKING, LOGITS and EXCHANGE", style="dim")


def _write_on_group(out: Output, one: PlanOnGroup, work: Work, *, general: Sequence[str]) -> None:
    own = [refusal for refusal in one.refusals if refusal not in general]
    if one.estimate is None:
        out.line()
        out.line(short_text(one.group), style="bold")
    else:
        title = f"{short_text(one.group)}: {_speed(one, work)}"
        write_details(out, one, one.estimate, one.memory_by_stage, title=title)
    for refusal in own:
        out.sentence(f"  cannot run: {_with_short(one.group, refusal)}", hanging=4, style="red")
    out.sentence(f"best here: {_best(one)}")


def _speed(one: PlanOnGroup, work: Work) -> str:
    speed, price = number_text(one.units_per_s or 0.0), number_text(one.usd_per_million_units or 0.0)
    return f"{speed} {work.unit}s/s, {price} USD/M {work.unit}s"


def _best(one: PlanOnGroup) -> str:
    if one.best is None:
        return "no plan fits"
    text = f"{plan_text(one.best.plan, one.group)}, {seconds_text(one.best.estimate.iter_time_s)}"
    if one.estimate is None:
        return text
    return f"{text}, {one.estimate.iter_time_s / one.best.estimate.iter_time_s:.2f}x the speed"


def _table(
    out: Output,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    flexible: int | None = None,
    spare: Sequence[str] = (),
) -> None:
    """Write a table of numbers.

    Args:
        out: Where to.
        columns: Headings.
        rows: Cells, as many as headings.
        flexible: Index of the column of plans; those behind it are numbers.
        spare: Headings of columns that may be left out where it is narrow, what matters least first.
    """
    right = [name for index, name in enumerate(columns) if index and index != flexible]
    out.table(columns, rows, right=right, spare=spare)


def gib(size_bytes: int) -> str:
    """Return a size in GiB, to a tenth or, where it is small, to a hundredth."""
    return f"{size_bytes / GIB:.1f}" if size_bytes >= GIB else f"{size_bytes / GIB:.2f}"


def seconds_text(duration_s: float) -> str:
    """Return seconds with three figures, in milliseconds where they are small."""
    return f"{number_text(duration_s)}s" if duration_s >= 1 else f"{number_text(duration_s * 1000)}ms"


def number_text(value: float) -> str:
    """Return a number with three figures, all figures of its whole part, and commas."""
    if value >= 99.95:
        return f"{value:,.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.9995 else f"{value:#.3g}"


def _sure(estimate: Estimate) -> str:
    return f"±{estimate.relative_error:.0%}"
