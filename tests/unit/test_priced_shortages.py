"""What a job is told that nothing can be given to, whatever others give up, and who is in its way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from arena.domain.grid import Grid
from arena.domain.job import JobId, JobSpec
from arena.domain.reason import Reason, ReasonCode
from arena.policies.base import Decision, Explaining, Holding, Snapshot
from arena.policies.priced.moves import MOVES_MAX, MOVES_S
from arena.policies.registry import make_policy, policy_names
from tests.builders import allocation_on, command_spec, holding_of, node_info, scaling_grid, snapshot_of, train_spec

ONE, TWO = scaling_grid("cpu", [(1,)]), scaling_grid("cpu", [(2,)])
WAITS = JobId("w")
BIDS = frozenset(
    {
        *(ReasonCode.OUTBID, ReasonCode.TIED, ReasonCode.INDIVISIBLE, ReasonCode.NEXT_BEST, ReasonCode.DISPLACES),
        ReasonCode.NO_FEASIBLE_PLAN,
    }
)
"""Nobody bids against a job that nothing can be given to."""

MAY_NOT = "GPUs that it could use are with jobs that start, change, end or may not be stopped at present: {}"
LEFT_ALONE = (
    "GPUs that it could use are with a, which was started again 4 times within an hour and is left alone for {:.0f} s"
)


def told(policy: str, snapshot: Snapshot, job_id: JobId = WAITS) -> tuple[Reason, ...]:
    """All that a job is told that waits: by the decision, then where it is asked about."""
    asked = make_policy(policy)
    decision: Decision = asked.decide(snapshot)
    assert decision.choices.get(job_id) is None
    found = decision.reasons.get(job_id, ())
    return (*found, *(asked.explain(snapshot, job_id) if isinstance(asked, Explaining) else ()))


def texts(reasons: Sequence[Reason]) -> list[str]:
    return list(dict.fromkeys(map(str, reasons)))


def fragmented(*, size: int = 2, waiting: int = 1, preemptible: bool = False) -> Snapshot:
    """One GPU free on each of two nodes, the others with programs; those wait that need two on a node."""
    other = command_spec("k", count=1, preemptible=preemptible)
    places = {f"k{node}{at}": (f"n{node}", (at,)) for node in (1, 2) for at in range(size - 1)}
    waits = ["w", *(f"w{at}" for at in range(1, waiting))]
    jobs: Mapping[str, tuple[JobSpec, Grid]] = {
        **{name: (command_spec(name, count=2), TWO) for name in waits},
        **dict.fromkeys(places, (other, ONE)),
    }
    running = {name: holding_of(ONE, allocation_on(place)) for name, place in places.items()}
    return snapshot_of([node_info(f"n{node}", gpus=size) for node in (1, 2)], jobs, running=running)


@pytest.mark.parametrize("waiting", [1, 3, 12])
@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize("policy", policy_names())
def test_free_gpus_apart_from_each_other_are_told_to_be_so(policy: str, size: int, waiting: int) -> None:
    snapshot = fragmented(size=size, waiting=waiting)
    assert "needs cpu 2, 2 cpu GPUs are free but at most 1 on one node" in texts(told(policy, snapshot))
    for job_id in snapshot.waiting:
        assert {one.code for one in told(policy, snapshot, job_id)} & BIDS == set()


def test_arena_names_who_may_not_be_moved() -> None:
    assert texts(told("arena", fragmented())) == [
        "needs cpu 2, 2 cpu GPUs are free but at most 1 on one node",
        MAY_NOT.format("k10, k20"),
    ]


def test_of_many_who_may_not_be_moved_some_are_named() -> None:
    names = [f"k{at}" for at in range(8)]
    jobs = {name: (command_spec(name, preemptible=False), ONE) for name in names}
    running = {name: holding_of(ONE, allocation_on(("n1", (at,)))) for at, name in enumerate(names)}
    snapshot = snapshot_of([node_info("n1", gpus=8)], {"w": (command_spec("w"), ONE), **jobs}, running=running)
    assert texts(told("arena", snapshot)) == [
        "needs 1 cpu GPU, 0 of 8 free",
        MAY_NOT.format("k0, k1, k2, k3, k4 and 3 more"),
    ]


@pytest.mark.parametrize("policy", policy_names())
def test_who_lacks_a_type_that_is_gone_is_not_told_that_the_cluster_has_no_place_for_it(policy: str) -> None:
    grid = scaling_grid("gone", [(1,), (2,)])
    snapshot = snapshot_of([node_info("n1")], {"w": (train_spec("w"), grid)})
    reasons = told(policy, snapshot)
    assert {one.code for one in reasons} & BIDS == set()
    assert any(one.code is ReasonCode.INSUFFICIENT_GPUS and one.numbers["total"] == 0 for one in reasons)


NOW_S, MOVED_AT_S = 10_000.0, (8_000.0, 8_100.0, 8_200.0, 8_300.0)


def beside_a_restless_one(launched_at_s: Sequence[float] = MOVED_AT_S) -> Snapshot:
    """A job that was moved again and again has all there is; another waits."""
    jobs = {"w": (train_spec("w"), TWO), "a": (train_spec("a"), TWO)}
    running: dict[str, Holding] = {"a": holding_of(TWO, allocation_on(("n1", (0, 1))), since_s=launched_at_s[-1])}
    snapshot = snapshot_of([node_info("n1")], jobs, running=running, now_s=NOW_S)
    records = dict(snapshot.jobs)
    records[JobId("a")] = replace(
        records[JobId("a")], submitted_at_s=0.0, launched_at_s=tuple(launched_at_s), epoch=len(launched_at_s) + 1
    )
    return replace(snapshot, jobs=records)


def test_who_was_moved_often_is_named_with_how_long_it_is_left_alone() -> None:
    reasons = told("arena", beside_a_restless_one())
    rest_s = MOVED_AT_S[-MOVES_MAX] + MOVES_S - NOW_S
    assert texts(reasons) == [
        "needs 2 cpu GPUs, 0 of 2 free",
        LEFT_ALONE.format(rest_s),
    ]


@pytest.mark.parametrize("policy", [name for name in policy_names() if name != "arena"])
def test_other_policies_leave_nobody_alone_and_do_not_say_so(policy: str) -> None:
    assert "left alone" not in " ".join(texts(told_or_served(policy, beside_a_restless_one())))


def told_or_served(policy: str, snapshot: Snapshot) -> tuple[Reason, ...]:
    return make_policy(policy).decide(snapshot).reasons.get(WAITS, ())


def test_who_was_moved_often_is_named_as_well_where_a_deadline_could_take_its_place() -> None:
    """It is among those that can give way then, for a block of time only; the one that waits has none."""
    snapshot = beside_a_restless_one()
    due = train_spec("d", deadline_s=90_000.0)
    more = snapshot_of([node_info("n1")], {"d": (due, TWO)}, now_s=NOW_S)
    snapshot = replace(
        snapshot,
        jobs={**snapshot.jobs, **more.jobs},
        waiting=(*snapshot.waiting, JobId("d")),
        grids={**snapshot.grids, **more.grids},
    )
    reasons = told("arena", snapshot)
    assert {one.code for one in reasons} & BIDS == set()
    assert any("with a, which was started again 4 times" in text for text in texts(reasons))


def test_who_was_moved_less_often_competes_as_before() -> None:
    reasons = told("arena", beside_a_restless_one((100.0, *MOVED_AT_S[1:])))
    assert {one.code for one in reasons} & {ReasonCode.OUTBID, ReasonCode.TIED, ReasonCode.INDIVISIBLE}
