"""Devices that go dirty or out of sight while jobs have them, or are about to: nothing is forgotten or given twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arena.domain.cluster import Device
from arena.domain.commands import AnswerRegistration, LaunchAttempt
from arena.domain.events import DevicesChanged, HeldAttempt, JobSubmitted, NodeDisconnected, NodeRegistered
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import AttemptId, NodeId
from arena.domain.records import JobState
from arena.engine.config import EngineConfig
from arena.engine.counts import gpu_counts
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from tests.builders import node_info, train_spec
from tests.fakes.grids import PowerLawGrids

N1 = NodeId("n1")
TROUBLE = "NVML: Driver Not Loaded"


def simulation(policy: str = "fcfs") -> Simulation:
    config = EngineConfig(checkpoint_root="/ckpt", output_root="/out", shape_settle_s=0.0)
    return Simulation(policy=make_policy(policy), grids=PowerLawGrids(), config=config, check=True)


def submit(name: str, spec: JobSpec | None = None) -> JobSubmitted:
    return JobSubmitted(job_id=JobId(name), spec=spec or train_spec(name), user="ann", request_id=name)


def running_job() -> tuple[Simulation, AttemptId]:
    """A job that runs on all GPUs of the one node."""
    sim = simulation()
    sim.at(0.0, NodeRegistered(info=node_info("n1")))
    sim.at(1.0, submit("a"))
    sim.run(until_s=20.0)
    name = sim.engine.state.jobs[JobId("a")].attempt_id
    assert name is not None
    return sim, name


def out_of_sight(sim: Simulation) -> None:
    """Have the node's driver fail: the agent lists no device at all."""
    sim.at(21.0, DevicesChanged(node_id=N1, devices=(), problem=TROUBLE))
    sim.run(until_s=21.5)


def test_a_job_whose_devices_went_out_of_sight_keeps_them() -> None:
    sim, name = running_job()
    out_of_sight(sim)
    assert set(sim.engine.state.holders.values()) == {name}
    assert [(counts.total, counts.free) for counts in gpu_counts(sim.engine.state)] == [(2, 0)]
    assert sim.engine.state.nodes[N1].state.value == "degraded"
    sim.run()
    assert sim.ended[JobId("a")].state is JobState.SUCCEEDED


@pytest.mark.parametrize("listed", [0, 2])
def test_an_agent_that_registers_with_such_a_job_is_told_to_keep_it(listed: int) -> None:
    sim, name = running_job()
    out_of_sight(sim)
    held = (HeldAttempt(attempt_id=name, started=True),)
    info = node_info("n1", gpus=listed, incarnation="n1-2", problem=None if listed else TROUBLE)
    step = sim.engine.handle(NodeRegistered(info=info, held=held), 22.0)
    assert AnswerRegistration(node_id=N1, keep=(name,), kill=()) in step.commands
    assert sim.engine.state.jobs[JobId("a")].attempt_id == name


def test_such_a_job_is_lost_with_its_node() -> None:
    sim, _ = running_job()
    out_of_sight(sim)
    sim.at(22.0, NodeDisconnected(node_id=N1, incarnation="n1-1", why="cable"))
    sim.run(until_s=60.0)
    assert sim.engine.state.jobs[JobId("a")].state is JobState.QUEUED
    assert not sim.engine.state.holders


def test_a_device_that_stays_out_of_sight_leaves_with_its_job() -> None:
    sim, _ = running_job()
    out_of_sight(sim)
    sim.at(22.0, DevicesChanged(node_id=N1, devices=(Device(device_id=node_info("n1").devices[0].device_id, index=0),)))
    sim.at(30.0, submit("b", train_spec("b", gpus={"max": 2})))
    sim.run()
    launches = [
        command.launch
        for step in sim.steps
        for command in step.commands
        if isinstance(command, LaunchAttempt) and command.launch.job_id == "b"
    ]
    assert [launch.device_ids for launch in launches] == [("n1/vgpu-0",)]
    assert [(counts.total, counts.dirty) for counts in gpu_counts(sim.engine.state)] == [(1, 0)]


@pytest.mark.parametrize("listed", [True, False])
def test_a_target_on_devices_that_went_bad_is_given_up_and_nothing_is_launched_there(listed: bool) -> None:
    sim = simulation("elastic")
    for node in ("n1", "n2"):
        sim.at(0.0, NodeRegistered(info=node_info(node)))
    sim.at(1.0, submit("a", train_spec("a", stop={"steps": 4000})))
    sim.at(100.0, submit("b", train_spec("b", stop={"steps": 300})))
    sim.run(until_s=100.5)  # b waits for a to shrink
    target = sim.engine.state.jobs[JobId("b")].target
    assert target is not None
    (node_id,) = target.allocation.node_ids
    devices = tuple(replace(device, dirty="in use by process 7") for device in node_info(node_id).devices)
    sim.at(100.6, DevicesChanged(node_id=node_id, devices=devices if listed else ()))
    sim.run(until_s=130.0)
    bad = {device.device_id for device in devices}
    launched = [
        command.launch
        for step in sim.steps
        for command in step.commands
        if isinstance(command, LaunchAttempt) and step.at_s > 100.6
    ]
    assert not [launch.attempt_id for launch in launched if bad & set(launch.device_ids)]
    assert not bad & set(sim.engine.state.reserved)
    assert sim.engine.state.jobs[JobId("b")].launch_failure_count == 0
