"""The scheduler's clock, and a measure of silence that does not count the scheduler's own stalls."""

from __future__ import annotations

import time
from collections.abc import Callable

STALL_S = 2.0
CATCH_UP_S_MAX = 15.0


class LiveClock:
    """Wall time at the start plus monotonic time since: it never jumps, whatever happens to the wall clock.

    Args:
        not_before_s: Greatest instant on record; the clock starts there if the wall clock has fallen behind it.
    """

    def __init__(
        self,
        not_before_s: float = 0.0,
        *,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic_s = monotonic_s
        self._offset_s = max(wall_s(), not_before_s) - monotonic_s()

    def now_s(self) -> float:
        """Return the present instant."""
        return self._offset_s + self._monotonic_s()


class AwakeClock:
    """Seconds during which this process listened; a stall (a stop signal, a suspended host) adds almost nothing.

    Silence measured with it is silence of the other side: what an agent could not say to a scheduler that did not
    run is not held against it. ``beat`` must be called more often than ``stall_s``.
    """

    def __init__(
        self,
        *,
        stall_s: float = STALL_S,
        catch_up_s_max: float = CATCH_UP_S_MAX,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stall_s = stall_s
        self._catch_up_s_max = catch_up_s_max
        self._monotonic_s = monotonic_s
        self._beat_s = monotonic_s()
        self._awake_s = 0.0
        self._caught_up_s = self._beat_s

    def beat(self) -> float:
        """Note that the process runs; return how long it had stalled before, 0 if it had not."""
        now_s = self._monotonic_s()
        elapsed_s, self._beat_s = now_s - self._beat_s, now_s
        if elapsed_s > self._stall_s:
            self._caught_up_s = now_s + min(elapsed_s, self._catch_up_s_max)
            return elapsed_s
        self._awake_s += elapsed_s
        return 0.0

    def awake_s(self) -> float:
        """Return the seconds listened so far."""
        return self._awake_s

    def since_beat_s(self) -> float:
        """Return for how long nobody has noted that the process runs; safe from any thread."""
        return self._monotonic_s() - self._beat_s

    def is_catching_up(self) -> bool:
        """Tell whether a stall ended so recently that others had no time yet to say what happened meanwhile."""
        return self._monotonic_s() < self._caught_up_s
