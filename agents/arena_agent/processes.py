"""Verified killing: an attempt is gone only when a look at the whole process table says so.

A process belongs to an attempt when it is in the supervisor's session or process group, below it in the tree, or was
started with the attempt's and this agent's marks in its environment (then it is found even after a double fork and a
setsid). Nothing else is ever signalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from arena.domain.launch import ATTEMPT_ID_VARIABLE
from arena_agent.clock import boot_s
from arena_agent.procfs import (
    ProcessEntry,
    ProcessIdentity,
    descendants,
    environment,
    is_alive,
    process_entry,
    process_table,
)

AGENT_MARK_VARIABLE = "ARENA_AGENT_DIR"
KILL_LIMIT_S = 10.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptMarks:
    """By what an attempt's processes are known.

    Args:
        agent_mark: This agent's state directory, so that another agent of the host with a share of the same attempt
            is left alone.
        supervisor: Leader of the attempt's session.
    """

    attempt_id: str
    agent_mark: str
    supervisor: ProcessIdentity | None


def members(marks: AttemptMarks) -> tuple[ProcessEntry, ...]:
    """Return the living processes of an attempt."""
    table = process_table()
    tree = _tree_pids(marks.supervisor, table)
    own = {os.getpid()}
    return tuple(
        entry
        for entry in table
        if not entry.is_zombie and entry.pid not in own and (entry.pid in tree or _is_marked(entry.pid, marks))
    )


def marked_attempts(agent_mark: str) -> dict[str, tuple[ProcessEntry, ...]]:
    """Return the living processes that carry this agent's mark, by the attempt they were started for."""
    found: dict[str, list[ProcessEntry]] = {}
    for entry in process_table():
        if entry.is_zombie or entry.pid == os.getpid():
            continue
        variables = environment(entry.pid)
        attempt_id = variables.get(ATTEMPT_ID_VARIABLE.encode(), b"").decode(errors="replace")
        if attempt_id and variables.get(AGENT_MARK_VARIABLE.encode(), b"").decode(errors="replace") == agent_mark:
            found.setdefault(attempt_id, []).append(entry)
    return {attempt_id: tuple(entries) for attempt_id, entries in sorted(found.items())}


async def kill_until_gone(
    find: Callable[[], Iterable[ProcessEntry]], *, limit_s: float = KILL_LIMIT_S
) -> tuple[ProcessIdentity, ...]:
    """Kill what ``find`` finds until it finds nothing.

    Returns:
        What was still there at the limit: processes the kernel does not let go.
    """
    deadline_s = boot_s() + limit_s
    while True:
        found = tuple(entry.identity for entry in await asyncio.to_thread(lambda: tuple(find())))
        if not found or boot_s() > deadline_s:
            return found
        for identity in found:
            signal_process(identity, signal.SIGKILL)
        await asyncio.sleep(_POLL_S)


def signal_process(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Signal exactly this process; a pid that was given to another is not touched.

    Returns:
        Whether the process was there.
    """
    try:
        descriptor = os.pidfd_open(identity.pid)
    except (ProcessLookupError, PermissionError):
        return False
    try:
        # The descriptor pins the process, so the check and the signal mean the same one.
        if not is_alive(identity):
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(descriptor, number)
        return True
    finally:
        os.close(descriptor)


async def wait_until_dead(identity: ProcessIdentity) -> None:
    """Return when this process has ended, also when it is not our child."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return
    try:
        if not is_alive(identity):
            return
        loop = asyncio.get_running_loop()
        dead = asyncio.Event()
        loop.add_reader(descriptor, dead.set)
        try:
            await dead.wait()
        finally:
            loop.remove_reader(descriptor)
    finally:
        os.close(descriptor)


def _tree_pids(supervisor: ProcessIdentity | None, table: tuple[ProcessEntry, ...]) -> frozenset[int]:
    """Pids of the supervisor's session, group and descendants.

    A session's id is its leader's pid and is not given to a new process while a member lives; a process that has the
    pid but started at another time proves that the session is empty.
    """
    if supervisor is None:
        return frozenset()
    entry = process_entry(supervisor.pid)
    if entry is not None and entry.identity != supervisor:
        return frozenset()
    session = {row.pid for row in table if supervisor.pid in {row.session_id, row.group_id}}
    below = {row.pid for row in descendants(supervisor.pid, table)}
    return frozenset(session | below)


def _is_marked(pid: int, marks: AttemptMarks) -> bool:
    variables = environment(pid)
    return (
        variables.get(ATTEMPT_ID_VARIABLE.encode()) == marks.attempt_id.encode()
        and variables.get(AGENT_MARK_VARIABLE.encode()) == marks.agent_mark.encode()
    )
