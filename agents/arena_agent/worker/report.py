"""Appends a rank's reports to the attempt's report file, one JSON line each."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from arena.domain.launch import REPORT_JSON, Progress, StepPoint, WorkerReport

_PROGRESS_INTERVAL_S = 1.0
_PROGRESS_POINT_COUNT_MAX = 50


@dataclass(slots=True, kw_only=True)
class Reporter:
    """Writes reports; progress is batched and always written before any later report.

    Args:
        path: The report file; several ranks may append to it, each line in a single write.
    """

    path: str
    _points: list[StepPoint] = field(default_factory=list)
    _written_at_s: float = 0.0

    def step(self, point: StepPoint) -> None:
        """Note a step; write the batch when it is full or old enough."""
        self._points.append(point)
        is_due = time.monotonic() - self._written_at_s >= _PROGRESS_INTERVAL_S
        if is_due or len(self._points) >= _PROGRESS_POINT_COUNT_MAX:
            self.flush()

    def flush(self) -> None:
        """Write the steps not yet written."""
        if self._points:
            points, self._points = tuple(self._points), []
            self._append(Progress(points=points), is_synced=False)
        self._written_at_s = time.monotonic()

    def send(self, report: WorkerReport, *, is_synced: bool = False) -> None:
        """Write a report after the steps before it; a synced one survives a power loss."""
        self.flush()
        self._append(report, is_synced=is_synced)

    def _append(self, report: WorkerReport, *, is_synced: bool) -> None:
        line = REPORT_JSON.dump_json(report) + b"\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line)
            if is_synced:
                os.fsync(handle)
        finally:
            os.close(handle)
