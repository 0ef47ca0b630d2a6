"""An agent that has seen many jobs works, starts and writes as one that has seen few. Counted, never timed."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from arena.domain.job import JobId
from arena.domain.launch import AttemptId, NodeId
from arena.domain.records import EndKind, NodeEnd
from arena.errors import InternalError, ResourceExhaustedError
from arena_agent import epochs, journal
from arena_agent.journal import (
    Acked,
    AgentStarted,
    Entry,
    Fence,
    Journal,
    LaunchIntent,
    Record,
    Refused,
    compacted,
    read_entries,
)
from arena_agent.machine import (
    AgentEvent,
    AgentState,
    EndAcknowledged,
    LaunchAsked,
    RanksUp,
    StopAsked,
    SupervisorUp,
    TellEnded,
    VerifiedGone,
    Write,
    apply,
    handle,
    replay,
)
from arena_agent.procfs import ProcessIdentity
from tests.fakes.agent_process import command_launch

NODE = NodeId("n1")
END = NodeEnd(node_id=NODE, kind=EndKind.FINISHED)


def launch_of(job: str, epoch: int = 1) -> LaunchAsked:
    return LaunchAsked(launch=command_launch("x", job=job, epoch=epoch, master_port=20_000))


def life(job: str, epoch: int = 1) -> Iterator[AgentEvent]:
    """All that happens to one attempt."""
    asked = launch_of(job, epoch)
    name = asked.launch.attempt_id
    yield asked
    yield SupervisorUp(attempt_id=name, supervisor=ProcessIdentity(pid=7, start_ticks=9))
    yield RanksUp(attempt_id=name)
    yield StopAsked(attempt_id=name, mode="save", grace_s=3.0)
    yield VerifiedGone(attempt_id=name, end=END, gone_boot_s=1.0)
    yield EndAcknowledged(attempt_id=name)


def written(state: AgentState, events: Iterable[AgentEvent]) -> tuple[AgentState, list[Record]]:
    """Return the state after events and what went to the journal."""
    records: list[Record] = []
    for event in events:
        state, effects = handle(state, event)
        records += [effect.record for effect in effects if isinstance(effect, Write)]
    return state, records


def lives(count: int) -> list[Record]:
    asked = launch_of("x").launch
    records: list[Record] = []
    for index in range(count):
        name = AttemptId(f"job-{index}.1")
        records.append(LaunchIntent(attempt_id=name, job_id=JobId(f"job-{index}"), epoch=1, devices=asked.device_ids))
        records.append(journal.Ended(attempt_id=name, end=END, gone_boot_s=1.0))
        records.append(Acked(attempt_id=name))
    return records


def fences(count: int) -> list[Record]:
    return [Fence(job_id=JobId(f"job-{index}"), epoch=1) for index in range(count)]


def unacknowledged(count: int) -> list[Record]:
    return [
        Refused(attempt_id=AttemptId(f"job-{index}.1"), job_id=JobId(f"job-{index}"), epoch=1, end=END)
        for index in range(count)
    ]


def bytes_for_one_more(state: AgentState) -> int:
    """Return the most memory that any record of one more attempt's life asks for."""
    _, records = written(state, life("one-more"))
    assert len(records) == 6
    most = 0
    tracemalloc.start()
    try:
        for record in records:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            state = apply(state, record)
            most = max(most, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return most


@pytest.mark.parametrize("past", [lives, fences, unacknowledged])
def test_a_record_does_not_copy_what_was_before_it(past):
    """A copy of 5,000 entries is hundreds of kilobytes; a persistent map changes a path of a few nodes."""
    assert bytes_for_one_more(replay(NODE, past(5_000))) < bytes_for_one_more(replay(NODE, past(10))) + 16_000


def test_what_is_remembered_of_the_past_is_bounded():
    state = replay(NODE, lives(10_000))
    assert len(state.spent) <= 2 * epochs.REMEMBERED_COUNT_MIN
    assert not state.shares


def refusal(state: AgentState, asked: LaunchAsked) -> str:
    _, effects = handle(state, asked)
    return next((effect.end.message for effect in effects if isinstance(effect, TellEnded)), "")


def test_an_end_that_is_not_acknowledged_is_a_fence_however_much_comes_after_it():
    first, _ = written(AgentState(node_id=NODE), list(life("first", 3))[:-1])
    entries = tuple(
        Entry(wall_s=1.0, boot_s=1.0, record=record)
        for record in (*written(AgentState(node_id=NODE), list(life("first", 3))[:-1])[1], *lives(5_000))
    )
    for state in (
        replay(NODE, [entry.record for entry in entries]),
        replay(NODE, [entry.record for entry in compacted(entries)]),
    ):
        assert state.shares == first.shares
        assert "older" in refusal(state, launch_of("first", 2))
        acknowledged, _ = handle(state, EndAcknowledged(attempt_id=launch_of("first", 3).launch.attempt_id))
        assert "repeated" in refusal(acknowledged, launch_of("first", 3))


def careless_events(seed: int, count: int) -> Iterator[AgentEvent]:
    """What a scheduler without any memory and a host without any order might say."""
    draw = random.Random(seed)
    for _ in range(count):
        asked = launch_of(draw.choice("abcdefgh"), draw.randint(1, 6))
        name = asked.launch.attempt_id
        yield draw.choice(
            [*list(life(asked.launch.job_id, asked.launch.epoch)), asked, EndAcknowledged(attempt_id=name)]
        )


@pytest.mark.parametrize("seed", range(6))
def test_a_compacted_journal_gives_the_same_state_whatever_happened(monkeypatch, seed):
    """Also where an attempt is refused again after its first end was acknowledged, and after many compactions."""
    monkeypatch.setattr(epochs, "REMEMBERED_COUNT_MIN", 3)
    state, entries = AgentState(node_id=NODE), ()
    for event in careless_events(seed, 250):
        try:
            state, records = written(state, [event])
        except InternalError:
            continue  # a host without order asks for steps that cannot be
        entries = (*entries, *(Entry(wall_s=1.0, boot_s=1.0, record=record) for record in records))
        again = compacted(entries)
        assert replay(NODE, [entry.record for entry in again]) == state
        entries = again if len(entries) > 40 else entries
    assert len(compacted(entries)) <= 3 * len(state.shares) * 2 + 2 * 3 + 1


def opened(path: Path) -> Journal:
    agent_journal = Journal(path, wall_s=lambda: 1_750_000_000.123, boot_s=lambda: 123_456.789)
    agent_journal.open()
    return agent_journal


def records_of(path: Path) -> tuple[Record, ...]:
    return tuple(entry.record for entry in read_entries(path)[0])


START = AgentStarted(node_id=NODE, incarnation="i", boot_id="b", pid=1)


def test_the_file_of_an_agent_that_is_never_restarted_stays_small(tmp_path):
    path = tmp_path / "journal.jsonl"
    agent_journal = opened(path)
    agent_journal.append(START, *written(AgentState(node_id=NODE), list(life("first", 3))[:-1])[1])
    past = lives(10_000)
    sizes_bytes = []
    for index in range(0, len(past), 300):
        agent_journal.append(*past[index : index + 300])
        sizes_bytes.append(path.stat().st_size)
    agent_journal.close()
    assert max(sizes_bytes) < 1.2 * journal.COMPACT_ABOVE_BYTES
    records = records_of(path)
    assert records[0] == START
    assert "older" in refusal(replay(NODE, records), launch_of("first", 2))
    assert "repeated" in refusal(replay(NODE, records), launch_of("job-9999", 1))


def test_a_large_file_of_an_agent_before_this_one_is_compacted_when_it_is_opened(tmp_path):
    path = tmp_path / "journal.jsonl"
    line = {"wall_s": 1.0, "boot_s": 1.0, "kind": "fence", "epoch": 2}
    path.write_text("".join(json.dumps({**line, "job_id": f"job-{index}"}) + "\n" for index in range(20_000)))
    agent_journal = Journal(path, wall_s=lambda: 1.0, boot_s=lambda: 1.0)
    entries = agent_journal.open()
    agent_journal.append(START)
    agent_journal.close()
    assert len(entries) <= 2 * epochs.REMEMBERED_COUNT_MIN
    assert records_of(path) == (*(entry.record for entry in entries), START)
    assert "repeated" in refusal(replay(NODE, records_of(path)), launch_of("job-19999", 2))


STEPS = ("open", "write", "fsync", "fdatasync", "replace")


class Breaking:
    """Has the nth call of some functions of ``os`` fail, and those after it as well if it is to last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int, *, lasts: bool) -> None:
        self.left, self.lasts, self.is_reached = nth, lasts, False
        for name in STEPS:
            monkeypatch.setattr(os, name, self.around(getattr(os, name)))

    def around(self, function):
        def called(*args, **kwargs):
            self.left -= 1
            if self.left == 0 or (self.left < 0 and self.lasts):
                self.is_reached = True
                raise OSError(28, "No space left on device")
            return function(*args, **kwargs)

        return called


@pytest.mark.parametrize("lasts", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("nth", range(1, 12))
def test_a_compaction_that_fails_at_any_step_loses_nothing_that_was_written(tmp_path, monkeypatch, nth, lasts):
    monkeypatch.setattr(journal, "COMPACT_ABOVE_BYTES", 2_000)
    path = tmp_path / "journal.jsonl"
    agent_journal = opened(path)
    state = AgentState(node_id=NODE)
    with monkeypatch.context() as patched:
        breaking = Breaking(patched, nth, lasts=lasts)
        for index in range(40):
            after, records = written(state, life(f"job-{index}"))
            try:
                agent_journal.append(*records)
            except ResourceExhaustedError:
                pass
            else:
                state = after
            assert replay(NODE, records_of(path)) == state
    assert breaking.is_reached
    agent_journal.append(*written(state, life("last"))[1])
    agent_journal.close()
    assert replay(NODE, records_of(path)) == written(state, life("last"))[0]


def test_nothing_more_is_said_to_be_on_disk_until_the_name_of_a_compacted_file_is(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "COMPACT_ABOVE_BYTES", 2_000)
    agent_journal = opened(tmp_path / "journal.jsonl")
    is_broken, sync = True, journal.sync_directory

    def sync_unless_broken(directory: Path) -> None:
        if is_broken:
            raise OSError(5, "Input/output error")
        sync(directory)

    monkeypatch.setattr(journal, "sync_directory", sync_unless_broken)
    agent_journal.append(START, *lives(10))  # on disk in the file that was compacted after it
    with pytest.raises(ResourceExhaustedError, match="Input/output error"):
        agent_journal.append(*lives(11)[-3:])
    is_broken = False
    agent_journal.append(*lives(11)[-3:])
    agent_journal.close()
    assert replay(NODE, records_of(tmp_path / "journal.jsonl")) == replay(NODE, lives(11))
