"""First come, first served keeps a refusal while nothing that it rests on has changed, and no longer."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map

from arena.domain.events import AttemptEnded, JobSubmitted, JobWishChanged, NodeDrainChanged, NodeRegistered
from arena.domain.failed_start import FailedStart
from arena.domain.job import JobId
from arena.domain.launch import AttemptId, NodeId
from arena.domain.records import EndKind, NodeEnd
from arena.domain.replacing import replace
from arena.engine.config import EngineConfig
from arena.policies.base import Decision, Snapshot
from arena.policies.fcfs import FirstComeFirstServed
from arena.sim.run import Simulation
from tests.builders import (
    allocation_on,
    capacity_of,
    command_spec,
    holding_of,
    node_info,
    scaling_grid,
    shape,
    snapshot_of,
    train_spec,
)
from tests.fakes.grids import PowerLawGrids

A = JobId("a")


class Doubted:
    """The policy, whose every decision is compared with that of one that remembers nothing."""

    name = "fcfs"
    version = "1"
    serves_waiting_only = True

    def __init__(self) -> None:
        self.policy = FirstComeFirstServed()
        self.kept_count = 0
        self._before: Decision | None = None

    def decide(self, snapshot: Snapshot) -> Decision:
        decision = self.policy.decide(snapshot)
        assert decision == FirstComeFirstServed().decide(snapshot)
        self.kept_count += decision is self._before
        self._before = decision
        return decision


def run(seed: int) -> Doubted:
    """Jobs, nodes that are drained and come back, cancels, holds and crashes at random instants."""
    rng, policy = random.Random(seed), Doubted()
    config = EngineConfig(shape_settle_s=0.0, is_strict=True, backoff_s=rng.choice([1.0, 20.0]), sweep_s=7.0)
    sim = Simulation(policy=policy, grids=PowerLawGrids(), config=config, check=True)
    for name in ("n1", "n2"):
        sim.at(0.0, NodeRegistered(info=node_info(name, gpus=4)))
    for index in range(20):
        name, at_s = f"j{index}", float(rng.randint(1, 60))
        fields = {
            "kind": "rigid",
            "gpus": {"count": rng.choice([1, 2, 4, 4, 8])},
            "stop": {"time_limit_s": float(rng.randint(5, 40))},
            "retry": {"restarts_max": 2},
            "priority": rng.choice([0, 0, 1]),
        }
        spec = rng.choice([command_spec, train_spec])(name, **fields)
        sim.at(at_s, JobSubmitted(job_id=JobId(name), spec=spec, user="ann", request_id=name))
        later_s, node = at_s + rng.randint(0, 30), NodeId(rng.choice(["n1", "n2"]))
        end = NodeEnd(node_id=node, kind=EndKind.FAILED, message="it crashed")
        wish = rng.choice(["cancel", "hold", "run"])
        sim.at(later_s, JobWishChanged(job_id=JobId(f"j{rng.randrange(20)}"), wish=wish, by="ann"))
        sim.at(later_s + 1, AttemptEnded(node_id=node, attempt_id=AttemptId(f"j{rng.randrange(20)}.1"), end=end))
        if rng.random() < 0.2:
            sim.at(later_s, NodeDrainChanged(node_id=node, drain=rng.random() < 0.5, by="root", why="a disk"))
    for node in ("n1", "n2"):
        sim.at(200.0, NodeDrainChanged(node_id=NodeId(node), drain=False, by="root", why=""))
    sim.run(until_s=1_000.0)
    return policy


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_a_kept_refusal_is_what_would_be_decided(seed: int) -> None:
    run(seed)


def test_refusals_are_kept() -> None:
    assert sum(run(seed).kept_count for seed in range(5)) > 20


TWO = [node_info(name, gpus=2) for name in ("n1", "n2")]
WIDE = scaling_grid("cpu", [(2, 2)])
HEAD = train_spec("a", gpus={"count": 4})


def refused(**fields: Any) -> Snapshot:
    """The head of the queue wants all of two nodes, of which another has one."""
    held = holding_of(scaling_grid("cpu", [(2,)]), allocation_on(("n1", (0, 1))))
    jobs = {"b": (command_spec("b"), scaling_grid("cpu", [(2,)])), "a": (HEAD, WIDE)}
    return snapshot_of(TWO, jobs, running={"b": held}, **fields)


def unseen() -> Snapshot:
    """The head of the queue finds no two nodes that share its checkpoints."""
    places = Map({NodeId("n1"): {"/": "one"}, NodeId("n2"): {"/": "other"}})
    return snapshot_of(TWO, {"a": (HEAD, WIDE)}, places=places, checkpoint_root="/ckpt")


def avoided() -> Snapshot:
    """The head of the queue keeps away from the node that is free, for a minute."""
    snapshot = refused(now_s=1_000.0)
    failed = FailedStart(job_id=A, user="ann", node_id=NodeId("n2"), error="no", at_s=999.0)
    job = replace(snapshot.jobs[A], failed_starts=(failed,))
    grids = snapshot.grids.set(A, scaling_grid("cpu", [(2,)]))  # type: ignore[attr-defined]
    return replace(snapshot, jobs=snapshot.jobs.set(A, job), grids=grids)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("before", "changes"),
    [
        (refused(), {"shape": shape(("cpu", 2, 9))}),  # how many there are in all is told
        (refused(), {"grids": Map({A: scaling_grid("cpu", [(2,)])})}),
        (refused(), {"capacity": capacity_of(TWO)}),
        (refused(), {"waiting": ()}),
        (unseen(), {"places": Map({NodeId(name): {"/": "one"} for name in ("n1", "n2")})}),
        (avoided(), {"now_s": 1e6}),
    ],
)
def test_it_is_not_kept_where_what_it_rests_on_changed(before: Snapshot, changes: dict[str, Any]) -> None:
    policy, after = FirstComeFirstServed(), replace(before, **changes)
    assert not policy.decide(before).choices
    fresh = FirstComeFirstServed().decide(after)
    assert fresh != policy.decide(before), "it makes a difference"
    assert policy.decide(after) == fresh


def test_a_head_of_another_state_is_looked_at_again() -> None:
    """What it asks for, and where it may go, is in its record."""
    before, policy = avoided(), FirstComeFirstServed()
    clean = replace(before.jobs[A], failed_starts=())
    after = replace(before, jobs=before.jobs.set(A, clean))  # type: ignore[attr-defined]
    assert not policy.decide(before).choices
    assert policy.decide(after).choices
