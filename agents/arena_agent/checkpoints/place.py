"""A job's checkpoint place as one attempt uses it: taken over, saved into aside, committed, retired."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType

from arena.units import format_bytes
from arena_agent.checkpoints.disk import TEMPORARY_PREFIX, remove, size_on_disk, sync
from arena_agent.checkpoints.fence import Fence
from arena_agent.checkpoints.files import RankIndex
from arena_agent.checkpoints.manifest import (
    CheckpointError,
    Manifest,
    PieceEntry,
    require_coverage,
    require_names,
    step_directories,
    step_name,
    step_of,
    write_manifest,
)
from arena_agent.checkpoints.retention import Stored, names_to_remove
from arena_agent.checkpoints.selection import Selection, examine, select_newest

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What one process does there on behalf of the attempt.

    Args:
        root: The checkpoint directory.
        fence: The attempt's right to write there.
        keep: Complete checkpoints kept.
        quota_bytes: Most that all of them may take, beyond the newest two; None for no limit.
    """

    root: Path
    fence: Fence
    keep: int
    quota_bytes: int | None = None

    def open(self) -> Selection:
        """Take over the place from older attempts, clear what they left, and choose what to load.

        Raises:
            CheckpointError: A newer attempt owns it, or all its checkpoints are damaged.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        self.fence.claim()
        with self.fence.held():
            # A newer attempt that came meanwhile has its own temporaries; held, none can come.
            for entry in sorted((*self.root.iterdir(), *self.root.glob("step-*/.*"))):
                if entry.name.startswith(TEMPORARY_PREFIX):
                    remove(entry)
        return select_newest(self.root)

    def temporary(self, step: int) -> Path:
        """Return where the save of a step is written aside."""
        return self.root / f"{TEMPORARY_PREFIX}{step_name(step)}.{self.fence.epoch}"

    def prepare(self, step: int) -> Path:
        """Make the directory of a save and return it.

        Raises:
            FencedError: A newer attempt has taken over.
            OSError: It cannot be made.
        """
        directory = self.temporary(step)
        with self.fence.held():
            remove(directory)
            directory.mkdir()
        return directory

    def commit(self, manifest: Manifest, indexes: Sequence[RankIndex]) -> Manifest:
        """Make a save visible: check that it is whole, move it into place, write its manifest last.

        Args:
            manifest: What the checkpoint is, with the tensors expected.
            indexes: What each rank has durably written.

        Returns:
            The manifest as written.

        Raises:
            FencedError: A newer attempt has taken over.
            CheckpointError: The ranks' pieces do not make up the expected tensors.
            OSError: The place is full, gone or refuses.
        """
        manifest = assembled(manifest, indexes)
        temporary = self.temporary(manifest.step)
        sync(temporary)
        final = self.root / step_name(manifest.step)
        with self.fence.held():
            if final.exists():
                # Only an incomplete or damaged one can be in the way: a whole one is not saved again.
                remove(final)
            temporary.rename(final)
            sync(self.root)
            try:
                write_manifest(final, manifest)
            except OSError:
                # Never to be complete, it would take the room that the next save needs.
                with contextlib.suppress(OSError):
                    remove(final)
                raise
        return manifest

    def discard(self, step: int) -> None:
        """Remove what a failed save left; what cannot be removed now goes when the next attempt opens the place."""
        try:
            remove(self.temporary(step))
        except OSError as error:
            _log.warning("the temporary of %s stays for now: %s", step_name(step), error)

    def retire(self, newest_step: int, damaged: Mapping[str, str] = MappingProxyType({})) -> tuple[str, ...]:
        """Remove older checkpoints beyond the number to keep and the quota.

        A failure is logged: it makes the save that was just committed no less durable.

        Args:
            newest_step: Of the last save; newer directories are damaged ones that this attempt passed over.
            damaged: Checkpoints that are known not to be loadable whatever their sizes say.

        Returns:
            The names removed.
        """
        try:
            with self.fence.held():
                return remove_beyond(self.root, self._stored(newest_step, damaged), self.keep, self.quota_bytes)
        except (OSError, CheckpointError) as error:
            _log.warning("old checkpoints in %s stay for now: %s", self.root, error)
            return ()

    def room(self) -> str:
        """Say how full the place is, for the error of a save that failed."""
        try:
            free_bytes = shutil.disk_usage(self.root).free
        except OSError as error:
            return f"{self.root}: {error.strerror}"
        return f"{format_bytes(free_bytes)} free in {self.root}"

    def _stored(self, newest_step: int, damaged: Mapping[str, str]) -> list[Stored]:
        found = [stored(self.root / name) for name in step_directories(self.root)]
        return [
            replace(item, is_complete=item.is_complete and item.name not in damaged)
            for item in found
            if item.step <= newest_step
        ]


def stored(directory: Path) -> Stored:
    """Return a checkpoint directory as retention sees it."""
    return Stored(
        name=directory.name,
        step=step_of(directory.name) or 0,
        size_bytes=size_on_disk(directory),
        is_complete=examine(directory)[1] is not None,
    )


def remove_beyond(root: Path, found: Sequence[Stored], keep: int, quota_bytes: int | None) -> tuple[str, ...]:
    """Remove what retention says of some checkpoints, and return the names."""
    names = names_to_remove(found, keep=keep, quota_bytes=quota_bytes)
    for name in names:
        remove(root / name)
    return names


def assembled(manifest: Manifest, indexes: Sequence[RankIndex]) -> Manifest:
    """Return a manifest with all ranks' files and pieces.

    Raises:
        CheckpointError: They are not the tensors expected, or not every element of them exactly once.
    """
    pieces: dict[str, list[PieceEntry]] = {}
    for index in indexes:
        for name, written in index.pieces.items():
            pieces.setdefault(name, []).extend(written)
            entry = manifest.tensors.get(name)
            if entry is not None and entry.dtype != index.dtypes[name]:
                raise CheckpointError(f"{index.file} has {name} as {index.dtypes[name]}, not {entry.dtype}")
    # Of a tensor without elements no rank need hold anything.
    empty = {name for name, entry in manifest.tensors.items() if not prod(entry.shape)}
    require_names(pieces.keys() | empty, manifest.tensors, name=step_name(manifest.step))
    tensors = {name: replace(entry, pieces=tuple(pieces.get(name, ()))) for name, entry in manifest.tensors.items()}
    whole = replace(manifest, tensors=tensors, files={index.file: index.entry for index in indexes})
    require_coverage(whole)
    return whole
