"""The entry point of ``arena``: finds the command, runs it, turns errors into one line and an exit code."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from arena.cli.app import SectionedGroup, flags_of, shared_options
from arena.cli.output import ReaderGoneError, print_error, write_error_document
from arena.errors import ArenaError, InternalError, UnavailableError

INTERRUPTED = 128 + signal.SIGINT
BROKEN_PIPE = 128 + signal.SIGPIPE
_FOLLOWERS = frozenset({"events", "logs", "wait"})
_INTERRUPT_AGAIN_S = 1.0

# name: (module, attribute, what `arena --help` says). Modules are imported when their command runs.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("up", "up", "Start a scheduler and agents here, for trying out."),
    "down": ("down", "down", "Stop what `arena up --detach` started."),
    "scheduler": ("services", "scheduler", "Run the scheduler."),
    "agent": ("services", "agent", "Run the agent of this node."),
    "submit": ("submit", "submit", "Submit a job: a YAML file, or a command with --gpus."),
    "plan": ("plan", "plan", "What a job would do on each group of a cluster file; no scheduler needed."),
    "status": ("status", "status", "The cluster at a glance."),
    "jobs": ("jobs", "jobs", "List jobs, newest first."),
    "job": ("jobs", "job", "One job: plan, placement, progress, attempts and why each change."),
    "why": ("why", "why", "Why a job is where it is, and what would change it."),
    "decisions": ("decisions", "decisions", "What the policy decided of late, with its prices."),
    "wait": ("wait", "wait", "Wait until a job has ended or reached a state."),
    "events": ("events", "events", "What happened, to a job or at all."),
    "logs": ("logs", "logs", "What a job's ranks wrote."),
    "cancel": ("control", "cancel", "Cancel jobs."),
    "hold": ("control", "hold", "Keep jobs from running."),
    "release": ("control", "release", "Let held jobs run."),
    "nodes": ("nodes", "nodes", "List nodes and their devices."),
    "drain": ("nodes", "drain", "Take a node out of use."),
    "undrain": ("nodes", "undrain", "Take a drained or quarantined node back into use."),
    "ckpt": ("ckpt", "ckpt", "List, verify, prune and export checkpoints."),
    "export": ("export", "export", "What the scheduler ran, as a trace for `arena replay`."),
    "backup": ("backup", "backup", "A copy of the scheduler's database, which may be at work meanwhile."),
    "trace": ("trace", "trace", "Check traces of clusters, and what they are like."),
    "replay": ("replay", "replay", "Replay a trace under several policies and compare them; no scheduler needed."),
    "version": ("version", "version", "Versions of this program and of the scheduler."),
}


class _LazyGroup(SectionedGroup):
    """A group that imports a command's module only when the command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(f"arena.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@shared_options
@click.version_option(package_name="arena-sched", prog_name="arena")
@click.pass_context
def cli(context: click.Context, /, **options: Any) -> None:
    """Arena schedules training jobs on GPUs and adapts how each is laid out on them.

    Settings: a flag wins over the environment (ARENA_SCHEDULER, ...), the environment over the file
    ~/.config/arena/config.yaml (or ARENA_CONFIG).
    """
    context.obj = flags_of(options)


@contextmanager
def _insistent_interrupt() -> Iterator[None]:
    """Raise an interrupt again each second until the command ends.

    One that arrives inside a callback or a finaliser is swallowed there, and a follower would go on for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, _INTERRUPT_AGAIN_S)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGALRM)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors are written to standard error."""
    if not _FOLLOWERS.intersection(argv):
        return _run(argv)
    try:
        with _insistent_interrupt():
            return _run(argv)
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(argv: Sequence[str]) -> int:
    json_mode = _has_flag(argv, "--json")
    try:
        code = cli.main(args=list(argv), prog_name="arena", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as error:
        return _usage_error(error, json_mode)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except ReaderGoneError:
        # Keep the interpreter from complaining at its exit that it cannot flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except UnavailableError as error:
        return _report(_explained(error), argv, json_mode)
    except ArenaError as error:
        return _report(error, argv, json_mode)
    except Exception as error:  # noqa: BLE001 - the outermost frame
        wrapped = InternalError(f"{type(error).__name__}: {error}", fix="run it again with -v for the traceback")
        wrapped.__cause__ = error
        return _report(wrapped, argv, json_mode)


def _explained(error: UnavailableError) -> UnavailableError:
    """Return an error with what is known here of who should have answered."""
    from arena.rpc.status import ADDRESS_DETAIL

    address = error.details.get(ADDRESS_DETAIL)
    if address is None:
        return error
    from arena.cli.up_places import explained

    return explained(error, address).with_traceback(error.__traceback__)


def _report(error: ArenaError, argv: Sequence[str], json_mode: bool) -> int:
    if _has_flag(argv, "-v") or _has_flag(argv, "--verbose"):
        traceback.print_exception(error)
    print_error(error, json_mode=json_mode)
    return error.exit_code


def _usage_error(error: click.ClickException, json_mode: bool) -> int:
    if json_mode:
        said, context = error.format_message(), error.ctx if isinstance(error, click.UsageError) else None
        write_error_document(
            code="usage",
            message=said,
            what="the command line is not understood",
            why=said,
            fix=f"see `{context.command_path if context is not None else 'arena'} --help`",
            exit_code=error.exit_code,
        )
    else:
        error.show()
    return error.exit_code


def _has_flag(argv: Sequence[str], flag: str) -> bool:
    own = argv[: argv.index("--")] if "--" in argv else argv
    return flag in own


def main() -> None:
    """Run the command line of this process."""
    gc.freeze()
    gc.set_threshold(100_000)  # a short life: collecting among freshly imported modules is a tenth of it
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code = run(sys.argv[1:])
    gc.freeze()  # an ending interpreter would walk through all that is left: 1.2 s of 1.7 in which a scheduler ended
    sys.exit(code)


if __name__ == "__main__":
    main()
