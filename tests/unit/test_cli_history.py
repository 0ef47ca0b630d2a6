"""Events, logs and waiting, against a scheduler that serves canned values."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest

from arena.cli.main import run
from arena.client import ArenaClient, LogChunk
from arena.domain.records import EntryKind, HistoryEntry, JobState
from tests.builders import command_spec, job_record
from tests.fakes import cluster_of_views as canned
from tests.fakes.command_line import Arena, terminal_of
from tests.fakes.scheduler_server import FakeScheduler

pytestmark = pytest.mark.usefixtures("asks_fake")


def test_events_are_lines_of_json(arena: Arena, fake: FakeScheduler) -> None:
    fake.append(
        HistoryEntry(
            index=1,
            at_s=canned.NOW_S,
            kind=EntryKind.PLAN_CHANGED,
            message="grew",
            job_id="7k2-1",
            attempt_id="7k2-1.2",
            data={"cost_s": 2.5},
        )
    )
    fake.append(HistoryEntry(index=2, at_s=canned.NOW_S, kind=EntryKind.DECISION, message="decided"))
    lines = [json.loads(line) for line in arena("events", "--json").out.splitlines()]
    assert lines[0] == {
        "index": 1,
        "at_s": canned.NOW_S,
        "kind": "plan_changed",
        "message": "grew",
        "job_id": "7k2-1",
        "attempt_id": "7k2-1.2",
        "node_id": None,
        "data": {"cost_s": 2.5},
    }
    assert [line["index"] for line in lines] == [1, 2]
    assert arena("events", "7k2-1").out == "     1  2023-11-14 22:13:20  plan_changed            7k2-1.2       grew\n"
    assert arena("events", "--after", "1", "--kind", "decision", "--json").out.count("\n") == 1


def test_steps_are_shown_only_when_asked_for(arena: Arena, fake: FakeScheduler) -> None:
    for index, kind in enumerate((EntryKind.JOB_PROGRESS, EntryKind.JOB_EVALUATED, EntryKind.JOB_PROGRESS), start=1):
        fake.append(HistoryEntry(index=index, at_s=canned.NOW_S, kind=kind, message="evaluated at step 400, loss 3.21"))

    def shown(*options: str) -> list[str]:
        return [line.split()[0] for line in arena("events", *options).out.splitlines()]

    assert shown() == ["2"]
    assert shown("--all") == ["1", "2", "3"]
    assert shown("--kind", "job_progress") == ["1", "3"]
    assert arena("events").out.endswith("job_evaluated                         evaluated at step 400, loss 3.21\n")
    assert arena("events", "--json").out.count("\n") == 3


def test_logs_of_several_ranks_are_whole_lines_with_their_rank(arena: Arena, fake: FakeScheduler) -> None:
    def piece(rank: int, data: bytes, dropped_bytes: int = 0) -> LogChunk:
        return LogChunk(attempt_id="7k2-1.2", rank=rank, offset_bytes=0, data=data, dropped_bytes=dropped_bytes)

    fake.logs = [
        piece(0, b"one\ntw"),
        piece(1, "é".encode()[:1]),
        piece(0, b"o\nthree"),
        piece(1, "é".encode()[1:], 2048),
    ]
    done = arena("logs", "7k2-1")
    assert done.out == "[0] one\n[0] two\n[0] three\n[1] é\n"
    assert done.err == "... 2.0 KiB of rank 1 were dropped by the log's cap\n"
    assert arena("logs", "7k2-1", "--rank", "0").out == "one\ntwo\nthree\n"
    assert json.loads(arena("logs", "7k2-1", "--json").out.splitlines()[0]) == {
        "attempt_id": "7k2-1.2",
        "rank": 0,
        "offset_bytes": 0,
        "dropped_bytes": 0,
        "text": "one\ntw",
    }


def test_a_job_that_has_written_nothing_is_said_to_and_where_to_look(arena: Arena) -> None:
    for job_id, said in (
        ("7k2-1", "its processes have written nothing; how far it is: `arena job 7k2-1`\n"),
        ("7k2-2", "its processes have written nothing\n"),
        ("big", "it has not run yet; why: `arena why 7k2-3`\n"),
    ):
        done = arena("logs", job_id)
        assert (done.code, done.out, done.err) == (0, "", said)
    assert arena("logs", "7k2-1", "--json").err == ""


def test_a_failed_job_that_has_written_nothing_says_why_it_failed(arena: Arena, fake: FakeScheduler) -> None:
    error = "No such file or directory: 'pyhton'"
    fake.add_job(job_record("typo-1", command_spec("typo"), state=JobState.FAILED, error=error))
    done = arena("logs", "typo")
    assert done.err == f"its processes have written nothing; it failed: {error}\n"


def test_why_a_job_failed_is_told_with_where_its_last_words_are(arena: Arena, fake: FakeScheduler) -> None:
    fake.add_job(job_record("done-2", state=JobState.FAILED, error="rank 0 exited with code 1"))
    assert arena("why", "done-2").out == (
        "done-2 is failed: rank 0 exited with code 1\n  `arena job done-2` has the last lines of what it wrote\n"
    )


def test_waiting_ends_with_the_job(arena: Arena, fake: FakeScheduler) -> None:
    fake.add_job(job_record("done-1", state=JobState.SUCCEEDED, result="model in /out"))
    fake.add_job(job_record("done-2", state=JobState.FAILED, error="rank 0 exited with code 1"))
    good = arena("wait", "done-1")
    assert (good.code, good.out) == (0, "done-1 succeeded at step 0/1000, loss -: model in /out\n")
    both = arena("wait", "done-1", "done-2", "--json")
    assert both.code == 1
    assert [job["state"] for job in both.document["jobs"]] == ["succeeded", "failed"]


def test_waiting_for_a_state_ends_when_it_is_reached(arena: Arena, fake: FakeScheduler) -> None:
    assert arena("wait", "7k2-1", "--for", "running").code == 0
    fake.append(HistoryEntry(index=1, at_s=0.0, kind=EntryKind.JOB_SUBMITTED, message="", job_id="7k2-3"))
    fake.add_job(replace(fake.jobs["7k2-3"], state=JobState.SUCCEEDED))
    assert arena("wait", "big", "--for", "running").code == 1


def test_waiting_gives_up_when_time_is_up(arena: Arena) -> None:
    assert arena("wait", "big", "--timeout", "0.2").code == 124


def test_who_waited_in_vain_is_told_so_and_how_far_the_job_is_now(
    arena: Arena, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fake.jobs["7k2-1"]

    def until_time_is_up(_client: ArenaClient, **_asked: object) -> Iterator[HistoryEntry]:
        fake.add_job(replace(job, progress=replace(job.progress, step=job.progress.step + 100)))
        return iter(())

    monkeypatch.setattr(ArenaClient, "stream_events", until_time_is_up)
    done = arena("wait", "7k2-1", "--timeout", "8")
    assert done.code == 124
    assert done.out == "7k2-1 is still running at step 1334/5000, loss 2.3457: time ran out after 8.0s\n"
    assert arena("wait", "big", "--timeout", "8", "--for", "running").out.startswith("7k2-3 is still queued at step 0")
    assert arena("wait", "7k2-1", "--timeout", "8", "--json").document["timed_out"] == ["7k2-1"]
    assert arena("wait", "7k2-1", "--timeout", "8", "--for", "running", "--json").document["timed_out"] == []


def test_a_job_that_gets_there_with_the_last_of_the_time_is_there(
    arena: Arena, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def until_time_is_up(_client: ArenaClient, **_asked: object) -> Iterator[HistoryEntry]:
        fake.add_job(replace(fake.jobs["7k2-3"], state=JobState.SUCCEEDED))
        return iter(())

    monkeypatch.setattr(ArenaClient, "stream_events", until_time_is_up)
    assert arena("wait", "big", "--timeout", "8").code == 0


def test_a_node_that_never_was_there_has_no_events_that_one_could_wait_for(arena: Arena, fake: FakeScheduler) -> None:
    for argv in (["--node", "nope"], ["--node", "nope", "-f"], ["big", "--node", "nope", "--json"]):
        done = arena("events", *argv)
        assert (done.code, done.out) == (5, "")
        assert "there is no node nope" in done.err
    assert arena("events", "--node", "n1").code == 0
    fake.append(HistoryEntry(index=1, at_s=0.0, kind=EntryKind.NODE_STATE, message="lost", node_id="gone"))
    assert "lost" in arena("events", "--node", "gone").out, "the scheduler may have forgotten it"


def happened(index: int, kind: EntryKind, message: str = "", **fields: Any) -> HistoryEntry:
    return HistoryEntry(index=index, at_s=0.0, kind=kind, message=message, **fields)


def ended(index: int, job_id: str) -> HistoryEntry:
    """A job's end, as the engine records it."""
    return happened(index, EntryKind.JOB_STATE, job_id=job_id, data={"before": "running", "after": "succeeded"})


