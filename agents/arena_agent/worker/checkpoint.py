"""Saves and loads training state so that a checkpoint is complete or invisible and fits every plan.

The state is a flat dictionary of logical tensors: ``model.<parameter>`` and ``optim.<parameter>.<moment>``. Nothing
in it depends on how parameters were grouped or placed, so distributed checkpointing reshards it by name and offset
alone. What is a function of the step (learning rate, bias correction, sample position) is not stored as tensors.
"""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from arena.units import format_bytes
from arena_agent.worker.agreement import Ranks
from arena_agent.worker.fence import Fence, FencedError
from arena_agent.worker.manifest import (
    TEMPORARY_PREFIX,
    CheckpointError,
    FileEntry,
    Manifest,
    Selection,
    complete_names,
    require_equal,
    select_newest,
    step_name,
    step_of,
    sync,
    sync_and_describe,
    verify_files,
    write_manifest,
)
from arena_agent.worker.optimizer import HeldParameter

_MODEL_PREFIX = "model."


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStore:
    """A job's checkpoint place as one attempt uses it; every method is called by all ranks together.

    Args:
        root: The directory that all nodes of the job see.
        fence: This attempt's right to write there.
        keep: Complete checkpoints kept.
        ranks: The ranks of the attempt.
    """

    root: Path
    fence: Fence
    keep: int
    ranks: Ranks

    def open(self) -> Selection:
        """Take over the place from older attempts, clear what they left, and choose what to load.

        Raises:
            CheckpointError: A newer attempt owns it, or all its checkpoints are damaged.
        """
        selection = self.ranks.first_does(self._open)
        while selection.manifest is not None and selection.name is not None:
            share = sorted(selection.manifest.files)[self.ranks.rank :: self.ranks.world_size]
            damage = _damage(self.root / selection.name, selection.manifest, share)
            found = [text for text in self.ranks.gathered(damage) if text]
            if not found:
                return selection
            damaged = {**selection.skipped, selection.name: found[0]}
            selection = self.ranks.first_does(partial(select_newest, self.root, damaged))
        return selection

    def load(self, selection: Selection, state: dict[str, Tensor], fingerprint: Mapping[str, str]) -> None:
        """Read a checkpoint into tensors, resharding as needed.

        Raises:
            CheckpointError: It belongs to another job or lacks a tensor.
        """
        assert selection.name is not None
        assert selection.manifest is not None
        require_equal(selection.manifest.fingerprint, fingerprint, name=selection.name)
        reader = FileSystemReader(self.root / selection.name)
        try:
            load(state, storage_reader=reader, process_group=self.ranks.group)
        except CheckpointException as error:
            raise CheckpointError(f"checkpoint {selection.name} cannot be loaded", why=_cause(error)) from error

    def save(self, state: dict[str, Tensor], manifest: Manifest) -> Manifest:
        """Write a checkpoint aside, sync it, move it into place, and write its manifest last.

        Args:
            state: This rank's tensors.
            manifest: What the checkpoint is; its files are filled in here.

        Returns:
            The manifest as written.

        Raises:
            FencedError: A newer attempt has taken over.
            CheckpointError: The save failed; nothing of it remains visible.
        """
        temporary = self.root / f"{TEMPORARY_PREFIX}{step_name(manifest.step)}.{self.fence.epoch}"
        try:
            self.ranks.first_does(lambda: self._prepare(temporary))
            files = self._write(temporary, state)
            return self.ranks.first_does(lambda: self._commit(temporary, replace(manifest, files=files)))
        except FencedError:
            raise
        except (OSError, CheckpointException, CheckpointError) as error:
            if self.ranks.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
            why = f"{_cause(error)} ({self._room()})"
            raise CheckpointError(f"checkpoint {step_name(manifest.step)} failed", why=why) from error

    def _room(self) -> str:
        """Say how full the place is: what torch says of a write that failed for it names neither disk nor space."""
        try:
            free_bytes = shutil.disk_usage(self.root).free
        except OSError as error:
            return f"{self.root}: {error.strerror}"
        return f"{format_bytes(free_bytes)} free in {self.root}"

    def _open(self) -> Selection:
        self.root.mkdir(parents=True, exist_ok=True)
        self.fence.claim()
        for entry in sorted(self.root.iterdir()):
            if entry.name.startswith(TEMPORARY_PREFIX):
                _remove(entry)
        return select_newest(self.root)

    def _prepare(self, temporary: Path) -> None:
        with self.fence.held():
            _remove(temporary)
            temporary.mkdir()

    def _write(self, temporary: Path, state: dict[str, Tensor]) -> dict[str, FileEntry]:
        writer = FileSystemWriter(temporary, sync_files=True, thread_count=1)
        save(state, storage_writer=writer, process_group=self.ranks.group)
        entries: dict[str, FileEntry] = {}
        failure: OSError | None = None
        try:
            entries = sync_and_describe(temporary.glob(f"__{self.ranks.rank}_*"))
        except OSError as error:
            failure = error
        parts = self.ranks.gathered((entries, failure))
        for _, reported in parts:
            if reported is not None:
                raise reported
        return {name: entry for part, _ in parts for name, entry in part.items()}

    def _commit(self, temporary: Path, manifest: Manifest) -> Manifest:
        _require_whole(FileSystemReader(temporary).read_metadata(), manifest, temporary.name)
        entries = sync_and_describe([temporary / ".metadata"])
        manifest = replace(manifest, files={**manifest.files, **entries})
        sync(temporary)
        final = self.root / step_name(manifest.step)
        with self.fence.held():
            if final.exists():
                # Only an incomplete one can be in the way: a complete one is not saved again.
                _remove(final)
            temporary.rename(final)
            sync(self.root)
            write_manifest(final, manifest)
        self._retire(manifest.step)
        return manifest

    def _retire(self, newest_step: int) -> None:
        """Remove what is older than the newest ``keep`` complete checkpoints; broken old ones go as well."""
        kept = [name for name in complete_names(self.root) if (step_of(name) or 0) <= newest_step][: self.keep]
        oldest_step = step_of(kept[-1]) or 0
        for entry in sorted(self.root.iterdir()):
            step = step_of(entry.name)
            if step is not None and step < oldest_step:
                _remove(entry)


