"""The end of a share: what the supervisor saw and the workers said, put in one word."""

from __future__ import annotations

from typing import Any

import pytest

from arena.domain.launch import Finished, NodeId, Stopped, WorkerError
from arena.domain.records import EndKind
from arena_agent.ends import EndEvidence, node_end
from arena_agent.shim.order import ExitRecord

FINISHED = Finished(step=3, loss=1.0, output=None)
STOPPED = Stopped(step=3, durable_step=3)


def end(record: dict[str, Any] | None, *reports: Any, **evidence: Any) -> Any:
    exit_record = None if record is None else ExitRecord(attempt_id="j.1", **record)
    fields = {"is_command": False, "has_rank_zero": True, "stop_mode": None, **evidence}
    return node_end(EndEvidence(node_id=NodeId("n"), exit=exit_record, reports=reports, **fields))


@pytest.mark.parametrize(
    ("record", "reports", "evidence", "kind"),
    [
        ({"exit_codes": {0: 0}}, [FINISHED], {}, EndKind.FINISHED),
        (None, [FINISHED], {}, EndKind.FINISHED),
        ({"exit_codes": {0: -9}, "stop_mode": "kill"}, [FINISHED], {}, EndKind.FINISHED),
        ({"exit_codes": {0: 0}}, [], {}, EndKind.FAILED),
        ({"exit_codes": {0: 0}}, [STOPPED], {}, EndKind.STOPPED),  # another node's ranks were asked
        ({"exit_codes": {2: 0}}, [], {"has_rank_zero": False}, EndKind.FINISHED),
        ({"exit_codes": {0: 0}}, [], {"is_command": True}, EndKind.FINISHED),
        ({"exit_codes": {0: 3}}, [], {"is_command": True}, EndKind.FAILED),
        ({"exit_codes": {0: 0}, "stop_mode": "save"}, [STOPPED], {}, EndKind.STOPPED),
        ({"exit_codes": {0: 0}, "stop_mode": "save"}, [], {}, EndKind.KILLED),
        ({"exit_codes": {0: 0}, "stop_mode": "save"}, [], {"is_command": True}, EndKind.STOPPED),
        ({"exit_codes": {2: 0}, "stop_mode": "save"}, [], {"has_rank_zero": False}, EndKind.STOPPED),
        ({"exit_codes": {0: -15}, "stop_mode": "save"}, [], {"is_command": True}, EndKind.KILLED),
        ({"exit_codes": {0: 143}, "stop_mode": "save"}, [], {"is_command": True}, EndKind.KILLED),
        ({"exit_codes": {0: 0, 1: 1}, "stop_mode": "save"}, [], {"is_command": True}, EndKind.KILLED),
        (
            {"exit_codes": {0: -9}, "stop_mode": "save", "oom_kill_count": 1},
            [],
            {"is_command": True},
            EndKind.FAILED,
        ),
        ({"exit_codes": {0: 1}}, [], {"is_command": True}, EndKind.FAILED),
        ({"exit_codes": {0: -9}, "stop_mode": "save", "grace_expired": True}, [], {}, EndKind.KILLED),
        ({"exit_codes": {0: 1}, "stop_mode": "save"}, [], {}, EndKind.FAILED),
        ({"exit_codes": {0: -9}, "stop_mode": "kill"}, [], {}, EndKind.KILLED),
        ({"launch_error": "No such file"}, [], {}, EndKind.LAUNCH_FAILED),
        (None, [], {}, EndKind.FAILED),
        (None, [], {"stop_mode": "kill"}, EndKind.KILLED),
        (None, [], {"was_given_up": True}, EndKind.LAUNCH_FAILED),
        (None, [], {"was_given_up": True, "stop_mode": "kill"}, EndKind.KILLED),
    ],
)
def test_kinds(record, reports, evidence, kind):
    assert end(record, *reports, **evidence).kind is kind


def test_the_first_rank_that_failed_is_blamed_with_its_log():
    record = {"exit_codes": {0: -9, 1: -9, 2: -9}, "first_failed_rank": 2}
    result = end(record, log_tails={0: "zero", 2: "two"})
    assert (result.message, result.log_tail) == ("rank 2 was killed by signal 9 (SIGKILL)", "two")


def test_a_workers_own_word_comes_before_its_exit_code():
    error = WorkerError(code="oom", rank=1, message="out of memory on stage 1")
    result = end({"exit_codes": {0: 1, 1: 1}, "first_failed_rank": 0}, error, log_tails={1: "one"})
    assert (result.error_code, result.message, result.log_tail) == ("oom", "rank 1: out of memory on stage 1", "one")


def test_a_kill_for_memory_is_told_from_any_other():
    record = {"exit_codes": {0: -9}, "first_failed_rank": 0, "oom_kill_count": 1}
    assert end(record, is_command=True).error_code == "oom"


def test_a_supervisor_that_failed_leaves_its_own_words():
    result = end(None, supervisor_log="Traceback", log_tails={0: "fine"})
    assert result.log_tail == "Traceback"
