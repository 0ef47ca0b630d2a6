"""Studies of policies: one command each, see README.md.

Usage: python -m experiments.policy.run loads --arrivals helios --loads 0.9 --lengths predicted --policy elastic
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from arena.errors import ArenaError
from experiments.policy import hesrpt, loads, rubick, variations, venus

WIDTH = 215
"""Columns that the tables need, where the terminal is not wider."""


def main(arguments: list[str] | None = None) -> int:
    """Run a study, print its tables, write its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for study in (loads, venus, rubick, hesrpt):
        study.add_command(commands)
    variations.add_commands(commands)
    parser.set_defaults(needs_data=True)
    args = parser.parse_args(arguments)
    folder = Path(os.environ.get("ARENA_DATA_DIR", "../shared"))
    if args.needs_data and not (folder / "data").is_dir():
        print(f"no data in {folder}; set ARENA_DATA_DIR", file=sys.stderr)
        return 4
    try:
        document: dict[str, Any] = args.study(args, folder, Console(width=max(Console().width, WIDTH)))
    except ArenaError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    if args.json is not None:
        args.json.write_text(json.dumps({"command": args.command, **document}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
