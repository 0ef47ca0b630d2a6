"""``arena submit``: a YAML file or a command becomes a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from arena.cli.app import App, command
from arena.cli.file_kinds import FileKind, read_as
from arena.cli.numbers import Duration
from arena.cli.quoting import escaped, quoted
from arena.cli.submit_terms import Terms, terms_of
from arena.cli.wait import wait_and_tell
from arena.cli.words import time_text
from arena.domain.job import JobSpec
from arena.domain.reason import cause_of_refusal
from arena.domain.specfile import parse_spec, spec_from_fields
from arena.domain.yamltree import SIZE_BYTES_MAX
from arena.errors import ArenaError, SpecError, UserError

if TYPE_CHECKING:
    from arena.client.client import DeadlineAnswer, Submitted

# Of this shell alone, or ours: a job on another machine must not inherit them.
_SHELL_VARIABLES = {"_", "PWD", "OLDPWD", "SHLVL"}
_STDIN = "-"


@command(short_help="Submit a job.")
@click.argument("words", metavar="FILE | -- COMMAND [ARG]...", nargs=-1, required=True)
@click.option("--gpus", type=click.IntRange(1), help="Run a command on so many GPUs, in this directory.")
@click.option("--gpu-type", "gpu_types", multiple=True, help="With --gpus: an acceptable GPU type; may be repeated.")
@click.option("--env", "env", metavar="NAME[=VALUE]", multiple=True, help="With --gpus: set or pass on a variable.")
@click.option("--no-env", is_flag=True, help="With --gpus: do not pass on this environment.")
@click.option("--name", help="Name of the job.")
@click.option("--set", "overrides", metavar="FIELD=VALUE", multiple=True, help="Replace a field, e.g. stop.steps=100.")
@click.option("--allow-infeasible", is_flag=True, help="Queue it even if no part of the present cluster can hold it.")
@click.option("--deadline", "deadline_s", type=Duration(), help="Wished end, from now on: 90s, 45m, 2h30m.")
@click.option("--deadline-strict", is_flag=True, help="Refuse the job unless its deadline can be promised.")
@click.option(
    "--budget",
    "budget_usd",
    type=click.FloatRange(0.0, min_open=True),
    metavar="USD",
    help="Most that the job may cost.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be answered, and submit nothing.")
@click.option("--request-id", help="Submitting again with the same id gives the same job.")
@click.option("--wait", "waits", is_flag=True, help="Wait for its end; exit 1 unless it succeeds.")
def submit(app: App, words: tuple[str, ...], waits: bool, **options: Any) -> int | None:
    """Submit a job: a YAML file (- for standard input), or a command with --gpus.

    \b
    arena submit job.yaml --set stop.steps=100 --wait
    arena submit --gpus 2 -- python train.py --lr 3e-4
    """  # noqa: D301 - click wants the backspace itself
    terms = terms_of(options, [field_and_value(item) for item in options["overrides"]])
    try:
        return _submitted(app, _left_alone(_spec(words, options)), options, waits=waits, terms=terms)
    except ArenaError as error:
        raise terms.error(error) from error.__cause__


def _submitted(app: App, spec: JobSpec, options: Mapping[str, Any], *, waits: bool, terms: Terms) -> int | None:
    """Submit a job, tell the answer, and wait for its end if that is wanted."""
    if options["deadline_strict"] and spec.deadline_s is None:
        raise UserError("--deadline-strict needs a deadline", fix="give --deadline, or deadline_s in the job's file")
    allow_infeasible, dry_run = options["allow_infeasible"], options["dry_run"]
    if dry_run and waits:
        raise UserError("--dry-run submits nothing to --wait for")
    with app.client() as client:
        answer = client.submit(
            spec, allow_infeasible=allow_infeasible, request_id=options["request_id"], dry_run=dry_run
        )
        if not waits:
            _tell(app, answer, terms)
            return None
        if not app.out.json_mode:
            _tell(app, answer, terms)
        return wait_and_tell(app, client, [answer.job_id])


def _tell(app: App, answer: Submitted, terms: Terms) -> None:
    if app.out.json_mode:
        deadline = {} if answer.deadline is None else {"deadline": answer.deadline}
        app.out.document(job_id=answer.job_id or None, is_new=answer.is_new, warnings=answer.warnings, **deadline)
        return
    if not answer.job_id:
        app.out.line("it would be taken")
    else:
        app.out.line(quoted(answer.job_id) if answer.is_new else f"{quoted(answer.job_id)} (submitted before)")
    for warning in answer.warnings:  # a script reads the id alone
        click.echo(f"warning: {escaped(terms.text(warning))}", err=True)
    if answer.deadline is not None:
        click.echo(_deadline_text(answer.deadline, terms), err=True)


def _deadline_text(answer: DeadlineAnswer, terms: Terms) -> str:
    due = time_text(answer.deadline_at_s)
    if answer.is_promised:
        return f"deadline {due}: promised"
    told = [] if answer.cause is None else [escaped(terms.text(cause_of_refusal(answer.cause)))]
    if answer.earliest_end_at_s is not None:
        told.append(f"the earliest that can be promised is {time_text(answer.earliest_end_at_s)}")
    return f"warning: deadline {due} cannot be promised: {'; '.join(told) or 'nobody can tell by when it could end'}"


def _spec(words: tuple[str, ...], options: Mapping[str, Any]) -> JobSpec:
    overrides = [*(field_and_value(item) for item in options["overrides"]), *_with_options(options)]
    if options["gpus"] is not None:
        _refuse_job_file(words, options["gpus"])
        return _spec_of_command(words, options, overrides)
    if len(words) > 1:
        raise UserError(
            f"a job is one file, got {len(words)} words", fix="to run a command give --gpus N, and -- before it"
        )
    if options["gpu_types"] or options["env"] or options["no_env"]:
        raise UserError("--gpu-type, --env and --no-env belong to a command", fix="use --set with a file")
    if options["name"] is not None:
        overrides.append(("name", _as_yaml(options["name"])))
    return spec_of_file(words[0], overrides)


def _refuse_job_file(argv: tuple[str, ...], count: int) -> None:
    """Refuse to run a job file as a program."""
    name = argv[0]
    if len(argv) == 1 and Path(name).suffix in {".yaml", ".yml"} and not os.access(name, os.X_OK):
        raise UserError(
            f"{name} is a job file, and --gpus is for commands",
            fix=f"submit it with --set 'gpus={{count: {count}}}', or run a command: --gpus {count} -- COMMAND",
        )


def _with_options(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the fields that options of their own stand for."""
    terms = [(name, repr(options[name])) for name in ("deadline_s", "budget_usd") if options[name] is not None]
    return [*terms, *([("is_deadline_strict", "true")] if options["deadline_strict"] else [])]


