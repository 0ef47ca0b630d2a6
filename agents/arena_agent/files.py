"""The files of an agent and of one attempt, and how they are written so that a crash leaves old or new, never half.

Only the standard library: the supervisor of an attempt imports this and must start fast.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def write_durably(path: Path, text: str) -> None:
    """Replace a file's content so that after a crash it holds the old text or the new, synced."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_whole(path: Path, text: str) -> None:
    """Replace a file's content so that a write that fails leaves the old text; not synced."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            data = memoryview(text.encode())
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def create_durably(path: Path, text: str) -> bool:
    """Make a file that must not exist yet, complete from the first moment.

    Returns:
        False when it exists already.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write_durably(temporary, text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    sync_directory(path.parent)
    return True


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Mapping[str, Any] | None:
    """Return the JSON object in a file, None when there is no such file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    value = json.loads(text)
    return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFiles:
    """Names of the files of one attempt on this node."""

    directory: Path

    @property
    def order(self) -> Path:
        """What the supervisor is to run."""
        return self.directory / "order.json"

    @property
    def launch(self) -> Path:
        """The launch as the worker reads it."""
        return self.directory / "launch.json"

    @property
    def report(self) -> Path:
        """Where workers append their reports."""
        return self.directory / "report.jsonl"

    @property
    def report_offset(self) -> Path:
        """Up to where the reports surely reached the scheduler."""
        return self.directory / "report.offset"

    @property
    def claim(self) -> Path:
        """Made once, by the supervisor that runs the attempt or by an agent that gives the attempt up."""
        return self.directory / "claim.json"

    @property
    def started(self) -> Path:
        """Written by the supervisor when all local ranks are up."""
        return self.directory / "started.json"

    @property
    def stop(self) -> Path:
        """Written by the agent before it signals the supervisor: how to stop."""
        return self.directory / "stop.json"

    @property
    def exit(self) -> Path:
        """Last word of the supervisor: nothing of the attempt is left."""
        return self.directory / "exit.json"

    @property
    def supervisor_log(self) -> Path:
        """What the supervisor itself printed (normally nothing)."""
        return self.directory / "supervisor.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFiles:
    """Names of the files in an agent's state directory."""

    directory: Path

    @property
    def lock(self) -> Path:
        """Held by the one agent that uses the directory; holds its pid."""
        return self.directory / "agent.lock"

    @property
    def journal(self) -> Path:
        """The agent's own history."""
        return self.directory / "journal.jsonl"

    @property
    def attempts(self) -> Path:
        """One directory per attempt."""
        return self.directory / "attempts"

    @property
    def device_locks(self) -> Path:
        """One lock file per virtual device."""
        return self.directory / "devices"

    @property
    def notice(self) -> Path:
        """Says, while it is there, that the node will be taken away, where no other file does."""
        return self.directory / "notice"

    @property
    def notice_dismissed(self) -> Path:
        """Which notice an admin dismissed, if any."""
        return self.directory / "notice.dismissed"

    @property
    def launcher_log(self) -> Path:
        """What the warm launcher printed."""
        return self.directory / "launcher.log"

    def attempt(self, attempt_id: str) -> AttemptFiles:
        """Files of an attempt; its id is made by the scheduler and used as one path component."""
        if "/" in attempt_id or attempt_id in {"", ".", ".."}:
            raise ValueError(f"not usable as a directory name: {attempt_id!r}")
        return AttemptFiles(directory=self.attempts / attempt_id)

    def device_lock(self, index: int) -> Path:
        """Lock file of a virtual device."""
        return self.device_locks / f"vgpu-{index}.lock"
