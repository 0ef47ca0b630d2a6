"""kill -9 of scheduler, agent and worker at every moment of a job's life: nothing lost, nothing twice.

A gate, the lock that ranks take in their checkpoint place, makes the moment last for as long as the kill takes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from arena.domain.job import JobSpec
from arena.domain.records import EntryKind, JobState
from tests.builders import train_spec
from tests.fakes.local_cluster import ELASTIC_AT_ONCE, Gate, ProcessCluster, process_cluster, wait_until

pytestmark = pytest.mark.slow

VICTIMS = ("scheduler", "agent", "worker")
STEPS = 120
INTERVAL_STEPS = 20
MODEL = {"layers": 2, "hidden": 32, "heads": 2, "seq_len": 32}
LOSS_GOAL = 2.6


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path_factory.mktemp("kills"), nodes=2, gpus=1, words=ELASTIC_AT_ONCE) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ProcessCluster) -> Iterator[ProcessCluster]:
    yield shared
    shared.assert_sound()


def tiny(**fields: Any) -> JobSpec:
    defaults: dict[str, Any] = {
        "model": MODEL,
        "gpus": {"min": 2, "max": 2},
        "stop": {"steps": STEPS},
        "checkpoint": {"interval_steps": INTERVAL_STEPS},
        "grace_s": 60.0,
    }
    return train_spec("tiny", **{**defaults, **fields})


def shrinkable() -> JobSpec:
    """A job that the planner gives both GPUs, and that ends by its loss: one that is nearly done is not shrunk."""
    model = {"layers": 4, "hidden": 64, "heads": 4, "seq_len": 64}
    return tiny(model=model, train={"global_batch": 16}, gpus={"min": 1, "max": 2}, stop={"loss": LOSS_GOAL})


@dataclass(frozen=True, slots=True)
class Victim:
    """What is killed, and how it comes back."""

    cluster: ProcessCluster
    name: str

    def kill(self, attempt_id: str | None) -> None:
        """Kill it; without an attempt the process that ranks are forked from stands for the worker."""
        node = self.cluster.nodes["n1"]
        if self.name == "scheduler":
            self.cluster.scheduler.end(signal.SIGKILL)
        elif self.name == "agent":
            node.service.end(signal.SIGKILL)
        elif attempt_id is None:
            os.kill(wait_until(node.launcher_pid, "there is a launcher"), signal.SIGKILL)
        else:
            os.kill(max(self.cluster.rank_pids(attempt_id).values()), signal.SIGKILL)

    def come_back(self) -> None:
        if self.name == "scheduler":
            self.cluster.start_scheduler()
        elif self.name == "agent":
            self.cluster.nodes["n1"].service.start()
        wait_until(lambda: all(map(self.cluster.node_state, self.cluster.nodes)), "all nodes are back")


def run_until_saved(cluster: ProcessCluster, gate: Gate, attempt_id: str, step: int) -> None:
    """Let a job train until it has a checkpoint; it stops at the next one."""
    gate.let_pass_until(lambda: cluster.saved_step(attempt_id) >= step, f"{attempt_id} has saved step {step}")


def assert_finished_once(cluster: ProcessCluster, job_id: str) -> int:
    """Return the job's last step."""
    job = cluster.client.job(job_id).job
    states = [entry.data["after"] for entry in cluster.entries(job_id, EntryKind.JOB_STATE)]
    assert states.count(JobState.SUCCEEDED.value) == 1, cluster.story(job_id)
    assert states[-1] == JobState.SUCCEEDED.value, cluster.story(job_id)
    launched = [entry.attempt_id for entry in cluster.entries(job_id, EntryKind.ATTEMPT_LAUNCHED)]
    assert launched == [f"{job_id}.{epoch}" for epoch in range(1, job.epoch + 1)]
    assert job.progress.step == (job.step_limit or job.progress.step)
    return job.progress.step


def assert_undisturbed(cluster: ProcessCluster, job_id: str) -> None:
    """One attempt, each step once and in order."""
    last_step = assert_finished_once(cluster, job_id)
    assert cluster.steps(job_id) == [(f"{job_id}.1", step) for step in range(1, last_step + 1)], cluster.story(job_id)


def assert_repeated_little(cluster: ProcessCluster, job_id: str, repeated_max: int = INTERVAL_STEPS) -> None:
    """Every step was done, and no more than those since the last checkpoint twice."""
    last_step = assert_finished_once(cluster, job_id)
    steps = [step for _, step in cluster.steps(job_id)]
    assert sorted(set(steps)) == list(range(1, last_step + 1))
    assert len(steps) - last_step <= repeated_max, cluster.story(job_id)
    assert cluster.client.job(job_id).job.progress.lost_steps <= repeated_max


