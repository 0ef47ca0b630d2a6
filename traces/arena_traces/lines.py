"""The lines of a file, plain or packed: bounded, numbered, and with an error that names the line.

A file is never held in memory, packed or not; a line is never longer than its limit.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import shlex
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from arena.units import format_count
from arena_traces.defects import Defect, TraceError, trace_error

GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGIC = b"PK\x03\x04"
EMPTY_ZIP_MAGIC = b"PK\x05\x06"
_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
_OTHER_PACKINGS = ((b"BZh", "bzip2"), (b"\xfd7zXZ", "xz"), (b"(\xb5/\xfd", "zstd"), (b"7z\xbc\xaf", "7-Zip"))
_ZIP_MARKED_AS_LOCKED = 0x1
_MACOS_FOLDER = "__MACOSX/"
_STILL_WRITTEN = "wait until it is written, or copy it first"
_FETCH_AGAIN = "fetch or export it again, or wait until it is written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a trace may be at most, so that garbage is refused before it fills the memory."""

    line_bytes: int = 1 << 20
    line_count: int = 10_000_000
    byte_count: int = 1 << 34


DEFAULT_LIMITS = Limits()


class Line(NamedTuple):
    """A line without its end; numbered from 1."""

    number: int
    text: str


class Packing(StrEnum):
    """What a file is packed by."""

    NONE = "none"
    GZIP = "gz"
    ZIP = "zip"


class ByteLines(Protocol):
    """What lines are taken from."""

    def readline(self, size: int, /) -> bytes:
        """Return the next line with its end, or its first ``size`` bytes; nothing at the end."""
        ...


class Lines:
    """The lines of an open file that are not blank.

    Args:
        file: Its name, for errors.
        stream: Its bytes, unpacked.
        packing: What vouches that the file was not cut, so that its last line need not end.

    Attributes:
        number: Of the line that was read last.
        closing: What a format writes under so many rows; set by formats that write something.
    """

    def __init__(self, file: str, stream: ByteLines, *, limits: Limits, packing: Packing) -> None:
        self.file = file
        self.number = 0
        self.closing: Callable[[int], str] | None = None
        self._byte_count = 0
        self._filled_count = 0
        self._stream = stream
        self._limits = limits
        self._packing = packing
        self._last_ends = True

    def __iter__(self) -> Iterator[Line]:
        """Yield lines to the end of the file.

        Raises:
            TraceError: A line is too long or no text, there are too many, or what is packed is damaged.
        """
        while data := self._next():
            text = self._text(data)
            if text.strip():
                self._filled_count += self._last_ends
                yield Line(self.number, text)

    def error(self, defect: Defect, what: str, *, why: str = "", fix: str = "") -> TraceError:
        """Return an error at the line that was read last."""
        return trace_error(self.file, defect, what, line=max(self.number, 1), why=why, fix=fix)

    @property
    def stops_inside(self) -> bool:
        """Whether the line that was read last is the file's last and does not end, and nothing vouches for the file."""
        return not self._last_ends and self._packing is Packing.NONE

    def check_end(self) -> None:
        """Refuse a last line that may be cut; to be called when all lines are read.

        Raises:
            TraceError: It does not end, and nothing vouches for the file.
        """
        if self.stops_inside:
            fix = f"if it is whole, end its last line: echo >> {shlex.quote(self.file)}"
            raise self.cut_error("the file looks cut: its last line does not end", fix=fix)

    def cut_error(self, what: str, *, why: str = "", fix: str = "", defect: Defect = Defect.CUT_FILE) -> TraceError:
        """Return the error of a file that stops too early: how much of it is whole, and how to go on with that.

        Args:
            what: How that is known, at the line that was read last.
            fix: What may help beside fetching it again.
        """
        row_count = max(self._filled_count - 1, 0)  # the first is of columns, or a log's head
        counted = f"{format_count(row_count, 'whole row')} before that" if row_count else "no row before that is whole"
        fixes = [_FETCH_AGAIN, fix, self._salvage(row_count) if row_count else ""]
        error = self.error(
            defect, what, why="; ".join(filter(None, (why, counted))), fix="; ".join(filter(None, fixes))
        )
        error.details["whole_row_count"] = str(row_count)
        return error

    def _salvage(self, row_count: int) -> str:
        """Return the command that keeps the whole rows."""
        if self._packing is Packing.ZIP:
            return ""
        count, file = self.number if self._last_ends else self.number - 1, shlex.quote(self.file)
        head = f"head -n {count} {file}" if self._packing is Packing.NONE else f"zcat {file} | head -n {count}"
        if self.closing is not None:
            head = f"({head}; echo {shlex.quote(self.closing(row_count))})"
        return f"or take the whole rows alone: {head} > part"

    def _next(self) -> bytes:
        """Return the next line as it stands in the file, nothing at its end."""
        self.number += 1
        try:
            data = self._stream.readline(self._limits.line_bytes + 1)
        except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
            raise self._reading_error(error) from error
        if not data:
            self.number -= 1
            return data
        if len(data) > self._limits.line_bytes:
            raise self.error(Defect.LINE_TOO_LONG, f"the line is longer than {self._limits.line_bytes:,} bytes")
        if self.number > self._limits.line_count:
            raise self.error(Defect.TOO_MANY_ROWS, f"there are more than {self._limits.line_count:,} lines")
        self._byte_count += len(data)
        if self._byte_count > self._limits.byte_count:
            raise self.error(Defect.TOO_MANY_ROWS, f"there are more than {self._limits.byte_count:,} bytes, unpacked")
        self._last_ends = data.endswith(b"\n")
        return data

    def _reading_error(self, error: Exception) -> TraceError:
        match error:
            case EOFError():
                self._last_ends = False
                what = "the packed file looks cut: it ends too early"
                return self.cut_error(what, defect=Defect.CUT_ARCHIVE)
            case OSError(errno=int()):
                return self.error(Defect.UNREADABLE, "cannot be read on", why=error.strerror or str(error))
            case _:
                return self.error(Defect.BAD_ARCHIVE, "the packed file is damaged", why=str(error))

    def _text(self, data: bytes) -> str:
        if self.number == 1:
            data = self._without_bom(data)
        data = data.removesuffix(b"\n").removesuffix(b"\r")
        if b"\0" in data:
            raise self.error(Defect.NOT_TEXT, "the line holds a NUL byte", why="a trace is text")
        if b"\r" in data:
            raise self.error(Defect.NOT_TEXT, "the line holds a bare CR", fix="end lines with LF or CR LF")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            why = f"byte {error.start + 1} of the line: {error.reason}"
            raise self.error(Defect.NOT_TEXT, "the line is no UTF-8 text", why=why) from error

    def _without_bom(self, data: bytes) -> bytes:
        if data.startswith(_WIDE_BOMS):
            raise self.error(Defect.NOT_TEXT, "the file is UTF-16", fix="save it as UTF-8")
        packed = next((name for magic, name in _OTHER_PACKINGS if data.startswith(magic)), None)
        if packed is not None:
            raise self.error(Defect.NOT_TEXT, f"the file is packed by {packed}", fix="unpack it, or use gz or zip")
        return data.removeprefix(_BOM)


