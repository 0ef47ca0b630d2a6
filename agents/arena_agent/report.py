"""For users' programs: tell Arena how far they are. Outside Arena it does nothing. Needs the standard library alone.

from arena_agent.report import report_evaluation, report_step
report_step(step, loss=loss, step_time_s=0.2, tokens_per_s=4096)
report_evaluation(step, loss=validation_loss, sample_count=512, evaluate_s=3.0)
"""

from __future__ import annotations

import json
import os
from typing import Any

_REPORT_VARIABLE = "ARENA_REPORT"


def report_step(step: int, *, loss: float, step_time_s: float, tokens_per_s: float = 0.0) -> None:
    """Report one optimizer step; call it on one rank.

    Args:
        step: Steps done so far.
        loss: The step's training loss.
        step_time_s: How long the step took.
        tokens_per_s: Throughput over all ranks.
    """
    point = {"step": step, "loss": loss, "step_time_s": step_time_s, "tokens_per_s": tokens_per_s}
    _report({"kind": "progress", "points": [point]})


def report_evaluation(
    step: int, *, loss: float, sample_count: int, evaluate_s: float, accuracy: float | None = None
) -> None:
    """Report an evaluation; call it on one rank.

    Args:
        step: Steps done when the model was evaluated.
        loss: Mean loss of the samples.
        sample_count: Samples evaluated.
        evaluate_s: How long it took.
        accuracy: Share of the targets that the model ranked first, if measured.
    """
    found = {"step": step, "loss": loss, "sample_count": sample_count, "evaluate_s": evaluate_s, "accuracy": accuracy}
    _report({"kind": "evaluated", **found})


def _report(report: dict[str, Any]) -> None:
    path = os.environ.get(_REPORT_VARIABLE)
    if path is None:
        return
    line = json.dumps(report) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line.encode())  # one write a line: ranks may share the file
    finally:
        os.close(descriptor)