def indices(out: str) -> list[int]:
    return [json.loads(line)["index"] for line in out.splitlines()]


def test_who_follows_a_job_that_is_over_sees_it_to_its_end_and_no_further(arena: Arena, fake: FakeScheduler) -> None:
    fake.add_job(job_record("done-1", state=JobState.SUCCEEDED))
    fake.append(happened(1, EntryKind.JOB_SUBMITTED, job_id="done-1"))
    fake.append(ended(2, "done-1"))
    fake.append(happened(3, EntryKind.CHECKPOINT_SAVED, job_id="done-1"))
    for options in ([], ["--after", "3"], ["--kind", "job_evaluated"], ["--node", "n1"]):
        assert arena("events", "-f", "done-1", *options).code == 0
    assert indices(arena("events", "-f", "done-1", "--json").out) == [1, 2, 3]


FILTERS = {
    "none": ([], [1, 2, 3]),
    "kind": (["--kind", "checkpoint_saved"], [3]),
    "node": (["--node", "n1"], [3]),
    "last": (["--last", "1"], [1, 2, 3]),
}


@pytest.mark.parametrize(("options", "shown"), FILTERS.values(), ids=FILTERS)
def test_following_a_job_ends_once_it_is_over_and_all_of_it_is_shown(
    arena: Arena, fake: FakeScheduler, options: list[str], shown: list[int]
) -> None:
    """Whatever is left out: its end is noticed also where it is not to be shown."""
    fake.append(happened(1, EntryKind.ATTEMPT_READY, job_id="7k2-1"))

    def end_it() -> None:
        while not any(request.follow for request in fake.asked("StreamEvents")):
            threading.Event().wait(0.01)
        fake.add_job(replace(fake.jobs["7k2-1"], state=JobState.SUCCEEDED))
        fake.append(ended(2, "7k2-1"))
        fake.append(happened(3, EntryKind.CHECKPOINT_SAVED, job_id="7k2-1", node_id="n1"))

    threading.Thread(target=end_it, daemon=True).start()
    done = arena("events", "-f", "7k2-1", *options, "--json")
    assert (done.code, indices(done.out)) == (0, shown)


