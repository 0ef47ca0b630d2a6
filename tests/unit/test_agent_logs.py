"""A rank's log on disk: head and tail within the cap, offsets true, a full disk survived."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from arena_agent.rank_log import RankLog, log_ranks, log_segments, read_piece, read_tail, tail_offset

CAP = 40_000


def read_all(directory: Path, rank: int = 0) -> tuple[bytes, int]:
    """Everything kept, and how much was dropped."""
    data, offset, dropped = b"", 0, 0
    while (piece := read_piece(directory, rank, offset, 1000)) is not None:
        data += piece.data
        dropped += piece.dropped_bytes
        offset = piece.end_bytes
    return data, dropped


def numbered(count: int) -> bytes:
    return b"".join(b"%07d\n" % number for number in range(count))


def test_a_small_log_is_kept_whole(tmp_path):
    log = RankLog(tmp_path, 0, CAP)
    log.write(b"hello ")
    log.write(b"world\n")
    assert read_all(tmp_path) == (b"hello world\n", 0)
    log.close()
    assert log_ranks(tmp_path) == (0,)


@pytest.mark.parametrize("chunk", [1000, 9_999, 65_536])
def test_head_and_tail_of_a_long_log_are_kept_within_the_cap(tmp_path, chunk):
    text = numbered(50_000)
    log = RankLog(tmp_path, 3, CAP)
    for start in range(0, len(text), chunk):
        log.write(text[start : start + chunk])
        assert sum(segment.size_bytes for segment in log_segments(tmp_path, 3)) <= CAP
    log.close()
    data, dropped = read_all(tmp_path, 3)
    assert len(data) + dropped == len(text)
    head = log_segments(tmp_path, 3)[0].size_bytes
    assert data == text[:head] + text[head + dropped :]
    assert len(data) >= CAP // 2


def test_the_tail_starts_at_a_line(tmp_path):
    log = RankLog(tmp_path, 0, CAP)
    log.write(numbered(10))
    log.close()
    assert tail_offset(tmp_path, 0, 20) == 60
    assert read_tail(tmp_path, 0, 20) == "0000008\n0000009\n"
    assert read_tail(tmp_path, 0, 1000).startswith("0000000\n")
    assert read_tail(tmp_path, 1, 20) == ""


def test_a_disk_that_is_full_for_a_while_costs_only_what_was_written_then(tmp_path, monkeypatch):
    log = RankLog(tmp_path, 0, CAP)
    log.write(b"before\n")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        patched.setattr(os, "open", full)
        log.write(b"lost\n")
    log.write(b"after\n")
    log.close()
    assert read_all(tmp_path) == (b"before\nafter\n", 5)
