"""The README of traces prints the table that the code follows, and names every format."""

from __future__ import annotations

from pathlib import Path

from arena_traces.defects import RULES, Defect, rules_table
from arena_traces.formats import FORMATS

README = (Path(__file__).parents[2] / "traces" / "arena_traces" / "README.md").read_text(encoding="utf-8")


def test_every_defect_has_a_rule_and_the_readme_prints_them() -> None:
    assert list(RULES) == list(Defect)
    assert rules_table() in README


def test_every_format_is_described_with_its_columns() -> None:
    for one in FORMATS:
        columns = ", ".join(f"`{column}`" for column in one.columns) or "JSON lines"
        assert f"| `{one.name}` | {one.title} | {columns} |" in README
