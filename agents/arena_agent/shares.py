"""Looking after the processes of shares: up, stopped, gone, and what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from arena.domain.launch import AttemptId, DeviceId, Launch, NodeId
from arena.domain.records import NodeEnd
from arena_agent.clock import boot_id, boot_s
from arena_agent.ends import EndEvidence, node_end
from arena_agent.files import AttemptFiles, StateFiles, create_durably, read_json
from arena_agent.launching import write_stop
from arena_agent.machine import HeldShare, StopMode
from arena_agent.processes import AttemptMarks, kill_until_gone, members, signal_process, wait_until_dead
from arena_agent.procfs import ProcessIdentity, is_alive, process_entry
from arena_agent.rank_log import log_ranks, read_tail
from arena_agent.reports import all_reports
from arena_agent.shim.order import ExitRecord

_STARTED_POLL_S = 0.02
_LOG_TAIL_BYTES = 4096
_NOBODY = 0
"""Pid in the claim of an attempt that was given up."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A share of which nothing is left, but for processes the kernel does not let go."""

    end: NodeEnd
    leftovers: tuple[ProcessIdentity, ...]
    gone_boot_s: float


class ShareKeeper:
    """Knows a share's processes by the agent's files.

    Args:
        node_id: The node.
        files: The agent's files.
        margin_s: How long a supervisor may take beyond the grace.
    """

    def __init__(self, node_id: NodeId, files: StateFiles, margin_s: float) -> None:
        self._node_id = node_id
        self._files = files
        self._margin_s = margin_s
        self._seen_alive: set[ProcessIdentity] = set()

    def claim_or_adopt(self, attempt_id: AttemptId) -> ProcessIdentity | None:
        """Give up an attempt whose supervisor never came, so that it cannot come later either.

        Returns:
            The supervisor, when it came after all.
        """
        files = self._files.attempt(attempt_id)
        files.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if create_durably(files.claim, json.dumps({"pid": _NOBODY, "start_ticks": 0})):
            return None
        claim = read_json(files.claim) or {}
        if not claim.get("pid") or claim.get("boot_id") != boot_id():
            return None
        return ProcessIdentity(pid=claim["pid"], start_ticks=claim["start_ticks"])

    async def wait_started(self, share: HeldShare) -> bool:
        """Return True once all local ranks are up, False when the supervisor ended before."""
        files = self._files.attempt(share.attempt_id)
        while not files.started.exists():
            if share.supervisor is None or not is_alive(share.supervisor):
                return files.started.exists()
            await asyncio.sleep(_STARTED_POLL_S)
        return True

    async def wait_gone(self, share: HeldShare) -> None:
        """Return when the supervisor has ended."""
        if share.supervisor is not None and is_alive(share.supervisor):
            self._seen_alive.add(share.supervisor)
            await wait_until_dead(share.supervisor)

    async def stop(self, share: HeldShare, mode: StopMode, grace_s: float) -> None:
        """Tell the supervisor to stop its ranks, and see to it when it does not manage."""
        supervisor = share.supervisor
        if supervisor is None:
            return
        try:
            write_stop(self._files.attempt(share.attempt_id), mode, grace_s)
        except OSError as error:
            # A full disk must not keep a job alive; without word the supervisor takes TERM for a polite stop.
            _log.warning("no word can be left for the supervisor of %s: %s", share.attempt_id, error)
            if mode == "kill":
                await kill_until_gone(lambda: members(self._marks(share)))
        if not signal_process(supervisor, signal.SIGTERM):
            return
        try:
            async with asyncio.timeout(grace_s + self._margin_s):
                await wait_until_dead(supervisor)
        except TimeoutError:
            await kill_until_gone(lambda: members(self._marks(share)))

    async def clear(self, share: HeldShare, launch: Launch | None) -> Gone:
        """Kill what the supervisor left, if anything, and say how the share ended."""
        marks = self._marks(share)
        files = self._files.attempt(share.attempt_id)
        found = await kill_until_gone(lambda: members(marks))
        leftovers = tuple(sorted({*found, *_undying(files)}))
        gone_boot_s = boot_s()
        _reap(share.supervisor)
        dirty = _dirty(share, leftovers)
        return Gone(end=node_end(self._evidence(share, launch, dirty)), leftovers=leftovers, gone_boot_s=gone_boot_s)

    async def clear_stray(self, attempt_id: str) -> tuple[ProcessIdentity, ...]:
        """Kill the processes of an attempt nobody knows; return what does not die."""
        marks = AttemptMarks(attempt_id=attempt_id, agent_mark=str(self._files.directory), supervisor=None)
        return await kill_until_gone(lambda: members(marks))

    def _marks(self, share: HeldShare) -> AttemptMarks:
        # The pid of a supervisor that was gone when we came may have led other people's sessions since.
        known = share.supervisor if share.supervisor in self._seen_alive else None
        return AttemptMarks(attempt_id=share.attempt_id, agent_mark=str(self._files.directory), supervisor=known)

    def _evidence(self, share: HeldShare, launch: Launch | None, dirty: Mapping[DeviceId, str]) -> EndEvidence:
        files = self._files.attempt(share.attempt_id)
        return EndEvidence(
            node_id=self._node_id,
            exit=_exit_record(files),
            supervisor_log=_supervisor_log(files),
            reports=all_reports(files),
            is_command=launch is not None and launch.spec.command is not None,
            has_rank_zero=launch is None or 0 in launch.node_ranks,
            stop_mode=share.stop_mode,
            was_given_up=_was_given_up(files),
            log_tails={rank: read_tail(files.directory, rank, _LOG_TAIL_BYTES) for rank in log_ranks(files.directory)},
            dirty=dirty,
        )


def _was_given_up(files: AttemptFiles) -> bool:
    return (read_json(files.claim) or {}).get("pid") == _NOBODY


def _undying(files: AttemptFiles) -> tuple[ProcessIdentity, ...]:
    """Return the processes that the supervisor could not kill and that are still there."""
    record = _exit_record(files)
    entries = (process_entry(pid) for pid in (record.leftover_pids if record else ()))
    return tuple(entry.identity for entry in entries if entry is not None and not entry.is_zombie)


def _reap(supervisor: ProcessIdentity | None) -> None:
    """Take a dead supervisor off the process table, if it was our child."""
    if supervisor is not None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(supervisor.pid, os.WNOHANG)


def _exit_record(files: AttemptFiles) -> ExitRecord | None:
    value = read_json(files.exit)
    return None if value is None else ExitRecord.from_mapping(value)


def _supervisor_log(files: AttemptFiles) -> str:
    try:
        return files.supervisor_log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL_BYTES:]
    except FileNotFoundError:
        return ""


def _dirty(share: HeldShare, leftovers: tuple[ProcessIdentity, ...]) -> Mapping[DeviceId, str]:
    if not leftovers:
        return {}
    pids = ", ".join(str(identity.pid) for identity in leftovers)
    return dict.fromkeys(share.devices, f"leftover processes {pids} do not die")
