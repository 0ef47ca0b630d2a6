"""What every command shares: its options, its output and its client."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
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
_REACHING = ("scheduler", "token", "token_file", "ca")
_SHARED_NAMES = (*_REACHING, "json", "verbose")


def _write_sections(
    command: click.Command, context: click.Context, formatter: click.HelpFormatter, *, asks_scheduler: bool
) -> None:
    """Write the options of a command: first its own, then (of a group) its commands, last what all commands take."""
    own, reaching, common = list[tuple[str, str]](), list[tuple[str, str]](), list[tuple[str, str]]()
    for param in command.get_params(context):
        record = param.get_help_record(context) if isinstance(param, click.Option) else None
        if record is not None:
            is_common = param.name in _SHARED_NAMES or "--help" in param.opts
            (reaching if param.name in _REACHING else common if is_common else own).append(record)
    if own:
        with formatter.section("Options"):
            formatter.write_dl(own)
    if isinstance(command, click.Group):
        command.format_commands(context, formatter)
    if asks_scheduler:
        with formatter.section("Scheduler"):
            formatter.write_dl(reaching)
    with formatter.section("Of every command"):
        formatter.write_dl(common)


class SectionedCommand(click.Command):
    """A command whose help begins with what it is about."""

    asks_scheduler = True
    meant: Mapping[str, str] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read a command line; who gives an option that other commands call so is told its name here."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in self.meant:
                raise
            meant = self.meant[error.option_name]
            raise click.UsageError(f"No such option {error.option_name!r}, did you mean {meant!r}?", ctx) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections of its options."""
        _write_sections(self, ctx, formatter, asks_scheduler=self.asks_scheduler)


class LocalCommand(SectionedCommand):
    """A command that asks no scheduler: the options that reach one are taken, and not shown."""

    asks_scheduler = False


class SectionedGroup(click.Group):
    """A group whose help begins with what its commands are about, before what all commands take."""

    asks_scheduler = True

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant; an unknown one is told with the one that it is most like."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib  # only an error needs it

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if isinstance(error, click.NoSuchOption) or not near:
                raise
            raise click.UsageError(f"No such command {args[0]!r}, did you mean {near[0]!r}?", ctx) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write its commands and the sections of its options."""
        _write_sections(self, ctx, formatter, asks_scheduler=self.asks_scheduler)


class LocalGroup(SectionedGroup):
    """A group of commands that ask no scheduler."""

    asks_scheduler = False


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """A command's surroundings."""

    flags: Flags
    out: Output

    def client(self) -> ArenaClient:
        """Return a client of the scheduler that flags, environment and file name."""
        from arena.client import ArenaClient

        return ArenaClient(client_settings(self.flags, os.environ))

    def note(self, text: str) -> None:
        """Tell a person something beside the answer."""
        if not self.out.json_mode:
            click.echo(text, err=True)


def shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that may stand before and after every command."""
    for option in reversed(_SHARED_OPTIONS):
        function = option(function)
    return function


def flags_of(options: dict[str, Any]) -> Flags:
    """Take the shared options out of a command's options."""
    return Flags(**{name: options.pop(name) for name in _SHARED_NAMES})


def command(
    *, asks_scheduler: bool = True, meant: Mapping[str, str] | None = None, **attributes: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a click command whose function gets an ``App`` first; its return value is the exit code (None: 0).

    Args:
        asks_scheduler: Whether its help shows how to reach one.
        meant: Names of its options, by what the same is called elsewhere.
    """
    kind = SectionedCommand if asks_scheduler else LocalCommand

    def decorate(function: Callable[..., Any]) -> click.Command:
        @click.pass_context
        @functools.wraps(function)
        def run(context: click.Context, /, **options: Any) -> Any:
            outer = context.obj if isinstance(context.obj, Flags) else Flags()
            flags = flags_of(options).over(outer)
            return function(App(flags=flags, out=Output(json_mode=flags.json)), **options)

        made: SectionedCommand = click.command(cls=kind, **attributes)(shared_options(run))
        made.meant = meant or {}
        return made

    return decorate
