"""The clocks of the agent: the wall clock for people, the boot clock for order and time-outs."""

from __future__ import annotations

import time
from pathlib import Path


def wall_s() -> float:
    """Seconds since the epoch, as this host believes; shown to people, never compared with another host's."""
    return time.time()


def boot_s() -> float:
    """Seconds since this host booted, suspension included: one order for all processes of the host."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Identity of this boot; instants of ``boot_s`` are comparable only under the same one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"
