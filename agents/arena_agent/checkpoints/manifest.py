"""What a checkpoint directory is: the manifest written last, what it lists, and the check that it is so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from arena.domain.parameters import Parameter
from arena.errors import ArenaError
from arena_agent.checkpoints.boxes import Box, coverage_fault
from arena_agent.checkpoints.disk import FileEntry, file_entry, write_durably

MANIFEST_NAME = "manifest.json"
MODEL_PREFIX = "model."
OPTIMIZER_PREFIX = "optim."
FORMAT = 2
_STEP_PREFIX = "step-"
_NAMED_MAX = 5

DTypeName = Literal["float32", "float64", "int64"]


class CheckpointError(ArenaError):
    """A checkpoint cannot be written, read or accepted."""

    code = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceEntry:
    """One piece of a tensor: which block of it lies in which file."""

    file: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def box(self) -> Box:
        """The block."""
        return Box(self.offsets, self.sizes)


def piece_key(name: str, offsets: Sequence[int]) -> str:
    """Return the name of a piece inside its file."""
    return f"{name}@{','.join(map(str, offsets))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One logical tensor, whatever ranks wrote it.

    Args:
        dtype: Type of its elements.
        shape: Its whole shape.
        pieces: Blocks that hold each element exactly once; none yet where a save is only planned.
        is_input_first: Whether it is a weight stored the other way round than torch's modules have it.
    """

    dtype: DTypeName
    shape: tuple[int, ...]
    pieces: tuple[PieceEntry, ...] = ()
    is_input_first: bool = False

    def __post_init__(self) -> None:
        """Refuse what no tensor is."""
        if any(size < 0 for size in self.shape):
            raise ValueError(f"no shape: {list(self.shape)}")
        if self.is_input_first and len(self.shape) < 2:
            raise ValueError(f"shape {list(self.shape)} has no inputs and outputs to swap")
        for piece in self.pieces:
            if not len(piece.offsets) == len(piece.sizes) == len(self.shape):
                raise ValueError(f"no block of shape {list(self.shape)}: {list(piece.sizes)} at {list(piece.offsets)}")
            if min((*piece.offsets, *piece.sizes), default=0) < 0:
                raise ValueError(f"no block: {list(piece.sizes)} at {list(piece.offsets)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint holds; its presence makes the checkpoint visible.

    Args:
        format: Version of this file's form.
        step: Optimizer steps done.
        epoch: Epoch of the attempt that wrote it.
        plan: Layout that wrote it; for people, since loading does not depend on it.
        versions: Versions of what wrote it, by package.
        fingerprint: What must be equal to go on from it, named: model, data, batch, seed, optimizer.
        samples_consumed: Position in the sample stream; layout independent.
        tensors: All logical tensors by name: ``model.<parameter>`` and ``optim.<parameter>.<state>``.
        files: All files of the directory but this one.
    """

    format: int = FORMAT
    step: int
    epoch: int
    plan: str
    versions: Mapping[str, str]
    fingerprint: Mapping[str, str]
    samples_consumed: int
    tensors: Mapping[str, TensorEntry]
    files: Mapping[str, FileEntry]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files listed."""
        return sum(entry.size_bytes for entry in self.files.values())


_MANIFEST_JSON: TypeAdapter[Manifest] = TypeAdapter(Manifest)


def expected_tensors(parameters: Iterable[Parameter], state_names: Sequence[str]) -> dict[str, TensorEntry]:
    """Return the tensors that a whole checkpoint of a model has to hold, without their pieces.

    Args:
        parameters: All parameters of the model.
        state_names: The optimizer's tensors for each of them, shaped like it (``exp_avg``).
    """
    entries: dict[str, TensorEntry] = {}
    for parameter in parameters:
        entry = TensorEntry(dtype="float32", shape=parameter.shape, is_input_first=parameter.is_input_first)
        entries[MODEL_PREFIX + parameter.name] = entry
        entries |= {f"{OPTIMIZER_PREFIX}{parameter.name}.{state}": entry for state in state_names}
    return entries


def step_name(step: int) -> str:
    """Return the directory name of a step's checkpoint."""
    return f"{_STEP_PREFIX}{step:08d}"


def step_of(name: str) -> int | None:
    """Return the step that a directory name states, or None when it is not a checkpoint's."""
    digits = name.removeprefix(_STEP_PREFIX)
    return int(digits) if digits != name and digits.isdecimal() and digits.isascii() else None


def step_directories(root: Path) -> list[str]:
    """Return the names of all checkpoint directories, newest first."""
    names = [entry.name for entry in root.iterdir() if entry.is_dir() and step_of(entry.name) is not None]
    return sorted(names, key=lambda name: (step_of(name) or 0, name), reverse=True)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest atomically and durably: after this the checkpoint counts."""
    write_durably(directory / MANIFEST_NAME, _MANIFEST_JSON.dump_json(manifest))


def read_manifest(directory: Path) -> Manifest:
    """Read a directory's manifest.

    Raises:
        CheckpointError: There is none, or it is not one of ours.
    """
    path = directory / MANIFEST_NAME
    try:
        # Opening a pipe would wait for its other end.
        if path.exists() and not path.is_file():
            raise OSError("it is not a plain file")
        content = path.read_bytes()
        _require_format(content, directory.name)
        manifest = _MANIFEST_JSON.validate_json(content)
    except FileNotFoundError:
        raise CheckpointError(f"{directory.name} has no manifest: its save never completed") from None
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{directory.name} has an unreadable manifest", why=_cause(error)) from error
    # One that was copied elsewhere under a name of its own says nothing false.
    if step_of(directory.name) is not None and step_name(manifest.step) != directory.name:
        raise CheckpointError(f"{directory.name} has the manifest of {step_name(manifest.step)}")
    outside = [name for name in sorted(manifest.files) if Path(name).name != name]
    if outside:
        raise CheckpointError(f"{directory.name} has a manifest that lists a file elsewhere", why=outside[0])
    return manifest


def _require_format(content: bytes, name: str) -> None:
    fields = json.loads(content)
    found = fields.get("format") if isinstance(fields, dict) else None
    if found != FORMAT:
        raise CheckpointError(
            f"{name} has format {found}, this version reads {FORMAT}",
            fix="go on with the version that wrote it, or clear the directory to start afresh",
        )


def verify_files(directory: Path, manifest: Manifest, *, names: Sequence[str] = ()) -> None:
    """Check that exactly the listed files are there with their sizes, and the digests of some.

    Args:
        directory: The checkpoint.
        manifest: Its manifest.
        names: Files to read whole.

    Raises:
        CheckpointError: A file is missing, cut off or changed, or one is there that the manifest does not list.
    """
    # Hidden files are the file system's own (a removed file that is still open on NFS).
    found = {entry.name for entry in directory.iterdir() if not entry.name.startswith(".")}
    extra = sorted(found - manifest.files.keys() - {MANIFEST_NAME})
    if extra:
        raise CheckpointError(f"{directory.name} holds a file that its manifest does not list: {extra[0]}")
    for name, entry in sorted(manifest.files.items()):
        path = directory / name
        if not path.is_file():
            raise CheckpointError(f"{directory.name} lacks its file {name}")
        size_bytes = path.stat().st_size
        if size_bytes != entry.size_bytes:
            raise CheckpointError(
                f"{directory.name}: file {name} has {size_bytes} bytes, the manifest says {entry.size_bytes}"
            )
        if name in names:
            verify_digest(directory, manifest, name)


def verify_digest(
    directory: Path, manifest: Manifest, name: str, *, on_read: Callable[[int], None] | None = None
) -> None:
    """Read one file whole and check its digest, telling of the bytes of each block read.

    Raises:
        CheckpointError: It differs.
    """
    if file_entry(directory / name, on_read).sha256 != manifest.files[name].sha256:
        raise CheckpointError(f"{directory.name}: file {name} differs from its digest in the manifest")


def require_coverage(manifest: Manifest) -> None:
    """Check that every tensor's pieces hold each of its elements exactly once, in files that are listed.

    Raises:
        CheckpointError: They do not; the tensors are named.
    """
    name = step_name(manifest.step)
    faults: list[str] = []
    for tensor, entry in sorted(manifest.tensors.items()):
        unlisted = sorted({piece.file for piece in entry.pieces} - manifest.files.keys())
        fault = coverage_fault(entry.shape, [piece.box for piece in entry.pieces])
        if unlisted:
            faults.append(f"{tensor}: a part is in {unlisted[0]}, which is not listed")
        elif fault is not None:
            faults.append(f"{tensor} of shape {list(entry.shape)}: {fault}")
    if faults:
        raise CheckpointError(f"{name} does not hold every element exactly once", why=_named(faults))


def require_names(found: Iterable[str], expected: Iterable[str], *, name: str) -> None:
    """Check that a checkpoint holds the tensors expected, and no others.

    Raises:
        CheckpointError: It lacks one, or holds one that nobody wants; they are named.
    """
    have, want = set(found), set(expected)
    missing, extra = sorted(want - have), sorted(have - want)
    parts = [f"it lacks {_named(missing)}"] if missing else []
    parts += [f"it holds {_named(extra)}, which the job has no place for"] if extra else []
    if parts:
        raise CheckpointError(
            f"checkpoint {name} does not hold the tensors of this model and optimizer",
            why=", and ".join(parts),
            details={"missing": ",".join(missing[:_NAMED_MAX]), "extra": ",".join(extra[:_NAMED_MAX])},
        )


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


def _named(items: Sequence[str]) -> str:
    more = f" and {len(items) - _NAMED_MAX} more" if len(items) > _NAMED_MAX else ""
    return ", ".join(items[:_NAMED_MAX]) + more


def _cause(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error).partition("\n")[0]
