"""A job that was moved too often is moved again for who must have its GPUs by a deadline, and for nobody else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arena.domain.job import JobId
from arena.domain.reason import ReasonCode
from arena.domain.tenants import Guarantee
from arena.policies.base import Decision, Snapshot
from arena.policies.priced.moves import MOVES_MAX, MOVES_S
from arena.policies.priced.policy import PricedPolicy
from tests.builders import allocation_on, cell, grid_of, holding_of, node_info, snapshot_of, train_spec

NOW_S, RESTART_S = 10_000.0, 10.0
MOVED_S = tuple(NOW_S - 500.0 + 100.0 * at for at in range(MOVES_MAX))
PAIR, ONE = grid_of(cell("cpu", [2], 1.0)), grid_of(cell("cpu", [1], 1.0))


def decided(*, steps: int = 100, tenants: dict[str, Guarantee] | None = None, **due: float) -> Decision:
    """A job that may not be moved has one GPU, one that was moved too often has two, a short one wants these two.

    Args:
        steps: Of the short job.
        due: Deadlines, by job.
    """
    own: dict[str, dict[str, Any]] = {name: {"deadline_s": due_s} for name, due_s in due.items()}
    jobs = {
        "fixed": (train_spec("fixed", preemptible=False, stop={"steps": 500}, **own.get("fixed", {})), ONE),
        "moved": (train_spec("moved", stop={"steps": 10**6}), PAIR),
        "short": (train_spec("short", stop={"steps": steps}, **own.get("short", {})), PAIR),
    }
    running = {
        "fixed": holding_of(ONE, allocation_on(("n1", (0,)))),
        "moved": holding_of(PAIR, allocation_on(("n1", (1, 2)))),
    }
    nodes = [node_info("n1", gpus=3)]
    seen = snapshot_of(nodes, jobs, running=running, now_s=NOW_S, restart_s=RESTART_S, tenants=tenants or {})
    return PricedPolicy().decide(rested(seen))


def rested(seen: Snapshot) -> Snapshot:
    """All have come just now, but one has been moved before."""
    records = {job_id: replace(job, submitted_at_s=NOW_S) for job_id, job in seen.jobs.items()}
    moved = replace(records[JobId("moved")], submitted_at_s=0.0, epoch=MOVES_MAX + 1, launched_at_s=MOVED_S)
    return replace(seen, jobs={**records, moved.job_id: moved})


def test_a_deadline_that_can_take_nothing_from_anybody_lifts_no_limit() -> None:
    assert decided().choices == {}
    assert decided(fixed=2_000.0).choices == {}


@pytest.mark.parametrize("tenants", [{}, {"red": Guarantee(gpu_count_by_type={"cpu": 1})}])
def test_a_block_that_has_come_lifts_it(tenants: dict[str, Guarantee]) -> None:
    soon = decided(short=100.0 + 3 * RESTART_S, tenants=tenants)
    assert soon.choices[JobId("moved")] is None
    assert soon.choices[JobId("short")] is not None


def test_one_that_is_to_come_does_not() -> None:
    assert decided(short=5_000.0).choices == {}


def waiting_again(*, deadline_s: float | None, last_ago_s: float = 100.0) -> Decision:
    """A job waits beside free GPUs that was started again as often as may be, the last time so long ago."""
    spec = train_spec("often", stop={"steps": 100}, deadline_s=deadline_s)
    seen = snapshot_of([node_info("n1", gpus=3)], {"often": (spec, PAIR)}, now_s=NOW_S, restart_s=RESTART_S)
    launched_s = tuple(NOW_S - last_ago_s - 100.0 * at for at in reversed(range(MOVES_MAX)))
    often = replace(
        seen.jobs[JobId("often")], submitted_at_s=NOW_S - 3_000.0, epoch=MOVES_MAX + 1, launched_at_s=launched_s
    )
    return PricedPolicy().decide(replace(seen, jobs={often.job_id: often}))


def test_one_that_was_started_too_often_rests_until_its_deadline_presses() -> None:
    rests = waiting_again(deadline_s=9_000.0)
    assert rests.choices == {}
    assert [why.code for why in rests.reasons[JobId("often")]] == [ReasonCode.STARTED_OFTEN, ReasonCode.DEADLINE_MEANT]
    first_s = NOW_S - 100.0 - 100.0 * (MOVES_MAX - 1)
    assert rests.look_again_at_s == first_s + MOVES_S + 1.0
    presses = waiting_again(deadline_s=3_000.0 + 110.0 + 3 * RESTART_S)
    assert presses.choices.keys() == {JobId("often")}


def test_it_is_looked_at_when_its_block_comes_before_it_has_rested() -> None:
    soon = waiting_again(deadline_s=3_000.0 + 1_000.0)
    assert soon.choices == {}
    assert soon.look_again_at_s is not None
    assert NOW_S + 850.0 <= soon.look_again_at_s <= NOW_S + 1_000.0 - 100.0 - RESTART_S


def test_one_that_has_rested_or_has_no_deadline_is_started() -> None:
    assert waiting_again(deadline_s=9_000.0, last_ago_s=MOVES_S).choices.keys() == {JobId("often")}
    assert waiting_again(deadline_s=None).choices.keys() == {JobId("often")}
