"""Supervising the local ranks of one attempt: their output, their failures, their stop, and that nothing is left.

The supervisor is the reaper of everything below it (also after a double fork), so that its last word, ``exit.json``,
can be relied on. It needs no agent: it outlives it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import signal
from pathlib import Path

from arena_agent.clock import boot_id, boot_s
from arena_agent.files import AttemptFiles, create_durably, read_json, write_durably
from arena_agent.memory import oom_kill_count
from arena_agent.procfs import descendants, process_entry, process_table
from arena_agent.rank_log import RankLog
from arena_agent.shim.order import ExitRecord, ShimOrder
from arena_agent.shim.ranks import RankStarter

_READ_BYTES = 65_536
_SWEEP_LIMIT_S = 10.0
_SWEEP_PAUSE_S = 0.01
_WAIT_S_MAX = 5.0


class LockedDeviceError(Exception):
    """A virtual device of the order is held by somebody else."""


class Supervisor:
    """Runs one order to its end.

    Args:
        files: The attempt's files.
        order: What to run.
        starter: How a rank is started.
    """

    def __init__(self, files: AttemptFiles, order: ShimOrder, starter: RankStarter) -> None:
        self._files = files
        self._order = order
        self._starter = starter
        self._selector = selectors.DefaultSelector()
        self._logs: dict[int, RankLog] = {}
        self._rank_by_pid: dict[int, int] = {}
        self._exit_codes: dict[int, int] = {}
        self._first_failed_rank: int | None = None
        self._stop_asked = False
        self._stop_mode: str | None = None
        self._term_sent = False
        self._grace_expired = False
        self._kill_at_s: float | None = None
        self._oom_count_before = 0
        self._locks: list[int] = []

    def run(self) -> None:
        """Start the ranks, stay until none and nothing of theirs is left, write ``exit.json``.

        The attempt is claimed first: an agent that was restarted meanwhile may have given it up.
        """
        if not self._claim():
            return
        self._oom_count_before = oom_kill_count()
        self._listen_to_signals()
        launch_error = None
        try:
            self._take_locks()
            self._start_ranks()
            self._supervise()
        except (OSError, ValueError, LockedDeviceError) as error:
            launch_error = _describe(error)
        leftovers = self._sweep()
        self._read_ready(0.0)
        self._write_exit(launch_error, leftovers)

    def _claim(self) -> bool:
        entry = process_entry(os.getpid())
        start_ticks = entry.identity.start_ticks if entry else 0
        claim = {"pid": os.getpid(), "start_ticks": start_ticks, "boot_id": boot_id()}
        return create_durably(self._files.claim, json.dumps(claim))

    def _listen_to_signals(self) -> None:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._note_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._selector.register(reader, selectors.EVENT_READ, None)

    def _note_stop(self, *_: object) -> None:
        self._stop_asked = True

    def _take_locks(self) -> None:
        for path in self._order.lock_paths:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._locks.append(descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LockedDeviceError(f"virtual GPU {Path(path).stem} is held by another process") from error

    def _start_ranks(self) -> None:
        identity_by_rank = {}
        for rank in self._order.ranks:
            reader, writer = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(reader, False)
            self._logs[rank.rank] = RankLog(self._files.directory, rank.rank, self._order.log_cap_bytes)
            self._selector.register(reader, selectors.EVENT_READ, rank.rank)
            try:
                pid = self._starter.start(self._order, rank, writer)
            finally:
                os.close(writer)
            self._rank_by_pid[pid] = rank.rank
            entry = process_entry(pid)
            identity_by_rank[rank.rank] = (pid, entry.identity.start_ticks if entry else 0)
        write_durably(self._files.started, json.dumps({"ranks": identity_by_rank, "boot_s": boot_s()}))

    def _supervise(self) -> None:
        while self._rank_by_pid:
            self._read_ready(self._wait_limit_s())
            self._reap()
            if self._stop_asked:
                self._stop_asked = False
                self._obey_stop()
            if self._kill_at_s is not None and boot_s() >= self._kill_at_s:
                self._grace_expired = self._grace_expired or self._stop_mode == "save"
                self._signal_all(signal.SIGKILL)
                self._kill_at_s = boot_s() + _SWEEP_PAUSE_S

    def _wait_limit_s(self) -> float:
        if self._kill_at_s is None:
            return _WAIT_S_MAX
        return min(_WAIT_S_MAX, max(0.0, self._kill_at_s - boot_s()))

    def _read_ready(self, limit_s: float) -> None:
        """Move output that is there into the logs, waiting for some no longer than the limit."""
        for key, _ in self._selector.select(limit_s):
            rank: int | None = key.data
            with contextlib.suppress(BlockingIOError):
                data = os.read(key.fd, _READ_BYTES)
                if rank is None:
                    continue
                if data:
                    self._logs[rank].write(data)
                else:
                    self._selector.unregister(key.fd)
                    os.close(key.fd)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self._rank_by_pid.pop(pid, None)
            if rank is not None:
                self._note_exit(rank, os.waitstatus_to_exitcode(status))

    def _note_exit(self, rank: int, code: int) -> None:
        self._exit_codes[rank] = code
        if code != 0 and self._first_failed_rank is None and self._stop_mode is None:
            self._first_failed_rank = rank
            self._kill_by(boot_s() + self._order.failure_delay_s)

    def _obey_stop(self) -> None:
        """Ask the ranks to save and exit, or kill them; a stop may be sharpened, never softened."""
        stop = read_json(self._files.stop) or {}
        mode = stop.get("mode", "save")
        if self._stop_mode != "kill":
            self._stop_mode = mode
        if mode == "kill":
            self._kill_by(boot_s())
            return
        self._kill_by(boot_s() + float(stop.get("grace_s", self._order.grace_s)))
        if self._term_sent:  # said again after an agent's restart: a second TERM could mean "now" to a program
            return
        self._term_sent = True
        for pid in self._rank_by_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _kill_by(self, at_s: float) -> None:
        self._kill_at_s = at_s if self._kill_at_s is None else min(self._kill_at_s, at_s)

    def _signal_all(self, number: signal.Signals) -> tuple[int, ...]:
        """Signal everything below this process; return what was there."""
        pids = tuple(entry.pid for entry in descendants(os.getpid(), process_table()))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        return pids

    def _sweep(self) -> tuple[int, ...]:
        """Kill what is left below this process until nothing is, or the limit is reached; return what stayed."""
        limit_s = boot_s() + _SWEEP_LIMIT_S
        while pids := self._signal_all(signal.SIGKILL):
            if boot_s() > limit_s:
                return pids
            self._read_ready(_SWEEP_PAUSE_S)
            self._reap()
        self._reap()
        return ()

    def _write_exit(self, launch_error: str | None, leftovers: tuple[int, ...]) -> None:
        for log in self._logs.values():
            log.close()
        record = ExitRecord(
            attempt_id=self._order.attempt_id,
            exit_codes=dict(sorted(self._exit_codes.items())),
            first_failed_rank=self._first_failed_rank,
            launch_error=launch_error,
            stop_mode=self._stop_mode,
            grace_expired=self._grace_expired,
            oom_kill_count=oom_kill_count() - self._oom_count_before,
            leftover_pids=leftovers,
            gone_boot_s=boot_s(),
        )
        write_durably(self._files.exit, record.to_json())


def _describe(error: Exception) -> str:
    """Return an error as people read it: ``No such file or directory: 'python9'``."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename!r}" if error.filename else error.strerror
    return str(error)
