"""What the demo shows of the history: it fits any terminal, in whole words, and loses no number."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from arena.cli.output import Output
from experiments.demo.run import JOB_COLUMN, show, show_changes
from tests.fakes.command_line import terminal_of

WIDE, NARROW = "cpu 2+2 dp2 tp2 pp1 mb8 sp", "cpu 2 dp2 tp1 pp1 mb8"
ROOT = Path(__file__).parents[2]
SHRANK = "shrank from 4 to 2 GPUs to make room for jobs that gain more"
GREW = "grew from 2 to 4 GPUs, 1.26x faster by its grid"
COSTS = {"stop_s": 0.41, "place_s": 0.23, "launch_s": 0.11, "load_s": 1.52, "first_step_s": 12.34, "cost_s": 14.61}


def change(step: int, before: str, after: str, why: str) -> Mapping[str, Any]:
    (from_group, from_plan), (to_group, to_plan) = (
        (text[: text.index(" dp")], text[text.index("dp") :]) for text in (before, after)
    )
    data = {"from_group": from_group, "from_plan": from_plan, "to_group": to_group, "to_plan": to_plan}
    message = f"{before} -> {after} in 14.6 s: {why}"
    entry = {"kind": "plan_changed", "at_s": 1023.6, "job": "first", "message": message}
    return {**entry, "data": {**data, **COSTS, "step": step, "why": why}}


CHANGES = [change(75, WIDE, NARROW, SHRANK), change(157, NARROW, WIDE, GREW)]


@pytest.mark.parametrize("columns", [60, 80, 100, 120, 160])
def test_the_table_of_changes_fits_the_terminal_in_whole_words(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(columns, monkeypatch)
    show_changes(Output(json_mode=False, stream=terminal), CHANGES)
    assert max(map(len, terminal.lines)) <= columns
    shown = " ".join(terminal.lines)
    for words in (WIDE, NARROW, SHRANK, GREW, "first", "75", "157", *(f"{cost:.2f}" for cost in COSTS.values())):
        assert set(words.split()) <= set(shown.split())
    # Not a word a line: what is not wide enough for a table has lines that are used.
    assert len(terminal.lines) <= 20
    assert not set("┏┃│…") & set(shown)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_long_entry_goes_on_below_its_job(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(columns, monkeypatch)
    show(Output(json_mode=False, stream=terminal), CHANGES[0], "first", began_at_s=1000.0)
    first, *rest = [line for line in terminal.lines if line]
    assert first.startswith("  23.6 s  first   plan_changed            cpu 2+2")
    assert first.index("first") == JOB_COLUMN
    assert rest
    for line in rest:
        assert len(line) <= columns
        assert len(line) - len(line.lstrip()) == JOB_COLUMN


def test_a_file_gets_one_line_for_each_entry_and_change() -> None:
    file = StringIO()
    out = Output(json_mode=False, stream=file)
    show(out, CHANGES[0], "first", began_at_s=1000.0)
    show_changes(out, CHANGES)
    lines = file.getvalue().splitlines()
    assert f"{WIDE} -> {NARROW} in 14.6 s: {SHRANK}" in lines[0]
    assert len(lines) == 6
    assert f"{WIDE} -> {NARROW}" in lines[4]
    assert lines[4].endswith(SHRANK)


def test_an_install_says_what_it_does_before_it_is_quiet_for_minutes(tmp_path: Path) -> None:
    # `make test` leaves what it was asked in the environment; this `make` is one that a person starts.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    argv = ["make", "--dry-run", "demo", f"VENV={tmp_path / 'venv'}"]
    said = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "installing into" in said[0]
    assert "minutes" in said[0]
    assert said[-1].endswith("experiments/demo/run.py")
