"""Every record survives being stored: what is read back equals what was written."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from arena_scheduler.store.records import ATTEMPT_JSON, HISTORY_JSON, JOB_JSON, NODE_JSON
from tests import strategies


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_record_read_back_equals_the_one_written(data: st.DataObject) -> None:
    pairs: list[tuple[TypeAdapter[object], st.SearchStrategy[object]]] = [
        (JOB_JSON, strategies.jobs),  # type: ignore[list-item]
        (ATTEMPT_JSON, strategies.attempts),  # type: ignore[list-item]
        (NODE_JSON, strategies.nodes),  # type: ignore[list-item]
        (HISTORY_JSON, strategies.entries),  # type: ignore[list-item]
    ]
    adapter, strategy = data.draw(st.sampled_from(pairs))
    record = data.draw(strategy)
    assert adapter.validate_json(adapter.dump_json(record)) == record
