"""What an `arena up` that was killed left running on its directory: found by the locks it holds, and ended."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arena.cli.children import END_LIMIT_S
from arena.cli.up_files import UpFiles, holder
from arena.cli.up_jobs import POLL_S
from arena.errors import UnavailableError

if TYPE_CHECKING:
    from arena_agent.procfs import ProcessEntry, ProcessIdentity

SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A service that outlived its ``arena up``."""

    name: str
    identity: ProcessIdentity


def orphans(files: UpFiles) -> list[Orphan]:
    """Return the services that hold locks on a directory; only for who holds that of ``arena up``."""
    from arena_agent.files import StateFiles
    from arena_agent.procfs import process_entry

    locks = {SCHEDULER: files.database_lock}
    locks |= {directory.name: StateFiles(directory=directory).lock for directory in files.agents()}
    pids = {name: pid for name, lock in locks.items() if (pid := holder(lock))}
    entries = {name: process_entry(pid) for name, pid in pids.items()}
    return [Orphan(name=name, identity=entry.identity) for name, entry in entries.items() if entry is not None]


def end_orphans(left: Sequence[Orphan]) -> None:
    """End services as a user would, and kill those that do not end in their time; their jobs go on.

    Raises:
        UnavailableError: The kernel, or another user's right, keeps one.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not (left := _living_after(left, number)):
            return
    named = ", ".join(f"{orphan.name} (process {orphan.identity.pid})" for orphan in left)
    raise UnavailableError(f"{named} of an `arena up` that was killed cannot be ended", fix="end it yourself")


def _living_after(left: Sequence[Orphan], number: signal.Signals) -> list[Orphan]:
    from arena_agent.processes import signal_process
    from arena_agent.procfs import is_alive

    for orphan in left:
        signal_process(orphan.identity, number)
    deadline_s = time.monotonic() + END_LIMIT_S
    while (living := [orphan for orphan in left if is_alive(orphan.identity)]) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    return living


def ranks(agent_directories: Sequence[Path]) -> list[ProcessEntry]:
    """Return the living processes of jobs that carry the mark of one of these agents, where that lives no more.

    Those of an agent that lives, whoever started it, go on: a start that it refused is no reason to end its jobs.
    """
    from arena_agent.files import StateFiles
    from arena_agent.processes import marked_attempts

    left = [directory for directory in agent_directories if holder(StateFiles(directory=directory).lock) is None]
    marks = [str(directory.resolve()) for directory in left]
    return [entry for mark in marks for entries in marked_attempts(mark).values() for entry in entries]


def kill_ranks(agent_directories: Sequence[Path]) -> None:
    """Kill ranks that outlived their agents, until there are none."""
    from arena_agent.processes import kill_until_gone

    asyncio.run(kill_until_gone(lambda: ranks(agent_directories)))
