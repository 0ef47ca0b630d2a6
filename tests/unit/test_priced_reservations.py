"""Nodes that `arena` keeps for a job that has waited too long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arena.domain.failed_start import FailedStart
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.reason import Reason, ReasonCode
from arena.domain.records import Progress
from arena.policies.base import Snapshot
from arena.policies.priced.changes import ChangeRules
from arena.policies.priced.deadlines import LOOK_AGAIN_S
from arena.policies.priced.policy import PricedPolicy
from tests.builders import allocation_on, cell, grid_of, holding_of, node_info, snapshot_of, train_spec

POLICY = PricedPolicy(changes=ChangeRules(wait_max_s=1_000.0))
SMALL, LARGE = grid_of(cell("cpu", [1], 1.0)), grid_of(cell("cpu", [2, 2], 1.0))
LARGE_ID = JobId("large")


def cluster(steps_left: dict[str, int], *, short: int = 50, now_s: float = 5_000.0) -> Snapshot:
    """Three nodes of two GPUs, each with one job that may not be stopped; a large job and a small one wait."""
    nodes = [node_info(f"n{index}") for index in range(1, 4)]
    jobs = {
        name: (train_spec(name, stop={"steps": steps}, preemptible=False, kind="moldable"), SMALL)
        for name, steps in steps_left.items()
    }
    running = {
        name: holding_of(SMALL, allocation_on((f"n{index}", [0])), movable=False, since_s=now_s)
        for index, name in enumerate(steps_left, start=1)
    }
    jobs["large"] = (train_spec("large", stop={"steps": 500}), LARGE)
    jobs["new"] = (train_spec("new", stop={"steps": short}, preemptible=False, kind="moldable"), SMALL)
    snapshot = snapshot_of(nodes, jobs, running=running, now_s=now_s, restart_s=10.0)
    waited = replace(snapshot.jobs[LARGE_ID], submitted_at_s=now_s - 2_000.0)
    return replace(snapshot, jobs=snapshot.jobs.set(LARGE_ID, waited))  # type: ignore[attr-defined]


def reserved(reasons: tuple[Reason, ...]) -> Reason:
    return next(one for one in reasons if one.code in {ReasonCode.RESERVED, ReasonCode.RESERVED_OPEN})


def test_the_nodes_are_those_that_are_free_first_and_it_is_said_from_when_on() -> None:
    snapshot = cluster({"a": 300, "b": 900, "c": 100})
    for reasons in (POLICY.decide(snapshot).reasons[LARGE_ID], POLICY.explain(snapshot, LARGE_ID)):
        told = reserved(reasons)
        assert told.names == {"group": "cpu 2+2", "nodes": "n3, n1"}
        assert told.numbers["start_s"] == pytest.approx(300.0)
    assert POLICY.decide(snapshot).look_again_at_s == pytest.approx(snapshot.now_s + 300.0)


@pytest.mark.parametrize(("short", "nodes"), [(50, {"n1", "n2", "n3"}), (280, {"n1", "n2", "n3"}), (400, {"n2"})])
def test_others_start_there_only_if_they_are_gone_by_then(short: int, nodes: set[str]) -> None:
    choice = POLICY.decide(cluster({"a": 300, "b": 900, "c": 100}, short=short)).choices[JobId("new")]
    assert choice is not None
    assert set(choice.allocation.node_ids) <= nodes


def test_where_nobody_knows_when_a_job_ends_nothing_that_may_not_be_stopped_starts_beside_it() -> None:
    """Each node has a job of unknown length: two of them are kept, so what is new starts on the third."""
    snapshot = cluster({"a": 300, "b": 900, "c": 100})
    unknown = {
        name: replace(job, spec=job.spec.model_copy(update={"stop": train_spec("x", stop={}).stop}))
        for name, job in snapshot.jobs.items()
        if name in {"a", "b", "c"}
    }
    found = replace(snapshot, jobs=snapshot.jobs.update(unknown))  # type: ignore[attr-defined]
    decision = POLICY.decide(found)
    assert reserved(decision.reasons[LARGE_ID]).code is ReasonCode.RESERVED_OPEN
    kept = set(reserved(decision.reasons[LARGE_ID]).names["nodes"].split(", "))
    choice = decision.choices[JobId("new")]
    assert choice is not None
    assert not kept & set(choice.allocation.node_ids)


def test_nothing_is_kept_before_the_bound_is_reached() -> None:
    snapshot = cluster({"a": 300, "b": 900, "c": 100}, short=400)
    fresh = replace(snapshot.jobs[LARGE_ID], submitted_at_s=snapshot.now_s - 10.0)
    reasons = POLICY.explain(replace(snapshot, jobs=snapshot.jobs.set(LARGE_ID, fresh)), LARGE_ID)  # type: ignore[attr-defined]
    assert ReasonCode.RESERVED not in {one.code for one in reasons}


def test_who_cannot_pay_does_not_stand_before_who_has_waited_too_long() -> None:
    """It is told what it lacks, and nothing else."""
    snapshot = replace(cluster({"a": 300, "b": 900, "c": 100}), usd_per_hour={"cpu": 3_600.0})
    poor = snapshot.jobs[JobId("new")]
    spec = poor.spec.model_copy(update={"budget_usd": 1.0})
    older = replace(poor, spec=spec, submitted_at_s=snapshot.now_s - 4_000.0)
    found = replace(snapshot, jobs=snapshot.jobs.set(JobId("new"), older))  # type: ignore[attr-defined]
    decision = POLICY.decide(found)
    assert reserved(decision.reasons[LARGE_ID]).names["nodes"] == "n3, n1"
    for reasons in (decision.reasons[JobId("new")], POLICY.explain(found, JobId("new"))):
        assert [one.code for one in reasons] == [ReasonCode.BUDGET_TOO_SMALL]


def test_what_runs_longer_than_it_is_believed_to_is_not_looked_at_all_the_time() -> None:
    """It is about to end at any instant: each decision would ask for the next one a moment later."""
    snapshot = cluster({"a": 300, "b": 300, "c": 300})
    done = Progress(step=300, reported_at_s=snapshot.now_s, step_time_s=1.0)
    jobs = {name: replace(job, progress=done) if name in "abc" else job for name, job in snapshot.jobs.items()}
    decision = POLICY.decide(replace(snapshot, jobs=jobs))
    assert reserved(decision.reasons[LARGE_ID]).code is ReasonCode.RESERVED
    assert decision.look_again_at_s == snapshot.now_s + LOOK_AGAIN_S


def test_no_node_is_kept_for_a_job_that_keeps_away_from_it() -> None:
    """It failed on the node that is free first, before its first step: others may have that."""
    whole, now_s = grid_of(cell("cpu", [2], 1.0)), 5_000.0
    spec = {"preemptible": False, "kind": "moldable"}
    jobs = {
        "a": (train_spec("a", stop={"steps": 300}, **spec), SMALL),
        "large": (train_spec("large", stop={"steps": 500}), whole),
        "new": (train_spec("new", stop={"steps": 4_000}, **spec), SMALL),
    }
    running = {"a": holding_of(SMALL, allocation_on(("n2", [0])), movable=False, since_s=now_s)}
    snapshot = snapshot_of([node_info("n1"), node_info("n2")], jobs, running=running, now_s=now_s, restart_s=10.0)
    failed = FailedStart(job_id=LARGE_ID, user="ann", node_id=NodeId("n1"), error="CUDA", at_s=now_s - 60.0)
    for starts, kept, has_new in (((), "n1", False), ((failed,), "n2", True)):
        waited = replace(snapshot.jobs[LARGE_ID], submitted_at_s=now_s - 2_000.0, failed_starts=starts)
        decision = POLICY.decide(replace(snapshot, jobs=snapshot.jobs.set(LARGE_ID, waited)))  # type: ignore[attr-defined]
        assert (LARGE_ID in decision.choices) is not has_new
        if has_new:
            assert reserved(decision.reasons[LARGE_ID]).names["nodes"] == kept
            choice = decision.choices[JobId("new")]
            assert choice is not None
            assert choice.allocation.node_ids == (NodeId("n1"),)
