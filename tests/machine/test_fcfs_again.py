"""First come, first served keeps a refusal while nothing that it rests on has changed, and no longer."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.events import AttemptEnded, JobSubmitted, JobWishChanged, NodeDrainChanged, NodeRegistered
from arena.domain.job import JobId
from arena.domain.launch import AttemptId, NodeId
from arena.domain.records import EndKind, NodeEnd
from arena.engine.config import EngineConfig
from arena.policies.base import Decision, Snapshot
from arena.policies.fcfs import FirstComeFirstServed
from arena.sim.run import Simulation
from tests.builders import command_spec, node_info, train_spec
from tests.fakes.grids import PowerLawGrids


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
