"""The command line starts fast: it imports only what a command needs, and knows all its commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import click
import pytest

from arena.cli.main import COMMANDS, cli, run

HEAVY = ("grpc", "google.protobuf", "sqlalchemy", "alembic", "scipy", "numpy", "torch", "pydantic", "rich", "yaml")
SERVICES = ("sqlalchemy", "alembic", "scipy", "torch", "arena_scheduler", "arena_agent")

LOCAL = ("up", "down", "scheduler", "backup", "plan", "trace", "replay")
"""Commands that ask no scheduler."""

OF_AGENTS = ("arena.domain.events", "arena.domain.commands", "arena.rpc.codec.session")


def imported_by(code: str) -> set[str]:
    """The top-level and dotted names in sys.modules of a fresh interpreter after some code."""
    script = f"{code}\nimport sys; print('\\n'.join(sys.modules))"
    environ = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True, env=environ
    )
    return set(done.stdout.splitlines())


def test_help_imports_nothing_heavy_and_lists_every_command() -> None:
    code = "from arena.cli.main import run; assert run(['--help']) == 0"
    modules = imported_by(code)
    assert modules & set(HEAVY) == set()
    listed = {line.split()[0] for line in modules if line.startswith("  ") and line.strip()}
    assert set(COMMANDS) <= listed


def test_a_client_command_imports_no_service() -> None:
    modules = imported_by("from arena.cli.main import run; assert run(['status', '--scheduler', '127.0.0.1:1']) == 3")
    assert modules & set(SERVICES) == set()
    assert modules & set(OF_AGENTS) == set(), "what agents say is no client's concern"


def test_a_plain_table_of_plain_letters_needs_no_table_of_all_characters() -> None:
    code = "from arena.cli.output import Output; Output(json_mode=False).table(('A', 'B'), [('x', '{}')])"
    assert "rich.cells" not in imported_by(code.format("y"))
    assert "rich.cells" in imported_by(code.format("語"))


def help_of(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The help of a command on a terminal wide enough for whole words; click asks the environment how wide it is."""
    monkeypatch.setenv("COLUMNS", "200")
    assert run([*name.split(), "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", ["1", "80"])
@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself(
    name: str, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert run([name, "--help"]) == 0
    help_text = capsys.readouterr().out
    options = ["--json", "--verbose", "--help"]
    for option in options if name in LOCAL else [*options, "--scheduler", "--token-file", "--ca"]:
        assert re.search(rf"{option}\b", help_text)


@pytest.mark.parametrize("name", [*COMMANDS, "trace check", "ckpt list"])
def test_help_begins_with_what_a_command_is_about(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_of(name, capsys, monkeypatch)
    sections = [line for line in text.splitlines() if re.fullmatch(r"[A-Z].*:", line) and not line.startswith("Usage")]
    asks = name.partition(" ")[0] not in LOCAL
    assert [one for one in sections if one not in {"Options:", "Commands:"}] == [
        *(["Scheduler:"] if asks else []),
        "Of every command:",
    ]
    assert sections[-1] == "Of every command:"
    assert ("--token-file" in text) == asks


@pytest.mark.parametrize("name", LOCAL)
def test_options_of_the_scheduler_are_taken_where_they_are_not_shown(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name, "--scheduler", "10.0.0.1:1", "--token", "t", "--help"]) == 0
    assert "No such option" not in capsys.readouterr().err


def test_every_command_describes_all_of_its_options() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        assert command.name == name
        silent = [item.name for item in command.params if isinstance(item, click.Option) and not item.help]
        assert silent == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["subimt"], "No such command 'subimt', did you mean 'submit'?"),
        (["ckpt", "lst"], "No such command 'lst', did you mean 'list'?"),
        (["zzzz"], "No such command 'zzzz'."),
        (["jobs", "--usr", "x"], "'--user'"),
        (["wait", "--state", "running", "x"], "No such option '--state', did you mean '--for'?"),
    ],
)
def test_who_mistypes_a_word_is_told_which_one_is_meant(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert said in capsys.readouterr().err
