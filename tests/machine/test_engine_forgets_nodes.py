"""Nodes that were lost long ago are forgotten: hosts of a pool that grows and shrinks get new names for ever."""

from __future__ import annotations

import pytest

from arena.domain.cluster import NodeState
from arena.domain.events import JobSubmitted, NodeDisconnected, NodeDrainChanged, NodeRegistered, SchedulerStarted, Tick
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.records import EntryKind, JobState
from arena.engine.config import EngineConfig
from arena.engine.engine import Engine
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from tests.builders import node_info, train_spec
from tests.fakes.grids import PowerLawGrids
from tests.fakes.restarts import restored_from

WEEK_S = 7 * 86_400.0
N1, N2 = NodeId("n1"), NodeId("n2")


def simulation(forget_lost_s: float | None = WEEK_S) -> Simulation:
    sim = Simulation(
        policy=make_policy("fcfs"),
        grids=PowerLawGrids(),
        config=EngineConfig(checkpoint_root="/ckpt", shape_settle_s=0.0, forget_lost_s=forget_lost_s),
        check=True,
    )
    for name in ("n1", "n2"):
        sim.at(0.0, NodeRegistered(info=node_info(name)))
    sim.at(10.0, NodeDisconnected(node_id=N1, incarnation="n1-1", why="given back"))
    return sim


def run_to(sim: Simulation, at_s: float) -> None:
    sim.at(at_s, Tick())
    sim.run(until_s=at_s)


def test_a_node_that_was_lost_long_ago_is_forgotten() -> None:
    sim = simulation()
    run_to(sim, WEEK_S)
    assert sim.engine.state.nodes[N1].state is NodeState.LOST
    run_to(sim, WEEK_S + 60.0)
    state = sim.engine.state
    assert set(state.nodes) == set(state.places) == {N2}
    told = [entry.message for step in sim.steps for entry in step.history if entry.node_id == N1]
    assert told[-1] == "lost -> forgotten: no word for 7d00h"
    assert {node.node_id for node in restored_from(sim.steps).nodes} == {N2}


def test_one_that_comes_back_is_new_and_takes_work() -> None:
    sim = simulation()
    run_to(sim, WEEK_S + 60.0)
    sim.at(WEEK_S + 70.0, NodeRegistered(info=node_info("n1")))
    spec = train_spec("a", kind="rigid", gpus={"count": 4})
    sim.at(WEEK_S + 80.0, JobSubmitted(job_id=JobId("a"), spec=spec, user="ann", request_id="a"))
    sim.run()
    assert sim.ended[JobId("a")].state is JobState.SUCCEEDED
    kinds = [entry.message for step in sim.steps for entry in step.history if entry.kind is EntryKind.NODE_STATE]
    assert kinds[-1].startswith("new -> ready")


@pytest.mark.parametrize("why", ["an admin drained it", "nothing is to be forgotten", "it came back"])
def test_one_that_is_still_meant_is_not(why: str) -> None:
    sim = simulation(None if why == "nothing is to be forgotten" else WEEK_S)
    if why == "an admin drained it":
        sim.at(5.0, NodeDrainChanged(node_id=N1, drain=True, by="root", why="new memory is ordered"))
    elif why == "it came back":
        sim.at(WEEK_S - 60.0, NodeRegistered(info=node_info("n1")))
    run_to(sim, WEEK_S + 60.0)
    assert N1 in sim.engine.state.nodes


def test_a_scheduler_that_is_restarted_every_day_forgets_as_well() -> None:
    sim = simulation()
    run_to(sim, 100.0)
    engine = sim.engine
    for day in range(1, 9):
        engine = Engine(make_policy("fcfs"), engine.config, restored_from(sim.steps))
        now_s = 86_400.0 * day
        started = SchedulerStarted(scheduler_version="1", policy="fcfs", policy_version="1")
        sim.steps.append(engine.handle(started, now_s))
        sim.steps.append(engine.handle(NodeRegistered(info=node_info("n2")), now_s + 1.0))
        sim.steps.append(engine.handle(Tick(), now_s + 60.0))
    assert set(engine.state.nodes) == {N2}
