"""A checkpoint's tensors as one process sees them, for comparison with what ranks have."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from arena_agent.checkpoints.files import Reader
from arena_agent.checkpoints.manifest import read_manifest


def read_whole(directory: Path, *, prefix: str = "") -> dict[str, Tensor]:
    """Read a checkpoint's logical tensors, whole.

    Args:
        directory: The checkpoint.
        prefix: Only tensors whose name starts so.
    """
    manifest = read_manifest(directory)
    reader = Reader(directory, manifest)
    names = [name for name in sorted(manifest.tensors) if name.startswith(prefix)]
    return {name: torch.from_numpy(reader.whole(name)) for name in names}
