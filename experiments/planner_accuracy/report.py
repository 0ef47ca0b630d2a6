"""The results as a table for people, and as a scatter plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.planner_accuracy.predict import Prediction
from experiments.planner_accuracy.score import by_source

_COLUMNS = ("time %", "95 %", "rows", "bias %", "memory %", "rows", "Spearman", "pairs right %", "regret %")


def print_table(result: Mapping[str, Any]) -> None:
    """Print scores by source and overall, and what was left out."""
    table = Table("source", *_COLUMNS, title="Mean absolute error of the cost model")
    for name, found in result["sources"].items():
        table.add_row(name[:58], *_cells(found))
    table.add_section()
    table.add_row("overall (bf16 and fp16)", *_cells(result["overall"]))
    console = Console(width=160)
    console.print(table)
    share = result["unscored_share_of_complete_pct"]
    console.print(
        f"{len(result['unscored'])} rows without a score; {share:.1f} % of the 16-bit rows with a complete plan"
    )
    console.print(f"out of memory: {result['out_of_memory']}")


def _cells(found: Mapping[str, Any]) -> list[str]:
    interval = found["time_interval_pct"]
    return [
        _number(found["time_mape_pct"]),
        "-" if interval is None else f"{interval[0]:.1f}-{interval[1]:.1f}",
        str(found["time_count"]),
        _number(found["time_bias_pct"]),
        _number(found["memory_mape_pct"]),
        str(found["memory_count"]),
        _number(found["spearman"], 2),
        _number(found["pairs_right_pct"]) + f" of {found['pair_count']}",
        _number(found["regret_pct"]),
    ]


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def draw(predictions: Sequence[Prediction], path: Path) -> None:
    """Draw predicted against measured step times, one colour a source."""
    import matplotlib as mpl  # noqa: PLC0415 - of the extra 'report', and slow to load

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7, 6.5), layout="constrained")
    timed = [one for one in predictions if one.case.time_s]
    for name, same in by_source(timed, lambda one: one.case.source).items():
        axes.scatter(
            [one.case.time_s or 0.0 for one in same], [one.time_s for one in same], s=14, label=name[:44], alpha=0.7
        )
    ends = [min(one.time_s for one in timed), max(one.time_s for one in timed)]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    for share in (0.9, 1.1):
        axes.plot(ends, [share * end for end in ends], color="grey", linewidth=0.5, linestyle="--")
    axes.set(xscale="log", yscale="log", xlabel="measured step time, s", ylabel="predicted step time, s")
    axes.legend(fontsize=6, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