def test_only_the_last_entries_are_shown_where_so_many_are_asked_for(arena: Arena, fake: FakeScheduler) -> None:
    for index, job_id in enumerate(("7k2-1", "7k2-2", "7k2-1", "7k2-2"), start=1):
        fake.append(happened(index, EntryKind.JOB_EVALUATED, job_id=job_id))
    assert indices(arena("events", "--last", "2", "--json").out) == [3, 4]
    assert indices(arena("events", "7k2-1", "--last", "1", "--json").out) == [3]
    assert indices(arena("events", "--last", "9", "--after", "1", "--json").out) == [2, 3, 4]
    assert arena("events", "--last", "0").code == 2


def looks_twice_then_ends(fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have waiting see nothing happen at first, and then the job's end."""
    looks: list[object] = []

    def stream(_client: ArenaClient, **_asked: object) -> Iterator[HistoryEntry]:
        looks.append(_asked)
        if len(looks) == 2:
            fake.add_job(replace(fake.jobs["7k2-1"], state=JobState.SUCCEEDED))
        return iter(())

    monkeypatch.setattr(ArenaClient, "stream_events", stream)


def test_who_waits_at_a_terminal_sees_how_far_the_job_is(
    fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = terminal_of(200, monkeypatch)
    looks_twice_then_ends(fake, monkeypatch)
    monkeypatch.setattr("sys.stderr", terminal)
    assert run(["wait", "7k2-1"]) == 0
    shown = "\n".join(terminal.lines)
    plan = "dp2"
    assert "7k2-1 (pretrain-a-model-with-a-name-of-forty-chars) running at step 1234/5000, loss 2.3457, " in shown
    assert plan in shown
    assert "about 32m" in shown, "3,766 steps of 0.512 s"
    assert capsys.readouterr().out == "7k2-1 succeeded at step 1234/5000, loss 2.3457\n"


@pytest.mark.parametrize(("is_terminal", "options"), [(False, []), (True, ["--json"])], ids=["pipe", "json"])
def test_who_waits_elsewhere_sees_nothing_of_it(
    fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool, options: list[str]
) -> None:
    stream = terminal_of(200, monkeypatch) if is_terminal else StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(ArenaClient, "stream_events", lambda _client, **_asked: iter(()))
    assert run(["wait", "7k2-1", "--timeout", "0.1", *options]) == 124
    assert stream.getvalue() == ""
