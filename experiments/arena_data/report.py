"""The results as tables for people, and as a scatter plot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_COLOURS = {"a100": "tab:green", "v100": "tab:blue", "a40": "tab:orange", "a10": "tab:red"}


def print_tables(result: Mapping[str, Any]) -> None:
    """Print what the study finds."""
    console = Console(width=120)
    console.print(_feasibility(result["feasibility"]))
    console.print(_times(result["times"], result["times_of_all_that_ran"]))
    console.print(_regret(result["regret"]))
    memory = result["memory"]
    console.print(
        f"memory of {memory['count']} plans with replicas alone: {_number(memory['mean_pct'])} % off on average"
    )
    for kind in ("wrongly_feasible", "wrongly_infeasible"):
        console.print(f"{kind.replace('_', ' ')}: {len(result[kind])}")


def _feasibility(found: Mapping[str, Any]) -> Table:
    columns = ("balanced %", "plain %", "right", "ran, said so", "failed, said so")
    table = Table("who says", *columns, title="What runs and what does not (profile database)")
    for name, words in (
        ("ours", "our grid"),
        ("ours_by_memory_alone", "our grid, without the limits of Alpa's compiler"),
        ("arena_estimates", "Arena's own estimates"),
        ("ours_where_arena_estimates", "our grid, on the same cells"),
    ):
        one = found[name]
        table.add_row(
            words,
            _number(one["balanced_pct"]),
            _number(one["plain_pct"]),
            f"{one['right']} of {one['count']}",
            f"{one['ran_said']} of {one['ran']}",
            f"{one['failed_said']} of {one['failed']}",
        )
    ours = found["ours"]
    table.add_row("always yes", "50.0", _number(ours["always_yes_pct"]), f"{ours['ran']} of {ours['count']}", "", "")
    return table


def _times(found: Mapping[str, Any], every: Mapping[str, Any]) -> Table:
    columns = ("cells", "median %", "95 %", "mean %", "bias %", "factor")
    table = Table("best iteration times", *columns, title="Errors after one factor for each GPU type")
    table.add_row("all", *_spread(found["overall"]), "")
    table.add_row("all, factors from other models", *_spread(found["other_models_factors"]), "")
    table.add_row("all, without factors", *_spread(found["without_factors"]), "")
    table.add_row("also those that we say do not fit", *_spread(every["overall"]), "")
    table.add_section()
    for name, one in found["by_gpu_type"].items():
        table.add_row(name, *_spread(one), f"{found['factors'][name]:.3f}")
    table.add_section()
    for name, one in found["by_family"].items():
        table.add_row(name, *_spread(one), "")
    return table


def _spread(one: Mapping[str, Any]) -> list[str]:
    interval = one["median_interval_pct"]
    return [
        str(one["count"]),
        _number(one["median_pct"]),
        "-" if interval is None else f"{interval[0]:.1f}-{interval[1]:.1f}",
        _number(one["mean_pct"]),
        _number(one["bias_pct"]),
    ]


def _regret(found: Mapping[str, Any]) -> Table:
    columns = ("cells", "mean %", "worst %", "best chosen", "no room by the judge")
    table = Table("our choice", *columns, title="Regret by Arena's estimates of each plan")
    table.add_row("all", *_regrets(found["ours"]))
    for name, one in found["by_family"].items():
        table.add_row(name, *_regrets(one))
    table.add_section()
    words = f"with the leanest plan in the {found['none_fits']} cells where none fits"
    table.add_row(words, *_regrets(found["with_leanest_where_none_fits"]))
    return table


def _regrets(one: Mapping[str, Any]) -> list[str]:
    sizes = (_number(one["mean_pct"]), _number(one["worst_pct"]))
    return [str(one["count"]), *sizes, str(one["best_chosen"]), str(one["without_room"])]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Draw calibrated against measured times, one colour a GPU type."""
    import matplotlib as mpl  # noqa: PLC0415 - of the extra 'report', and slow to load

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7, 6.5), layout="constrained")
    timed = [cell for cell in result["cells"] if cell["measured_s"] and cell["predicted_s"]]
    for name, factor in result["times"]["factors"].items():
        same = [cell for cell in timed if cell["hardware"].endswith(name)]
        measured = [cell["measured_s"] for cell in same]
        predicted = [factor * cell["predicted_s"] for cell in same]
        axes.scatter(measured, predicted, s=14, alpha=0.7, label=f"{name} x {factor:.2f}", color=_COLOURS.get(name))
    ends = [min(cell["measured_s"] for cell in timed), max(cell["measured_s"] for cell in timed)]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    for share in (0.9, 1.1):
        axes.plot(ends, [share * end for end in ends], color="grey", linewidth=0.5, linestyle="--")
    axes.set(xscale="log", yscale="log", xlabel="measured iteration, s", ylabel="predicted iteration, s")
    axes.legend(fontsize=8, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
