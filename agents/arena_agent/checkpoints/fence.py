"""The fence of a checkpoint place: the newest epoch seen there; older attempts can no longer commit a save."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from arena.errors import AlreadyRunningError
from arena_agent.checkpoints.disk import write_durably
from arena_agent.checkpoints.manifest import CheckpointError

FENCE_NAME = "fence.json"
_LOCK_NAME = ".fence.lock"


class FencedError(CheckpointError):
    """A newer attempt of the job owns the checkpoint place; this one must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The right of one epoch to write into a place.

    Args:
        root: The checkpoint directory.
        epoch: The attempt's epoch.
    """

    root: Path
    epoch: int

    def claim(self) -> None:
        """Raise the fence to this epoch.

        Raises:
            FencedError: A newer epoch was here.
        """
        with self.held():
            if self._recorded() < self.epoch:
                write_durably(self.root / FENCE_NAME, json.dumps({"epoch": self.epoch}).encode())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep newer attempts from raising the fence while a save is committed.

        Raises:
            FencedError: A newer epoch was here.
        """
        with (self.root / _LOCK_NAME).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            recorded = self._recorded()
            if recorded > self.epoch:
                raise FencedError(
                    f"attempt {self.epoch} may no longer write checkpoints",
                    why=f"attempt {recorded} of the job has taken over {self.root}",
                )
            yield

    def _recorded(self) -> int:
        path = self.root / FENCE_NAME
        try:
            return int(json.loads(path.read_bytes())["epoch"])
        except FileNotFoundError:
            return -1
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{path} is not a fence file", why=str(error)) from error


@contextmanager
def unwritten(root: Path) -> Iterator[None]:
    """Keep all attempts from committing a save, for a change from outside of them.

    Raises:
        AlreadyRunningError: One commits a save at this moment.
    """
    with (root / _LOCK_NAME).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunningError(
                f"{root} cannot be changed now", why="an attempt is writing a checkpoint there", fix="try again later"
            ) from error
        yield
