"""Processes that `arena up` starts: each in a session of its own, with a log; and how they ended, in words."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arena.errors import InternalError

END_LIMIT_S = 15.0


@dataclass(slots=True)
class Child:
    """A service that runs as a process of its own.

    Args:
        argv: What it is started by again.
        restarts: How often it was.
        due_at_s: Monotonic instant at which it is started again; None where it has not ended.
        is_left_out: It has ended and is not started again.
    """

    name: str
    argv: Sequence[str]
    process: subprocess.Popen[bytes]
    log: Path
    restarts: int = 0
    due_at_s: float | None = None
    is_left_out: bool = False

    def start_again(self) -> None:
        """Start it again after its end; its log goes on."""
        self.process = _process(self.argv, self.log)
        self.restarts += 1
        self.due_at_s = None


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
    lines = log.read_text(errors="replace").strip().splitlines()
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
