"""What `arena up` does with jobs: it holds them when it stops, and releases them when it starts again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from arena.cli.whole_files import write_whole
from arena.client import ArenaClient
from arena.domain.records import LIVE_JOB_STATES, Wish
from arena.errors import UnavailableError, UserError

SERVE_LIMIT_S = 30.0
"""For a scheduler that was just started to answer: it takes 2 to 3 s on 2 cores, and longer with years of jobs."""
HOLD_LIMIT_S = 45.0
POLL_S = 0.1


def wait_until_served(client: ArenaClient, check: Callable[[], None]) -> None:
    """Wait until a scheduler answers.

    Args:
        check: Raises where waiting is in vain, because the scheduler has ended.

    Raises:
        UnavailableError: It does not answer within its time.
    """
    deadline_s = time.monotonic() + SERVE_LIMIT_S
    while True:
        try:
            client.status(job_count_max=1)
            return
        except UnavailableError:
            check()
            if time.monotonic() > deadline_s:
                raise
        time.sleep(POLL_S)


def hold_all(client: ArenaClient, held_file: Path) -> None:
    """Hold every job that wants to run, and wait until none holds GPUs.

    Args:
        held_file: Gets their ids. What it has already stays: an earlier stop held those, and nobody released them.
    """
    held = [job.job_id for job in client.jobs(states=LIVE_JOB_STATES) if job.wish is Wish.RUN]
    listed = dict.fromkeys([*_held(held_file), *held])
    # Written first: a job that is held but not listed here would wait for ever.
    write_whole(held_file, "".join(f"{job_id}\n" for job_id in listed).encode(), fix="hold the jobs yourself")
    for job_id in held:
        try:
            client.hold(job_id)
        except UserError:
            continue  # it ended in the meantime
    deadline_s = time.monotonic() + HOLD_LIMIT_S
    while client.status(job_count_max=1).active_jobs:
        if time.monotonic() > deadline_s:
            raise UnavailableError(f"some were still running after {HOLD_LIMIT_S:.0f} s")
        time.sleep(POLL_S)


def release_held(client: ArenaClient, held_file: Path) -> None:
    """Release what the last `arena up` held."""
    for job_id in _held(held_file):
        try:
            client.release(job_id)
        except UserError:
            continue  # cancelled, or another database
    held_file.unlink(missing_ok=True)


def _held(held_file: Path) -> list[str]:
    return held_file.read_text().split() if held_file.exists() else []
