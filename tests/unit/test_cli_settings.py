"""Where settings come from: flag before environment before file before default."""

from __future__ import annotations

from pathlib import Path

import pytest

from arena.cli.settings import Flags, client_settings, lookup
from arena.errors import SpecError, UserError


def environ(tmp_path: Path, text: str | None = None, **variables: str) -> dict[str, str]:
    if text is not None:
        file = tmp_path / "arena" / "config.yaml"
        file.parent.mkdir()
        file.write_text(text)
    return {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), **variables}


def test_without_any_setting_the_scheduler_is_on_this_machine(tmp_path: Path) -> None:
    settings = client_settings(Flags(), environ(tmp_path))
    assert settings.address == "127.0.0.1:50061"
    assert settings.token is None
    assert settings.user


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    layers = environ(tmp_path, "scheduler: file:1\n", ARENA_SCHEDULER="env:1")
    assert client_settings(Flags(scheduler="flag:1"), layers).address == "flag:1"
    assert client_settings(Flags(), layers).address == "env:1"
    del layers["ARENA_SCHEDULER"]
    assert client_settings(Flags(), layers).address == "file:1"


def test_a_flag_after_the_command_wins_over_one_before_it() -> None:
    outer = Flags(scheduler="outer:1", token="t", json=True)
    assert Flags(scheduler="inner:1").over(outer) == Flags(scheduler="inner:1", token="t", json=True)


def test_a_file_elsewhere_is_named_by_a_variable(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("scheduler: other:1\n")
    layers = environ(tmp_path, "scheduler: file:1\n", ARENA_CONFIG=str(tmp_path / "other.yaml"))
    assert client_settings(Flags(), layers).address == "other:1"


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no file .*gone\.yaml: ARENA_CONFIG names it"):
        client_settings(Flags(), environ(tmp_path, ARENA_CONFIG=str(tmp_path / "gone.yaml")))


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert lookup(Flags(), environ(tmp_path, "\n")) == {}


def test_files_named_in_the_file_are_beside_it(tmp_path: Path) -> None:
    layers = environ(tmp_path, "token_file: token\nca: ca.pem\n")
    (tmp_path / "arena" / "token").write_text("secret\n")
    settings = client_settings(Flags(), layers)
    assert settings.token == "secret"
    assert settings.tls_ca == tmp_path / "arena" / "ca.pem"


def test_a_token_hides_a_token_file_of_a_lower_layer(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file")
    layers = environ(tmp_path, ARENA_TOKEN="from-environment")
    assert client_settings(Flags(token_file=str(file)), layers).token == "from-file"
    assert client_settings(Flags(token="from-flag"), {**layers, "ARENA_TOKEN_FILE": str(file)}).token == "from-flag"


def test_a_token_file_that_is_missing_or_empty_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the token file"):
        client_settings(Flags(token_file=str(tmp_path / "gone")), environ(tmp_path))
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UserError, match="is empty"):
        client_settings(Flags(token_file=str(tmp_path / "empty")), environ(tmp_path))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("schedular: a:1\n", r"config\.yaml:1:1: unknown setting 'schedular', did you mean 'scheduler'\?"),
        ("x: 1\n", r"unknown setting 'x'\. Allowed: scheduler, token, token_file, ca"),
        ("scheduler: 5\n", r"config\.yaml:1:12: scheduler must be text"),
        ("- a\n", "no mapping"),
    ],
)
def test_a_wrong_file_is_told_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        client_settings(Flags(), environ(tmp_path, text))


def test_a_file_that_is_no_yaml_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"config\.yaml:"):
        client_settings(Flags(), environ(tmp_path, "scheduler: [\n"))
