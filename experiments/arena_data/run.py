"""Scores the planner on the published data of Arena's artifact (EuroSys'26); see the README."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from experiments.arena_data.clusters import links_by_type
from experiments.arena_data.data import cells_of, collectives_of, data_folder, replicas_gib
from experiments.arena_data.predict import predict, replica_errors
from experiments.arena_data.report import draw, print_tables
from experiments.arena_data.results import results


def main(arguments: Sequence[str] | None = None) -> int:
    """Score the planner and write the results."""
    options = _parser().parse_args(arguments)
    folder = data_folder()
    if folder is None:
        print("skipped 1 check: no data of Arena's artifact (set ARENA_DATA_DIR)")
        _write(options.json, {"feasibility": {}, "times": {}, "regret": {}, "cells": [], "skipped": 1})
        return 0
    result = study(folder)
    _write(options.json, result)
    print_tables(result)
    if options.plot:
        try:
            draw(result, options.plot)
        except ModuleNotFoundError as error:
            print(f"no plot: {error} (install the extra 'report')")
    return 0


def study(folder: Path) -> dict[str, Any]:
    """Return what the study finds in a folder of data."""
    links = links_by_type(collectives_of(folder))
    console = Console(stderr=True)
    cells = track(cells_of(folder), description="planning", console=console, transient=True)
    predictions = [predict(cell, links) for cell in cells]
    return results(predictions, replica_errors(replicas_gib(folder), links))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the results go")
    parser.add_argument("--plot", type=Path, help="where a scatter plot of times goes (PNG)")
    return parser


def _write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
