"""What every test gets: an engine made in a test is examined at its end; drawn cases are the same each time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from arena.cli.main import run
from arena.engine.engine import Engine
from arena.engine.invariants import violations
from tests import selection
from tests.fakes.command_line import Arena, Done

# A change is judged by what it did, not by what was drawn this time; `make explore` draws anew and looks further.
settings.register_profile("same", derandomize=True)
settings.register_profile("explore", max_examples=400, deadline=None)
settings.load_profile("same")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over files of which ``-m`` leaves nothing; None leaves the others to what else decides."""
    if not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    return True if selection.leaves_nothing(config.option.markexpr, text) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests whose marks are not seen in their file: in one run they are deselected, in the other never seen."""
    texts = {path: path.read_text(encoding="utf-8") for path in {item.path for item in items}}
    for item in items:
        marks = [mark.name for mark in item.iter_markers()]
        if not selection.is_as_it_says(marks, texts[item.path]):
            raise pytest.UsageError(f"{item.nodeid} is marked {marks}, and its file says so in no way that is read")


@pytest.fixture(autouse=True)
def _engines_end_sound(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every engine made in a test holds its invariants at the end of it."""
    made: list[Engine] = []
    build = Engine.__init__

    def remember(self: Engine, *args: object, **kwargs: object) -> None:
        build(self, *args, **kwargs)  # type: ignore[arg-type]  # passed through as given
        made.append(self)

    monkeypatch.setattr(Engine, "__init__", remember)
    yield
    for engine in made:
        assert violations(engine.state) == []


@pytest.fixture
def arena(capsys: pytest.CaptureFixture[str]) -> Arena:
    """Runs command lines of ``arena`` in this process."""

    def call(*argv: object) -> Done:
        code = run([str(part) for part in argv])
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call
