"""``--policy`` and ``--policy-option`` of the commands that start a scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from arena.errors import UserError

DEFAULT_POLICY = "arena"
MAY_STARVE = ("arena-greedy", "srtf", "tiresias")
"""Policies under which a large job may wait for as long as smaller, or shorter, ones come; as they were published."""


class _PolicyOption(click.Option):
    """An option whose help names the policies; they are loaded only when somebody asks for it."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from arena.policies.registry import policy_names

        *others, last = MAY_STARVE
        starving = f"under {', '.join(others)} and {last} a large job may starve while small ones come"
        self.help = f"Scheduling policy: {', '.join(policy_names())}; {starving}."
        return super().get_help_record(ctx)


class _NumberOption(click.Option):
    """An option whose help names what each policy takes."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from arena.policies.registry import policy_names, policy_option_names

        taken = [(name, policy_option_names(name)) for name in policy_names()]
        lists = "; ".join(f"{name}: {', '.join(options)}" for name, options in taken if options)
        self.help = f"Option of the policy; may be repeated. {lists}."
        return super().get_help_record(ctx)


def policy_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--policy`` and ``--policy-option`` to a command."""
    number = click.option("--policy-option", "policy_options", cls=_NumberOption, metavar="NAME=NUMBER", multiple=True)
    return click.option("--policy", cls=_PolicyOption, default=DEFAULT_POLICY, show_default=True)(number(function))


def number_option(text: str) -> tuple[str, float]:
    """Return the two sides of a ``--policy-option``.

    Raises:
        UserError: There is no number.
    """
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise UserError(f"--policy-option {text} has no number", fix="write it like NAME=2.5") from None
