"""Word that this node will be taken away: a file that whoever learns of it writes, and removes if it was wrong."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from arena.domain.events import ReclaimNotice
from arena_agent.files import write_durably

WITHIN_S_DEFAULT = 30.0
"""The shortest warning that the large clouds give, for a file that names no time."""

_WHY_DEFAULT = "its lender takes it back"
_TEXT_MAX = 1000
_WRITING_S = 1.0
"""A file that is empty for no longer is about to be written."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What the file says.

    Args:
        notice_id: Which writing of the file it is, whoever reads it.
        told_boot_s, gone_boot_s: When it was written and when the node will be gone, by the host's boot clock.
    """

    notice_id: str
    told_boot_s: float
    gone_boot_s: float
    why: str

    def left(self, now_boot_s: float) -> ReclaimNotice:
        """Return it as it stands now."""
        within_s = max(self.gone_boot_s - now_boot_s, 0.0)
        return ReclaimNotice(within_s=within_s, why=self.why, notice_id=self.notice_id)


class NoticeFile:
    """Follows the file.

    A word that had run out when this began counts no more: the node has outlived it, or has been lent again since.

    Args:
        path: Seconds from its writing until the node is gone, then why; both may be left out.
        dismissed: File of ours with the word that an admin dismissed, for the agents after this one.
        boot_s, wall_s: The host's clocks: files are dated by the one, time is measured by the other.
    """

    def __init__(
        self, path: Path, dismissed: Path, *, boot_s: Callable[[], float], wall_s: Callable[[], float]
    ) -> None:
        self._path = path
        self._dismissed = dismissed
        self._boot_s = boot_s
        self._wall_s = wall_s
        self._began_boot_s = boot_s()
        self._seen: tuple[int, ...] | None = None
        self._notice: Notice | None = None
        self._problem = ""
        self._unwritten_id = ""
        self._is_unwritten_told = False

    def read(self) -> Notice | None:
        """Return what the file says now, None where there is none; the same object until it is written anew."""
        try:
            found = self._path.stat()
            seen = (found.st_mtime_ns, found.st_size, found.st_ino)
            if seen != self._seen:
                with self._path.open(encoding="utf-8", errors="replace") as stream:
                    text = stream.read(_TEXT_MAX)
                if not text and self._wall_s() - found.st_mtime < _WRITING_S:
                    return self._notice
                self._notice, self._seen = self._noticed(text, found.st_mtime, seen), seen
                self._tell()
        except FileNotFoundError:
            if self._notice is not None:
                _log.warning("this node will not be taken away after all: %s is gone", self._path)
            self._seen = self._notice = None
        except OSError as error:
            if str(error) != self._problem:  # once: it is looked at many times a second
                _log.error("the notice in %s cannot be read: %s", self._path, error)
            self._problem = str(error)
        return self._notice

    def in_force(self) -> Notice | None:
        """Return what the file says now, unless an admin took the node back in spite of it."""
        self._write_dismissed()
        notice = self.read()
        return None if notice is None or notice.notice_id == self._dismissed_id() else notice

    def dismiss(self, notice_id: str) -> None:
        """Note that an admin took the node back in spite of a word; it counts no more, written down or not yet."""
        if notice_id != self._dismissed_id():
            _log.warning("an admin took this node back in spite of its notice: it counts no more")
            self._unwritten_id, self._is_unwritten_told = notice_id, False
            self._write_dismissed()

    def _write_dismissed(self) -> None:
        """Write down which word was dismissed, if that is still to be done: a full disk may have room again."""
        if not self._unwritten_id:
            return
        try:
            write_durably(self._dismissed, self._unwritten_id)
        except OSError as error:
            if not self._is_unwritten_told:  # once: it is tried at each look
                _log.error(
                    "that a notice was dismissed cannot be written to %s and is tried again: %s", self._dismissed, error
                )
            self._is_unwritten_told = True
        else:
            self._unwritten_id = ""

    def _dismissed_id(self) -> str:
        if self._unwritten_id:
            return self._unwritten_id
        try:
            return self._dismissed.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def _noticed(self, text: str, written_wall_s: float, seen: tuple[int, ...]) -> Notice | None:
        within_s, why = _parsed(text)
        told_boot_s = self._boot_s() - max(self._wall_s() - written_wall_s, 0.0)
        gone_boot_s = told_boot_s + within_s
        notice_id = "-".join(f"{number:x}" for number in seen)
        notice = Notice(notice_id=notice_id, told_boot_s=told_boot_s, gone_boot_s=gone_boot_s, why=why)
        return notice if gone_boot_s >= self._began_boot_s else None

    def _tell(self) -> None:
        if self._notice is None:
            _log.warning("%s is of an earlier time and counts no more: it had run out before this agent", self._path)
        else:
            _log.warning("this node will be taken away: %s says %s", self._path, self._notice.why)


def _parsed(text: str) -> tuple[float, str]:
    first, *rest = text.split(maxsplit=1) or [""]
    try:
        within_s = float(first)
    except ValueError:
        return WITHIN_S_DEFAULT, text.strip() or _WHY_DEFAULT
    within_s = max(within_s, 0.0) if math.isfinite(within_s) else WITHIN_S_DEFAULT
    return within_s, rest[0].strip() if rest else _WHY_DEFAULT
