"""Ports of `arena up`: several on one host take none from each other."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from itertools import pairwise

import pytest

from arena.cli import ports
from arena.cli.ports import PORT_FIRST, PORT_LAST, STRETCH, PortRange, held_ports, usual_port


def overlap(one: PortRange, other: PortRange) -> bool:
    return one.low <= other.high and other.low <= one.high


def test_who_comes_later_takes_other_ports_until_the_first_has_gone() -> None:
    with held_ports(2) as first:
        with held_ports(9) as second, held_ports(1) as third:
            assert not overlap(first, second)
            assert not overlap(first, third)
            assert not overlap(second, third)
            assert second.high - second.low + 1 == 3 * STRETCH
        with held_ports(2) as again:
            assert not overlap(first, again)
    with held_ports(2) as freed:
        assert freed == first


def test_where_all_are_taken_they_are_shared() -> None:
    with ExitStack() as held, held_ports(1) as first:
        for _ in range(ports.STRETCHES):
            held.enter_context(held_ports(1))
        with held_ports(64) as shared:
            assert (shared.low, shared.high) == (PORT_FIRST, PORT_LAST)
        assert first.low >= PORT_FIRST


@pytest.mark.parametrize("count", [1, 3, 64])
def test_agents_have_parts_of_their_own(count: int) -> None:
    whole = PortRange(low=PORT_FIRST, high=PORT_LAST)
    parts = [whole.part(index, count) for index in range(count)]
    assert all(one.high < other.low for one, other in pairwise(parts))
    assert parts[0].low == whole.low
    assert parts[-1].high <= whole.high
    assert min(part.high - part.low + 1 for part in parts) >= (whole.high - whole.low + 1) // count


def test_the_usual_port_is_given_only_while_nobody_has_it() -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 50_061))
        except OSError:
            assert usual_port() is None
            return
        taken.listen(1)
        assert usual_port() is None
