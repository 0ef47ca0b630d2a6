"""The collective side of checkpoints: ranks open, load and save together; bytes are written by a thread.

The state is a set of logical tensors, ``model.<parameter>`` and ``optim.<parameter>.<moment>``, of which each rank
holds blocks. Nothing in a checkpoint depends on how parameters were grouped or placed: a rank reads the blocks it
holds now out of the blocks that were written then. What is a function of the step (learning rate, bias correction,
sample position) is not stored as tensors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from arena.errors import InternalError
from arena_agent.checkpoints.boxes import Box
from arena_agent.checkpoints.disk import Disk, LocalDisk
from arena_agent.checkpoints.fence import Fence, FencedError
from arena_agent.checkpoints.files import RankIndex, Reader, write_rank_file
from arena_agent.checkpoints.manifest import (
    CheckpointError,
    Manifest,
    require_equal,
    require_names,
    step_name,
    verify_files,
)
from arena_agent.checkpoints.place import Place
from arena_agent.checkpoints.selection import Selection, select_newest
from arena_agent.checkpoints.tensor_file import Array
from arena_agent.worker.agreement import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePiece:
    """One block of a logical tensor as a rank holds it.

    Args:
        name: Of the logical tensor.
        shape: Of the logical tensor.
        box: The block.
        tensor: Its elements, contiguous, of the block's sizes; read by saves and filled by loads.
        is_written: Whether this rank saves it; False where another rank saves the same block.
    """

    name: str
    shape: tuple[int, ...]
    box: Box
    tensor: Tensor
    is_written: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSave:
    """A save that is being written.

    Args:
        manifest: What it will be.
        written: What this rank's thread makes of it.
    """

    manifest: Manifest
    written: Future[RankIndex]

    @property
    def is_written(self) -> bool:
        """Whether this rank's part is written, or has failed; never waits."""
        return self.written.done()


