"""Checkpoint places: a marker file in each shows which nodes see the same directory under a path."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

MARKER = ".arena-place"

_log = logging.getLogger(__name__)


def visible_places(places: Iterable[Path]) -> Mapping[str, str]:
    """Return the places this node can write to, each with the content of its marker.

    Whoever comes first makes the marker; two nodes that read the same content see the same directory. A place that
    cannot be written to is left out with a warning.
    """
    found = {}
    for place in places:
        try:
            found[str(place)] = _marker(place)
        except OSError as error:
            _log.warning("checkpoint place %s is left out: %s", place, error)
    return found


def _marker(place: Path) -> str:
    place.mkdir(parents=True, exist_ok=True)
    _prove_writable(place)
    path = place / MARKER
    temporary = place / f"{MARKER}.{uuid.uuid4().hex}"
    temporary.write_text(uuid.uuid4().hex, encoding="ascii")
    try:
        # A link to a complete file is made once and never seen half written, also on network file systems.
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    return path.read_text(encoding="ascii").strip()


def _prove_writable(place: Path) -> None:
    probe = place / f"{MARKER}.probe-{uuid.uuid4().hex}"
    probe.write_bytes(b"arena")
    probe.unlink()
