"""Writes a checkpoint's model for others: one safetensors file of whole tensors, and a description beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from arena.domain.job import JobSpec
from arena.errors import UserError
from arena_agent.checkpoints.disk import TEMPORARY_PREFIX, sync, write_durably
from arena_agent.checkpoints.fence import FENCE_NAME
from arena_agent.checkpoints.files import Reader
from arena_agent.checkpoints.manifest import (
    MODEL_PREFIX,
    CheckpointError,
    Manifest,
    TensorEntry,
    read_manifest,
    step_of,
)
from arena_agent.checkpoints.tensor_file import Array, StoredTensor, write_tensors

MODEL_NAME = "model.safetensors"
_OTHER_NAME = "name another file"


def export_model(checkpoint: Path, output_dir: Path, spec: JobSpec, *, step: int, loss: float | None) -> Path:
    """Export the model of a durable checkpoint at the end of a job; run by one rank alone.

    It is read back from the checkpoint rather than gathered from the ranks: no communication, and the result is
    what was saved.

    Returns:
        The path of the model file, which is durable.
    """
    assert spec.train is not None
    description = {
        "name": spec.name,
        "step": step,
        "loss": loss,
        "tokens": step * spec.train.tokens_per_step,
        "model": spec.train.model.model_dump(mode="json"),
    }
    return export_to(checkpoint, output_dir / MODEL_NAME, description)


def export_to(checkpoint: Path, path: Path, description: Mapping[str, object] | None = None) -> Path:
    """Write a checkpoint's parameters, whole and the way round that torch's modules have them, one after the other.

    Args:
        checkpoint: The checkpoint's directory.
        path: The file, replaced at the end; its description goes to ``description_path``.
        description: What it is; by default what the checkpoint says of itself.

    Raises:
        CheckpointError: The checkpoint is damaged or holds no model.
        UserError: Something is in the place of the file that an export must not replace.
        OSError: The file cannot be written.
    """
    manifest = read_manifest(checkpoint)
    _require_harmless(path, checkpoint)
    reader = Reader(checkpoint, manifest)
    names = [name for name in manifest.tensors if name.startswith(MODEL_PREFIX)]
    if not names:
        raise CheckpointError(f"checkpoint {checkpoint.name} holds no model")
    tensors = [_exported(name, manifest.tensors[name], reader) for name in sorted(names)]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    try:
        # Loaders of other libraries ask for this word before they take a file of tensors.
        write_tensors(temporary, tensors, metadata={"format": "pt", "step": str(manifest.step)})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)
    said = described(manifest) if description is None else description
    write_durably(description_path(path), json.dumps(said, indent=1).encode())
    return path


def _require_harmless(path: Path, checkpoint: Path) -> None:
    """Refuse to put the two files where they would replace more than an older export."""
    for target in (path, description_path(path)):
        # A device or a pipe would be gone afterwards; a directory is no name of a file.
        if target.exists() and not target.is_file():
            raise UserError(f"{target} is not a plain file", why="an export replaces what is there", fix=_OTHER_NAME)
    folder = path.parent.resolve()
    if folder == checkpoint.resolve() or step_of(folder.name) is not None:
        raise UserError(f"{path} is inside a checkpoint", why="with a file more it counts as damaged", fix=_OTHER_NAME)
    if description_path(path) == path.with_name(FENCE_NAME):
        raise UserError(f"{path} would have its description in {FENCE_NAME}", why="it guards saves", fix=_OTHER_NAME)


def description_path(path: Path) -> Path:
    """Return where the description of an exported model goes: ``model.json`` for ``model.safetensors``."""
    stem = path.name.removesuffix(".safetensors")
    return path.with_name(f"{stem}.json")


def described(manifest: Manifest) -> dict[str, object]:
    """Return what a checkpoint says of the model in it."""
    return {
        "step": manifest.step,
        "samples": manifest.samples_consumed,
        "plan": manifest.plan,
        "versions": dict(manifest.versions),
        "fingerprint": dict(manifest.fingerprint),
    }


def _exported(name: str, entry: TensorEntry, reader: Reader) -> StoredTensor:
    shape, content = entry.shape, partial(reader.whole, name)
    if entry.is_input_first:
        shape, content = (shape[1], shape[0], *shape[2:]), partial(_outputs_first, reader, name)
    return StoredTensor(key=name.removeprefix(MODEL_PREFIX), dtype=entry.dtype, shape=shape, content=content)


def _outputs_first(reader: Reader, name: str) -> Array:
    return np.swapaxes(reader.whole(name), 0, 1)
