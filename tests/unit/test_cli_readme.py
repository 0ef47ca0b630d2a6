"""arena/cli/README.md names every command and every exit code there is."""

from __future__ import annotations

import re
from pathlib import Path

import arena.errors
from arena.cli import main, services, wait
from arena.errors import ArenaError

README = (Path(__file__).parents[2] / "arena" / "cli" / "README.md").read_text()


def test_every_exit_code_is_described() -> None:
    table = README[README.index("## Exit codes") : README.index("## JSON")]
    described = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for code in row.split(",")}
    kinds = [item for item in vars(arena.errors).values() if isinstance(item, type) and issubclass(item, ArenaError)]
    own = {0, 2, main.INTERRUPTED, main.BROKEN_PIPE, wait.TIMED_OUT, wait.NOT_SUCCEEDED, services.NOT_HEALTHY}
    assert described == {kind.exit_code for kind in kinds} | own


def test_every_command_has_its_json_described() -> None:
    table = README[README.index("## JSON") :]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)", row)}
    assert set(main.COMMANDS) - named == {"scheduler"}
