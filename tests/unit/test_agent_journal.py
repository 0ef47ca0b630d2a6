"""The agent's journal: torn lines, full disks, compaction."""

from __future__ import annotations

import os

import pytest

from arena.domain.job import JobId
from arena.domain.launch import AttemptId, DeviceId, NodeId
from arena.domain.records import EndKind, NodeEnd
from arena.errors import InternalError, ResourceExhaustedError
from arena_agent.journal import (
    Acked,
    AgentStarted,
    Ended,
    Fence,
    Journal,
    Launched,
    LaunchIntent,
    Refused,
    Started,
    StopSent,
    compacted,
    read_entries,
)
from arena_agent.machine import replay

NODE = NodeId("n")


def intent(name: str) -> LaunchIntent:
    job, _, epoch = name.rpartition(".")
    devices = (DeviceId("n/vgpu-0"),)
    return LaunchIntent(attempt_id=AttemptId(name), job_id=JobId(job), epoch=int(epoch), devices=devices)


def ended(name: str) -> Ended:
    end = NodeEnd(node_id=NODE, kind=EndKind.FAILED, exit_codes={0: -9}, dirty={DeviceId("n/vgpu-0"): "日本語"})
    return Ended(attempt_id=AttemptId(name), end=end, gone_boot_s=2.0)


RECORDS = (
    AgentStarted(node_id=NODE, incarnation="i", boot_id="b", pid=1),
    intent("a.1"),
    Launched(attempt_id=AttemptId("a.1"), pid=5, start_ticks=6),
    Started(attempt_id=AttemptId("a.1")),
    StopSent(attempt_id=AttemptId("a.1"), mode="save", grace_s=1.0),
    ended("a.1"),
    Acked(attempt_id=AttemptId("a.1")),
    Refused(attempt_id=AttemptId("b.7"), job_id=JobId("b"), epoch=7, end=NodeEnd(node_id=NODE, kind=EndKind.KILLED)),
    Fence(job_id=JobId("c"), epoch=4),
    intent("d.2"),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


def opened(path) -> Journal:
    journal = Journal(path, wall_s=lambda: 10.0, boot_s=lambda: 1.0)
    journal.open()
    return journal


def records(path):
    return tuple(entry.record for entry in read_entries(path)[0])


def test_what_is_written_is_read(path):
    journal = opened(path)
    journal.append(*RECORDS[:3])
    journal.append(*RECORDS[3:])
    journal.close()
    assert records(path) == RECORDS


@pytest.mark.parametrize(
    "torn", [b'{"kind": "acked", "att', b"\x00\x00\xff", b'{"kind": "acked", "attempt_id": "a.1"}']
)
def test_a_torn_last_line_is_cut_off(path, torn):
    journal = opened(path)
    journal.append(*RECORDS[:2])
    journal.close()
    with path.open("ab") as stream:
        stream.write(torn)
    journal = opened(path)
    journal.append(RECORDS[2])
    journal.close()
    assert records(path) == RECORDS[:3]


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(path):
    path.write_text('{"kind": "nonsense"}\n{"kind": "nonsense"}\n')
    with pytest.raises(InternalError, match="line 1"):
        opened(path)


def test_a_full_disk_leaves_the_journal_as_it_was(path, monkeypatch):
    journal = opened(path)
    journal.append(RECORDS[0])
    write = os.write

    def half(descriptor, data):
        write(descriptor, bytes(data[:5]))
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", half)
        with pytest.raises(ResourceExhaustedError, match="No space left"):
            journal.append(RECORDS[1])
    journal.append(RECORDS[1])
    journal.close()
    assert records(path) == RECORDS[:2]


def test_compaction_keeps_the_state_and_every_fence(path):
    journal = opened(path)
    journal.append(*RECORDS)
    journal.close()
    before = replay(NODE, records(path))
    kept = [entry.record for entry in compacted(read_entries(path)[0])]
    after = replay(NODE, kept)
    assert after == before
    assert {job: after.epoch_seen(JobId(job)) for job in "abcd"} == {"a": 1, "b": 7, "c": 4, "d": 2}
    assert len(kept) < len(RECORDS)
