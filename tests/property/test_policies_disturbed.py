"""Every policy on random clusters whose nodes fail and are asked back, while gangs start, move, end and are cancelled.

The snapshots are the engine's own, so they hold what no hand would think of: gangs of which some nodes have ended and
others have not, devices kept for a change that will never come, jobs that have finished and are not gone yet.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.cluster import ClusterShape
from arena.domain.job import JobId
from arena.planner.tables import TableGrids
from arena.policies.arena_greedy import ArenaGreedy, GreedyRules
from arena.policies.base import Policy
from arena.policies.registry import make_policy, policy_names
from arena.sim.checks import Watchdog
from arena.sim.costs import ConstantRestart, SimCosts
from arena.sim.disturbances import Availability, Disturbance, Failures, Reclaims
from arena.sim.replay import REPLAY_CONFIG, Replay, ReplayJob, nodes_of
from arena.sim.world import Fate
from tests.builders import shape
from tests.sim.test_replay import job, table

SPREAD = ((1, 1), (2, 2), (4, 4))
"""Gangs over several nodes, whose ends come one by one."""
MIXED = ((1,), (2,), (1, 1), (4,), (2, 1, 1), (4, 4))
SPEED_BY_TYPE = {"a": 3.0, "b": 5.0}
COUNTS = (1, 2, 4, 4, 8, 8)
OFTEN = {"restarts_max": 10_000, "launch_failures_max": 10_000}
DEADLINES = "arena-greedy with deadlines"


def cluster_of(rng: Random) -> ClusterShape:
    return shape(("a", 4, rng.randint(2, 4)), ("b", rng.choice([4, 4, 2]), rng.randint(1, 3)))


def grids_of(rng: Random) -> TableGrids:
    power, layouts = rng.choice([0.5, 0.8, 1.0]), rng.choice([SPREAD, SPREAD, SPREAD, MIXED])
    return table(
        {
            (gpu_type, layout): step_s / sum(layout) ** power
            for gpu_type, step_s in SPEED_BY_TYPE.items()
            for layout in layouts
        }
    )


def kind_of(rng: Random) -> dict[str, Any]:
    others = (
        {"kind": "rigid", "gpus": {"count": rng.choice(COUNTS)}},
        {"kind": "moldable", "gpus": {}},
        {"kind": "malleable", "gpus": {}, "deadline_s": 300.0},
    )
    return rng.choice(others) if rng.random() < 0.2 else {"kind": "malleable", "gpus": {}}


def jobs_of(rng: Random) -> list[ReplayJob]:
    found, at_s = [], 0.0
    for index in range(14):
        at_s += rng.choice([0.0, 0.1, 5.0, 20.0])
        steps = rng.randint(5, 60)
        fate = Fate(step_count=rng.randint(1, steps), is_cancelled=True) if rng.random() < 0.1 else None
        found.append(job(f"j{index}", at_s, steps, fate=fate, priority=rng.randint(0, 1), retry=OFTEN, **kind_of(rng)))
    return found


def disturbances_of(rng: Random, cluster: ClusterShape) -> tuple[Disturbance, ...]:
    lent = [node.node_id for node in nodes_of(cluster)][: rng.randint(0, 2)]
    changes = tuple(
        Availability(at_s=20.0 + 15.0 * turn + 7.0 * index, node_id=node_id, is_there=turn % 2 == 1)
        for turn in range(4)
        for index, node_id in enumerate(lent)
    )
    failures = Failures(mean_uptime_s=rng.choice([150.0, 600.0]), mean_repair_s=30.0, seed=rng.randint(0, 999))
    return failures, Reclaims(changes=changes, grace_s=rng.choice([0.0, 3.0, 40.0]))


def policy_of(name: str, rng: Random, jobs: list[ReplayJob]) -> Policy:
    """The policy of a name; the published greedy is told what users ask for."""
    if name not in {"arena-greedy", DEADLINES}:
        return make_policy(name)
    asks: dict[JobId, tuple[str, int]] = {one.job_id: (rng.choice("ab"), rng.choice(COUNTS)) for one in jobs}
    return ArenaGreedy(asks=asks, rules=GreedyRules(deadlines=name == DEADLINES))


@pytest.mark.parametrize("name", [*policy_names(), DEADLINES])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_device_is_given_to_two_jobs_whatever_happens_to_the_nodes(name: str, seed: int) -> None:
    rng = Random(seed)
    cluster, jobs = cluster_of(rng), jobs_of(rng)
    replay = Replay(
        shape=cluster,
        policy=policy_of(name, rng, jobs),
        grids=grids_of(rng),
        costs=SimCosts(start_s=1.0, restart=ConstantRestart(first_s=0.0, again_s=2.0), save_s=1.0, exit_s=0.1),
        config=replace(
            REPLAY_CONFIG,
            quarantine_after=1_000_000,
            backoff_s=0.5,
            decide_after_s=rng.choice([None, None, None, None, 0.0, 5.0]),
        ),
        disturbances=disturbances_of(rng, cluster),
    )
    devices = frozenset(device.device_id for node in nodes_of(cluster) for device in node.devices)
    # Some jobs may never fit, and nodes fail for ever.
    replay.run(jobs, until_s=250.0, watch=Watchdog(devices=devices).watch)
