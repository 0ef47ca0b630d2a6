"""Why a job waits where the nodes themselves are what is missing: no policy says anything else of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from arena.domain.events import NodeDisconnected, NodeDrainChanged, NodeRegistered
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.reason import Reason, ReasonCode
from arena.domain.records import JobState
from arena.engine.state import reasons_of
from arena.policies.registry import policy_names
from arena.sim.run import Simulation
from tests.builders import node_info, train_spec
from tests.machine.test_engine import simulation, submit, with_nodes

WAITS = JobId("j")
FALSE = frozenset(
    {
        *(ReasonCode.OUTBID, ReasonCode.TIED, ReasonCode.INDIVISIBLE, ReasonCode.NEXT_BEST, ReasonCode.DISPLACES),
        ReasonCode.UNMOVABLE,
        *(ReasonCode.NO_FEASIBLE_PLAN, ReasonCode.EXCEEDS_CLUSTER, ReasonCode.BEHIND),
    }
)
"""Nobody else is there, and as soon as a node is, the job can run."""


def drained(sim: Simulation) -> None:
    with_nodes(sim, "n1", "n2")
    for name in ("n1", "n2"):
        sim.at(0.5, NodeDrainChanged(node_id=NodeId(name), drain=True, by="ann", why="disks"))


def dirty(sim: Simulation) -> None:
    for name in ("n1", "n2"):
        info = node_info(name)
        devices = tuple(replace(device, dirty="a process of nobody") for device in info.devices)
        sim.at(0.0, NodeRegistered(info=replace(info, devices=devices)))


def silent(sim: Simulation) -> None:
    with_nodes(sim, "n1", "n2")
    for name in ("n1", "n2"):
        sim.at(1.5, NodeDisconnected(node_id=NodeId(name), incarnation=f"{name}-1", why="cable"))


Breaks = Callable[[Simulation], None]


def told(policy: str, breaks: Breaks, *, until_s: float, submitted_at_s: float = 1.0) -> tuple[Reason, ...]:
    """What a job is told that waits alone on nodes that take no work, with what it is told on being asked about."""
    sim = simulation(policy)
    breaks(sim)
    sim.at(submitted_at_s, submit("j", train_spec("j", kind="rigid", gpus={"count": 1})))
    sim.run(until_s=until_s)
    state = sim.engine.state
    assert state.jobs[WAITS].state is JobState.QUEUED
    reasons, _ = reasons_of(state, state.jobs[WAITS])
    return (*reasons, *sim.engine.explain(state, WAITS, until_s))


@pytest.mark.parametrize("breaks", [drained, dirty, silent], ids=lambda one: one.__name__)
@pytest.mark.parametrize("policy", policy_names())
def test_where_no_gpu_may_be_given_away_a_job_is_told_that_none_is_free(policy: str, breaks: Breaks) -> None:
    after_s = 1.0 if breaks is not silent else 2.0
    reasons = told(policy, breaks, until_s=after_s + 2.0, submitted_at_s=after_s)
    assert "needs 1 cpu GPU, 0 of 4 free" in {str(one) for one in reasons}
    assert {one.code for one in reasons} & FALSE == set()


@pytest.mark.parametrize(
    ("breaks", "where"),
    [
        (drained, "{} is drained, disks (by ann)"),
        (dirty, "2 GPUs of {}: a process of nobody"),
        (silent, "{} is out of reach"),
    ],
    ids=["drained", "dirty", "silent"],
)
def test_arena_names_the_nodes_that_take_no_work_and_says_why(breaks: Breaks, where: str) -> None:
    reasons = told("arena", breaks, until_s=4.0, submitted_at_s=2.0)
    out = {str(one) for one in reasons if one.code is ReasonCode.OUT_OF_SERVICE}
    assert out == {f"4 of 4 cpu GPUs are out of service: {where.format('n1')}; {where.format('n2')}"}


@pytest.mark.parametrize("policy", policy_names())
def test_where_all_nodes_are_lost_a_job_waits_for_nodes_and_not_for_another_cluster(policy: str) -> None:
    reasons = told(policy, silent, until_s=1_000.0)
    assert {one.code for one in reasons} & FALSE == set()
    assert {one.code for one in reasons} & {ReasonCode.NO_NODES, ReasonCode.INSUFFICIENT_GPUS}


def test_arena_says_that_no_node_is_ready_where_all_are_lost() -> None:
    reasons = told("arena", silent, until_s=1_000.0)
    assert "no node is registered and ready (2 known)" in {str(one) for one in reasons}
