"""Ranks that only save and load: a small state cut as a test says, over real process groups and files."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist

from arena.errors import ArenaError
from arena_agent.checkpoints.boxes import box_slices
from arena_agent.checkpoints.fence import Fence
from arena_agent.checkpoints.manifest import Manifest
from arena_agent.worker.agreement import Ranks
from arena_agent.worker.checkpoint import CheckpointStore, StatePiece
from tests.fakes.checkpoint_places import FINGERPRINT, SHAPES, manifest_of, share, value_at
from tests.fakes.forking import forking


@dataclass
class RankState:
    """One rank's pieces, with its store."""

    store: CheckpointStore
    rank: int
    world_size: int
    epoch: int
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: dict(SHAPES))

    @classmethod
    def make(cls, ranks: Ranks, root: Path, epoch: int, **options: Any) -> RankState:
        fence = Fence(root=root, epoch=epoch)
        options = {"keep": 2, **options}
        store = CheckpointStore(root=root, fence=fence, ranks=ranks, **options)
        return cls(store=store, rank=ranks.rank, world_size=ranks.world_size, epoch=epoch)

    def pieces(self, step: int) -> list[StatePiece]:
        """Return this rank's pieces as they are after a step."""
        made = []
        for name, shape in self.shapes.items():
            value = value_at(step, name, shape)
            for box, is_written in share(name, shape, self.rank, self.world_size):
                part = torch.from_numpy(value[box_slices(box)].copy())
                made.append(StatePiece(name=name, shape=shape, box=box, tensor=part, is_written=is_written))
        return made

    def manifest(self, step: int) -> Manifest:
        return manifest_of(step, epoch=self.epoch, shapes=self.shapes)

    def save(self, step: int) -> Manifest:
        return self.store.save(self.pieces(step), self.manifest(step))

    def resume(self, fingerprint: Mapping[str, str] = FINGERPRINT) -> int:
        """Open, load and require that every element is the one of the step that is said; return the step."""
        selection = self.store.open()
        if selection.manifest is None:
            return 0
        step = selection.manifest.step
        pieces = self.pieces(step)
        wanted = [piece.tensor.clone() for piece in pieces]
        for piece in pieces:
            piece.tensor.fill_(-1.0)
        self.store.load(selection, pieces, fingerprint)
        assert all(torch.equal(piece.tensor, tensor) for piece, tensor in zip(pieces, wanted, strict=True))
        return step


class StuckDisk:
    """A disk that stops half way through a save's files and never goes on; it says so through a file."""

    def __init__(self, report: Path) -> None:
        self._report = report

    def write(self, file: BinaryIO, block: memoryview) -> None:
        file.write(block[: len(block) // 2])
        file.flush()
        self._report.touch()
        _wait_for_ever()

    def sync(self, file: BinaryIO) -> None:
        raise AssertionError("never reached")


def _wait_for_ever() -> None:
    reader, _ = os.pipe()
    os.read(reader, 1)


Body = Callable[[Ranks, Path], Any]


def run_ranks(body: Body, directory: Path, world_size: int, timeout_s: float = 60.0) -> list[Any]:
    """Run a function on each of some ranks and return what each returned, or the Arena error it raised."""
    processes = start_ranks(body, directory, world_size)
    for process in processes:
        process.join(timeout_s)
        assert process.exitcode == 0, f"{process.name} ended with {process.exitcode}"
    return [pickle.loads((directory / f"result-{rank}").read_bytes()) for rank in range(world_size)]


def start_ranks(body: Body, directory: Path, world_size: int) -> list[BaseProcess]:
    """Start ranks that run a function; they are forked from a process that has torch loaded."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "store").unlink(missing_ok=True)
    context = forking()
    processes = [
        context.Process(target=_rank_main, args=(body, directory, rank, world_size), name=f"rank {rank}")
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    return list(processes)


def _rank_main(body: Body, directory: Path, rank: int, world_size: int) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(str(directory / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    assert dist.group.WORLD is not None
    ranks = Ranks(rank=rank, world_size=world_size, group=dist.group.WORLD)
    try:
        result = body(ranks, directory)
    except ArenaError as error:
        result = error
    (directory / f"result-{rank}").write_bytes(pickle.dumps(result))
    dist.destroy_process_group()