def training_state(parameters: Sequence[HeldParameter], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return this rank's share of the state, by logical name; the tensors share storage with the live ones."""
    state: dict[str, Tensor] = {}
    for held in parameters:
        state[_MODEL_PREFIX + held.name] = held.as_whole(held.local.detach())
        for key, value in optimizer.state[held.local].items():
            if key != "step":
                state[f"optim.{held.name}.{key}"] = held.as_whole(value)
    return state


def read_whole(directory: Path, *, prefix: str = "") -> dict[str, Tensor]:
    """Read a checkpoint's logical tensors, whole, in one process without a process group.

    Args:
        directory: The checkpoint.
        prefix: Only tensors whose name starts so.
    """
    reader = FileSystemReader(directory)
    state: dict[str, Tensor] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in sorted(reader.read_metadata().state_dict_metadata.items())
        if isinstance(entry, TensorStorageMetadata) and name.startswith(prefix)
    }
    with warnings.catch_warnings():
        # torch says that it assumes a single process; one is what is meant.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        load(state, storage_reader=reader, no_dist=True)
    return state


def read_model(directory: Path) -> dict[str, Tensor]:
    """Read a checkpoint's parameters, whole, by their names in the model."""
    state = read_whole(directory, prefix=_MODEL_PREFIX)
    return {name.removeprefix(_MODEL_PREFIX): tensor for name, tensor in state.items()}


def _require_whole(metadata: Metadata, manifest: Manifest, name: str) -> None:
    """Check that every tensor of the state was written, and every element of it exactly once."""
    expected = {_MODEL_PREFIX + parameter for parameter in manifest.parameters} | {
        f"optim.{parameter}.{key}" for parameter in manifest.parameters for key in manifest.optimizer_state
    }
    written = metadata.state_dict_metadata
    if written.keys() != expected:
        odd = sorted(written.keys() ^ expected)
        raise CheckpointError(f"{name} does not hold the model's tensors", why=f"missing or foreign: {odd[:5]}")
    for key, entry in written.items():
        assert isinstance(entry, TensorStorageMetadata)
        count = sum(math.prod(chunk.sizes) for chunk in entry.chunks)
        if count != math.prod(entry.size):
            raise CheckpointError(f"{name} holds {count} elements of {key}, which has {math.prod(entry.size)}")


def _damage(directory: Path, manifest: Manifest, names: Sequence[str]) -> str | None:
    """Return what is wrong with some of a checkpoint's files by their digests; ranks share the reading."""
    try:
        verify_files(directory, manifest, names=names)
    except CheckpointError as error:
        return error.message
    except OSError as error:
        return f"{directory.name}: {error}"
    return None


def _remove(path: Path) -> None:
    """Remove a file or directory; a directory leaves the sight of readers before its files go."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.startswith(TEMPORARY_PREFIX):
        hidden = path.with_name(f"{TEMPORARY_PREFIX}removed-{path.name}")
        shutil.rmtree(hidden, ignore_errors=True)
        path = path.rename(hidden)
    shutil.rmtree(path)


def _cause(error: BaseException) -> str:
    """Return the first rank's own error where torch wraps several."""
    if isinstance(error, CheckpointException):
        rank, failure = min(error.failures.items(), key=lambda item: item[0])
        return f"rank {rank}: {type(failure[0]).__name__}: {failure[0]}"
    return error.message if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
