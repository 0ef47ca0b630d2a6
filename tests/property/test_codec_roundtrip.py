"""Every domain value survives the way over the wire: to proto, to bytes, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arena.domain.commands import AcknowledgeEnd, AnswerRegistration, StopAttempt
from arena.domain.events import AttemptStarted, DevicesChanged, NodeNoticeChanged, WorkerReported
from arena.domain.records import AttemptTransition
from arena.rpc import codec
from arena.rpc.views import attempt_view, job_view, node_view
from tests import strategies as some

FAST = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def over_the_wire(message: Message) -> Any:
    """The message as its receiver parses it."""
    return type(message).FromString(message.SerializeToString())


@pytest.mark.parametrize(
    ("values", "to_proto", "from_proto"),
    [
        pytest.param(some.specs, codec.spec_to_proto, codec.spec_from_proto, id="spec"),
        pytest.param(some.plans(), codec.plan_to_proto, codec.plan_from_proto, id="plan"),
        pytest.param(some.groups, codec.group_to_proto, codec.group_from_proto, id="group"),
        pytest.param(some.allocations, codec.allocation_to_proto, codec.allocation_from_proto, id="allocation"),
        pytest.param(some.estimates, codec.estimate_to_proto, codec.estimate_from_proto, id="estimate"),
        pytest.param(some.reasons, codec.reason_to_proto, codec.reason_from_proto, id="reason"),
        pytest.param(some.targets, codec.target_to_proto, codec.target_from_proto, id="target"),
        pytest.param(some.progresses, codec.progress_to_proto, codec.progress_from_proto, id="progress"),
        pytest.param(some.node_ends, codec.node_end_to_proto, codec.node_end_from_proto, id="node end"),
        pytest.param(some.devices, codec.device_to_proto, codec.device_from_proto, id="device"),
        pytest.param(some.entries, codec.entry_to_proto, codec.entry_from_proto, id="entry"),
        pytest.param(some.statuses, codec.status_to_proto, codec.status_from_proto, id="status"),
        pytest.param(some.decisions, codec.decision_to_proto, codec.decision_from_proto, id="decision"),
        pytest.param(some.launches, codec.launch_to_proto, codec.launch_from_proto, id="launch"),
    ],
)
def test_a_value_comes_back_as_it_went(
    values: st.SearchStrategy[Any], to_proto: Callable[[Any], Message], from_proto: Callable[[Any], Any]
) -> None:
    @FAST
    @given(values)
    def check(value: Any) -> None:
        assert from_proto(over_the_wire(to_proto(value))) == value

    check()


@FAST
@given(some.jobs, st.none() | some.attempts, st.booleans(), st.booleans())
def test_a_job_comes_back_as_its_reader_may_see_it(job: Any, attempt: Any, private: bool, with_spec: bool) -> None:
    message = codec.job_to_proto(job, attempt, private=private, with_spec=with_spec)
    view = codec.job_from_proto(over_the_wire(message))
    assert view == job_view(job, attempt, private=private, with_spec=with_spec)
    assert (view.spec is not None) == (private and with_spec)


@FAST
@given(some.attempts, st.booleans())
def test_an_attempt_comes_back_as_its_reader_may_see_it(attempt: Any, private: bool) -> None:
    message = codec.attempt_to_proto(attempt, private=private)
    assert codec.attempt_from_proto(over_the_wire(message)) == attempt_view(attempt, private=private)


@FAST
@given(some.nodes, some.words)
def test_a_node_comes_back_with_the_holders_of_its_devices(node: Any, attempt_id: Any) -> None:
    holders = {device.device_id: attempt_id for device in node.info.devices[:1]}
    message = codec.node_to_proto(node, holders)
    view = codec.node_from_proto(over_the_wire(message))
    assert view == node_view(node, holders)
    assert view.attempt_ids == ((attempt_id,) if node.info.devices else ())


@FAST
@given(some.registrations())
def test_a_registration_comes_back_with_the_skew_of_the_clocks(registered: Any) -> None:
    skew_s = registered.info.clock_skew_s
    message = codec.register_to_proto(registered, agent_now_s=5000.0 + skew_s)
    assert codec.register_from_proto(over_the_wire(message), now_s=5000.0) == registered


@FAST
@given(some.launches, st.sampled_from(AttemptTransition))
def test_a_launch_says_how_it_came_about(launch: Any, transition: AttemptTransition) -> None:
    message = over_the_wire(codec.launch_to_proto(launch, transition))
    assert codec.launch_transition_from_proto(message) is transition


@FAST
@given(some.reports, some.words)
def test_a_worker_report_comes_back(report: Any, attempt_id: Any) -> None:
    event = WorkerReported(node_id="n1", attempt_id=attempt_id, report=report)
    assert codec.worker_report_from_proto(over_the_wire(codec.worker_report_to_proto(event)), "n1") == event


@FAST
@given(st.lists(some.devices, max_size=3).map(tuple), some.maybe(some.texts))
def test_changed_devices_come_back(devices: Any, problem: str | None) -> None:
    event = DevicesChanged(node_id="n1", devices=devices, problem=problem)
    assert codec.devices_changed_from_proto(over_the_wire(codec.devices_changed_to_proto(event)), "n1") == event


@FAST
@given(some.maybe(some.notices))
def test_a_notice_comes_back_and_so_does_its_withdrawal(notice: Any) -> None:
    event = NodeNoticeChanged(node_id="n1", notice=notice)
    assert codec.notice_changed_from_proto(over_the_wire(codec.notice_changed_to_proto(event)), "n1") == event


@FAST
@given(st.lists(some.words).map(tuple), st.lists(some.words).map(tuple), some.positive, some.positive)
def test_a_verdict_comes_back_with_its_times(keep: Any, kill: Any, interval_s: float, grace_s: float) -> None:
    answer = AnswerRegistration(node_id="n1", keep=keep, kill=kill)
    message = codec.verdict_to_proto(answer, heartbeat_interval_s=interval_s, node_grace_s=grace_s)
    verdict = codec.verdict_from_proto(over_the_wire(message))
    assert verdict == codec.Verdict(keep=keep, kill=kill, heartbeat_interval_s=interval_s, node_grace_s=grace_s)


@FAST
@given(some.words, st.sampled_from(["save", "kill"]), some.positive)
def test_commands_and_words_of_a_session_come_back(attempt_id: Any, mode: Any, grace_s: float) -> None:
    stop = StopAttempt(node_id="n1", attempt_id=attempt_id, mode=mode, grace_s=grace_s)
    assert codec.stop_attempt_from_proto(over_the_wire(codec.stop_attempt_to_proto(stop)), "n1") == stop
    done = AcknowledgeEnd(node_id="n1", attempt_id=attempt_id)
    assert codec.acknowledge_end_from_proto(over_the_wire(codec.acknowledge_end_to_proto(done)), "n1") == done
    started = AttemptStarted(node_id="n1", attempt_id=attempt_id)
    assert codec.attempt_started_from_proto(over_the_wire(codec.attempt_started_to_proto(started)), "n1") == started


@FAST
@given(some.words, some.node_ends)
def test_the_end_of_an_attempt_comes_back(attempt_id: Any, end: Any) -> None:
    message = over_the_wire(codec.attempt_ended_to_proto(attempt_id, end))
    event = codec.attempt_ended_from_proto(message, end.node_id)
    assert (event.node_id, event.attempt_id, event.end) == (end.node_id, attempt_id, end)
