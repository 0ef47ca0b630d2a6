"""Whether pictures can be drawn here: the library for them is an extra."""

from __future__ import annotations

from importlib.util import find_spec

from arena.errors import UserError


def check_matplotlib(what: str, *, instead: str) -> None:
    """Refuse to draw where the library is missing, before any work is done.

    Args:
        what: What needs it, e.g. an option.
        instead: What the user can do without it.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        found = find_spec("matplotlib") is not None
    except ValueError:  # the import system was told that there is none
        found = False
    if not found:
        raise UserError(
            f"{what} needs matplotlib, which is not installed",
            fix=f"install it with pip install 'arena-sched[report]', or {instead}",
        )
