"""The agent's side of the warm launcher: keep one alive and have it fork supervisors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from arena.domain.launch import ATTEMPT_ID_VARIABLE
from arena_agent.processes import wait_until_dead
from arena_agent.procfs import ProcessIdentity, process_entry
from arena_agent.shim.launcher import ATTEMPT_ID_PLACEHOLDER, ATTEMPT_ID_WIDTH, READY, REQUEST_BYTES_MAX

_READY_LIMIT_S = 60.0
_ANSWER_LIMIT_S = 5.0
_RESTART_PAUSES_S = (0.1, 1.0, 5.0, 30.0)

_log = logging.getLogger(__name__)


class WarmLauncher:
    """Keeps a launcher process.

    Args:
        argv: The launcher's program.
        environ: What its ranks will inherit.
        log_path: Where its own output goes.
    """

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], log_path: Path) -> None:
        self._argv = tuple(argv)
        # One thread: numerical libraries start theirs when they are imported, unless they are told not to.
        single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._environ = {**single, **environ, ATTEMPT_ID_VARIABLE: ATTEMPT_ID_PLACEHOLDER}
        self._log_path = log_path
        self._channel: socket.socket | None = None
        self._ready = asyncio.Event()
        self._is_broken = False
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Start the launcher, and again whenever it dies, with growing pauses while it does not come up."""
        failure_count = 0
        while True:
            was_ready = False
            try:
                was_ready = await self._live_once()
            except Exception:  # noqa: BLE001 - the outermost frame of one life: ranks start cold until the next
                _log.exception("the warm launcher could not be kept")
            failure_count = 0 if was_ready else failure_count + 1
            self._is_broken = not was_ready
            await asyncio.sleep(_RESTART_PAUSES_S[min(failure_count, len(_RESTART_PAUSES_S) - 1)])

    async def fork(self, directory: Path, attempt_id: str) -> ProcessIdentity | None:
        """Fork a supervisor for an attempt.

        Returns:
            The supervisor, None when there is no launcher that could: start it cold then.
        """
        request = str(directory).encode()
        if len(attempt_id.encode()) > ATTEMPT_ID_WIDTH or len(request) > REQUEST_BYTES_MAX:
            return None
        async with self._turn:
            channel = self._channel
            if channel is None or not self._ready.is_set():
                return None
            try:
                async with asyncio.timeout(_ANSWER_LIMIT_S):
                    answer = await self._ask(channel, request)
                entry = process_entry(int(answer))
            except (OSError, TimeoutError, ValueError) as error:
                _log.warning("the warm launcher did not fork: %s", error)
                return None
            return entry.identity if entry else None

    async def wait_ready(self, limit_s: float) -> bool:
        """Return whether the launcher is ready, waiting for one that may come up no longer than the limit."""
        if self._is_broken:
            return self._ready.is_set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._ready.wait()
        return self._ready.is_set()

    async def _ask(self, channel: socket.socket, request: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(channel, request)
        return await loop.sock_recv(channel, REQUEST_BYTES_MAX)

    async def _live_once(self) -> bool:
        """Run one launcher to its end; return whether it became ready."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with ours:
            with theirs, self._log_path.open("ab") as log:
                process = subprocess.Popen(
                    self._argv, env=self._environ, stdin=theirs.fileno(), stdout=log, stderr=log, start_new_session=True
                )
            try:
                return await self._accompany(process, ours)
            finally:
                self._ready.clear()
                self._channel = None
                process.kill()
                process.wait()

    async def _accompany(self, process: subprocess.Popen[bytes], channel: socket.socket) -> bool:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_READY_LIMIT_S):
                word = await loop.sock_recv(channel, REQUEST_BYTES_MAX)
        except (OSError, TimeoutError):
            word = b""
        if word != READY:
            _log.warning("the warm launcher did not come up, see %s", self._log_path)
            return False
        self._channel = channel
        self._is_broken = False
        self._ready.set()
        entry = process_entry(process.pid)
        if entry is not None:
            await wait_until_dead(entry.identity)
        _log.warning("the warm launcher died and is started again")
        return True
