"""Writes safetensors files tensor by tensor, so that nothing need be in memory twice and a digest is made on the way.

The form is a little-endian 64-bit length, that many bytes of JSON (type, shape and place of each tensor), then the
tensors' bytes one after the other (https://huggingface.co/docs/safetensors, "Format"). The safetensors library reads
it; it writes only what is in memory as a whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from arena_agent.checkpoints.disk import Disk, FileEntry, LocalDisk, sync

Array = npt.NDArray[np.generic]

DTYPES: Mapping[str, np.dtype[np.generic]] = {
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
    "int64": np.dtype("<i8"),
}
_SAFETENSORS_NAMES = {"float32": "F32", "float64": "F64", "int64": "I64"}
_ALIGNMENT = 8
_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """One tensor of a file to be written.

    Args:
        key: Its name in the file.
        dtype: Name of its type, a key of ``DTYPES``.
        shape: Its shape.
        content: Returns its elements when it is its turn.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    content: Callable[[], Array]

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize


def write_tensors(
    path: Path, tensors: Sequence[StoredTensor], *, metadata: Mapping[str, str], disk: Disk | None = None
) -> FileEntry:
    """Write a safetensors file durably and return its size and the digest of what was meant to be written.

    Raises:
        OSError: The place is full, gone or refuses.
    """
    disk = disk or LocalDisk()
    digest = hashlib.sha256()
    size_bytes = 0
    with path.open("wb") as file:

        def put(block: memoryview) -> None:
            nonlocal size_bytes
            disk.write(file, block)
            digest.update(block)
            size_bytes += len(block)

        put(memoryview(_header(tensors, metadata)))
        for tensor in tensors:
            content = _bytes_of(tensor)
            for start in range(0, len(content), _BLOCK_BYTES):
                put(content[start : start + _BLOCK_BYTES])
        disk.sync(file)
    sync(path.parent)
    return FileEntry(size_bytes=size_bytes, sha256=digest.hexdigest())


def _header(tensors: Sequence[StoredTensor], metadata: Mapping[str, str]) -> bytes:
    fields: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.size_bytes
        dtype = _SAFETENSORS_NAMES[tensor.dtype]
        fields[tensor.key] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": (start, end)}
    if len(fields) != len(tensors) + 1:
        raise ValueError("two tensors of one file have the same name")
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: StoredTensor) -> memoryview:
    content = np.ascontiguousarray(tensor.content(), dtype=DTYPES[tensor.dtype])
    if content.size != prod(tensor.shape):
        raise ValueError(f"{tensor.key} has {content.size} elements, not the {prod(tensor.shape)} of its shape")
    return content.reshape(-1).view(np.uint8).data
