"""Why `arena` can promise nothing to a job, where nobody can tell by when it could end."""

from __future__ import annotations

from typing import Any

import pytest

from arena.domain.job import JobId
from arena.domain.reason import ReasonCode
from arena.policies.base import Snapshot
from arena.policies.priced.policy import PricedPolicy
from tests.builders import allocation_on, command_spec, holding_of, node_info, scaling_grid, snapshot_of, train_spec

GRID = scaling_grid("cpu", [(1,), (2,)])
NODE = node_info("n1", gpus=2)


def asking(*, nodes: int = 1, grid: Any = GRID, steps: int | None = 100, **fields: Any) -> Snapshot:
    """One job that waits, with a deadline."""
    spec = train_spec("a", stop={} if steps is None else {"steps": steps}, deadline_s=1_000.0, **fields)
    return snapshot_of([NODE] * nodes, {"a": (spec, grid)}, usd_per_hour={"cpu": 3_600.0})


def behind_one_without_end() -> Snapshot:
    """All GPUs are with a program that may not be stopped and of whose end nobody knows."""
    other = scaling_grid("cpu", [(2,)])
    jobs = {
        "a": (train_spec("a", stop={"steps": 100}, deadline_s=1_000.0), GRID),
        "z": (command_spec("z", count=2, preemptible=False), other),
    }
    return snapshot_of([NODE], jobs, running={"z": holding_of(other, allocation_on(("n1", (0, 1))))})


@pytest.mark.parametrize(
    ("snapshot", "code"),
    [
        (asking(nodes=0), ReasonCode.NO_NODES),
        (asking(grid=scaling_grid("other", [(1,)])), ReasonCode.INSUFFICIENT_GPUS),
        (asking(budget_usd=1.0), ReasonCode.BUDGET_TOO_SMALL),
        (asking(steps=None), ReasonCode.DEADLINE_UNKNOWN),
        (behind_one_without_end(), ReasonCode.DEADLINE_OPEN),
    ],
    ids=lambda value: value.value if isinstance(value, ReasonCode) else "",
)
def test_an_answer_without_a_date_says_why(snapshot: Snapshot, code: ReasonCode) -> None:
    answer = PricedPolicy().admission(snapshot, JobId("a"))
    assert answer is not None
    assert (answer.is_promised, answer.earliest_end_s) == (False, None)
    assert answer.reason is not None
    assert answer.reason.code is code
    assert "?" not in str(answer.reason)


def test_an_answer_with_a_date_needs_no_cause() -> None:
    answer = PricedPolicy().admission(asking(), JobId("a"))
    assert answer is not None
    assert (answer.is_promised, answer.reason) == (True, None)
