"""Ranks that die before their first step: the job goes elsewhere, and the node answers for several of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from arena.domain.cluster import NodeState
from arena.domain.events import JobSubmitted, JobWishChanged, NodeDrainChanged, NodeRegistered
from arena.domain.failed_start import AVOIDED_S, FAILED_STARTS_KEPT
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import NodeId
from arena.domain.reason import ReasonCode
from arena.domain.records import EndKind, JobState, NodeRecord
from arena.engine.config import EngineConfig
from arena.engine.state import reasons_of
from arena.policies.registry import make_policy, policy_names
from arena.sim.run import Simulation
from arena_scheduler.store.records import JOB_JSON, NODE_JSON
from tests.builders import command_spec, node_info, train_spec
from tests.fakes.bad_nodes import CUDA, BadWorld, with_failures
from tests.fakes.grids import PowerLawGrids

A, BAD, GOOD = JobId("a"), NodeId("bad"), NodeId("good")
ONE = {"kind": "rigid", "gpus": {"count": 1}}


def on_bad(_job_id: JobId, node_id: NodeId) -> str:
    return CUDA if node_id.startswith("bad") else ""


def simulation(
    fails: Callable[[JobId, NodeId], str] = on_bad,
    nodes: tuple[str, ...] = ("bad", "good"),
    policy: str = "fcfs",
    **fields: object,
) -> tuple[Simulation, BadWorld]:
    sim = Simulation(
        policy=make_policy(policy),
        grids=PowerLawGrids(),
        config=EngineConfig(checkpoint_root="/ckpt", shape_settle_s=0.0),
        check=True,
    )
    world = with_failures(sim, fails, **fields)
    for name in nodes:
        sim.at(0.0, NodeRegistered(info=node_info(name)))
    return sim, world


def submit(sim: Simulation, name: str, spec: JobSpec | None = None, *, at_s: float = 1.0, user: str = "ann") -> None:
    sim.at(at_s, JobSubmitted(job_id=JobId(name), spec=spec or train_spec(name, **ONE), user=user, request_id=name))


def node(sim: Simulation, name: str = "bad") -> NodeRecord:
    return sim.engine.state.nodes[NodeId(name)]


@pytest.mark.parametrize("kind", [EndKind.FAILED, EndKind.LAUNCH_FAILED])
@pytest.mark.parametrize("spec", [train_spec("a"), train_spec("a", **ONE), train_spec("a", kind="moldable")])
@pytest.mark.parametrize("policy", policy_names())
def test_a_job_is_tried_elsewhere_before_it_is_tried_again_on_a_node(policy: str, spec: JobSpec, kind: EndKind) -> None:
    sim, world = simulation(policy=policy, kind=kind)
    submit(sim, "a", spec)
    sim.run(until_s=20_000.0)
    job = sim.ended[A]
    assert job.state is JobState.SUCCEEDED, job.error
    assert job.epoch == 2
    assert [BAD in nodes for _, nodes in world.started] == [True, False]
    assert [one.node_id for one in job.failed_starts] == [BAD]


@pytest.mark.parametrize("policy", policy_names())
def test_what_others_are_given_does_not_change(policy: str) -> None:
    """The others are placed as if the job that failed on a node were not there, on that node as well."""
    sim, world = simulation(lambda job_id, node_id: CUDA if (job_id, node_id) == (A, BAD) else "", policy=policy)
    submit(sim, "a")
    for name in ("b", "c", "d"):
        submit(sim, name, at_s=10.0)
    sim.run(until_s=100.0)
    assert dict(world.started)[A] == (GOOD,)
    assert sorted(nodes for job_id, nodes in world.started if job_id != A) == [(BAD,), (BAD,), (GOOD,)]


@pytest.mark.parametrize("policy", policy_names())
def test_where_there_is_no_other_node_it_is_tried_again(policy: str) -> None:
    sim, world = simulation(nodes=("bad",), policy=policy)
    submit(sim, "a")
    sim.run(until_s=20_000.0)
    assert sim.ended[A].state is JobState.FAILED
    assert world.started == [(A, (BAD,))] * 4
    assert node(sim).state is NodeState.READY, "the last node is not closed"


@pytest.mark.parametrize("policy", policy_names())
def test_a_job_that_needs_all_nodes_is_tried_on_all_nodes(policy: str) -> None:
    sim, world = simulation(policy=policy)
    submit(sim, "a", train_spec("a", kind="rigid", gpus={"count": 4}))
    sim.run(until_s=20_000.0)
    assert sim.ended[A].state is JobState.FAILED
    assert len(world.started) == 4


def test_a_job_waits_a_while_for_a_node_that_is_busy() -> None:
    sim, world = simulation()
    submit(sim, "b", train_spec("b", kind="rigid", gpus={"count": 2}, stop={"steps": 100_000}), at_s=0.5)
    submit(sim, "a", at_s=50.0)
    sim.run(until_s=40.0)
    assert world.started == [(JobId("b"), (BAD,)), (JobId("b"), (GOOD,))]
    sim.run(until_s=100.0)
    assert world.started[2:] == [(A, (BAD,))]
    state = sim.engine.state
    assert [one.code for one in reasons_of(state, state.jobs[A])[0]] == [ReasonCode.NODE_AVOIDED]
    text = str(reasons_of(state, state.jobs[A])[0][0])
    assert "failed on node bad before its first step" in text
    assert CUDA in text
    sim.run(until_s=100.0 + AVOIDED_S)
    assert world.started[3:4] == [(A, (BAD,))]


def test_a_job_that_is_released_begins_anew() -> None:
    sim, world = simulation()
    submit(sim, "a")
    sim.at(3.1, JobWishChanged(job_id=A, wish="hold", by="ann"))
    sim.run(until_s=5.0)
    assert [one.node_id for one in sim.engine.state.jobs[A].failed_starts] == [BAD]
    sim.handle(JobWishChanged(job_id=A, wish="run", by="ann"))
    assert sim.engine.state.jobs[A].failed_starts == ()
    assert world.started == [(A, (BAD,))] * 2


def test_of_a_gang_the_node_is_avoided_whose_rank_failed_first() -> None:
    sim, world = simulation(nodes=("a1", "bad", "c1"))
    submit(sim, "a", train_spec("a", kind="rigid", gpus={"count": 4}))
    sim.run(until_s=20_000.0)
    assert sim.ended[A].state is JobState.SUCCEEDED
    assert world.started == [(A, ("a1", "bad")), (A, ("a1", "c1"))]


def test_only_so_many_nodes_are_remembered() -> None:
    names = tuple(f"bad{index}" for index in range(12))
    sim, _ = simulation(nodes=(*names, "good"))
    submit(sim, "a", train_spec("a", **ONE, retry={"restarts_max": 10}))
    sim.run(until_s=3000.0)
    kept = {len(job.failed_starts) for step in sim.steps for job in step.jobs}
    assert max(kept) == FAILED_STARTS_KEPT


def test_a_program_is_tried_elsewhere_as_well_but_closes_no_node() -> None:
    sim, world = simulation()
    for at_s, name in enumerate("abcd"):
        submit(sim, name, command_spec(name, retry={"restarts_max": 1}, stop={"steps": 5}), at_s=1.0 + 30.0 * at_s)
    sim.run(until_s=300.0)
    assert world.started[0] == (A, (BAD,))
    assert len(set(world.started)) == len(world.started), "no job twice on a node"
    assert {job_id for job_id, nodes in world.started if nodes == (GOOD,)} == set("abcd")
    assert node(sim).failed_starts == ()
    assert node(sim).state is NodeState.READY


@pytest.mark.parametrize("code", ["config", "data", "port", "checkpoint"])
def test_what_is_not_the_nodes_fault_is_held_against_none(code: str) -> None:
    sim, _ = simulation(error_code=code)
    submit(sim, "a")
    sim.run(until_s=200.0)
    assert node(sim).failed_starts == ()


def test_a_node_that_fails_different_jobs_is_closed_for_a_while() -> None:
    sim, world = simulation()
    for at_s, name in enumerate("abcde"):
        submit(sim, name, train_spec(name, kind="rigid", gpus={"count": 1}, stop={"steps": 5}), at_s=1.0 + 30.0 * at_s)
    sim.run(until_s=20.0)
    assert (node(sim).state, node(sim).state_cause) == (NodeState.READY, "job a failed here before the first step")
    sim.run(until_s=200.0)
    assert node(sim).state is NodeState.QUARANTINED
    assert node(sim).state_cause == "jobs a, b, c failed here before the first step"
    assert [job_id for job_id, nodes in world.started if BAD in nodes] == ["a", "b", "c"]
    assert {job.state for job in sim.ended.values()} == {JobState.SUCCEEDED}
    assert len(sim.ended) == 5
    submit(sim, "late", train_spec("late", stop={"steps": 1000}, **ONE), at_s=201.0)
    sim.run(until_s=500.0)
    assert (node(sim).state, node(sim).state_cause, node(sim).failed_starts) == (NodeState.READY, "", ())


def test_a_first_step_there_clears_a_node() -> None:
    sim, _ = simulation(lambda job_id, node_id: CUDA if job_id in "ab" and node_id == BAD else "")
    for at_s, name in enumerate("abc"):
        submit(sim, name, train_spec(name, kind="rigid", gpus={"count": 1}, stop={"steps": 5}), at_s=1.0 + 30.0 * at_s)
    sim.run(until_s=50.0)
    assert [one.job_id for one in node(sim).failed_starts] == ["a", "b"]
    sim.run(until_s=90.0)
    assert (node(sim).failed_starts, node(sim).state_cause) == ((), "")


def test_a_job_that_fails_everywhere_closes_nothing() -> None:
    sim, world = simulation(lambda job_id, node_id: f"rank {len(node_id)}: no such kernel on {node_id}")
    submit(sim, "a")
    sim.run(until_s=20_000.0)
    assert sim.ended[A].state is JobState.FAILED
    assert [str(nodes[0]) for _, nodes in world.started][:2] == ["bad", "good"]
    for name in ("bad", "good"):
        assert (node(sim, name).failed_starts, node(sim, name).state) == ((), NodeState.READY)


def test_many_jobs_with_one_mistake_close_no_more_than_one_node() -> None:
    names = ("n1", "n2", "n3", "n4")
    sim, _ = simulation(lambda job_id, node_id: CUDA, nodes=names)
    for index in range(40):
        spec = train_spec(f"j{index}", retry={"restarts_max": 0}, **ONE)
        submit(sim, f"j{index}", spec, at_s=1.0 + index % 7)
    sim.run(until_s=60.0)
    states = [node(sim, name).state for name in names]
    assert states.count(NodeState.QUARANTINED) <= 1


def test_a_node_that_an_admin_takes_back_begins_anew() -> None:
    sim, world = simulation()
    for at_s, name in enumerate("abc"):
        submit(sim, name, train_spec(name, kind="rigid", gpus={"count": 1}, stop={"steps": 5}), at_s=1.0 + 30.0 * at_s)
    sim.run(until_s=80.0)
    assert node(sim).state is NodeState.QUARANTINED
    sim.handle(NodeDrainChanged(node_id=BAD, drain=False, by="admin", why=""))
    assert node(sim).state is NodeState.READY
    submit(sim, "e", at_s=81.0)
    sim.run(until_s=90.0)
    assert (JobId("e"), (BAD,)) in world.started
    assert node(sim).state is NodeState.READY
    assert [one.job_id for one in node(sim).failed_starts] == ["e"]


def test_what_is_remembered_is_kept_with_the_records() -> None:
    sim, _ = simulation()
    submit(sim, "a")
    sim.run(until_s=3.2)
    job = sim.engine.state.jobs[A]
    assert job.failed_starts
    assert JOB_JSON.validate_json(JOB_JSON.dump_json(job)) == job
    assert NODE_JSON.validate_json(NODE_JSON.dump_json(node(sim))) == node(sim)
    older = {name: value for name, value in JOB_JSON.dump_python(job, mode="json").items() if name != "failed_starts"}
    assert JOB_JSON.validate_python(older).failed_starts == ()
