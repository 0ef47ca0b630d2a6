"""What people ask of checkpoints: which are there, whether they are sound, and which could go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from safetensors import SafetensorError, safe_open

from arena_agent.checkpoints.disk import TEMPORARY_PREFIX, size_on_disk
from arena_agent.checkpoints.fence import unwritten
from arena_agent.checkpoints.manifest import (
    MANIFEST_NAME,
    CheckpointError,
    Manifest,
    piece_key,
    read_manifest,
    require_coverage,
    step_directories,
    step_of,
    verify_digest,
    verify_files,
)
from arena_agent.checkpoints.place import remove_beyond, stored
from arena_agent.checkpoints.retention import Stored, names_to_remove
from arena_agent.checkpoints.selection import examine


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One checkpoint directory as it is shown.

    Args:
        written_at_s: When it was completed, seconds since 1970; None for one that was not.
        size_bytes: What it takes on disk.
        plan, epoch, versions: What wrote it; None while nothing says so.
        reason: Why it is not complete; empty when it is.
        is_next: Whether a resume would take it, should its digests be right.
    """

    name: str
    step: int
    written_at_s: float | None
    size_bytes: int
    plan: str | None
    epoch: int | None
    versions: dict[str, str]
    reason: str
    is_next: bool

    @property
    def is_complete(self) -> bool:
        """Whether it has a manifest and the files it lists, with their sizes."""
        return not self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A save that is being written, or that a killed attempt left; the next attempt clears it."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """What was, or would be, removed and kept, oldest first."""

    removed: tuple[Stored, ...]
    kept: tuple[Stored, ...]

    @property
    def freed_bytes(self) -> int:
        """Bytes that the removed ones took."""
        return sum(item.size_bytes for item in self.removed)


def listed(root: Path) -> tuple[Listed, ...]:
    """Return all checkpoints of a place, newest first."""
    rows: list[Listed] = []
    for name in step_directories(root):
        reason, manifest = examine(root / name)
        is_next = manifest is not None and not any(row.is_next for row in rows)
        row = _row(root / name, reason, manifest, is_next=is_next)
        if (root / name).is_dir():  # A job that goes on removes old ones meanwhile.
            rows.append(row)
    return tuple(rows)


def listed_alone(directory: Path) -> Listed:
    """Return what one checkpoint is, wherever it lies; whether a resume would take it only its place says."""
    reason, manifest = examine(directory)
    return _row(directory, reason, manifest, is_next=False)


def _row(directory: Path, reason: str, manifest: Manifest | None, *, is_next: bool) -> Listed:
    return Listed(
        name=directory.name,
        step=manifest.step if manifest else step_of(directory.name) or 0,
        written_at_s=_written_at_s(directory) if manifest else None,
        size_bytes=size_on_disk(directory),
        plan=manifest.plan if manifest else None,
        epoch=manifest.epoch if manifest else None,
        versions=dict(manifest.versions) if manifest else {},
        reason=reason,
        is_next=is_next,
    )


def _written_at_s(directory: Path) -> float | None:
    try:
        return (directory / MANIFEST_NAME).stat().st_mtime
    except FileNotFoundError:
        return None


def leftovers(root: Path) -> tuple[Leftover, ...]:
    """Return the temporaries of a place."""
    names = sorted(entry.name for entry in root.iterdir() if entry.name.startswith(TEMPORARY_PREFIX))
    found = [Leftover(name=name, size_bytes=size_on_disk(root / name)) for name in names]
    return tuple(item for item in found if (root / item.name).exists())


def faults(directory: Path, on_read: Callable[[int], None] | None = None) -> tuple[str, ...]:
    """Read a checkpoint whole and return everything that is wrong with it.

    Args:
        directory: The checkpoint.
        on_read: Told of the bytes of each block read.
    """
    found: list[str] = []
    try:
        manifest = read_manifest(directory)
    except CheckpointError as error:
        return (error.message,)
    for check in _checks(directory, manifest, on_read):
        try:
            check()
        except CheckpointError as error:
            found.append(error.message)
        except OSError as error:
            found.append(f"{directory.name}: {error}")
    return tuple(found)


def _checks(directory: Path, manifest: Manifest, on_read: Callable[[int], None] | None) -> Iterator[Callable[[], None]]:
    yield partial(verify_files, directory, manifest)
    for name in sorted(manifest.files):
        if (directory / name).is_file():
            yield partial(verify_digest, directory, manifest, name, on_read=on_read)
            yield partial(_verify_pieces, directory, manifest, name)
    yield partial(require_coverage, manifest)


def _verify_pieces(directory: Path, manifest: Manifest, file: str) -> None:
    """Check that a file holds the pieces it should, and no others."""
    expected = {
        piece_key(name, piece.offsets): list(piece.sizes)
        for name, entry in manifest.tensors.items()
        for piece in entry.pieces
        if piece.file == file
    }
    try:
        with safe_open(directory / file, framework="np") as opened:
            found = {key: list(opened.get_slice(key).get_shape()) for key in opened.keys()}  # noqa: SIM118 - no mapping
    except SafetensorError as error:
        raise CheckpointError(f"{directory.name}: {file} is no file of tensors", why=str(error)) from error
    differing = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
    if differing:
        raise CheckpointError(f"{directory.name}: {file} does not hold what the manifest says", why=differing[0])


def prune(root: Path, *, keep: int, quota_bytes: int | None, is_dry: bool) -> Pruning:
    """Remove old checkpoints of a place beyond a number and a size; the newest two complete ones stay.

    Raises:
        AlreadyRunningError: An attempt is writing one.
    """
    if is_dry:
        found = [stored(root / name) for name in step_directories(root)]
        names = names_to_remove(found, keep=keep, quota_bytes=quota_bytes)
    else:
        with unwritten(root):
            found = [stored(root / name) for name in step_directories(root)]
            names = remove_beyond(root, found, keep, quota_bytes)
    oldest_first = sorted(found, key=lambda item: item.step)
    return Pruning(
        removed=tuple(item for item in oldest_first if item.name in names),
        kept=tuple(item for item in oldest_first if item.name not in names),
    )
