"""The file that says that a node will be taken away: what it may hold, and what its time means."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from arena.domain.events import ReclaimNotice
from arena_agent.notice import NoticeFile


@dataclass
class Clocks:
    """A host that was booted 900 s after the epoch of its wall clock."""

    now_s: float = 1000.0

    def boot_s(self) -> float:
        return self.now_s - 900.0

    def wall_s(self) -> float:
        return self.now_s


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def file(tmp_path: Path, clocks: Clocks) -> NoticeFile:
    return followed(tmp_path, clocks)


def followed(folder: Path, clocks: Clocks) -> NoticeFile:
    return NoticeFile(folder / "notice", folder / "dismissed", boot_s=clocks.boot_s, wall_s=clocks.wall_s)


def write(folder: Path, text: str, at_s: float) -> None:
    (folder / "notice").write_text(text)
    os.utime(folder / "notice", (at_s, at_s))


@pytest.mark.parametrize(
    ("text", "within_s", "why"),
    [
        ("60", 60.0, "its lender takes it back"),
        ("60\n", 60.0, "its lender takes it back"),
        ("90.5 rebalancing of the market\n", 90.5, "rebalancing of the market"),
        ("120\tmaintenance", 120.0, "maintenance"),
        ("0", 0.0, "its lender takes it back"),
        ("TERMINATE", 30.0, "TERMINATE"),
        ("nan", 30.0, "its lender takes it back"),
        ("-5 x", 0.0, "x"),
        ("inf", 30.0, "its lender takes it back"),
    ],
)
def test_seconds_and_why(
    file: NoticeFile, tmp_path: Path, clocks: Clocks, text: str, within_s: float, why: str
) -> None:
    write(tmp_path, text, clocks.now_s)
    notice = file.read()
    assert notice is not None
    assert notice.left(clocks.boot_s()) == ReclaimNotice(within_s=within_s, why=why, notice_id=notice.notice_id)


def test_an_empty_file_may_be_about_to_be_written(file: NoticeFile, tmp_path: Path, clocks: Clocks) -> None:
    write(tmp_path, "", clocks.now_s)
    clocks.now_s += 0.5
    assert file.read() is None
    clocks.now_s += 0.5
    notice = file.read()
    assert notice is not None
    left = notice.left(clocks.boot_s())
    assert (left.within_s, left.why) == (29.0, "its lender takes it back")


def test_the_time_counts_from_the_writing_whoever_reads_it_when(
    file: NoticeFile, tmp_path: Path, clocks: Clocks
) -> None:
    write(tmp_path, "60", clocks.now_s)
    clocks.now_s += 20.0
    first = file.read()
    assert first is not None
    assert first.left(clocks.boot_s()).within_s == 40.0
    clocks.now_s += 10.0
    assert file.read() is first, "the same word is told once"
    assert first.left(clocks.boot_s()).within_s == 30.0
    clocks.now_s += 100.0
    assert first.left(clocks.boot_s()).within_s == 0.0


def test_a_file_of_the_future_has_just_been_written(file: NoticeFile, tmp_path: Path, clocks: Clocks) -> None:
    write(tmp_path, "60", clocks.now_s + 5000.0)
    notice = file.read()
    assert notice is not None
    assert notice.left(clocks.boot_s()).within_s == 60.0


def test_it_is_read_anew_when_it_is_written_anew_and_gone_with_the_file(
    file: NoticeFile, tmp_path: Path, clocks: Clocks
) -> None:
    assert file.read() is None
    write(tmp_path, "60", clocks.now_s)
    first = file.read()
    clocks.now_s += 1.0
    write(tmp_path, "20", clocks.now_s)
    second = file.read()
    assert second is not None
    assert first != second
    assert second.left(clocks.boot_s()).within_s == 20.0
    (tmp_path / "notice").unlink()
    assert file.read() is None


@pytest.mark.parametrize(("age_s", "is_told"), [(59.0, True), (61.0, False), (100_000.0, False)])
def test_a_word_that_had_run_out_when_the_agent_started_is_of_an_earlier_time(
    tmp_path: Path, clocks: Clocks, age_s: float, is_told: bool
) -> None:
    """The state directory of a lent machine may outlive its being taken back."""
    write(tmp_path, "60", clocks.now_s - age_s)
    file = followed(tmp_path, clocks)
    clocks.now_s += 5.0
    assert (file.read() is not None) is is_told
    write(tmp_path, "0", clocks.now_s)
    again = file.read()
    assert again is not None
    assert again.left(clocks.boot_s()).within_s == 0.0


def test_what_cannot_be_read_is_no_word_and_is_told_once(
    file: NoticeFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "notice").mkdir()
    assert [file.read() for _ in range(3)] == [None] * 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_word_has_one_name_whichever_agent_reads_it_and_the_next_word_another(
    file: NoticeFile, tmp_path: Path, clocks: Clocks
) -> None:
    write(tmp_path, "60", clocks.now_s)
    first = file.read()
    clocks.now_s += 10.0
    again = followed(tmp_path, clocks).read()
    write(tmp_path, "60", clocks.now_s)
    second = file.read()
    assert first is not None
    assert again is not None
    assert second is not None
    assert first.notice_id == again.notice_id != second.notice_id


def test_a_dismissed_word_is_not_in_force_for_the_next_agent_either_and_another_is(
    file: NoticeFile, tmp_path: Path, clocks: Clocks
) -> None:
    write(tmp_path, "60", clocks.now_s)
    first = file.in_force()
    assert first is not None
    file.dismiss(first.notice_id)
    assert (file.in_force(), followed(tmp_path, clocks).in_force()) == (None, None)
    assert file.read() is first, "the scheduler is told all the same, and knows better"
    clocks.now_s += 1.0
    write(tmp_path, "60", clocks.now_s)
    assert file.in_force() is not None


def test_a_word_that_cannot_be_noted_as_dismissed_is_out_of_force_and_noted_as_soon_as_it_can_be(
    tmp_path: Path, clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the disk is full for a while."""
    dismissed = tmp_path / "later" / "dismissed"
    file = NoticeFile(tmp_path / "notice", dismissed, boot_s=clocks.boot_s, wall_s=clocks.wall_s)
    write(tmp_path, "60", clocks.now_s)
    first = file.in_force()
    assert first is not None
    file.dismiss(first.notice_id)
    assert (file.in_force(), file.in_force()) == (None, None)
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    dismissed.parent.mkdir()
    assert file.in_force() is None
    again = NoticeFile(tmp_path / "notice", dismissed, boot_s=clocks.boot_s, wall_s=clocks.wall_s)
    assert (dismissed.read_text(), again.in_force()) == (first.notice_id, None)
    clocks.now_s += 1.0
    write(tmp_path, "60", clocks.now_s)
    assert file.in_force() is not None
