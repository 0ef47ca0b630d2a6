"""Starting one rank: a fresh program, or a fork of this already warm process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

from arena_agent.shim.linux import die_with_parent, set_process_name
from arena_agent.shim.order import RankOrder, ShimOrder, UnixUser

RankFunction = Callable[[Mapping[str, str]], int]


class RankStarter(Protocol):
    """Starts the process of one rank and returns its pid."""

    def start(self, order: ShimOrder, rank: RankOrder, output: int) -> int:
        """Start a rank in a process group of its own.

        Args:
            order: What the whole attempt runs.
            rank: The rank to start.
            output: File descriptor for its stdout and stderr.

        Returns:
            Its pid.

        Raises:
            OSError: It could not be started; the error says why.
        """


class ExecStarter:
    """Starts the order's own program."""

    def start(self, order: ShimOrder, rank: RankOrder, output: int) -> int:
        """Start the program with the order's and the rank's environment."""
        if order.argv is None:
            raise OSError(0, "no program to start, and no warm launcher")
        process = subprocess.Popen(
            order.argv,
            cwd=order.cwd,
            env={**os.environ, **order.env, **rank.env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
            user=order.user.uid if order.user else None,
            group=order.user.gid if order.user else None,
            extra_groups=order.user.group_ids if order.user else None,
            # A rank without its supervisor has no log and no keeper; the supervisor has one thread, so this is safe.
            preexec_fn=die_with_parent,  # noqa: PLW1509
        )
        process.returncode = 0  # the supervisor reaps by itself, this object must not try
        return process.pid


class ForkStarter:
    """Forks ranks from this process, which has imported all they need.

    Args:
        run_rank: What a rank does, with its environment; returns the exit code.
    """

    def __init__(self, run_rank: RankFunction) -> None:
        self._run_rank = run_rank

    def start(self, order: ShimOrder, rank: RankOrder, output: int) -> int:
        """Fork a rank; a TERM that comes before it is ready waits for it."""
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            pid = os.fork()
            if pid == 0:
                self._be_rank(order, rank, output)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return pid

    def _be_rank(self, order: ShimOrder, rank: RankOrder, output: int) -> NoReturn:
        code = 1
        try:
            _become_rank_process(rank.rank, output, order.user)
            os.environ.update({**order.env, **rank.env})
            if order.cwd is not None:
                os.chdir(order.cwd)
            code = self._run_rank(dict(os.environ))
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:  # noqa: BLE001 - outermost frame of a process
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _become_rank_process(rank: int, output: int, user: UnixUser | None) -> None:
    """Shed what was inherited of the supervisor: its account, its signal handling, its descriptors, its group."""
    os.setpgid(0, 0)
    if user is not None:
        os.setgroups(user.group_ids)
        os.setgid(user.gid)
        os.setuid(user.uid)
    die_with_parent()  # after the change of account, which would undo it
    set_process_name(f"arena-rank-{rank}")
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, min(65536, os.sysconf("SC_OPEN_MAX")))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
