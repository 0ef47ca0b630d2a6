"""Memory as the kernel will grant it: the smallest limit of the host and of the control groups above this process.

Only the standard library: the supervisor of an attempt imports this.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
# Version 1 writes "no limit" as the largest page-aligned 63-bit number.
_UNLIMITED_BYTES = 1 << 60


def memory_limit_bytes(root: Path = _CGROUP_ROOT, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Return how much memory processes started here may use."""
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [
        limit
        for directory in _cgroup_directories(root, membership)
        for name in ("memory.max", "memory.limit_in_bytes")
        if (limit := _read_number(directory / name)) is not None and limit < _UNLIMITED_BYTES
    ]
    return min([host_bytes, *limits])


def oom_kill_count(root: Path = _CGROUP_ROOT, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Return how many processes of this control group the kernel has killed for memory so far."""
    for directory in _cgroup_directories(root, membership):
        for name in ("memory.events", "memory.oom_control"):
            count = _read_field(directory / name, "oom_kill")
            if count is not None:
                return count
    return 0


def _cgroup_directories(root: Path, membership: Path) -> Iterator[Path]:
    """Yield the memory control group of this process and those above it, innermost first, version 2 and 1."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        bases = [root / "memory"] if controllers else [root, root / "unified"]
        for base in bases:
            here = base / path.lstrip("/")
            yield from (at for at in (here, *here.parents) if at == base or base in at.parents)


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _read_field(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = (line.split() for line in lines)
    return next((int(pair[1]) for pair in fields if len(pair) == 2 and pair[0] == name), None)
