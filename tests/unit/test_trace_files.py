"""Files as they are met: packed, marked, cut, damaged, endless."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import random
import subprocess
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from arena_traces.defects import Defect, TraceError
from arena_traces.reading import read_trace
from tests.trace_files import ITP_HEAD, table, written

PLAIN = table(ITP_HEAD, *(f"j{index},{index},60,{2 ** (index % 5)}" for index in range(50)))


def zipped(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def refusal(path: Path) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    return caught.value


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + PLAIN,
        PLAIN.replace(b"\n", b"\r\n"),
        PLAIN.replace(b",", b"\t"),
        gzip.compress(PLAIN, mtime=0),
        gzip.compress(PLAIN[:400], mtime=0) + gzip.compress(PLAIN[400:], mtime=0),
        gzip.compress(b"\xef\xbb\xbf" + PLAIN.replace(b"\n", b"\r\n"), mtime=0),
        gzip.compress(PLAIN[:-1], mtime=0),
        zipped(("a.csv", PLAIN)),
        zipped(("a.csv", PLAIN[:-1])),
        zipped(("folder/", b""), ("folder/a.csv", PLAIN), ("__MACOSX/a.csv", b"junk")),
    ],
    ids=["bom", "crlf", "tabs", "gz", "two gz", "gz bom crlf", "gz open end", "zip", "zip open end", "mac zip"],
)
def test_the_same_jobs_come_out_of_every_packing(tmp_path: Path, content: bytes) -> None:
    plain = read_trace(written(tmp_path / "plain.csv", PLAIN))
    path = written(tmp_path / "other", content)
    other = read_trace(path)
    assert other.jobs == plain.jobs
    assert other.accounting == plain.accounting
    assert other.source.sha256 == hashlib.sha256(content).hexdigest()


def test_a_plain_file_whose_last_value_may_be_cut_is_refused(tmp_path: Path) -> None:
    whole = table(ITP_HEAD, "a,1,5,1", "b,1,5,16")
    error = refusal(written(tmp_path / "cut.csv", whole[:-2]))
    assert error.details["defect"] == Defect.CUT_FILE
    assert error.details["line"] == "3"
    assert "echo >>" in error.message


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gz"])
def test_what_is_whole_of_a_cut_file_is_counted_and_can_be_taken_by_the_command_of_the_error(
    tmp_path: Path, is_packed: bool
) -> None:
    noise = random.Random(0).randbytes(60_000).hex()
    rows = [f"{noise[index * 100 : index * 100 + 100]},{index},60,1" for index in range(1000)]
    content = table(ITP_HEAD, *rows)
    # Inside the last row: in its id, in its time of submission, and after the comma before its GPUs.
    cuts = [gzip.compress(content, mtime=0)[:30_000]] if is_packed else [content[:-back] for back in (60, 9, 2)]
    for cut in cuts:
        error = refusal(written(tmp_path / "it's cut.csv", cut))
        assert "looks cut" in error.message
        count = int(error.details["whole_row_count"])
        assert (count == 999) if not is_packed else (100 < count < 1000)
        assert f"{count} whole rows before that" in error.message
        command = error.message.partition("take the whole rows alone: ")[2]
        subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, check=True, stderr=subprocess.DEVNULL)
        assert [job.job_id for job in read_trace(tmp_path / "part").jobs] == [row[:100] for row in rows[:count]]


def test_a_file_that_is_cut_in_its_first_row_has_nothing_to_take(tmp_path: Path) -> None:
    error = refusal(written(tmp_path / "cut.csv", table(ITP_HEAD) + b"a,1"))
    assert (error.details["defect"], error.details["whole_row_count"]) == (Defect.CUT_FILE, "0")
    assert "no row before that is whole" in error.message
    assert "head -n" not in error.message


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress, lambda data: zipped(("a", data))])
def test_a_cut_is_never_a_shorter_trace_unless_between_lines_of_a_plain_file(tmp_path: Path, pack: object) -> None:
    content = pack(PLAIN)  # type: ignore[operator]
    path = tmp_path / "cut"
    for length in range(0, len(content), 7):
        written(path, content[:length])
        if content is PLAIN and length and PLAIN[length - 1 : length] == b"\n" and PLAIN[:length].count(b"\n") > 1:
            continue
        refusal(path)


def test_a_cut_gz_tells_the_line_that_it_reached(tmp_path: Path) -> None:
    noise = random.Random(0).randbytes(60_000).hex()
    rows = [f"{noise[index * 100 : index * 100 + 100]},1,60,1" for index in range(1000)]
    error = refusal(written(tmp_path / "a.gz", gzip.compress(table(ITP_HEAD, *rows), mtime=0)[:30_000]))
    assert error.details["defect"] == Defect.CUT_ARCHIVE
    assert 100 < int(error.details["line"]) < 1000


def test_a_flipped_bit_in_a_gz_is_no_trace(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(PLAIN, mtime=0))
    content[-6] ^= 1  # in the checksum
    assert refusal(written(tmp_path / "a.gz", bytes(content))).details["defect"] == Defect.BAD_ARCHIVE


@pytest.mark.parametrize(
    ("content", "defect", "text"),
    [
        (b"", Defect.UNKNOWN_FORMAT, "is empty"),
        (gzip.compress(b"", mtime=0), Defect.UNKNOWN_FORMAT, "is empty"),
        (gzip.compress(PLAIN, mtime=0) + b"more", Defect.BAD_ARCHIVE, "damaged"),
        (zipped(("a.csv", PLAIN), ("b.csv", PLAIN)), Defect.BAD_ARCHIVE, "holds 2 files, not one: 'a.csv', 'b.csv'"),
        (zipped(), Defect.BAD_ARCHIVE, "holds 0 files"),
        (zipped(("a.csv", PLAIN))[:-30], Defect.BAD_ARCHIVE, "It looks cut where its end"),
        (PLAIN.decode().encode("utf-16"), Defect.NOT_TEXT, "UTF-16"),
        (lzma.compress(PLAIN), Defect.NOT_TEXT, "packed by xz"),
        (PLAIN.replace(b"j7,", b"\xe9,"), Defect.NOT_TEXT, "line 9: the line is no UTF-8 text"),
        (PLAIN.replace(b"j7,", b"\0,"), Defect.NOT_TEXT, "line 9: the line holds a NUL"),
        (PLAIN.replace(b"\n", b"\r"), Defect.NOT_TEXT, "bare CR"),
        (PLAIN[:200] + b"x" * (1 << 21), Defect.LINE_TOO_LONG, "longer than 1,048,576 bytes"),
        (b"\0" * 100_000, Defect.NOT_TEXT, "line 1"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, defect: Defect, text: str) -> None:
    error = refusal(written(tmp_path / "a", content))
    assert error.details["defect"] == defect
    assert text in error.message


def test_gigabytes_behind_a_small_file_are_never_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as packed:
        packed.write(table(ITP_HEAD, "a,1,5,1"))
        for _ in range(64):
            packed.write(b" " * (1 << 20))
    tracemalloc.start()
    try:
        error = refusal(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.details == {"file": str(path), "line": "3", "defect": "line_too_long"}
    assert peak_bytes < 16 << 20


def test_places_that_are_no_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, text in [
        (tmp_path, "no regular file"),
        (tmp_path / "pipe", "no regular file"),
        (Path("/dev/zero"), "no regular file"),
        (tmp_path / "absent", "No such file"),
        (Path("a\0b"), "no name of a file"),
        (Path("/proc/self/mem"), "Input/output error"),
    ]:
        error = refusal(path)
        assert error.details["defect"] == Defect.UNREADABLE
        assert text in error.message
