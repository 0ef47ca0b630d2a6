"""A small training state cut over ranks, saved into a checkpoint place and read back; knows no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from arena_agent.checkpoints.boxes import Box, box_slices, boxes_of_range, whole_box
from arena_agent.checkpoints.disk import Disk
from arena_agent.checkpoints.fence import Fence
from arena_agent.checkpoints.files import Reader, write_rank_file
from arena_agent.checkpoints.manifest import Manifest, TensorEntry, read_manifest
from arena_agent.checkpoints.place import Place

Shapes = Mapping[str, tuple[int, ...]]

SHAPES: Shapes = {
    "model.embed.weight": (13, 5),
    "model.head.bias": (7,),
    "optim.embed.weight.exp_avg": (13, 5),
    "optim.head.bias.exp_avg": (7,),
}
FINGERPRINT = {"seed": "1", "model.hidden": "5"}


def value_at(step: int, name: str, shape: Sequence[int]) -> np.ndarray:
    """Return what a tensor is after a step: different for every step, tensor and element."""
    first = step * 1000 + 100 * sum(name.encode()) % 977
    return np.arange(first, first + np.prod(shape, dtype=int)).astype(np.float32).reshape(shape)


def manifest_of(step: int, *, epoch: int = 1, shapes: Shapes = SHAPES) -> Manifest:
    return Manifest(
        step=step,
        epoch=epoch,
        plan="dp1 tp1 pp1 mb4",
        versions={"torch": "2"},
        fingerprint=FINGERPRINT,
        samples_consumed=step * 4,
        tensors={name: TensorEntry(dtype="float32", shape=shape) for name, shape in shapes.items()},
        files={},
    )


def share(name: str, shape: tuple[int, ...], rank: int, world_size: int) -> list[tuple[Box, bool]]:
    """Return a rank's blocks and whether it writes them: the optimizer's state in equal runs, parameters on all."""
    if not name.startswith("optim."):
        return [(whole_box(shape), rank == 0)]
    count = int(np.prod(shape))
    start, stop = (count * part // world_size for part in (rank, rank + 1))
    return [(box, True) for box in boxes_of_range(shape, start, stop)]


def place_at(root: Path, *, epoch: int = 1, keep: int = 2, quota_bytes: int | None = None) -> Place:
    return Place(root=root, fence=Fence(root=root, epoch=epoch), keep=keep, quota_bytes=quota_bytes)


def save(
    place: Place, step: int, *, world_size: int = 2, shapes: Shapes = SHAPES, disk: Disk | None = None
) -> Manifest:
    """Save the state after a step as ranks would, one after the other."""
    place.root.mkdir(parents=True, exist_ok=True)
    directory = place.prepare(step)
    indexes = []
    for rank in range(world_size):
        pieces = [
            (name, box, value_at(step, name, shape)[box_slices(box)])
            for name, shape in shapes.items()
            for box, is_written in share(name, shape, rank, world_size)
            if is_written
        ]
        indexes.append(write_rank_file(directory, rank, pieces, disk=disk))
    manifest = place.commit(manifest_of(step, epoch=place.fence.epoch, shapes=shapes), indexes)
    place.retire(step)
    return manifest


def require_state(directory: Path, step: int, shapes: Shapes = SHAPES) -> None:
    """Require that a checkpoint holds, bit by bit, the state after a step."""
    reader = Reader(directory, read_manifest(directory))
    for name, shape in shapes.items():
        np.testing.assert_array_equal(reader.whole(name), value_at(step, name, shape), err_msg=name)
