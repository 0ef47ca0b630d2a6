"""The study ``venus``: a day of Helios' Venus as it is, and at a load, one replay each."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.arena_traces.tables import Tables, cluster
from experiments.policy.arrivals import Arrivals, ArrivalSource
from experiments.policy.cases import Setting, case_of
from experiments.policy.loads import add_bound_option, add_run_options, run_cases

AS_IS = "as-is"


def add_command(commands: Any) -> None:
    """Add the command line of the study."""
    parser: argparse.ArgumentParser = commands.add_parser("venus", help=__doc__)
    parser.add_argument("--gpus", type=int, default=320)
    parser.add_argument("--loads", default=AS_IS, help=f"{AS_IS}, or offered loads")
    parser.add_argument("--lengths", choices=("true", "predicted", "none"), default="true")
    parser.add_argument("--length-sigma", type=float, default=1.0)
    parser.add_argument("--restart-s", type=float, default=60.0)
    add_run_options(parser)
    add_bound_option(parser)
    parser.set_defaults(study=study)


def study(args: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    """Replay the trace and print a table for each load."""
    tables = Tables.read(folder / "data" / "arena")
    source = ArrivalSource.read(Arrivals.HELIOS, folder, tables)
    shape, found = cluster(args.gpus // 4), []
    for text in args.loads.split(","):
        setting = Setting(
            load=None if text == AS_IS else float(text),
            lengths=args.lengths,
            length_sigma=args.length_sigma,
            restart_s=args.restart_s,
        )
        cases = [case_of(source.as_it_is(), tables.grids(), shape, setting=setting, seed=0)]
        title = f"Venus, load {text}, {args.lengths} lengths"
        document, _ = run_cases(cases, args, console, title=title)
        found.append(document)
    return {"gpu_count": shape.gpu_count, "settings": found}
