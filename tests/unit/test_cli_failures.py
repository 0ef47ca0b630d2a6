"""How the failed attempts of a job are shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arena.domain.launch import NodeId
from arena.domain.records import EndKind, NodeEnd
from tests.fakes import cluster_of_views as canned
from tests.fakes.command_line import Arena
from tests.fakes.scheduler_server import FakeScheduler

pytestmark = pytest.mark.usefixtures("asks_fake")

TAIL = 'Traceback (most recent call last):\n  File "worker/main.py", line 9, in run'


def fail(fake: FakeScheduler, code: str) -> None:
    end = NodeEnd(
        node_id=NodeId("n1"), kind=EndKind.FAILED, error_code=code, message="rank 0: it went wrong", log_tail=TAIL
    )
    fake.attempts = [replace(canned.BEFORE, ends=(end,))]


@pytest.mark.parametrize("code", ["config", "data"])
def test_an_error_of_the_users_own_is_told_without_a_traceback_of_our_files(
    arena: Arena, fake: FakeScheduler, code: str
) -> None:
    fail(fake, code)
    told = arena("job", "7k2-1").out
    assert "7k2-1.1 on n1: rank 0: it went wrong" in told
    assert "Traceback" not in told
    assert "Traceback" in arena("job", "7k2-1", "-v").out
    [end] = arena("job", "7k2-1", "--json").document["attempts"][0]["ends"]
    assert end["log_tail"] == TAIL


@pytest.mark.parametrize("code", ["", "crash", "oom", "checkpoint", "port"])
def test_of_any_other_error_the_last_lines_are_shown(arena: Arena, fake: FakeScheduler, code: str) -> None:
    fail(fake, code)
    assert "    Traceback" in arena("job", "7k2-1").out
