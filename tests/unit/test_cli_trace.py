"""``arena trace`` as its users see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from arena.cli.words import hours_text
from tests.fakes.command_line import Arena
from tests.trace_files import ITP_HEAD, table, written


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = ("a,0,3600,4", "b,3600,7200,0.5", "cpu,3700,5,0", "cpu2,3700,5,0", "c,7200,3600,16")
    return written(tmp_path / "trace.csv", table(f"{ITP_HEAD},vc", *(f"{row},x" for row in rows)))


def test_check_gives_account_of_every_row(arena: Arena, file: Path) -> None:
    done = arena("trace", "check", file)
    assert done.code == 0
    head, counts, columns, blank, *defects = done.out.splitlines()
    assert head.startswith(f"{file}: microsoft-itp, sha256 ")
    assert counts == "5 rows: 3 jobs, 2 dropped; 1 of the jobs repaired"
    assert columns == "columns that the format does not read: vc"
    assert blank == ""
    assert [line.split()[:5] for line in defects] == [
        ["DONE", "DEFECT", "ROWS", "LINES", "WHAT"],
        ["drop", "no_gpus", "2", "4,", "5"],
        ["repair", "gpu_share", "1", "3", "a"],
    ]


def test_check_writes_a_document(arena: Arena, file: Path) -> None:
    document = arena("trace", "check", file, "--json").document
    assert (document["row_count"], document["job_count"], document["dropped_count"]) == (5, 3, 2)
    assert document["defects"][0] == {
        "treatment": "drop",
        "defect": "no_gpus",
        "says": "asks for 0 GPUs",
        "row_count": 2,
        "lines": [4, 5],
    }


def test_stats_tells_what_a_trace_is_like(arena: Arena, file: Path) -> None:
    done = arena("trace", "stats", file, "--gpus", 8)
    assert done.code == 0
    lines = {line[:18].strip(): line[18:] for line in done.out.splitlines()}
    assert lines["jobs"] == "3"
    assert lines["jobs by GPUs"] == "1: 1  4: 1  16: 1"
    assert lines["GPU-hours"] == "22.0"
    assert lines["offered load"] == "137.5% of 8 GPUs (1 job asks for more than all)"
    assert arena("trace", "stats", file, "--gpus", "9" * 400).code == 2
    document = arena("trace", "stats", file, "--gpus", 8, "--json").document
    assert document["statistics"]["offered_load"] == pytest.approx(1.375)
    assert document["statistics"]["job_count_by_gpu_count"] == {"1": 1, "4": 1, "16": 1}
    assert document["statistics"]["duration"]["p50_s"] == 3600


def test_a_broken_trace_is_an_error_with_its_line(arena: Arena, tmp_path: Path) -> None:
    file = written(tmp_path / "broken.csv", table(ITP_HEAD, "a,0,5,1", "b,-7,5,1"))
    done = arena("trace", "stats", file)
    assert (done.code, done.out) == (4, "")
    way_out = "Leave such rows out, and count them, with --drop negative"
    assert done.err == f"error: {file}, line 3: submission_time must not be negative, found '-7'. {way_out}\n"
    assert (
        arena("trace", "check", file, "--drop", "negative").out.splitlines()[1].startswith("2 rows: 1 job, 1 dropped")
    )
    unknown = arena("trace", "check", file, "--drop", "negativ")
    assert (unknown.code, unknown.out) == (4, "")
    assert "there is no defect of that name. Did you mean negative? These can be dropped: bad_quotes, " in unknown.err


@pytest.mark.parametrize(
    ("hours", "text"), [(0.0, "0.0"), (0.00583, "0.0058"), (4.0333, "4.03"), (9.96, "10.0"), (1234.56, "1,234.6")]
)
def test_few_hours_have_digits_that_matter(hours: float, text: str) -> None:
    assert hours_text(hours) == text


def test_one_is_no_plural(arena: Arena, tmp_path: Path) -> None:
    file = written(tmp_path / "one.csv", table(ITP_HEAD, "a,0,5,1"))
    assert arena("trace", "check", file).out.splitlines()[1] == "1 row: 1 job, 0 dropped; 0 of the jobs repaired"
    assert "of 1 GPU (0 jobs ask" in arena("trace", "stats", file, "--gpus", 1).out


def test_what_a_trace_holds_cannot_steer_a_terminal(arena: Arena, tmp_path: Path) -> None:
    file = written(tmp_path / "evil.csv", table(f"{ITP_HEAD},\x1b[2J", "a,0,5,1,x"))
    assert "\x1b" not in arena("trace", "check", file).out
    assert "\x1b" not in arena("trace", "check", written(file, table("\x1b[2J,b", "a,0"))).err


def test_output_that_the_disk_has_no_room_for_is_no_fault(tmp_path: Path) -> None:
    file = written(tmp_path / "whole.csv", table(ITP_HEAD, "a,0,5,1"))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "arena.cli.main", "trace", "stats", file],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 8
    assert "cannot write standard output: No space left on device" in done.stderr
