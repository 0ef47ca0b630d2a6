"""Ports of ``arena up``: a stretch of them that no other on this host uses, held while it runs.

The ports are parted into stretches, each with a guard: a port below them all. Who uses a stretch listens on its guard,
so that whoever comes later (of any user, on any directory) takes another; the hold ends with its process.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from arena.client import DEFAULT_ADDRESS

PORT_FIRST, PORT_LAST = 20_000, 31_999
STRETCH = 750
STRETCHES = (PORT_LAST - PORT_FIRST + 1) // STRETCH
AGENTS_PER_STRETCH = 4
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRange:
    """Ports on which ranks meet, both ends included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"

    def part(self, index: int, count: int) -> PortRange:
        """Return one of so many equal parts, counted from 0."""
        width = (self.high - self.low + 1) // count
        return PortRange(low=self.low + index * width, high=self.low + (index + 1) * width - 1)


@contextmanager
def held_ports(agent_count: int) -> Iterator[PortRange]:
    """Hold ports for some agents; where no free stretches lie together they are those that everybody begins with.

    Two that share ports still work: a rank that finds its port taken is launched again on another.
    """
    wanted = min(-(-agent_count // AGENTS_PER_STRETCH), STRETCHES)
    for first in range(STRETCHES - wanted + 1):
        with ExitStack() as guards:
            held = [_guarded(guards, index) for index in range(first, first + wanted)]
            if all(held):
                yield _stretches(first, wanted)
                return
    yield _stretches(0, wanted)


def _stretches(first: int, count: int) -> PortRange:
    low = PORT_FIRST + first * STRETCH
    return PortRange(low=low, high=low + count * STRETCH - 1)


def _guarded(guards: ExitStack, index: int) -> bool:
    """Listen on the guard of a stretch; tell whether nobody else does."""
    guard = guards.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    try:
        guard.bind((_HOST, PORT_FIRST - STRETCHES + index))
        guard.listen(1)
    except OSError:
        return False
    return True


def usual_port() -> int | None:
    """Return the scheduler's usual port, None where somebody has it already."""
    port = int(DEFAULT_ADDRESS.rpartition(":")[2])
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that has just ended is no obstacle
        try:
            probe.bind((_HOST, port))
        except OSError:
            return None
    return port
