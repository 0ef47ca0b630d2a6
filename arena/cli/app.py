"""What every command shares: its options, its output and its client."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from arena.cli.output import Output
from arena.cli.settings import Flags, client_settings

if TYPE_CHECKING:
    from arena.client import ArenaClient

_SHARED_OPTIONS = (
    click.option("--scheduler", metavar="HOST:PORT", help="Address of the scheduler [env: ARENA_SCHEDULER]."),
    click.option("--token", metavar="TOKEN", help="Who you are; better kept in a file [env: ARENA_TOKEN]."),
    click.option("--token-file", metavar="FILE", help="File that holds the token [env: ARENA_TOKEN_FILE]."),
    click.option("--ca", metavar="FILE", help="Certificate authority of the scheduler; turns TLS on [env: ARENA_CA]."),
    click.option("--json", "json", is_flag=True, help="Write JSON (form: arena/cli/README.md)."),
    click.option("-v", "--verbose", is_flag=True, help="Show the traceback of an error."),
)
_SHARED_NAMES = ("scheduler", "token", "token_file", "ca", "json", "verbose")


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """A command's surroundings."""

    flags: Flags
    out: Output

    def client(self) -> ArenaClient:
        """Return a client of the scheduler that flags, environment and file name."""
        from arena.client import ArenaClient

        return ArenaClient(client_settings(self.flags, os.environ))


def shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that may stand before and after every command."""
    for option in reversed(_SHARED_OPTIONS):
        function = option(function)
    return function


def flags_of(options: dict[str, Any]) -> Flags:
    """Take the shared options out of a command's options."""
    return Flags(**{name: options.pop(name) for name in _SHARED_NAMES})


def command(**attributes: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a click command whose function gets an ``App`` first; its return value is the exit code (None: 0)."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        @click.pass_context
        @functools.wraps(function)
        def run(context: click.Context, /, **options: Any) -> Any:
            outer = context.obj if isinstance(context.obj, Flags) else Flags()
            flags = flags_of(options).over(outer)
            return function(App(flags=flags, out=Output(json_mode=flags.json)), **options)

        made: click.Command = click.command(**attributes)(shared_options(run))
        return made

    return decorate
