"""Processes of this machine that a test started, directly or not, found by the directory that is theirs alone."""

from __future__ import annotations

import os
from pathlib import Path


def processes_of(directory: Path) -> list[int]:
    """Living processes whose command line or environment names a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(directory) in text:
                found.append(int(entry.name))
    return found
