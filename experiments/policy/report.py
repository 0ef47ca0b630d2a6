"""Tables of studies for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from experiments.policy.statements import DRAWS, Statement

_COLUMNS = (
    ("avg JCT s", "avg_jct_s", 1.0, ",.0f"),
    ("p50", "p50_jct_s", 1.0, ",.0f"),
    ("p99", "p99_jct_s", 1.0, ",.0f"),
    ("makespan", "makespan_s", 1.0, ",.0f"),
    ("restarts/job", "restarts_per_job", 1.0, ".2f"),
    ("lost %", "lost_share", 100.0, ".2f"),
    ("decision p99 ms", "decision_ms_p99", 1.0, ",.1f"),
    ("CPU s", "cpu_s", 1.0, ",.1f"),
)


def table_of(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    """Return policies side by side (``runs.figures_of``)."""
    table = Table(title=title, title_justify="left")
    table.add_column("policy")
    for name, *_ in _COLUMNS:
        table.add_column(name, justify="right")
    for name in (
        "moves in 1 h",
        "avg / bound",
        f"avg / {rows[0]['policy']}",
        f"p99 / {rows[0]['policy']}",
        "avg of a draw",
    ):
        table.add_column(name, justify="right", no_wrap="/" in name)
    for row in rows:
        cells = [format(row["means"][key] * factor, form) for _, key, factor, form in _COLUMNS]
        typical = f"{row['avg_ratio_of_a_draw']:.3f}"
        ratios = [ratio_text(row["ratios_to_first"][figure]) for figure in ("avg_jct_s", "p99_jct_s")]
        table.add_row(
            row["policy"], *cells, f"{row['moves_in_hour_max']:.0f}", f"{row['avg_over_bound']:.2f}", *ratios, typical
        )
    return table


def statements_table(statements: Sequence[Statement]) -> Table:
    """Return statements with their verdicts, one a line."""
    table = Table(title="what it is to show", title_justify="left")
    for name in ("setting", "statement", "verdict", "draws", "numbers"):
        table.add_column(name, justify="right" if name == "draws" else "left", overflow="fold")
    for one in statements:
        draws = f"{one.draws}" if one.draws >= DRAWS else f"{one.draws} of {DRAWS}"
        table.add_row(one.setting, one.text, one.verdict.value, draws, one.numbers)
    return table


def ratio_text(ratio: dict[str, float | None] | None) -> str:
    """Return ``0.612 [0.580, 0.641]``; without an interval where there is one draw."""
    if ratio is None:
        return "-"
    if ratio["low"] is None:
        return f"{ratio['value']:.3f}"
    return f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"
