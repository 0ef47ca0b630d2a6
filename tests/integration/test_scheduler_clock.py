"""Clocks: the scheduler's never jumps, and its own stalls are nobody else's silence."""

from __future__ import annotations

from arena_scheduler.clock import AwakeClock, LiveClock


class Hands:
    """Two clocks a test turns by hand."""

    def __init__(self) -> None:
        self.wall_s = 1_000_000.0
        self.monotonic_s = 50.0

    def wall(self) -> float:
        return self.wall_s

    def monotonic(self) -> float:
        return self.monotonic_s


def test_a_jump_of_the_wall_clock_changes_nothing() -> None:
    hands = Hands()
    clock = LiveClock(wall_s=hands.wall, monotonic_s=hands.monotonic)
    hands.wall_s += 3600.0
    hands.monotonic_s += 1.5
    assert clock.now_s() == 1_000_001.5


def test_time_goes_on_from_the_last_instant_on_record() -> None:
    hands = Hands()
    clock = LiveClock(2_000_000.0, wall_s=hands.wall, monotonic_s=hands.monotonic)
    hands.monotonic_s += 1.0
    assert clock.now_s() == 2_000_001.0


def test_a_stall_adds_nothing_to_the_time_listened() -> None:
    hands = Hands()
    awake = AwakeClock(stall_s=2.0, catch_up_s_max=10.0, monotonic_s=hands.monotonic)
    for _ in range(10):
        hands.monotonic_s += 0.25
        assert awake.beat() == 0.0
    assert awake.awake_s() == 2.5
    hands.monotonic_s += 60.0
    assert awake.beat() == 60.0
    assert awake.awake_s() == 2.5


def test_after_a_stall_there_is_time_to_catch_up_and_then_no_more() -> None:
    hands = Hands()
    awake = AwakeClock(stall_s=2.0, catch_up_s_max=10.0, monotonic_s=hands.monotonic)
    assert not awake.is_catching_up()
    hands.monotonic_s += 60.0
    awake.beat()
    assert awake.is_catching_up()
    hands.monotonic_s += 10.0
    assert not awake.is_catching_up()
