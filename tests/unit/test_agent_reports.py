"""Reading workers' reports: complete lines only, progress merged, what may be lost is said again."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

import pytest

from arena.domain.launch import REPORT_JSON, CheckpointSaved, Evaluated, Progress, StepPoint
from arena_agent.files import AttemptFiles
from arena_agent.report import report_evaluation, report_step
from arena_agent.reports import ReportTail, all_reports

SAVED = CheckpointSaved(step=2, name="c", size_bytes=1, save_s=0.1)


def progress(*steps: int) -> Progress:
    return Progress(points=tuple(StepPoint(step=step, loss=1.0, step_time_s=0.1, tokens_per_s=1.0) for step in steps))


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def files(tmp_path):
    return AttemptFiles(directory=tmp_path)


def write(files: AttemptFiles, *reports) -> None:
    with files.report.open("ab") as stream:
        for report in reports:
            stream.write(REPORT_JSON.dump_json(report) + b"\n")


def test_new_reports_are_read_once_in_order_with_progress_merged(files):
    tail = ReportTail(files, Clock())
    assert tail.read_new() == ()
    write(files, progress(1), progress(2), SAVED, progress(3))
    assert tail.read_new() == (progress(1, 2), SAVED, progress(3))
    assert tail.read_new() == ()
    assert tail.is_drained
    assert all_reports(files) == (progress(1), progress(2), SAVED, progress(3))


def test_half_a_line_waits_for_its_other_half(files):
    tail = ReportTail(files, Clock())
    line = REPORT_JSON.dump_json(SAVED) + b"\n"
    files.report.write_bytes(line[:10])
    assert tail.read_new() == ()
    assert not tail.is_drained
    files.report.write_bytes(line)
    assert tail.read_new() == (SAVED,)


def test_half_a_line_of_a_dead_worker_holds_nobody_up(files):
    tail = ReportTail(files, Clock())
    files.report.write_bytes(REPORT_JSON.dump_json(SAVED) + b'\n{"kind": "prog')
    assert tail.read_new() == (SAVED,)
    tail.skip_rest()
    assert tail.is_drained


def test_what_is_no_report_is_skipped_with_a_warning(files, caplog):
    files.report.write_bytes(b"nonsense\n" + REPORT_JSON.dump_json(SAVED) + b"\n")
    assert ReportTail(files, Clock()).read_new() == (SAVED,)
    assert "not a report" in caplog.text


def test_a_new_stream_gets_again_what_may_not_have_arrived(files):
    clock = Clock()
    tail = ReportTail(files, clock)
    write(files, progress(1))
    tail.read_new()
    clock.now_s += 60
    write(files, SAVED)
    tail.read_new()
    tail.rewind()
    assert tail.read_new() == (SAVED,)
    assert ReportTail(files, clock).read_new() == (SAVED,)  # also after a restart of the agent


def test_a_users_program_reports_steps(files, monkeypatch):
    report_step(1, loss=2.0, step_time_s=0.5)  # outside Arena: nothing happens
    monkeypatch.setenv("ARENA_REPORT", str(files.report))
    report_step(1, loss=2.0, step_time_s=0.5)
    assert all_reports(files) == (Progress(points=(StepPoint(step=1, loss=2.0, step_time_s=0.5, tokens_per_s=0.0),)),)


def test_a_users_program_reports_evaluations(files, monkeypatch):
    report_evaluation(1, loss=2.0, sample_count=8, evaluate_s=0.5)  # outside Arena: nothing happens
    monkeypatch.setenv("ARENA_REPORT", str(files.report))
    report_evaluation(1, loss=2.0, sample_count=8, evaluate_s=0.5)
    report_evaluation(2, loss=float("nan"), sample_count=8, evaluate_s=0.5, accuracy=0.25)
    first, second = all_reports(files)
    assert first == Evaluated(step=1, loss=2.0, sample_count=8, evaluate_s=0.5)
    assert isinstance(second, Evaluated)
    assert (second.step, math.isnan(second.loss), second.accuracy) == (2, True, 0.25)


def broken_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nothing be written to any file: creating one or emptying one still works, as on a full disk."""

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("write", "fsync"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(Path, "write_text", _empties_and_fails)


def _empties_and_fails(path: Path, *_args: object, **_kwargs: object) -> None:
    path.open("w").close()
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_stops_no_reports_and_leaves_the_old_offset(files, monkeypatch, caplog):
    clock = Clock()
    tail = ReportTail(files, clock)
    for step in (1, 2, 3):  # the first is sure when the second is read, and so on
        write(files, progress(step))
        assert tail.read_new() == (progress(step),)
        clock.now_s += 60
    saved = files.report_offset.read_text()
    assert int(saved) > 0
    with monkeypatch.context() as patched:
        broken_disk(patched)
        for step in (4, 5):
            files.report.write_bytes(files.report.read_bytes() + REPORT_JSON.dump_json(progress(step)) + b"\n")
            assert tail.read_new() == (progress(step),)
            clock.now_s += 60
        tail.rewind()
        assert files.report_offset.read_text() == saved
        assert caplog.text.count("No space left on device") == 1, "said once, not with every report"
        assert ReportTail(files, clock).read_new() == (progress(3, 4, 5),)
    write(files, progress(6))
    assert tail.read_new() == (progress(6),)
    clock.now_s += 60
    tail.rewind()
    assert int(files.report_offset.read_text()) == files.report.stat().st_size
    assert sorted(path.name for path in files.directory.iterdir()) == ["report.jsonl", "report.offset"]
