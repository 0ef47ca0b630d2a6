"""What is in the way of a deadline that `arena` cannot promise, though it knows a later end that it could."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from arena.domain.job import JobId
from arena.domain.reason import ReasonCode
from arena.domain.tenants import Guarantee
from arena.policies.base import Snapshot
from arena.policies.priced.policy import PricedPolicy
from tests.builders import allocation_on, command_spec, holding_of, node_info, scaling_grid, snapshot_of, train_spec

GRID = scaling_grid("cpu", [(1,), (2,)])
BOTH = scaling_grid("cpu", [(2,)])
PROGRAM = scaling_grid("cpu", [(2,)], power=0.0)
NODE = node_info("n1", gpus=2)


def asking(deadline_s: float, others: dict[str, Any] | None = None, **fields: Any) -> Snapshot:
    """Job ``a`` needs 58 s on the two GPUs, and asks for a promise."""
    spec = train_spec("a", stop={"steps": 100}, deadline_s=deadline_s + 10.0)  # it was submitted 10 s ago
    return snapshot_of([NODE], {"a": (spec, GRID), **(others or {})}, **fields)


def behind_a_promise() -> Snapshot:
    due = train_spec("b", stop={"steps": 300}, deadline_s=260.0)
    found = asking(200.0, {"b": (due, BOTH)})
    promised = replace(found.jobs[JobId("b")], is_deadline_promised=True)
    return replace(found, jobs=found.jobs.set(JobId("b"), promised))  # type: ignore[attr-defined]


def behind_one_that_may_not_be_stopped() -> Snapshot:
    other = command_spec("z", count=2, preemptible=False, stop={"time_limit_s": 500.0})
    holding = holding_of(PROGRAM, allocation_on(("n1", (0, 1))), movable=False, since_s=1_000.0)
    return asking(200.0, {"z": (other, PROGRAM)}, running={"z": holding})


def beside_shares() -> Snapshot:
    shares = {"vision": Guarantee(gpu_count_by_type={"cpu": 1})}
    return asking(110.0, tenants=shares)


@pytest.mark.parametrize(
    ("snapshot", "code", "says"),
    [
        (asking(20.0), ReasonCode.DEADLINE_TOO_SOON, "on cpu 2, the quickest .*, and is due in 20 s"),
        (behind_a_promise(), ReasonCode.DEADLINE_BEHIND_PROMISES, "on cpu 2 .* are promised to b,"),
        (behind_one_that_may_not_be_stopped(), ReasonCode.DEADLINE_TAKEN, "z have them and may not be stopped"),
        (beside_shares(), ReasonCode.DEADLINE_BESIDE_SHARES, r"guaranteed \(vision\) leaves project default"),
    ],
    ids=lambda value: value.value if isinstance(value, ReasonCode) else "",
)
def test_a_refused_deadline_says_what_is_in_the_way_and_when_it_could_end(
    snapshot: Snapshot, code: ReasonCode, says: str
) -> None:
    answer = PricedPolicy().admission(snapshot, JobId("a"))
    assert answer is not None
    assert answer.reason is not None
    assert (answer.is_promised, answer.reason.code) == (False, code)
    assert answer.earliest_end_s is not None
    assert "?" not in str(answer.reason)
    assert re.search(says, str(answer.reason)), str(answer.reason)
    later_s = answer.earliest_end_s - snapshot.jobs[JobId("a")].submitted_at_s + 1e-3
    spec = snapshot.jobs[JobId("a")].spec.model_copy(update={"deadline_s": later_s})
    job = replace(snapshot.jobs[JobId("a")], spec=spec)
    asked = replace(snapshot, jobs=snapshot.jobs.set(JobId("a"), job))  # type: ignore[attr-defined]
    again = PricedPolicy().admission(asked, JobId("a"))
    assert again is not None
    assert again.is_promised


@pytest.mark.parametrize("deadline_s", [20.0, 110.0, 10_000.0])
def test_a_deadline_that_shares_forbid_whenever_it_is_due_is_not_blamed_on_time(deadline_s: float) -> None:
    shares = {"vision": Guarantee(gpu_count_by_type={"cpu": 2})}
    answer = PricedPolicy().admission(asking(deadline_s, tenants=shares), JobId("a"))
    assert answer is not None
    assert (answer.is_promised, answer.earliest_end_s) == (False, None)
    assert str(answer.reason) == (
        "what other projects are guaranteed (vision) leaves project default too little to promise it any end, "
        "however late: it can only borrow"
    )


def test_a_deadline_too_soon_behind_one_of_unknown_length_is_not_blamed_on_time() -> None:
    other = command_spec("z", count=2, preemptible=False)
    holding = holding_of(PROGRAM, allocation_on(("n1", (0, 1))), movable=False, since_s=1_000.0)
    answer = PricedPolicy().admission(asking(20.0, {"z": (other, PROGRAM)}, running={"z": holding}), JobId("a"))
    assert answer is not None
    assert (answer.is_promised, answer.earliest_end_s) == (False, None)
    assert "20 s cannot be promised: nobody knows when GPUs that it can use come free" in str(answer.reason)
