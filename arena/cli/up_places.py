"""Where each `arena up` of this user serves, and how it ended: read where a command finds nobody at its address."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from arena.cli.quoting import quoted
from arena.cli.services import state_home
from arena.cli.words import time_text
from arena.errors import UnavailableError

_KNOCK_LIMIT_S = 1.0
"""For a connection to an address, where nobody answered there before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An ``arena up`` and its scheduler.

    Args:
        directory: Its ``--dir``.
        pid: Of its process.
        start_ticks: When that process started, as ``start_ticks`` has it; None where another version wrote this.
        ended_at_s: None where it runs, or was killed itself.
        why: What it ended of; empty where its user stopped it.
    """

    address: str
    directory: str
    pid: int
    start_ticks: int | None = None
    ended_at_s: float | None = None
    why: str = ""

    @property
    def is_alive(self) -> bool:
        """Whether its process is there."""
        if self.ended_at_s is not None or (now := start_ticks(self.pid)) is None:
            return False
        return self.start_ticks in {None, now}  # else its pid is another's by now


@contextmanager
def known_place(place: Place) -> Iterator[None]:
    """Have commands of this user know of an ``arena up`` while it serves, and how it ended."""
    _forget(place.directory)
    _write(place)
    why = ""
    try:
        yield
    except Exception as error:
        why = str(error)
        raise
    finally:
        ended = asdict(place) | {"ended_at_s": time.time(), "why": why}
        _write(Place(**ended))


def explained(error: UnavailableError, address: str) -> UnavailableError:
    """Return an error of a scheduler that does not answer, with what is known of the ``arena up`` that served there."""
    places = _places()
    here = next((place for place in places if place.address == address), None)
    if here is not None and here.is_alive:
        log = quoted(str(Path(here.directory) / "up.log"))
        fix = f"try again in a moment; {log} has what became of its scheduler"
        return _because(error, f"{_named(here)} is there, but its scheduler is not", fix)
    listening = _stranger_text(address)
    became = [] if here is None else [_ended_text(here)]
    living = [place for place in places if place.is_alive]
    if living:
        served = [f"{_named(place)} serves at {place.address}" for place in living]
        fix = f"give --scheduler {living[0].address}, or set ARENA_SCHEDULER"
        return _because(error, "; ".join([*served, *became, *listening]), fix)
    if here is None:
        return _because(error, listening[0], error.fix) if listening else error
    return _because(error, "; ".join([*became, *listening]), f"start it again with {_up_text(here)}, its jobs are kept")


def _up_text(place: Place) -> str:
    is_usual = place.directory == str((state_home() / "up").absolute())
    return "`arena up`" if is_usual else f"`arena up --dir {quoted(place.directory)}`"


def _named(place: Place) -> str:
    return f"`arena up` on {quoted(place.directory)}"


def _ended_text(here: Place) -> str:
    """Return how an ``arena up`` that runs no more ended."""
    if here.ended_at_s is None:
        return f"{_named(here)} is not there any more, and could not say why"
    ended = f"at {time_text(here.ended_at_s)}"
    return f"{_named(here)} {f'ended {ended}: {here.why}' if here.why else f'was stopped {ended}'}"


def _stranger_text(address: str) -> list[str]:
    """Return that somebody listens at an address where no scheduler answered; nothing where nobody does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_LIMIT_S).close()
    except (OSError, ValueError):
        return []
    return [f"what listens at {address} does not answer as a scheduler does"]


def _because(error: UnavailableError, why: str, fix: str) -> UnavailableError:
    return UnavailableError(error.what, why=why, fix=fix, details=error.details)


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since the host did; None where it runs no more.

    With its pid this is one process and no later one.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before may hold anything
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def _folder() -> Path:
    return state_home() / "up-at"


def _places() -> list[Place]:
    files = sorted(file for file in _folder().glob("*") if not file.name.startswith("."))
    return [place for file in files if (place := _read(file)) is not None]


def _read(file: Path) -> Place | None:
    try:
        return Place(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):  # another version's, or somebody has just taken it away
        return None


def _write(place: Place) -> None:
    file = _folder() / place.address
    with contextlib.suppress(OSError):  # that a later error says less is no reason to end now
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_name(f".{file.name}.{place.pid}")
        aside.write_text(json.dumps(asdict(place)))
        aside.replace(file)


def _forget(directory: str) -> None:
    """Drop what is known of former addresses of a directory, of directories that are gone, and what is half written."""
    gone = [
        _folder() / place.address
        for place in _places()
        if place.directory == directory or not Path(place.directory).exists()
    ]
    for file in [*gone, *filter(_is_abandoned, _folder().glob(".*"))]:
        with contextlib.suppress(OSError):
            file.unlink()


def _is_abandoned(aside: Path) -> bool:
    """Whether the writer of a half-written file, whose pid its name ends with, lives no more."""
    pid = aside.name.rpartition(".")[2]
    return pid.isdecimal() and start_ticks(int(pid)) is None
