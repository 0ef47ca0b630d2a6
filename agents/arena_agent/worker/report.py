"""Appends a rank's reports to the attempt's report file, one JSON line each."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from arena.domain.launch import REPORT_JSON, Progress, StepPoint, WorkerReport

_PROGRESS_INTERVAL_S = 1.0
_PROGRESS_POINT_COUNT_MAX = 50
_UNSENT_BYTES_MAX = 1 << 20


@dataclass(slots=True, kw_only=True)
class Reporter:
    """Writes reports; progress is batched and always written before any later report.

    Where the disk is full, lines wait in memory and follow, in order, when there is room: training goes on. Should
    too many wait, progress is dropped.

    Args:
        path: The report file; several ranks may append to it, each line in a single write.
    """

    path: str
    _points: list[StepPoint] = field(default_factory=list)
    _flushed_at_s: float = 0.0
    _unsent: bytes = b""

    def step(self, point: StepPoint) -> None:
        """Note a step; write the batch when it is full or old enough."""
        self._points.append(point)
        is_due = time.monotonic() - self._flushed_at_s >= _PROGRESS_INTERVAL_S
        if is_due or len(self._points) >= _PROGRESS_POINT_COUNT_MAX:
            self._flush()

    def send(self, report: WorkerReport, *, is_synced: bool = False) -> None:
        """Write a report after the steps before it; a synced one survives a power loss."""
        self._flush()
        self._unsent += _line(report)
        self._write(is_synced=is_synced)

    def send_last(self, report: WorkerReport) -> None:
        """Write and sync the report that ends the attempt.

        Raises:
            OSError: It could not be written.
        """
        self.send(report, is_synced=True)
        if self._unsent:
            raise OSError(f"the last report of the attempt could not be written to {self.path}")

    def _flush(self) -> None:
        self._flushed_at_s = time.monotonic()
        points, self._points = tuple(self._points), []
        if points and len(self._unsent) < _UNSENT_BYTES_MAX:
            self._unsent += _line(Progress(points=points))
        self._write(is_synced=False)

    def _write(self, *, is_synced: bool) -> None:
        if not self._unsent:
            return
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                # A full disk can take part of a line; the rest follows with the next attempt.
                self._unsent = self._unsent[os.write(handle, self._unsent) :]
                if is_synced:
                    os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            print(f"report not written: {error}", flush=True)


def _line(report: WorkerReport) -> bytes:
    return REPORT_JSON.dump_json(report) + b"\n"
