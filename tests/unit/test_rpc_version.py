"""Peers of another protocol version are told which side is older."""

from __future__ import annotations

import pytest

from arena.errors import ProtocolVersionError
from arena.rpc import version
from arena.rpc.v1 import common_pb2


def peer(protocol_version: int) -> common_pb2.Hello:
    return common_pb2.Hello(protocol_version=protocol_version, software_version="9.9")


def test_this_build_accepts_itself() -> None:
    version.check_protocol(version.hello())


def test_the_version_before_is_accepted_and_the_one_before_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "PROTOCOL_VERSION", 5)
    monkeypatch.setattr(version, "ACCEPTED_VERSIONS", range(4, 6))
    version.check_protocol(peer(4))
    with pytest.raises(ProtocolVersionError, match=r"agent n1 is older.*[Uu]pgrade agent n1") as caught:
        version.check_protocol(peer(3), "agent n1")
    assert "speaks protocol version 3" in str(caught.value)
    assert "speaks 4 and 5" in str(caught.value)


def test_a_newer_peer_learns_that_the_scheduler_is_older() -> None:
    with pytest.raises(ProtocolVersionError, match=r"the scheduler is older.*to arena-sched 9\.9") as caught:
        version.check_protocol(peer(version.PROTOCOL_VERSION + 1))
    assert caught.value.details["theirs"] == str(version.PROTOCOL_VERSION + 1)


def test_a_peer_that_says_nothing_is_asked_for_a_version() -> None:
    with pytest.raises(ProtocolVersionError, match="sent no protocol version"):
        version.check_protocol(common_pb2.Hello())
