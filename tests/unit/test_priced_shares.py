"""Guaranteed shares in single decisions of ``arena``: who gets what, who gives it back, and what they are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arena.domain.grid import Grid
from arena.domain.job import JobId, JobSpec
from arena.domain.reason import ReasonCode
from arena.domain.tenants import ANY_TYPE, Guarantee
from arena.policies.base import Decision, Holding, Snapshot
from arena.policies.priced.changes import ChangeRules
from arena.policies.priced.policy import PricedPolicy
from tests.builders import (
    allocation_on,
    cell,
    chosen,
    grid_of,
    holding_of,
    node_info,
    scaling_grid,
    snapshot_of,
    train_spec,
)

Job = tuple[JobSpec, Grid]


def rigid(name: str, counts: tuple[int, ...], *, gpu_type: str = "a", **fields: Any) -> Job:
    spec = train_spec(name, kind="rigid", gpus={"count": sum(counts)}, **fields)
    return spec, grid_of(cell(gpu_type, counts, 1.0))


def malleable(name: str, largest: int, **fields: Any) -> Job:
    return train_spec(name, **fields), scaling_grid("a", [(count,) for count in range(1, largest + 1)])


def snapshot(
    nodes: int, gpus: int, jobs: dict[str, Job], running: dict[str, Holding], **shares: int | dict[str, int]
) -> Snapshot:
    """Nodes of type a, and projects with shares of so many GPUs."""
    tenants = {
        name: Guarantee(gpu_count_by_type=share if isinstance(share, dict) else {ANY_TYPE: share})
        for name, share in shares.items()
    }
    infos = [node_info(f"n{index}", gpus=gpus, gpu_type="a") for index in range(nodes)]
    return snapshot_of(infos, jobs, running=running, tenants=tenants)


def held(job: Job, node: str, *indexes: int, **fields: Any) -> Holding:
    return holding_of(job[1], allocation_on((node, indexes)), **fields)


def codes(decision: Decision, job_id: str) -> list[ReasonCode]:
    return [one.code for one in decision.reasons[JobId(job_id)]]


def test_what_is_idle_is_lent() -> None:
    found = PricedPolicy().decide(snapshot(1, 4, {"one": rigid("one", (4,))}, {}, red=4))
    assert chosen(found, "one").group.gpu_count == 4


def test_what_is_lent_is_taken_back_for_a_job_of_less_worth() -> None:
    borrower, owner = malleable("one", 4, priority=5), rigid("two", (2,), project="red", stop={"steps": 10**6})
    seen = snapshot(1, 4, {"one": borrower, "two": owner}, {"one": held(borrower, "n0", 0, 1, 2, 3)}, red=2)
    assert JobId("two") not in PricedPolicy().decide(replace(seen, tenants={})).choices
    found = PricedPolicy().decide(seen)
    assert chosen(found, "two").group.gpu_count == 2
    assert chosen(found, "one").group.gpu_count == 2
    cause = chosen(found, "one").cause
    assert cause.code is ReasonCode.RECLAIMED
    assert cause.numbers == {"count": 2.0, "claimed": 2.0, "guaranteed": 2.0}
    assert cause.names == {"project": "red", "gpu_type": "a"}
    assert found.numbers["value"] <= found.numbers["bound"] * (1 + 1e-9)
    assert found.numbers["price a/default beside red"] > 0


def test_no_more_is_taken_back_than_the_share() -> None:
    borrower, owner = rigid("one", (2,), priority=5), rigid("two", (4,), project="red")
    seen = snapshot(1, 4, {"one": borrower, "two": owner}, {"one": held(borrower, "n0", 0, 1)}, red=3)
    assert PricedPolicy().decide(seen).choices == {}


def test_a_job_that_would_need_what_others_claim_is_told_so() -> None:
    jobs = {"one": rigid("one", (1,), project="red"), "two": rigid("two", (4,), priority=9)}
    seen = snapshot(1, 4, jobs, {}, red=1)
    found = PricedPolicy().decide(seen)
    assert chosen(found, "one").group.gpu_count == 1
    assert codes(found, "two") == [ReasonCode.KEPT_FOR_SHARE]
    told = PricedPolicy().explain(seen, JobId("two"))
    assert [one.code for one in told][:1] == [ReasonCode.KEPT_FOR_SHARE]
    assert told[-1].code is ReasonCode.SHARE


def test_a_share_names_the_gpu_type_it_is_of() -> None:
    nodes = [node_info("a1", gpus=2, gpu_type="a"), node_info("b1", gpus=2, gpu_type="b")]
    jobs = {
        "one": rigid("one", (2,), priority=9),
        "two": rigid("two", (2,), gpu_type="b", priority=9),
        "own-a": rigid("own-a", (2,), project="red"),
        "own-b": rigid("own-b", (2,), project="red", gpu_type="b"),
    }
    tenants = {"red": Guarantee(gpu_count_by_type={"b": 2})}
    found = PricedPolicy().decide(snapshot_of(nodes, jobs, tenants=tenants))
    assert set(found.choices) == {JobId("one"), JobId("own-b")}


def test_nodes_are_cleared_of_borrowers_that_share_them() -> None:
    """Four jobs that cannot be moved hold two GPUs of each node, one of less worth on each; a whole node is needed."""
    jobs = {f"j{at}": rigid(f"j{at}", (1,), priority=9 - at % 2) for at in range(4)}
    running = {f"j{at}": held(jobs[f"j{at}"], f"n{at // 2}", at % 2) for at in range(4)}
    jobs["whole"] = rigid("whole", (4,), project="red")
    seen = snapshot(2, 4, jobs, running, red=4)
    found = PricedPolicy().decide(seen)
    (share,) = chosen(found, "whole").allocation.shares
    assert len(share.device_ids) == 4
    gone = {job_id for job_id, choice in found.choices.items() if choice is None}
    assert gone in ({JobId("j0"), JobId("j1")}, {JobId("j2"), JobId("j3")}), "what is on the other node stays"
    for job_id in gone:
        assert codes(found, job_id) == [ReasonCode.RECLAIMED]


def test_two_that_each_want_more_than_their_half_do_not_displace_each_other() -> None:
    one, two = rigid("one", (6,), project="red"), rigid("two", (6,), project="blue")
    seen = snapshot(1, 8, {"one": one, "two": two}, {"one": held(one, "n0", *range(6))}, red=4, blue=4)
    assert PricedPolicy().decide(seen).choices == {}


@pytest.mark.parametrize(("share", "starts"), [(2, True), (3, False)])
def test_what_may_not_be_stopped_starts_only_on_what_nobody_is_guaranteed(share: int, starts: bool) -> None:
    seen = snapshot(1, 4, {"one": rigid("one", (2,), preemptible=False)}, {}, red=share)
    found = PricedPolicy().decide(seen)
    assert (JobId("one") in found.choices) is starts
    if not starts:
        assert codes(found, "one") == [ReasonCode.BEYOND_SHARE]


def test_what_may_not_be_stopped_starts_within_its_own_share() -> None:
    borrower = rigid("b", (4,), priority=9)
    own = rigid("own", (2,), project="red", preemptible=False)
    late = rigid("late", (2,), project="red", preemptible=False)
    jobs = {"b": borrower, "own": own, "late": late}
    seen = snapshot(1, 4, jobs, {"b": held(borrower, "n0", 0, 1, 2, 3)}, red=2, blue=2)
    found = PricedPolicy().decide(seen)
    assert found.choices[JobId("b")] is None
    assert len({JobId("own"), JobId("late")} & set(found.choices)) == 1


def test_who_has_waited_too_long_comes_after_shares() -> None:
    policy = PricedPolicy(changes=ChangeRules(wait_max_s=1.0))
    owner = rigid("own", (2,), project="red")
    jobs = {"old": rigid("old", (4,)), "own": owner}
    seen = snapshot(1, 4, jobs, {"own": held(owner, "n0", 0, 1)}, red=2)
    assert policy.decide(replace(seen, tenants={})).choices[JobId("own")] is None
    assert policy.decide(seen).choices == {}


def test_a_limit_on_moves_does_not_protect_a_borrower() -> None:
    borrower, owner = malleable("one", 4), rigid("two", (2,), project="red")
    seen = snapshot(1, 4, {"one": borrower, "two": owner}, {"one": held(borrower, "n0", 0, 1, 2, 3)}, red=2)
    moved = replace(seen.jobs[JobId("one")], epoch=5, launched_at_s=tuple(seen.now_s - 100.0 + at for at in range(5)))
    seen = replace(seen, jobs=seen.jobs.set(JobId("one"), moved))  # type: ignore[attr-defined]
    found = PricedPolicy().decide(seen)
    assert chosen(found, "two").group.gpu_count == 2
    assert found.choices[JobId("one")] is None
    alone = replace(seen, waiting=())
    assert PricedPolicy().decide(alone).choices == {}


def test_who_shrinks_for_a_tenant_is_told_whose_share_it_was_though_the_market_alone_would_shrink_it() -> None:
    """The newcomer is worth more than what the borrower loses, with a share or without."""
    borrower, owner = malleable("one", 4), rigid("two", (2,), project="red", priority=3)
    seen = snapshot(1, 4, {"one": borrower, "two": owner}, {"one": held(borrower, "n0", 0, 1, 2, 3)}, red=3, blue=1)
    plain = chosen(PricedPolicy().decide(replace(seen, tenants={})), "one")
    assert (plain.group.gpu_count, plain.cause.code) == (2, ReasonCode.SHRANK)
    found = chosen(PricedPolicy().decide(seen), "one")
    assert found.group.gpu_count == 2
    assert found.cause.code is ReasonCode.RECLAIMED
    assert (found.cause.numbers, found.cause.names) == (
        {"count": 2.0, "claimed": 2.0, "guaranteed": 3.0},
        {"project": "red", "gpu_type": "a"},
    )
    assert PricedPolicy().decide(seen).reasons[JobId("one")] == (found.cause,)


def test_who_shrinks_for_another_job_of_its_own_project_gives_nothing_back() -> None:
    first, second = malleable("one", 4, project="red"), rigid("two", (2,), project="red", priority=3)
    seen = snapshot(1, 4, {"one": first, "two": second}, {"one": held(first, "n0", 0, 1, 2, 3)}, red=4)
    found = chosen(PricedPolicy().decide(seen), "one")
    assert (found.group.gpu_count, found.cause.code) == (2, ReasonCode.SHRANK)


def test_a_tenants_malleable_job_grows_to_its_share_on_what_others_borrow() -> None:
    """The borrowers are worth far more; what comes back to the tenant is no more than its share."""
    own = malleable("own", 4, project="red", stop={"steps": 10**6})
    lent = {f"b{at}": rigid(f"b{at}", (1,), priority=9) for at in range(6)}
    running = {
        "own": held(own, "n0", 0),
        **{name: held(job, "n0", at + 1) for at, (name, job) in enumerate(lent.items())},
    }
    seen = snapshot(1, 7, {"own": own, **lent}, running, red=4)
    found = PricedPolicy().decide(seen)
    assert chosen(found, "own").group.gpu_count == 4
    gone = [name for name in lent if JobId(name) in found.choices]
    assert len(gone) == 3
    for name in gone:
        assert codes(found, name) == [ReasonCode.RECLAIMED]
        assert found.reasons[JobId(name)][0].names["project"] == "red"