def _left_alone(spec: JobSpec) -> JobSpec:
    """Have a program run to its end unless its user says that it may be stopped: it would begin anew."""
    if spec.command is None or "preemptible" in spec.model_fields_set:
        return spec
    return spec.model_copy(update={"preemptible": False})


def field_and_value(text: str) -> tuple[str, str]:
    """Return the two sides of a ``--set``."""
    key, sign, value = text.partition("=")
    if not sign:
        raise UserError(f"--set {text} has no value", fix="write it like --set stop.steps=100")
    return key, value


def _as_yaml(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def spec_of_file(name: str, overrides: list[tuple[str, str]]) -> JobSpec:
    """Return the job of a file (``-`` for standard input) with fields replaced."""
    if name == _STDIN:
        text, source, base_dir = sys.stdin.read(SIZE_BYTES_MAX + 1), "standard input", Path.cwd()
    else:
        text, source, base_dir = read_text(name), name, Path(name).absolute().parent
    with read_as(FileKind.JOB, text, source=source):
        spec = parse_spec(
            text,
            source=source,
            base_dir=str(base_dir),
            read_text=_read_config,
            overrides=overrides,
        )
    if spec.command is not None and spec.command.cwd is None:
        return spec.model_copy(update={"command": spec.command.model_copy(update={"cwd": str(Path.cwd())})})
    return spec


def read_text(name: str, *, command: str = "submit") -> str:
    """Return what a specification's file holds; it is refused where it is too large or no text."""
    try:
        return _start_of(name).decode("utf-8")
    except OSError as error:
        raise UserError(f"cannot read {name}", why=str(error.strerror), fix=f"see `arena {command} --help`") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is no UTF-8 text", why=f"byte {error.start}: {error.reason}") from error


def _read_config(path: str) -> str:
    """Return the text of a config.json."""
    return _start_of(path).decode("utf-8")


def _start_of(name: str) -> bytes:
    """Return what a file holds, without reading on where it has no end."""
    with Path(name).open("rb") as file:
        data = file.read(SIZE_BYTES_MAX + 1)
    if len(data) > SIZE_BYTES_MAX:
        raise SpecError(f"{name} is larger than {SIZE_BYTES_MAX // 1024} KiB", why="a specification is small")
    return data


def _spec_of_command(argv: tuple[str, ...], options: Mapping[str, Any], overrides: list[tuple[str, str]]) -> JobSpec:
    fields: dict[str, Any] = {
        "name": options["name"] or Path(argv[0]).name or argv[0],
        "kind": "rigid",
        "command": {"argv": list(argv), "cwd": str(Path.cwd()), "env": _environment(options, os.environ)},
        "gpus": {"count": options["gpus"], "types": list(options["gpu_types"])},
    }
    return spec_from_fields(fields, source="command line", base_dir=str(Path.cwd()), overrides=overrides)


def _environment(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the command gets: this environment without what is this shell's, our own or no text."""
    passed: dict[str, str] = {}
    if not options["no_env"]:
        passed = {
            key: value
            for key, value in environ.items()
            if key not in _SHELL_VARIABLES and not key.startswith("ARENA_") and _is_text(key + value)
        }
    for item in options["env"]:
        key, sign, value = item.partition("=")
        if not sign and key not in environ:
            raise UserError(f"--env {key} is not set here", fix=f"write --env {key}=VALUE")
        passed[key] = value if sign else environ[key]
    return passed


def _is_text(text: str) -> bool:
    return text.isascii() or all(not 0xD800 <= ord(char) < 0xE000 for char in text)
