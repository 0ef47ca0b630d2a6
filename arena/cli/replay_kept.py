"""What lies where ``arena replay`` is to keep its results: the report of the same replay, of another, or neither."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arena.cli.json_form import dumps
from arena.cli.replay_inputs import Inputs
from arena.cli.whole_files import require_new
from arena.errors import UserError

REPORT = "results.json"
REPORT_FILES = (REPORT, "results.csv", "jobs.csv", "report.html")
"""In the order in which they are written: the first says what the others are of."""

_OTHER_OUT = "name another --out"


def require_same_replay(directory: Path, inputs: Inputs, policies: Sequence[str], seeds: Sequence[int]) -> None:
    """Refuse a directory whose report would be replaced by one of something else.

    The same replay goes on where it was stopped, and may have more policies or seeds than it had.

    Raises:
        UserError: There is the report of another replay, or a file of its name that is none.
    """
    report = directory / REPORT
    if not report.is_file():
        for name in REPORT_FILES:
            require_new(directory / name, force=False, fix=_OTHER_OUT)
        return
    found = _document(report)
    why = "it cannot be read as one" if found is None else _difference(found, inputs, policies, seeds)
    if why:
        fix = f"{_OTHER_OUT}, or add --force to replace the report; the runs beside it stay"
        raise UserError(f"{report} is of another replay", why=why, fix=fix)


def _document(report: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _difference(found: dict[str, Any], inputs: Inputs, policies: Sequence[str], seeds: Sequence[int]) -> str:
    """Return in what a report differs so that something of it would be lost; nothing where it does not."""
    try:
        lost_policies = [one["policy"] for one in found["policies"] if one["policy"] not in policies]
        lost_seeds = [str(seed) for seed in found["seeds"] if seed not in seeds]
    except (KeyError, TypeError):
        return "it cannot be read as one"
    wanted = json.loads(dumps(inputs.identity()))
    others = [name for name in wanted if found.get(name) != wanted[name]]
    if others:
        return _other_inputs(found, wanted, others)
    if lost_policies:
        return f"it compares {', '.join(map(str, lost_policies))} too"
    return f"it has the seeds {', '.join(lost_seeds)} too" if lost_seeds else ""


def _other_inputs(found: dict[str, Any], wanted: dict[str, Any], names: Sequence[str]) -> str:
    if "options" in names and isinstance(found.get("options"), dict):
        before, now = found["options"], wanted["options"]
        differing = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        return f"it has other options: {', '.join(differing)}"
    texts = {"sha256": "files", "trace_read": "rows of the trace", "trace_changes": "jobs of the trace"}
    return f"it is of other {', '.join(texts.get(name, name) for name in names)}"
