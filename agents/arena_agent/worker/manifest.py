"""Which checkpoint directories are whole: the manifest written last, and the verification of what it lists."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pydantic import TypeAdapter, ValidationError

from arena.errors import ArenaError

MANIFEST_NAME = "manifest.json"
TEMPORARY_PREFIX = ".tmp-"
_STEP_PREFIX = "step-"
_READ_BYTES = 1 << 20
FORMAT = 1


class CheckpointError(ArenaError):
    """A checkpoint cannot be written, read or accepted."""

    code = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """Size and digest of one file of a checkpoint."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint holds; its presence makes the checkpoint visible.

    Args:
        format: Version of this file's form.
        step: Optimizer steps done.
        epoch: Epoch of the attempt that wrote it.
        plan: Layout that wrote it; for people, since loading does not depend on it.
        torch_version: Version of torch that wrote it.
        fingerprint: What must be equal to go on from it, named: model, data, batch, seed, optimizer.
        samples_consumed: Position in the sample stream; layout independent.
        parameters: Names of all parameters of the model.
        optimizer_state: Names of the optimizer's tensors for each parameter.
        files: All files of the directory but this one.
    """

    format: int
    step: int
    epoch: int
    plan: str
    torch_version: str
    fingerprint: Mapping[str, str]
    samples_consumed: int
    parameters: tuple[str, ...]
    optimizer_state: tuple[str, ...]
    files: Mapping[str, FileEntry]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files listed."""
        return sum(entry.size_bytes for entry in self.files.values())


_MANIFEST_JSON: TypeAdapter[Manifest] = TypeAdapter(Manifest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The checkpoint to load, if there is one, and the newer ones that were passed over.

    Args:
        name: Directory name, None when there is nothing to load.
        manifest: Its manifest.
        skipped: Reason for each newer directory.
    """

    name: str | None
    manifest: Manifest | None
    skipped: Mapping[str, str]


def step_name(step: int) -> str:
    """Return the directory name of a step's checkpoint."""
    return f"{_STEP_PREFIX}{step:08d}"


def step_of(name: str) -> int | None:
    """Return the step that a directory name states, or None when it is not a checkpoint's."""
    digits = name.removeprefix(_STEP_PREFIX)
    return int(digits) if digits != name and digits.isdigit() else None


def file_entry(path: Path) -> FileEntry:
    """Read a file and return its size and digest."""
    digest = hashlib.sha256()
    size_bytes = 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
            size_bytes += len(block)
    return FileEntry(size_bytes=size_bytes, sha256=digest.hexdigest())


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest atomically and durably: after this the checkpoint counts."""
    write_durably(directory / MANIFEST_NAME, _MANIFEST_JSON.dump_json(manifest, indent=1))


def read_manifest(directory: Path) -> Manifest:
    """Read a directory's manifest.

    Raises:
        CheckpointError: There is none, or it is not one of ours.
    """
    try:
        manifest = _MANIFEST_JSON.validate_json((directory / MANIFEST_NAME).read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{directory.name} has no manifest: its save never completed") from None
    except (ValidationError, OSError, NotADirectoryError) as error:
        raise CheckpointError(f"{directory.name} has an unreadable manifest", why=_first_line(error)) from error
    if manifest.format != FORMAT:
        raise CheckpointError(f"{directory.name} has format {manifest.format}, this worker reads {FORMAT}")
    if step_name(manifest.step) != directory.name:
        raise CheckpointError(f"{directory.name} has the manifest of {step_name(manifest.step)}")
    return manifest


def verify_files(directory: Path, manifest: Manifest, *, names: Sequence[str] = ()) -> None:
    """Check that all files are there with their sizes, and the digests of some.

    Args:
        directory: The checkpoint.
        manifest: Its manifest.
        names: Files to read whole.

    Raises:
        CheckpointError: A file is missing, cut off or changed.
    """
    for name, entry in sorted(manifest.files.items()):
        path = directory / name
        if not path.is_file():
            raise CheckpointError(f"{directory.name} lacks its file {name}")
        size_bytes = path.stat().st_size
        if size_bytes != entry.size_bytes:
            raise CheckpointError(
                f"{directory.name}: file {name} has {size_bytes} bytes, the manifest says {entry.size_bytes}"
            )
        if name in names and file_entry(path).sha256 != entry.sha256:
            raise CheckpointError(f"{directory.name}: file {name} differs from its digest in the manifest")


def select_newest(root: Path, damaged: Mapping[str, str] = MappingProxyType({})) -> Selection:
    """Choose the newest checkpoint that is whole by its sizes; newer ones are passed over and named.

    Args:
        root: The checkpoint directory.
        damaged: Checkpoints already found to differ from their digests, with the reason.

    Raises:
        CheckpointError: There are completed checkpoints, but all of them are damaged: starting afresh would
            silently lose the work.
    """
    skipped: dict[str, str] = {}
    is_work_lost = False
    for name in step_directories(root):
        try:
            if name in damaged:
                raise CheckpointError(damaged[name])
            manifest = read_manifest(root / name)
            verify_files(root / name, manifest)
        except CheckpointError as error:
            skipped[name] = error.message
            is_work_lost = is_work_lost or (root / name / MANIFEST_NAME).exists()
            continue
        return Selection(name=name, manifest=manifest, skipped=skipped)
    if is_work_lost:
        raise CheckpointError(
            f"no checkpoint in {root} can be loaded",
            why="; ".join(skipped.values()),
            fix="restore one from a copy, or clear the directory to start afresh",
        )
    return Selection(name=None, manifest=None, skipped=skipped)


def step_directories(root: Path) -> list[str]:
    """Return the names of all checkpoint directories, newest first."""
    names = [entry.name for entry in root.iterdir() if entry.is_dir() and step_of(entry.name) is not None]
    return sorted(names, key=lambda name: step_of(name) or 0, reverse=True)


def complete_names(root: Path) -> list[str]:
    """Return the names of checkpoints whose manifest and sizes are right, newest first."""
    names: list[str] = []
    for name in step_directories(root):
        try:
            verify_files(root / name, read_manifest(root / name))
        except CheckpointError:
            continue
        names.append(name)
    return names


def require_equal(saved: Mapping[str, str], ours: Mapping[str, str], *, name: str) -> None:
    """Refuse a checkpoint of another job; fields that came after it was written are not held against it.

    Raises:
        CheckpointError: A field of the fingerprint differs; both values are named.
    """
    differing = [field for field in sorted(saved) if saved[field] != ours.get(field)]
    if differing:
        raise CheckpointError(
            f"checkpoint {name} belongs to another job",
            why=", ".join(f"{field} is {saved[field]}, the job has {ours.get(field)}" for field in differing),
            fix="use another checkpoint directory, or the spec it was written with",
            details={"fields": ",".join(differing)},
        )


def write_durably(path: Path, content: bytes) -> None:
    """Replace a file so that after a crash it is either the old one or the new one."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Force a file's or directory's content to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_and_describe(paths: Iterable[Path]) -> dict[str, FileEntry]:
    """Force files to disk and return their entries by name."""
    entries: dict[str, FileEntry] = {}
    for path in sorted(paths):
        sync(path)
        entries[path.name] = file_entry(path)
    return entries


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