class OpenTrace:
    """A file that is being read."""

    def __init__(self, file: str, raw: IO[bytes], lines: Lines) -> None:
        self.lines = lines
        self._file = file
        self._raw = raw
        self._before = _mark(raw)

    def sha256(self) -> str:
        """Return the digest of the file's bytes, packed ones where it is packed.

        Raises:
            TraceError: The file has changed since it was opened.
        """
        self._raw.seek(0)
        digest = hashlib.file_digest(self._raw, "sha256").hexdigest()  # type: ignore[arg-type]  # it wants a class
        if _mark(self._raw) != self._before:
            raise trace_error(self._file, Defect.CHANGED, "the file has changed while it was read", fix=_STILL_WRITTEN)
        return digest


def _mark(raw: IO[bytes]) -> tuple[int, int]:
    status = os.fstat(raw.fileno())
    return (status.st_size, status.st_mtime_ns)


@contextmanager
def opened(path: str | Path, limits: Limits) -> Iterator[OpenTrace]:
    """Open a file, unpacking it where it is gz or a zip of one file.

    Raises:
        TraceError: It cannot be opened, is no regular file, or is an archive that cannot be read.
    """
    file = str(path)
    with ExitStack() as stack:
        raw = stack.enter_context(_opened_raw(file))
        try:
            start = raw.read(4)
        except OSError as error:
            raise trace_error(file, Defect.UNREADABLE, "cannot be read", why=error.strerror or str(error)) from error
        raw.seek(0)
        if start.startswith(GZIP_MAGIC):
            stream: ByteLines = stack.enter_context(gzip.GzipFile(fileobj=raw))
            packing = Packing.GZIP
        elif start in (ZIP_MAGIC, EMPTY_ZIP_MAGIC):
            stream, packing = stack.enter_context(_zip_member(file, raw)), Packing.ZIP
        else:
            stream, packing = raw, Packing.NONE
        lines = Lines(file, stream, limits=limits, packing=packing)
        yield OpenTrace(file, raw, lines)


def _opened_raw(file: str) -> IO[bytes]:
    try:
        # A pipe without a writer would keep us waiting.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise trace_error(file, Defect.UNREADABLE, "cannot be read", why=error.strerror or str(error)) from error
    except ValueError as error:
        raise trace_error(file, Defect.UNREADABLE, "is no name of a file", why=str(error)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise trace_error(file, Defect.UNREADABLE, "is no regular file", fix="write the trace to a file first")
    return io.BufferedReader(io.FileIO(descriptor))


def _zip_member(file: str, raw: IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    try:
        archive = zipfile.ZipFile(raw)
        infos = [one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith(_MACOS_FOLDER)]
        if len(infos) != 1:
            names = ", ".join(repr(one.filename) for one in infos[:5])
            fix = "unpack the one that is meant" if infos else ""
            raise trace_error(
                file, Defect.BAD_ARCHIVE, f"the zip holds {len(infos)} files, not one", why=names, fix=fix
            )
        if infos[0].flag_bits & _ZIP_MARKED_AS_LOCKED:
            raise trace_error(file, Defect.BAD_ARCHIVE, "the zip has a password", fix="unpack it")
        return archive.open(infos[0])
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, EOFError, struct.error) as error:
        fix = "it looks cut where its end, with the list of its files, is missing: fetch it again"
        raise trace_error(file, Defect.BAD_ARCHIVE, "the zip cannot be read", why=str(error), fix=fix) from error
