"""How `arena plan` writes plans over several GPU types and zones for people."""

from __future__ import annotations

from arena.cli.output import Output
from arena.cli.plan_grid import Goal, Work
from arena.cli.plan_mixed import MixedGpus, MixedPlan
from arena.cli.plan_tables import gib, number_text, seconds_text
from arena.cli.quoting import escaped
from arena.units import format_count

_COLUMNS = ("STAGE", "LAYERS", "GPUS", "REPLICAS", "MEMORY")


def write_mixed(out: Output, found: MixedPlan, work: Work, goal: Goal) -> None:
    """Write the best plan over mixed GPUs, and how far from the best possible it can be."""
    out.line()
    out.line("MIXED GPUS", style="bold")
    _write_plan(out, found, work)
    if found.bound is not None and found.gap is not None:
        least = f"{number_text(found.bound)} USD" if goal is Goal.COST else seconds_text(found.bound)
        out.sentence(
            f"bound   no plan over these GPUs takes less than {least}, {found.gap:.1%} better", hanging=8, style="dim"
        )
    if len(found.gpus) == 1:
        out.line("nothing over several GPU types or zones is better", style="dim")


def write_mixed_explanation(out: Output, found: MixedPlan, work: Work) -> None:
    """Write what a plan of the user's own does on the GPUs that it names."""
    out.sentence(f"{escaped(str(found.plan))} on {format_count(found.plan.gpu_count, 'GPU')}")
    for refusal in found.refusals:
        out.sentence(f"  cannot run: {escaped(refusal)}", hanging=4, style="red")
    out.line()
    _write_plan(out, found, work)


def _write_plan(out: Output, found: MixedPlan, work: Work) -> None:
    gpus = ", ".join(_gpus(one) for one in found.gpus)
    out.sentence(
        f"{gpus}: {number_text(found.units_per_s)} {work.unit}s/s, "
        f"{number_text(found.usd_per_million_units)} USD/M {work.unit}s"
    )
    out.sentence(f"plan    {escaped(str(found.plan))}", hanging=8)
    parts = [f"{name} {seconds_text(part_s)}" for name, part_s in found.estimate.breakdown_s.items() if part_s > 0]
    sure = f"±{found.estimate.relative_error:.0%}"
    out.sentence(f"time    {seconds_text(found.estimate.iter_time_s)} {sure}: {', '.join(parts)}", hanging=8)
    if found.transfer_usd_per_step > 0:
        spent = number_text(found.estimate.usd_per_step)
        out.sentence(
            f"cost    {spent} USD a step, {number_text(found.transfer_usd_per_step)} of it between zones", hanging=8
        )
    rows = [
        (
            str(index),
            str(stage.layer_count),
            f"{escaped(kind.gpu_type)}/{escaped(kind.zone)}",
            f"{kind.replica_count} x tp{kind.tp}",
            f"{gib(kind.memory_bytes)}/{gib(kind.usable_memory_bytes)} GiB",
        )
        for index, stage in enumerate(found.stages)
        for kind in stage.kinds
    ]
    out.table(_COLUMNS, rows, right=["LAYERS", "REPLICAS", "MEMORY"])


def _gpus(one: MixedGpus) -> str:
    return f"{one.gpu_count} {escaped(one.gpu_type)}/{escaped(one.zone)}"
