"""Entries of a step are what they would be had they been written out at once."""

from __future__ import annotations

from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.records import EntryKind, HistoryEntry
from arena.engine.entries import Entries

RAW = (
    (EntryKind.JOB_STATE, "queued -> held", JobId("a"), None, None, {"before": "queued", "error": None}),
    (EntryKind.NODE_STATE, "new -> ready", None, None, NodeId("n1"), {}),
)
WRITTEN = (
    HistoryEntry(
        index=8,
        at_s=3.0,
        kind=EntryKind.JOB_STATE,
        message="queued -> held",
        job_id=JobId("a"),
        data={"before": "queued"},
    ),
    HistoryEntry(index=9, at_s=3.0, kind=EntryKind.NODE_STATE, message="new -> ready", node_id=NodeId("n1")),
)


def test_they_are_numbered_on_and_leave_out_what_is_not_known_however_often_they_are_read() -> None:
    entries = Entries(7, 3.0, RAW)
    assert [tuple(entries), tuple(entries)] == [WRITTEN, WRITTEN]
    assert (len(entries), entries[1], entries[-2:]) == (2, WRITTEN[1], WRITTEN)


def test_they_equal_what_holds_the_same_and_nothing_else() -> None:
    assert Entries(7, 3.0, RAW) == WRITTEN
    assert Entries(7, 3.0, RAW) == Entries(7, 3.0, RAW)
    assert Entries(6, 3.0, RAW) != WRITTEN
    assert hash(Entries(7, 3.0, ())) == hash(())
    assert Entries(7, 3.0, ()) != ""
