"""Domain values to proto messages and back: total, both ways. Pure: no I/O, no clock.

Every pair is `<thing>_to_proto(value)` and `<thing>_from_proto(message)`; a message that holds an unspecified enum or
a value the domain refuses raises a `UserError` naming the field. What agents say is read when it is first asked for:
it brings all events and commands along, and a client that shows a status has no use for them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from arena.rpc.codec.cluster import (
    decision_from_proto,
    decision_to_proto,
    status_from_proto,
    status_to_proto,
)
from arena.rpc.codec.fields import seconds_from_proto
from arena.rpc.codec.plans import (
    allocation_from_proto,
    allocation_to_proto,
    estimate_from_proto,
    estimate_to_proto,
    group_from_proto,
    group_to_proto,
    plan_from_proto,
    plan_to_proto,
    reason_from_proto,
    reason_to_proto,
    target_from_proto,
    target_to_proto,
)
from arena.rpc.codec.records import (
    attempt_from_proto,
    attempt_to_proto,
    attempt_view_to_proto,
    device_from_proto,
    device_to_proto,
    entry_from_proto,
    entry_to_proto,
    job_from_proto,
    job_to_proto,
    job_view_to_proto,
    node_end_from_proto,
    node_end_to_proto,
    node_from_proto,
    node_to_proto,
    node_view_to_proto,
    progress_from_proto,
    progress_to_proto,
)
from arena.rpc.codec.specs import (
    spec_from_proto,
    spec_to_proto,
)

if TYPE_CHECKING:
    from arena.rpc.codec.session import (
        Verdict,
        acknowledge_end_from_proto,
        acknowledge_end_to_proto,
        attempt_ended_from_proto,
        attempt_ended_to_proto,
        attempt_started_from_proto,
        attempt_started_to_proto,
        devices_changed_from_proto,
        devices_changed_to_proto,
        launch_from_proto,
        launch_to_proto,
        launch_transition_from_proto,
        notice_changed_from_proto,
        notice_changed_to_proto,
        register_from_proto,
        register_to_proto,
        stop_attempt_from_proto,
        stop_attempt_to_proto,
        verdict_from_proto,
        verdict_to_proto,
        worker_report_from_proto,
        worker_report_to_proto,
    )

__all__ = [
    "Verdict",
    "acknowledge_end_from_proto",
    "acknowledge_end_to_proto",
    "allocation_from_proto",
    "allocation_to_proto",
    "attempt_ended_from_proto",
    "attempt_ended_to_proto",
    "attempt_from_proto",
    "attempt_started_from_proto",
    "attempt_started_to_proto",
    "attempt_to_proto",
    "attempt_view_to_proto",
    "decision_from_proto",
    "decision_to_proto",
    "device_from_proto",
    "device_to_proto",
    "devices_changed_from_proto",
    "devices_changed_to_proto",
    "entry_from_proto",
    "entry_to_proto",
    "estimate_from_proto",
    "estimate_to_proto",
    "group_from_proto",
    "group_to_proto",
    "job_from_proto",
    "job_to_proto",
    "job_view_to_proto",
    "launch_from_proto",
    "launch_to_proto",
    "launch_transition_from_proto",
    "node_end_from_proto",
    "node_end_to_proto",
    "node_from_proto",
    "node_to_proto",
    "node_view_to_proto",
    "notice_changed_from_proto",
    "notice_changed_to_proto",
    "plan_from_proto",
    "plan_to_proto",
    "progress_from_proto",
    "progress_to_proto",
    "reason_from_proto",
    "reason_to_proto",
    "register_from_proto",
    "register_to_proto",
    "seconds_from_proto",
    "spec_from_proto",
    "spec_to_proto",
    "status_from_proto",
    "status_to_proto",
    "stop_attempt_from_proto",
    "stop_attempt_to_proto",
    "target_from_proto",
    "target_to_proto",
    "verdict_from_proto",
    "verdict_to_proto",
    "worker_report_from_proto",
    "worker_report_to_proto",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("arena.rpc.codec.session"), name)
