"""How the command line ends when it is interrupted or its reader goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from arena.domain.job import JobId
from arena.domain.records import EntryKind, HistoryEntry
from tests.builders import job_record
from tests.fakes.scheduler_server import FakeScheduler

pytestmark = pytest.mark.slow


@pytest.fixture
def fake() -> Iterator[FakeScheduler]:
    with FakeScheduler() as server:
        server.add_job(job_record("j1"))
        for index in range(1, 4):
            server.append(
                HistoryEntry(index=index, at_s=0.0, kind=EntryKind.DECISION, message="x" * 100_000, job_id=JobId("j1"))
            )
        yield server


def start(fake: FakeScheduler, *argv: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "arena.cli.main", *argv]
    environ = {**os.environ, "ARENA_SCHEDULER": fake.address}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


def test_an_interrupt_ends_a_follower_without_a_word(fake: FakeScheduler) -> None:
    with start(fake, "events", "-f", "--json") as process:
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.strip() == ""


def test_a_reader_that_goes_away_ends_the_writer_without_a_word(fake: FakeScheduler) -> None:
    with start(fake, "events", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        process.wait(30)
    assert process.returncode == 141
    assert err == ""
