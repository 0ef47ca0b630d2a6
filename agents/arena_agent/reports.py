"""Reading the report file that workers append to, from an offset that survives the agent."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from arena.domain.launch import REPORT_JSON, Progress, WorkerReport
from arena_agent.files import AttemptFiles, write_whole

# Reports sent so shortly before a stream broke may not have arrived: they are sent again.
_UNSURE_S = 20.0
_READ_BYTES_MAX = 1 << 20

_log = logging.getLogger(__name__)


class ReportTail:
    """The reports of one attempt, in order.

    Args:
        files: The attempt's files.
        boot_s: The host's boot clock.
    """

    def __init__(self, files: AttemptFiles, boot_s: Callable[[], float]) -> None:
        self._files = files
        self._boot_s = boot_s
        self._offset = self._sure_offset = _saved_offset(files.report_offset)
        self._sent: deque[tuple[float, int]] = deque()
        self._is_behind = False

    @property
    def is_drained(self) -> bool:
        """Whether everything complete in the file was read."""
        try:
            return self._files.report.stat().st_size <= self._offset
        except FileNotFoundError:
            return True

    def read_new(self) -> tuple[WorkerReport, ...]:
        """Return the reports that came since the last call, neighbouring progress merged."""
        data = self._read()
        complete = data[: data.rfind(b"\n") + 1]
        if not complete:
            return ()
        self._offset += len(complete)
        self._sent.append((self._boot_s(), self._offset))
        self._save_sure_offset()
        return merged(parsed(complete.splitlines()))

    def skip_rest(self) -> None:
        """Ignore a torn last line of an attempt that is over."""
        if not self.read_new() and not self.is_drained:
            self._offset = self._files.report.stat().st_size

    def rewind(self) -> None:
        """Go back to what surely arrived; called when a new stream begins."""
        self._save_sure_offset()
        self._offset = self._sure_offset
        self._sent.clear()

    def _read(self) -> bytes:
        try:
            with self._files.report.open("rb") as stream:
                stream.seek(self._offset)
                return stream.read(_READ_BYTES_MAX)
        except FileNotFoundError:
            return b""

    def _save_sure_offset(self) -> None:
        before = self._sure_offset
        while self._sent and self._sent[0][0] <= self._boot_s() - _UNSURE_S:
            self._sure_offset = self._sent.popleft()[1]
        if self._sure_offset != before:
            self._write_sure_offset()

    def _write_sure_offset(self) -> None:
        """Note how far the scheduler has the reports; an older note, or none, only sends some of them again."""
        try:
            write_whole(self._files.report_offset, str(self._sure_offset))
        except OSError as error:
            if not self._is_behind:
                _log.warning("%s cannot be written, reports may be sent again: %s", self._files.report_offset, error)
            self._is_behind = True
        else:
            self._is_behind = False


def parsed(lines: Iterable[bytes]) -> tuple[WorkerReport, ...]:
    """Return the reports of lines; a line that is none is logged and skipped."""
    reports = []
    for line in lines:
        try:
            reports.append(REPORT_JSON.validate_json(line))
        except ValidationError as error:
            _log.warning("not a report, skipped: %.200r (%s)", line, error.errors()[0]["msg"])
    return tuple(reports)


def merged(reports: Iterable[WorkerReport]) -> tuple[WorkerReport, ...]:
    """Return the reports with neighbouring progress made one."""
    result: list[WorkerReport] = []
    for report in reports:
        last = result[-1] if result else None
        if isinstance(report, Progress) and isinstance(last, Progress):
            result[-1] = replace(last, points=(*last.points, *report.points))
        else:
            result.append(report)
    return tuple(result)


def all_reports(files: AttemptFiles) -> tuple[WorkerReport, ...]:
    """Return every report of an attempt."""
    try:
        return parsed(files.report.read_bytes().splitlines())
    except FileNotFoundError:
        return ()


def _saved_offset(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return 0
