"""The warm launcher: a process that has imported what ranks need and forks supervisors on request.

It has one thread, runs no tensor operation and knows no gRPC, so that a fork of it is a sound process. A request is
the path of an attempt's directory on the socket that is its stdin, the answer the pid of its supervisor. It ends with
its agent (end of file); the supervisors it forked live on.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from arena_agent.files import AttemptFiles
from arena_agent.shim.linux import (
    become_subreaper,
    environment_address,
    overwrite_environment,
    set_process_name,
)
from arena_agent.shim.order import ShimOrder
from arena_agent.shim.ranks import ForkStarter, RankFunction
from arena_agent.shim.supervisor import Supervisor

# The launcher starts with a placeholder of this width, which a forked supervisor overwrites in place: /proc shows the
# memory a process was started with, and leftovers are found by their attempt's id there.
ATTEMPT_ID_WIDTH = 96
ATTEMPT_ID_PLACEHOLDER = "-" * ATTEMPT_ID_WIDTH
ATTEMPT_ID_VARIABLE = "ARENA_ATTEMPT_ID"
READY = b"ready"
REQUEST_BYTES_MAX = 8192


class Launcher:
    """Serves fork requests.

    Args:
        channel: Connected to the agent, one message a request or an answer.
        run_rank: What a rank does.
        attempt_id_address: Where the placeholder lies in memory.
    """

    def __init__(self, channel: socket.socket, run_rank: RankFunction, attempt_id_address: int) -> None:
        self._channel = channel
        self._run_rank = run_rank
        self._attempt_id_address = attempt_id_address

    def serve(self) -> None:
        """Say that it is ready, then answer requests until the agent is gone."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are reaped by the kernel
        self._channel.send(READY)
        while directory := self._channel.recv(REQUEST_BYTES_MAX):
            self._channel.send(self._fork_supervisor(directory.decode()))

    def _fork_supervisor(self, directory: str) -> bytes:
        """Return the new supervisor's pid, or the error as text."""
        try:
            pid = os.fork()
        except OSError as error:
            return str(error).encode()
        if pid == 0:
            self._channel.detach()  # its descriptor is replaced below
            self._be_supervisor(AttemptFiles(directory=Path(directory)))
        return str(pid).encode()

    def _be_supervisor(self, files: AttemptFiles) -> NoReturn:
        code = 1
        try:
            _become_supervisor_process(files)
            order = ShimOrder.from_json(files.order.read_text(encoding="utf-8"))
            overwrite_environment(self._attempt_id_address, ATTEMPT_ID_WIDTH, order.attempt_id)
            Supervisor(files, order, ForkStarter(self._run_rank)).run()
            code = 0
        except BaseException:  # noqa: BLE001 - outermost frame of a process
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


def _become_supervisor_process(files: AttemptFiles) -> None:
    os.setsid()
    become_subreaper()
    set_process_name("arena-shim")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(files.supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 1024)  # whatever the launcher's imports opened stays behind


def serve(run_rank: RankFunction, environ: Mapping[str, str]) -> int:
    """Run the launcher in this process, whose stdin is the socket to its agent.

    Returns:
        0 when its agent is gone, 2 when it was started without the placeholder.
    """
    address = environment_address(ATTEMPT_ID_VARIABLE)
    if address is None or environ.get(ATTEMPT_ID_VARIABLE) != ATTEMPT_ID_PLACEHOLDER:
        print(f"the launcher needs {ATTEMPT_ID_VARIABLE}={ATTEMPT_ID_PLACEHOLDER}", file=sys.stderr)
        return 2
    set_process_name("arena-launcher")
    with socket.socket(fileno=0) as channel:
        Launcher(channel, run_rank, address).serve()
    return 0
