"""``arena ckpt``: a job's checkpoints as files; asks no scheduler unless a job is named, and needs no torch."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from arena.cli import words
from arena.cli.app import App, SectionedGroup, command, flags_of, shared_options
from arena.cli.find import find_job
from arena.cli.quoting import escaped, quoted
from arena.cli.settings import Flags
from arena.cli.whole_files import require_folder, require_new
from arena.errors import NotFoundError, ResourceExhaustedError, UserError
from arena.units import format_bytes

if TYPE_CHECKING:
    from arena_agent.checkpoints.audit import Leftover, Listed, Pruning

UNSOUND = 1
_SIZE_UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}

_NAMED_MAX = 8
"""Directories that are named where checkpoints were not looked for."""


@click.group(cls=SectionedGroup, short_help="List, verify, prune and export checkpoints.")
@shared_options
@click.pass_context
def ckpt(context: click.Context, /, **options: Any) -> None:
    """A job's checkpoints.

    PATH is the directory that holds them, or one of them; or a job, whose directory is its checkpoint.dir/ID, or
    CHECKPOINT_ROOT/ID where it names none (`arena up`: DIR/checkpoints/ID), where this machine sees that place.
    """
    outer = context.obj if isinstance(context.obj, Flags) else Flags()
    context.obj = flags_of(options).over(outer)


def _size_bytes(text: str) -> int:
    """Read a size: ``10GiB``, ``500 MiB`` or ``123456``."""
    digits = text.rstrip("BKMGTi ")
    unit = text[len(digits) :].strip() or "B"
    try:
        size_bytes = float(digits) * 2 ** _SIZE_UNITS[unit]
    except (KeyError, ValueError):
        size_bytes = 0.0
    if not 1 <= size_bytes < 2**63:
        raise click.BadParameter(f"{text!r} is no size; write 10GiB, 500MiB or a number of bytes")
    return int(size_bytes)


@command(name="list", short_help="List checkpoints, newest first.")
@click.argument("path", metavar="PATH")
def list_(app: App, path: str) -> None:
    """List checkpoints, newest first: state, size, what wrote them, and which one a resume would take."""
    from arena_agent.checkpoints import audit

    root = _directory(app, path)
    with _disk_errors(root):
        rows = (audit.listed_alone(root),) if _is_checkpoint(root) else audit.listed(root)
        leftovers = audit.leftovers(root)
    if app.out.json_mode:
        fields = [{**dataclasses.asdict(row), "is_complete": row.is_complete} for row in rows]
        app.out.document(path=str(root), checkpoints=fields, temporaries=leftovers)
        return
    _write_list(app, root, rows, leftovers)


def _write_list(app: App, root: Path, rows: Sequence[Listed], leftovers: Sequence[Leftover]) -> None:
    if rows:
        columns = ("STEP", "COMPLETED", "SIZE", "EPOCH", "PLAN", "STATE")
        app.out.table(columns, [_row(row) for row in rows], right=("STEP", "SIZE", "EPOCH"), spare=("EPOCH", "PLAN"))
    else:
        from arena_agent.checkpoints.manifest import step_directories

        app.out.line(f"no checkpoints in {quoted(str(root))}")
        inside = [path.name for path in sorted(root.iterdir()) if path.is_dir() and step_directories(path)]
        if inside:
            more = ", ..." if len(inside) > _NAMED_MAX else ""
            app.out.sentence(
                f"there are some in directories of it: {', '.join(map(quoted, inside[:_NAMED_MAX]))}{more}"
            )
    for item in leftovers:
        size = format_bytes(item.size_bytes)
        app.out.sentence(
            f"{quoted(item.name)}: {size}, being written or left by a killed attempt; the next one clears it"
        )


def _row(row: Listed) -> tuple[str, ...]:
    state = "complete" if row.is_complete else f"incomplete: {escaped(row.reason)}"
    return (
        str(row.step),
        words.time_text(row.written_at_s),
        format_bytes(row.size_bytes),
        str(row.epoch) if row.epoch is not None else words.NOTHING,
        escaped(row.plan) if row.plan else words.NOTHING,
        f"{state}, a resume takes it" if row.is_next else state,
    )


@command(short_help="Read checkpoints whole and say what is wrong with them.")
@click.argument("path", metavar="PATH")
def verify(app: App, path: str) -> int:
    """Read checkpoints whole: every file's digest, and every element of every tensor exactly once.

    PATH may be one checkpoint. Exit code 1 when something is wrong with one.
    """
    from arena_agent.checkpoints import audit

    directories = _steps(_directory(app, path))
    found: dict[str, tuple[str, ...]] = {}
    for directory in directories:
        with _disk_errors(directory), _progress(app, directory) as on_read:
            faults = audit.faults(directory, on_read)
        if faults and not directory.is_dir():
            continue  # A job that goes on has removed it while it was read.
        found[directory.name] = faults
        if not app.out.json_mode:
            verdict = [f"  {escaped(fault)}" for fault in found[directory.name]]
            app.out.line(
                f"{quoted(directory.name)}: {'damaged' if verdict else 'sound'}", style="red" if verdict else "green"
            )
            for line in verdict:
                app.out.sentence(line, hanging=4)
    is_sound = not any(found.values())
    if app.out.json_mode:
        fields = [{"name": name, "is_sound": not faults, "faults": faults} for name, faults in found.items()]
        app.out.document(is_sound=is_sound, checkpoints=fields)
    return 0 if is_sound else UNSOUND


@command(short_help="Remove old checkpoints.")
@click.argument("path", metavar="PATH")
@click.option(
    "--keep", type=click.IntRange(min=2), required=True, metavar="N", help="Complete ones to keep, at least 2."
)
@click.option("--quota", type=_size_bytes, metavar="SIZE", help="Most that all may take, e.g. 10GiB; two stay anyway.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def prune(app: App, path: str, keep: int, quota: int | None, dry_run: bool) -> None:
    """Remove checkpoints beyond a number and a size, oldest first, and incomplete ones older than those kept.

    The newest two complete ones always stay. Refused while an attempt completes a save there.
    """
    from arena_agent.checkpoints import audit

    root = _directory(app, path)
    if _is_checkpoint(root):
        raise UserError(f"{str(root)!r} is one checkpoint", fix="give the directory that holds them")
    with _disk_errors(root):
        pruning = audit.prune(root, keep=keep, quota_bytes=quota, is_dry=dry_run)
    if app.out.json_mode:
        fields = {"freed_bytes": pruning.freed_bytes, "is_dry_run": dry_run}
        app.out.document(removed=pruning.removed, kept=pruning.kept, **fields)
        return
    _write_pruning(app, pruning, dry_run)


def _write_pruning(app: App, pruning: Pruning, dry_run: bool) -> None:
    verb = "would remove" if dry_run else "removed"
    for item in pruning.removed:
        state = "" if item.is_complete else ", incomplete"
        app.out.line(f"{verb} {item.name} ({format_bytes(item.size_bytes)}{state})")
    kept = " ".join(item.name for item in pruning.kept) or words.NOTHING
    app.out.sentence(f"{verb} {len(pruning.removed)}, {format_bytes(pruning.freed_bytes)}; kept: {kept}")


@command(short_help="Write a checkpoint's model as a plain safetensors file.")
@click.argument("path", metavar="PATH")
@click.option("-o", "--output", required=True, metavar="FILE", help="The file; a description (.json) goes beside it.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
def export(app: App, path: str, output: str, force: bool) -> None:
    """Write a checkpoint's model as one safetensors file of whole tensors, as torch's modules have them.

    Of several checkpoints the one that a resume would take is written.
    """
    from arena_agent.checkpoints.export import description_path, export_to

    checkpoint, target = _newest(_directory(app, path)), Path(output)
    require_folder(target)
    is_inside = _is_checkpoint(target.parent.resolve())  # which is refused whatever is said
    for file in () if is_inside else (target, description_path(target)):
        with _disk_errors(file):
            require_new(file, force=force, fix="name another file")
    with _disk_errors(target):
        export_to(checkpoint, target)
        size_bytes = target.stat().st_size
    if app.out.json_mode:
        app.out.document(
            checkpoint=str(checkpoint),
            file=str(target),
            description=str(description_path(target)),
            size_bytes=size_bytes,
        )
    else:
        beside = f"and {quoted(str(description_path(target)))}"
        app.out.line(f"{quoted(checkpoint.name)} -> {quoted(str(target))} ({format_bytes(size_bytes)}) {beside}")


for _part in (list_, verify, prune, export):
    ckpt.add_command(_part)


def _directory(app: App, path: str) -> Path:
    """Return the directory that is meant: a path, or the place of a job.

    Raises:
        NotFoundError: There is neither.
    """
    directory = Path(path)
    if directory.name in ("", ".."):
        directory = directory.resolve()  # A checkpoint that is the working directory has a name all the same.
    if path and directory.is_dir():
        return directory
    if not path or "/" in path or directory.exists():
        raise NotFoundError(f"{path!r} is not a directory")
    with app.client() as client:
        job = find_job(client, path).job
        base = job.spec.checkpoint.dir if job.spec else None
        if base is None and job.spec is not None:
            base = client.status(job_count_max=1).checkpoint_root
    directory = Path(base or "") / job.job_id
    if base and directory.is_dir():
        return directory
    if job.spec is not None and job.spec.command is not None:
        raise NotFoundError(
            f"job {job.job_id} is a program, and keeps no checkpoints of Arena's",
            why="what it saves, and where, it knows itself",
            fix="only `train` jobs have checkpoints to list, verify, prune and export",
        )
    if not base:
        raise UserError(
            f"job {job.job_id} does not say where its checkpoints are",
            why="its spec names no checkpoint.dir, so they are below the scheduler's --checkpoint-root"
            if job.spec
            else "its specification is not yours to see",
            fix=f"give the directory: CHECKPOINT_ROOT/{job.job_id}",
        )
    raise NotFoundError(f"{str(directory)!r}, the place of job {job.job_id}, is not a directory on this machine")


def _steps(directory: Path) -> list[Path]:
    """Return the checkpoint that a path is, or those it holds, newest first."""
    from arena_agent.checkpoints.manifest import step_directories

    if _is_checkpoint(directory):
        return [directory]
    names = step_directories(directory)
    if not names:
        raise NotFoundError(f"no checkpoints in {str(directory)!r}")
    return [directory / name for name in names]


def _is_checkpoint(directory: Path) -> bool:
    from arena_agent.checkpoints.manifest import MANIFEST_NAME, step_of

    return step_of(directory.name) is not None or (directory / MANIFEST_NAME).exists()


def _newest(directory: Path) -> Path:
    from arena_agent.checkpoints.manifest import CheckpointError
    from arena_agent.checkpoints.selection import examine

    reasons: list[str] = []
    for step in _steps(directory):
        reason, manifest = examine(step)
        if manifest is not None:
            return step
        reasons.append(reason)
    raise CheckpointError(f"no checkpoint in {str(directory)!r} is complete", why="; ".join(reasons))


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Say what the operating system refuses as an error of the caller's, not of ours."""
    try:
        yield
    except OSError as error:
        kind = ResourceExhaustedError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else UserError
        raise kind(f"{error.filename or path}: {error.strerror or error}") from error


@contextlib.contextmanager
def _progress(app: App, directory: Path) -> Iterator[Callable[[int], None] | None]:
    """Show how much of a checkpoint is read, where a person looks."""
    if app.out.json_mode or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from arena_agent.checkpoints.disk import size_on_disk

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(directory.name, total=size_on_disk(directory))
        yield lambda size_bytes: progress.advance(task, size_bytes)
