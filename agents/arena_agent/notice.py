"""Word that this node will be taken away: a file that whoever learns of it writes, and removes if it was wrong."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from arena.domain.events import ReclaimNotice

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
        gone_boot_s: When the node will be gone, by the host's boot clock.
    """

    gone_boot_s: float
    why: str

    def left(self, now_boot_s: float) -> ReclaimNotice:
        """Return it as it stands now."""
        return ReclaimNotice(within_s=max(self.gone_boot_s - now_boot_s, 0.0), why=self.why)


class NoticeFile:
    """Follows the file.

    A word that had run out when this began counts no more: the node has outlived it, or has been lent again since.

    Args:
        path: Seconds from its writing until the node is gone, then why; both may be left out.
        boot_s, wall_s: The host's clocks: files are dated by the one, time is measured by the other.
    """

    def __init__(self, path: Path, *, boot_s: Callable[[], float], wall_s: Callable[[], float]) -> None:
        self._path = path
        self._boot_s = boot_s
        self._wall_s = wall_s
        self._began_boot_s = boot_s()
        self._seen: tuple[int, ...] | None = None
        self._notice: Notice | None = None
        self._problem = ""

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
                self._notice, self._seen = self._noticed(text, found.st_mtime), seen
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

    def _noticed(self, text: str, written_wall_s: float) -> Notice | None:
        within_s, why = _parsed(text)
        since_s = max(self._wall_s() - written_wall_s, 0.0)
        gone_boot_s = self._boot_s() + within_s - since_s
        return Notice(gone_boot_s=gone_boot_s, why=why) if gone_boot_s >= self._began_boot_s else None

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