@dataclass(slots=True, kw_only=True)
class CheckpointStore:
    """A job's checkpoint place as one attempt uses it; every method is called by all ranks together.

    Args:
        root: The directory that all nodes of the job see.
        fence: This attempt's right to write there.
        keep: Complete checkpoints kept.
        quota_bytes: Most that all of them may take, beyond the newest two; None for no limit.
        ranks: The ranks of the attempt.
        disk: Where the bytes of saves go.
    """

    root: Path
    fence: Fence
    keep: int
    ranks: Ranks
    quota_bytes: int | None = None
    disk: Disk = field(default_factory=LocalDisk)
    _damaged: dict[str, str] = field(default_factory=dict, init=False)
    _buffers: dict[tuple[str, Box], Tensor] = field(default_factory=dict, init=False)
    _pending: PendingSave | None = field(default=None, init=False)

    @property
    def _place(self) -> Place:
        return Place(root=self.root, fence=self.fence, keep=self.keep, quota_bytes=self.quota_bytes)

    def open(self) -> Selection:
        """Take over the place from older attempts, clear what they left, and choose what to load.

        Raises:
            CheckpointError: A newer attempt owns it, all its checkpoints are damaged, or the place cannot be used.
        """
        try:
            selection = self.ranks.first_does(self._place.open)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint place {self.root} cannot be opened",
                why=_text(error),
                fix="make it a directory that the job may write to on every node, or name another one",
            ) from error
        while selection.manifest is not None and selection.name is not None:
            share = sorted(selection.manifest.files)[self.ranks.rank :: self.ranks.world_size]
            damage = _damage(self.root / selection.name, selection.manifest, share)
            found = [text for text in self.ranks.gathered(damage) if text]
            if not found:
                break
            self._damaged = {**selection.skipped, **self._damaged, selection.name: found[0]}
            selection = self.ranks.first_does(partial(select_newest, self.root, self._damaged))
        self._damaged = dict(selection.skipped)
        return selection

    def load(self, selection: Selection, pieces: Sequence[StatePiece], fingerprint: Mapping[str, str]) -> None:
        """Fill this rank's pieces from a checkpoint, whatever layout wrote it; each rank reads only its blocks.

        Raises:
            CheckpointError: It belongs to another job, lacks a tensor or holds one that no rank has a place for.
        """
        assert selection.name is not None
        assert selection.manifest is not None
        require_equal(selection.manifest.fingerprint, fingerprint, name=selection.name)
        shapes = {piece.name: piece.shape for piece in pieces}
        names = {name for part in self.ranks.gathered(tuple(shapes)) for name in part}
        require_names(selection.manifest.tensors, names, name=selection.name)
        self._raise_together(_failure_of(partial(_fill, self.root / selection.name, selection.manifest, pieces)))

    def begin(self, pieces: Sequence[StatePiece], manifest: Manifest) -> PendingSave:
        """Start a save: copy this rank's pieces to host memory, and have a thread write the copy.

        Training may go on at once. One save at a time; ``finish`` ends it.

        Args:
            pieces: This rank's share of the state.
            manifest: What the checkpoint is, with all tensors expected but neither pieces nor files.

        Raises:
            FencedError: A newer attempt has taken over.
            CheckpointError: The save cannot start.
        """
        if self._pending is not None:
            raise InternalError(f"the save of step {self._pending.manifest.step} has not been finished")
        try:
            directory = self.ranks.first_does(partial(self._place.prepare, manifest.step))
        except OSError as error:
            raise self._failed(manifest, _text(error)) from error
        self._pending = PendingSave(manifest=manifest, written=Future())
        try:
            copies = self._copied(pieces)
        except Exception as error:  # noqa: BLE001 - the other ranks have begun: it surfaces on all of them in finish
            self._pending.written.set_exception(error)
            return self._pending
        write = partial(write_rank_file, directory, self.ranks.rank, copies, disk=self.disk)
        # A rank that dies of something else does not wait for its writing.
        threading.Thread(target=_run_into, args=(self._pending.written, write), name="save", daemon=True).start()
        return self._pending

    def finish(self, pending: PendingSave) -> Manifest:
        """Wait for all ranks' writing, check that the whole state is there, and make the checkpoint visible.

        Returns:
            The manifest as written.

        Raises:
            FencedError: A newer attempt has taken over.
            CheckpointError: The save failed; nothing of it remains, older checkpoints stay.
        """
        failure = pending.written.exception()
        index = pending.written.result() if failure is None else None
        self._pending = None
        manifest = pending.manifest
        parts = self.ranks.gathered((index, _text(failure) if failure else ""))
        failures = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(parts) if text]
        indexes = [part for part, _ in parts if part is not None]
        return self.ranks.first_does(partial(self._end, manifest, indexes, failures))

    def save(self, pieces: Sequence[StatePiece], manifest: Manifest) -> Manifest:
        """Save and wait; see ``begin`` and ``finish``."""
        return self.finish(self.begin(pieces, manifest))

    def _end(self, manifest: Manifest, indexes: Sequence[RankIndex], failures: Sequence[str]) -> Manifest:
        """Commit a save, or clear it away; one rank alone."""
        try:
            if failures:
                with self.fence.held():
                    pass  # being fenced explains any other failure
                raise CheckpointError(failures[0])
            manifest = self._place.commit(manifest, indexes)
        except FencedError:
            self._place.discard(manifest.step)
            raise
        except (OSError, CheckpointError) as error:
            self._place.discard(manifest.step)
            raise self._failed(manifest, _text(error)) from error
        self._damaged.pop(step_name(manifest.step), None)
        self._place.retire(manifest.step, self._damaged)
        return manifest

    def _failed(self, manifest: Manifest, cause: str) -> CheckpointError:
        why = f"{cause} ({self._place.room()})"
        return CheckpointError(f"checkpoint {step_name(manifest.step)} failed", why=why)

    def _copied(self, pieces: Sequence[StatePiece]) -> list[tuple[str, Box, Array]]:
        """Copy the pieces this rank writes to host memory that is used again by the next save."""
        written = [piece for piece in pieces if piece.is_written]
        buffers: dict[tuple[str, Box], Tensor] = {}
        for piece in written:
            _require_fit(piece)
            key = (piece.name, piece.box)
            buffer = self._buffers.get(key)
            if buffer is None or buffer.dtype != piece.tensor.dtype:
                buffer = torch.empty(piece.box.sizes, dtype=piece.tensor.dtype, pin_memory=piece.tensor.is_cuda)
            buffers[key] = buffer.copy_(piece.tensor.detach(), non_blocking=True)
        self._buffers = buffers
        if any(piece.tensor.is_cuda for piece in written):
            torch.cuda.current_stream().synchronize()
        return [(name, box, buffer.numpy()) for (name, box), buffer in buffers.items()]

    def _raise_together(self, failure: CheckpointError | None) -> None:
        """Raise the first rank's failure, if there is one, on every rank."""
        failures = [found for found in self.ranks.gathered(failure) if found is not None]
        if failures:
            raise failure or failures[0]


def _fill(directory: Path, manifest: Manifest, pieces: Sequence[StatePiece]) -> None:
    reader = Reader(directory, manifest)
    for piece in pieces:
        _require_fit(piece)
        shape = manifest.tensors[piece.name].shape
        if shape != piece.shape:
            raise CheckpointError(
                f"checkpoint {directory.name} has {piece.name} in shape {list(shape)}, the job in {list(piece.shape)}"
            )
        piece.tensor.detach().copy_(torch.from_numpy(reader.read(piece.name, piece.box)))


def _require_fit(piece: StatePiece) -> None:
    if tuple(piece.tensor.shape) != piece.box.sizes:
        raise InternalError(f"{piece.name} has a part of {list(piece.tensor.shape)} for a box of {piece.box.sizes}")


def _failure_of(action: Callable[[], None]) -> CheckpointError | None:
    """Run a rank's own part and return why it failed, so that the other ranks can learn of it."""
    try:
        action()
    except CheckpointError as error:
        return error
    except Exception as error:  # noqa: BLE001 - told to all ranks, and raised on each
        return CheckpointError("the checkpoint cannot be loaded", why=_text(error))
    return None


def _damage(directory: Path, manifest: Manifest, names: Sequence[str]) -> str | None:
    """Return what is wrong with some of a checkpoint's files by their digests; ranks share the reading."""
    try:
        verify_files(directory, manifest, names=names)
    except CheckpointError as error:
        return error.message
    except OSError as error:
        return f"{directory.name}: {error}"
    return None


def _run_into(outcome: Future[RankIndex], action: Callable[[], RankIndex]) -> None:
    try:
        outcome.set_result(action())
    except BaseException as error:  # noqa: BLE001 - raised where the outcome is asked for
        outcome.set_exception(error)


def _text(error: BaseException) -> str:
    return error.message if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
