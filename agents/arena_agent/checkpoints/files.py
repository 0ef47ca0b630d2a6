"""The files of a checkpoint: each rank writes one; any block of any tensor is read from those that hold it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from arena_agent.checkpoints.boxes import Box, box_slices, coverage_fault, intersection, is_within, whole_box
from arena_agent.checkpoints.disk import Disk, FileEntry
from arena_agent.checkpoints.manifest import CheckpointError, Manifest, PieceEntry, TensorEntry, piece_key
from arena_agent.checkpoints.tensor_file import DTYPES, Array, StoredTensor, write_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIndex:
    """What one rank has written.

    Args:
        file: Name of its file.
        entry: The file's size and digest.
        dtypes: Type of each tensor it has a piece of.
        pieces: Its pieces of each tensor.
    """

    file: str
    entry: FileEntry
    dtypes: Mapping[str, str]
    pieces: Mapping[str, tuple[PieceEntry, ...]]


def rank_file_name(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"rank-{rank:05d}.safetensors"


def write_rank_file(
    directory: Path, rank: int, pieces: Iterable[tuple[str, Box, Array]], *, disk: Disk | None = None
) -> RankIndex:
    """Write a rank's pieces into one file, durably; empty ones are left out.

    Args:
        directory: Where; it exists.
        rank: Whose.
        pieces: Tensor, block, and the block's elements.
        disk: Where the bytes go.

    Raises:
        OSError: The place is full, gone or refuses.
    """
    file = rank_file_name(rank)
    tensors: list[StoredTensor] = []
    entries: dict[str, tuple[PieceEntry, ...]] = {}
    dtypes: dict[str, str] = {}
    for name, box, content in pieces:
        dtypes[name] = content.dtype.name
        entries.setdefault(name, ())
        if box.element_count:
            tensors.append(_stored(piece_key(name, box.offsets), box, content))
            entries[name] += (PieceEntry(file=file, offsets=box.offsets, sizes=box.sizes),)
    entry = write_tensors(directory / file, tensors, metadata={"rank": str(rank)}, disk=disk)
    return RankIndex(file=file, entry=entry, dtypes=dtypes, pieces=entries)


def _stored(key: str, box: Box, content: Array) -> StoredTensor:
    return StoredTensor(key=key, dtype=content.dtype.name, shape=box.sizes, content=lambda: content)


class Reader:
    """Reads a checkpoint's tensors by logical block, whoever wrote them; files are mapped and read where needed.

    Args:
        directory: The checkpoint.
        manifest: Its manifest.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._directory = directory
        self._manifest = manifest
        self._open_files: dict[str, Any] = {}

    def whole(self, name: str) -> Array:
        """Return a tensor.

        Raises:
            CheckpointError: See ``read``.
        """
        return self.read(name, whole_box(self._entry(name).shape))

    def read(self, name: str, box: Box) -> Array:
        """Return a block of a tensor.

        Raises:
            CheckpointError: The checkpoint lacks the tensor or a part of the block, or a file is damaged.
        """
        entry = self._entry(name)
        if not is_within(box, entry.shape):
            raise CheckpointError(
                f"checkpoint {self._directory.name} has {name} in shape {list(entry.shape)}",
                why=f"wanted are {list(box.sizes)} at {list(box.offsets)}",
            )
        parts = [(piece, shared) for piece in entry.pieces if (shared := intersection(piece.box, box)) is not None]
        found = [Box(tuple(at.start for at in box_slices(shared, box)), shared.sizes) for _, shared in parts]
        fault = coverage_fault(box.sizes, found)
        if fault is not None:
            raise CheckpointError(f"checkpoint {self._directory.name} does not hold {name} exactly", why=str(fault))
        wanted = np.empty(box.sizes, dtype=DTYPES[entry.dtype])
        for piece, shared in parts:
            wanted[box_slices(shared, box)] = self._part(name, entry, piece, shared)
        return wanted

    def _entry(self, name: str) -> TensorEntry:
        try:
            return self._manifest.tensors[name]
        except KeyError:
            raise CheckpointError(f"checkpoint {self._directory.name} lacks the tensor {name}") from None

    def _part(self, name: str, entry: TensorEntry, piece: PieceEntry, shared: Box) -> Array:
        try:
            part = self._file(piece.file).get_slice(piece_key(name, piece.offsets))
            if tuple(part.get_shape()) != piece.sizes:
                raise CheckpointError(f"{piece.file} has {name} in shape {part.get_shape()}, not {list(piece.sizes)}")
            # A scalar is an index of no dimensions, which the library does not take.
            values: Array = part[box_slices(shared, piece.box) or ...]
        except (SafetensorError, OSError) as error:
            where = f"checkpoint {self._directory.name} cannot be read"
            raise CheckpointError(where, why=f"{name} in {piece.file}: {error}") from error
        if values.dtype != DTYPES[entry.dtype]:
            raise CheckpointError(f"{piece.file} has {name} as {values.dtype}, not {entry.dtype}")
        return values

    def _file(self, name: str) -> Any:
        if name not in self._open_files:
            self._open_files[name] = safe_open(self._directory / name, framework="np")
        return self._open_files[name]
