"""Processes that `arena up` starts: each in a session of its own, with a log; and how they ended, in words."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from arena.errors import InternalError

END_LIMIT_S = 15.0
SETTLED_S = 300.0
"""A service that has run so long is well: earlier deaths count no more. It starts, and fails to start, in seconds."""
_TAIL_BYTES = 64 * 1024


@dataclass(slots=True)
class Child:
    """A service that runs as a process of its own.

    Args:
        argv: What it is started by again.
        restarts: How often it was, since it last ran for long.
        due_at_s: Monotonic instant at which it is started again; None where it has not ended.
        is_left_out: It has ended and is not started again.
        started_at_s: Monotonic instant of its last start.
        not_started: Why the last start came to nothing; ``process`` is then still the one that ended before.
    """

    name: str
    argv: Sequence[str]
    process: subprocess.Popen[bytes]
    log: Path
    restarts: int = 0
    due_at_s: float | None = None
    is_left_out: bool = False
    started_at_s: float = field(default_factory=time.monotonic)
    not_started: str = ""

    def start_again(self) -> None:
        """Start it again after its end; its log goes on. Where that fails it has ended once more."""
        try:
            self.process = _process(self.argv, self.log)
            self.not_started = ""
        except OSError as error:  # no process, memory, or file is left just now, or the directory is gone
            self.not_started = str(error)
        self.started_at_s = time.monotonic()
        self.restarts += 1
        self.due_at_s = None

    def forgive(self) -> None:
        """Forget its restarts, if it had run for long before it ended just now."""
        if self.due_at_s is None and time.monotonic() - self.started_at_s > SETTLED_S:
            self.restarts = 0


def started(name: str, argv: Sequence[str], log: Path) -> Child:
    """Start a service whose output goes to the end of a log."""
    return Child(name, argv, _process(argv, log), log)


def _process(argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, env=_environ()
        )


def _environ() -> dict[str, str]:
    """Return what the services inherit: settings of the caller's usual scheduler are none of theirs."""
    return {key: value for key, value in os.environ.items() if not key.startswith("ARENA_")}


def ended_text(child: Child) -> str:
    """Return how a service ended by itself: ``node-2 was killed by signal 9 (SIGKILL)``, or its code and last words."""
    if child.not_started:
        return f"{child.name} could not be started: {child.not_started}"
    code = child.process.returncode
    if code >= 0:  # with a signal the last line of its log has no part in it
        return f"{child.name} ended with exit code {code}: {last_line(child.log)}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal has no name
        name = ""
    return f"{child.name} was killed by signal {-code}{name}"


def last_line(log: Path) -> str:
    """Return the last thing that a service wrote."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError as error:
        return f"its log cannot be read ({error.strerror})"
    return lines[-1].removeprefix("error: ") if lines else "it wrote nothing"


def death(child: Child, when: str = "") -> InternalError:
    """Return the error that says how a service ended by itself."""
    return InternalError(ended_text(child) + (f", {when}" if when else ""), fix=f"see {child.log}")


def end(children: Sequence[Child]) -> None:
    """End services, and kill those that do not within the time that they get."""
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
    deadline_s = time.monotonic() + END_LIMIT_S
    for child in children:
        try:
            child.process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
