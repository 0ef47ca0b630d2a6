"""What every test gets: an engine that was made in a test is examined at its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from arena.engine.engine import Engine
from arena.engine.invariants import violations


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
