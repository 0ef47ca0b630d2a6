"""Scores the planner's cost model on measured training runs; see the README."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arena.planner.calibration import constants
from experiments.planner_accuracy.predict import Prediction, Unscored, cases_of, predict
from experiments.planner_accuracy.profiled import ProfileFolder
from experiments.planner_accuracy.report import draw, print_table
from experiments.planner_accuracy.rows import BadRow, MeasuredRow, complete, read_rows
from experiments.planner_accuracy.score import by_source, score

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Score measured rows and write the results."""
    options = _parser().parse_args(arguments)
    files = list(options.measured) or default_files()
    if not files:
        print("skipped 1 check: no measured runs (set ARENA_DATA_DIR, or give --measured)")
        _write(options.json, {"overall": {}, "sources": {}, "unscored": [], "skipped": 1})
        return 0
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        print(f"no such file: {', '.join(missing)}", file=sys.stderr)
        return 2
    read = [row for path in files for row in read_rows(path)]
    cases, unscored = cases_of(complete(row for row in read if isinstance(row, MeasuredRow)))
    folder = options.profiles or default_profiles()
    if folder is not None:
        cases = ProfileFolder(root=folder).with_profiles(cases)
    bad = [row for row in read if isinstance(row, BadRow)]
    predictions = [predict(case) for case in cases]
    result = results(predictions, unscored, bad)
    _write(options.json, result)
    print_table(result)
    plot = options.plot or options.json.with_suffix(".png")
    try:
        draw(predictions, plot)
    except ModuleNotFoundError as error:
        print(f"no plot: {error} (install the extra 'report')")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measured", type=Path, action="append", default=[], help="CSV of measured runs; repeatable")
    parser.add_argument("--json", type=Path, required=True, help="where the results go")
    parser.add_argument("--profiles", type=Path, help="folder of Sailor's profiles; by default that of the data folder")
    parser.add_argument("--plot", type=Path, help="where the scatter plot goes (PNG); beside OUT by default")
    return parser


def data_dir() -> Path | None:
    """Return the folder of published measurements, or None where there is none."""
    stated = os.environ.get("ARENA_DATA_DIR")
    folder = Path(stated) if stated else ROOT.parent / "shared"
    return next((path for path in (folder / "data", folder) if (path / "measured").is_dir()), None)


def default_files() -> list[Path]:
    """Return the measured runs of the data folder."""
    folder = data_dir()
    files = [] if folder is None else [folder / "measured" / "measured_training.csv"]
    return [path for path in files if path.is_file()]


def default_profiles() -> Path | None:
    """Return the data folder's profiles."""
    folder = data_dir()
    found = None if folder is None else folder / "sailor" / "sailor"
    return found if found is not None and found.is_dir() else None


def results(
    predictions: Sequence[Prediction], unscored: Sequence[Unscored], bad: Sequence[BadRow] = ()
) -> dict[str, Any]:
    """Return everything the run found: scores overall (bf16 and fp16) and by source, and every row without a score."""
    sixteen = [one for one in predictions if one.case.row.is_sixteen_bit]
    complete_rows = sum(len(one.case.rows) for one in sixteen)
    left_out = [one for one in unscored if one.row.is_sixteen_bit and not one.row.is_reduced]
    left_out_complete = sum(one.row.has_complete_plan for one in left_out)
    return {
        "overall": asdict(score(sixteen)),
        "sources": {
            name: asdict(score(same)) for name, same in by_source(predictions, lambda p: p.case.source).items()
        },
        "out_of_memory": _out_of_memory(predictions),
        "unscored": [_unscored(one) for one in unscored]
        + [{"file": one.file, "line": one.line, "reason": one.reason} for one in bad],
        "unscored_share_of_complete_pct": 100.0 * left_out_complete / max(1, left_out_complete + complete_rows),
        "constants": [asdict(one) for one in constants()],
        "rows": [_row(one) for one in predictions],
    }


def _out_of_memory(predictions: Sequence[Prediction]) -> dict[str, int]:
    failed = [one for one in predictions if one.case.is_out_of_memory]
    ran = [one for one in predictions if not one.case.is_out_of_memory and one.case.time_s]
    return {
        "failed": len(failed),
        "failed_predicted": sum(one.is_out_of_memory for one in failed),
        "ran": len(ran),
        "ran_predicted_to_fail": sum(one.is_out_of_memory for one in ran),
    }


def _unscored(one: Unscored) -> dict[str, Any]:
    row = one.row
    return {
        "file": row.file,
        "line": row.line,
        "source": row.source,
        "model": row.model,
        "precision": row.precision,
        "plan_is_complete": row.has_complete_plan,
        "reason": one.reason,
    }


def _row(one: Prediction) -> dict[str, Any]:
    row = one.case.row
    return {
        "lines": [repeat.line for repeat in one.case.rows],
        "source": one.case.source,
        "model": row.model,
        "gpu_type": one.case.gpu_type.name,
        "gpu_count": one.case.group.gpu_count,
        "plan": str(one.case.plan),
        "global_batch": one.case.train.global_batch,
        "has_profile": bool(one.case.gpu_type.profiles),
        "is_predicted_out_of_memory": one.is_out_of_memory,
        "measured_s": one.case.time_s,
        "predicted_s": one.time_s,
        "measured_gb": one.case.memory_gb,
        "predicted_gb": one.memory_gb,
        "is_out_of_memory": one.case.is_out_of_memory,
    }


def _write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
