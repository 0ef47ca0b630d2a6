"""The README of traces prints the table that the code follows, and names every format."""

from __future__ import annotations

from pathlib import Path

from arena_traces.defects import RULES, Defect, Treatment
from arena_traces.formats import FORMATS

README = (Path(__file__).parents[2] / "traces" / "arena_traces" / "README.md").read_text(encoding="utf-8")


def rules_table() -> str:
    lines = ["| defect | what it is | treatment |", "|---|---|---|"]
    for defect, rule in RULES.items():
        choice = ", or `--drop`" if rule.can_drop and rule.treatment is Treatment.ERROR else ""
        lines.append(f"| `{defect}` | {rule.says} | {rule.treatment}{choice} |")
    return "\n".join(lines) + "\n"


def test_every_defect_has_a_rule_and_the_readme_prints_them() -> None:
    assert list(RULES) == list(Defect)
    assert rules_table() in README


def test_every_format_is_described_with_its_columns() -> None:
    for one in FORMATS:
        columns = ", ".join(f"`{column}`" for column in one.columns) or "JSON lines"
        assert f"| `{one.name}` | {one.title} | {columns} |" in README