def assert_outcome(cluster: ProcessCluster, job_id: str, victim: str) -> None:
    if victim == "worker":
        assert_repeated_little(cluster, job_id)
        assert cluster.client.job(job_id).job.epoch == 2
    else:
        assert_undisturbed(cluster, job_id)


@pytest.mark.parametrize("name", VICTIMS)
def test_queued(cluster: ProcessCluster, name: str) -> None:
    victim = Victim(cluster, name)
    with cluster.drained():
        job_id = cluster.submit(tiny())
        assert cluster.client.job(job_id).job.state is JobState.QUEUED
        victim.kill(None)
        victim.come_back()
        assert cluster.client.job(job_id).job.state is JobState.QUEUED
    cluster.wait_succeeded(job_id)
    assert_undisturbed(cluster, job_id)


@pytest.mark.parametrize("name", VICTIMS)
def test_starting(cluster: ProcessCluster, name: str) -> None:
    victim = Victim(cluster, name)
    job_id, gate = cluster.submit_gated(tiny())
    attempt_id = f"{job_id}.1"
    cluster.wait_entry(job_id, EntryKind.ATTEMPT_STARTED)
    assert cluster.client.job(job_id).job.state is JobState.STARTING
    before = cluster.rank_pids(attempt_id)
    victim.kill(attempt_id)
    victim.come_back()
    if name != "worker":
        assert cluster.rank_pids(attempt_id) == before
    gate.open()
    cluster.wait_succeeded(job_id)
    assert_outcome(cluster, job_id, name)


@pytest.mark.parametrize("name", ["scheduler", "agent"])
def test_running_goes_on_meanwhile(cluster: ProcessCluster, name: str) -> None:
    victim = Victim(cluster, name)
    job_id, gate = cluster.submit_gated(tiny())
    attempt_id = f"{job_id}.1"
    run_until_saved(cluster, gate, attempt_id, INTERVAL_STEPS)
    cluster.wait_state(job_id, JobState.RUNNING)
    before, saved_step = cluster.rank_pids(attempt_id), cluster.saved_step(attempt_id)
    assert len(before) == 2
    victim.kill(attempt_id)
    run_until_saved(cluster, gate, attempt_id, saved_step + INTERVAL_STEPS)
    victim.come_back()
    assert cluster.rank_pids(attempt_id) == before
    gate.open()
    cluster.wait_succeeded(job_id)
    assert_undisturbed(cluster, job_id)


def test_running_worker(cluster: ProcessCluster) -> None:
    job_id, gate = cluster.submit_gated(tiny())
    attempt_id = f"{job_id}.1"
    run_until_saved(cluster, gate, attempt_id, INTERVAL_STEPS)
    cluster.wait_state(job_id, JobState.RUNNING)
    Victim(cluster, "worker").kill(attempt_id)
    gate.open()
    cluster.wait_succeeded(job_id)
    assert_outcome(cluster, job_id, "worker")


@pytest.mark.parametrize("name", VICTIMS)
def test_reconfiguring(cluster: ProcessCluster, name: str) -> None:
    """The first job is asked to save and shrink for a second one, and the victim dies before it has saved."""
    victim = Victim(cluster, name)
    job_id, gate = cluster.submit_gated(shrinkable())
    attempt_id = f"{job_id}.1"
    run_until_saved(cluster, gate, attempt_id, INTERVAL_STEPS)
    cluster.wait_state(job_id, JobState.RUNNING)
    assert len(cluster.rank_pids(attempt_id)) == 2
    other = cluster.submit(tiny(kind="rigid", gpus={"count": 1}))
    cluster.wait_state(job_id, JobState.RECONFIGURING)
    victim.kill(attempt_id)
    victim.come_back()
    gate.open()
    for one in (other, job_id):
        cluster.wait_succeeded(one)
    assert_undisturbed(cluster, other)
    assert_repeated_little(cluster, job_id, INTERVAL_STEPS if name == "worker" else 0)
    assert cluster.client.job(job_id).job.epoch >= 2


@pytest.mark.parametrize("name", VICTIMS)
def test_finishing(cluster: ProcessCluster, name: str) -> None:
    victim = Victim(cluster, name)
    job_id, gate = cluster.submit_gated(tiny())
    attempt_id = f"{job_id}.1"
    run_until_saved(cluster, gate, attempt_id, STEPS - INTERVAL_STEPS)
    cluster.wait_state(job_id, JobState.FINISHING)
    victim.kill(attempt_id)
    gate.open()
    victim.come_back()
    cluster.wait_succeeded(job_id)
    assert_outcome(cluster, job_id, name)
