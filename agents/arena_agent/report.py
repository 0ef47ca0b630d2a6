"""For users' programs: tell Arena how far they are. Outside Arena it does nothing. Needs the standard library alone.

from arena_agent.report import report_step
report_step(step, loss=loss, step_time_s=0.2, tokens_per_s=4096)
"""

from __future__ import annotations

import json
import os

_REPORT_VARIABLE = "ARENA_REPORT"


def report_step(step: int, *, loss: float, step_time_s: float, tokens_per_s: float = 0.0) -> None:
    """Report one optimizer step; call it on one rank.

    Args:
        step: Steps done so far.
        loss: The step's training loss.
        step_time_s: How long the step took.
        tokens_per_s: Throughput over all ranks.
    """
    path = os.environ.get(_REPORT_VARIABLE)
    if path is None:
        return
    point = {"step": step, "loss": loss, "step_time_s": step_time_s, "tokens_per_s": tokens_per_s}
    line = json.dumps({"kind": "progress", "points": [point]}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line.encode())  # one write a line: ranks may share the file
    finally:
        os.close(descriptor)
