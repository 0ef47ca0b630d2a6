"""A warm launcher without torch: its ranks do what the variable ``DO`` says."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType

from arena_agent.shim.launcher import serve


def run_rank(environ: Mapping[str, str]) -> int:
    """Do one of a few things that ranks do."""
    print("threads", threading.active_count(), "rank", environ["RANK"], os.environ["RANK"], flush=True)
    match environ["DO"]:
        case "exit":
            sys.exit(3)
        case "raise":
            raise RuntimeError("went wrong")
        case "save":
            signal.signal(signal.SIGTERM, _save)
            print("ready", flush=True)
            time.sleep(600)
        case "who":
            print("uid", os.getuid(), "gid", os.getgid(), "groups", os.getgroups())
        case "group":
            print("group", os.getpgid(0) == os.getpid(), "stdin", sys.stdin.read() == "")
    return 0


def _save(_number: int, _frame: FrameType | None) -> None:
    print("saved")
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(serve(run_rank, os.environ))
