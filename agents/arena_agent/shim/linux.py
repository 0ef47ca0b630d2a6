"""The few Linux calls that Python has no name for: subreaper, parent-death signal, process name, environment memory."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)
_libc.getenv.restype = ctypes.c_void_p
_libc.getenv.argtypes = [ctypes.c_char_p]


def become_subreaper() -> None:
    """Orphans among this process's descendants become its children, also after a double fork or setsid."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def set_process_name(name: str) -> None:
    """Set the name that ps and top show (15 bytes)."""
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def environment_address(name: str) -> int | None:
    """Return where a variable's value lies in memory, before anything has set it anew; None when it is not there."""
    address: int | None = _libc.getenv(name.encode())
    return address


def overwrite_environment(address: int, width: int, value: str) -> None:
    """Overwrite a variable's value in place, so that /proc/PID/environ shows it.

    Args:
        address: From ``environment_address``.
        width: Bytes the present value has; the rest is filled with zeros.
        value: Must be no longer than ``width`` bytes.
    """
    data = value.encode()
    if len(data) > width:
        raise ValueError(f"{value!r} has {len(data)} bytes, there is room for {width}")
    ctypes.memmove(address, data.ljust(width, b"\0"), width)
