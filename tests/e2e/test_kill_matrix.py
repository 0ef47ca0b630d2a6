"""kill -9 of scheduler, agent and worker at each moment of a job's life: nothing is lost, nothing runs twice.

A gate (the lock that a worker takes in its checkpoint place) holds the job at the moment for as long as the kill takes.
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
from tests.fakes.local_cluster import Gate, ProcessCluster, process_cluster, wait_until

pytestmark = pytest.mark.slow

VICTIMS = ("scheduler", "agent", "worker")
STEPS = 80
INTERVAL_STEPS = 20
MODEL = {"layers": 2, "hidden": 32, "heads": 2, "seq_len": 32}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path_factory.mktemp("matrix"), nodes=2, gpus=1) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ProcessCluster) -> Iterator[ProcessCluster]:
    yield shared
    shared.assert_sound()


def tiny(name: str = "tiny", **fields: Any) -> JobSpec:
    defaults: dict[str, Any] = {
        "model": MODEL,
        "gpus": {"min": 2, "max": 2},
        "stop": {"steps": STEPS},
        "checkpoint": {"interval_steps": INTERVAL_STEPS},
        "grace_s": 60.0,
    }
    return train_spec(name, **{**defaults, **fields})


@dataclass(frozen=True, slots=True)
class Victim:
    """What is killed, and how it comes back."""

    cluster: ProcessCluster
    name: str

    def kill(self, attempt_id: str | None) -> None:
        """Kill it; without an attempt, the process that ranks are forked from stands for the worker."""
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


def assert_finished_once(cluster: ProcessCluster, job_id: str) -> None:
    job = cluster.client.job(job_id).job
    assert (job.state, job.progress.step) == (JobState.SUCCEEDED, STEPS), cluster.story(job_id)
    states = [entry.data["after"] for entry in cluster.entries(job_id, EntryKind.JOB_STATE)]
    assert states.count(JobState.SUCCEEDED.value) == 1, cluster.story(job_id)
    launched = [entry.attempt_id for entry in cluster.entries(job_id, EntryKind.ATTEMPT_LAUNCHED)]
    assert len(launched) == len(set(launched)) == job.epoch, cluster.story(job_id)


def assert_undisturbed(cluster: ProcessCluster, job_id: str) -> None:
    """One attempt, and each step of it once."""
    assert_finished_once(cluster, job_id)
    assert cluster.steps(job_id) == [(f"{job_id}.1", step) for step in range(1, STEPS + 1)]


def assert_repeats_at_most_an_interval(cluster: ProcessCluster, job_id: str) -> None:
    assert_finished_once(cluster, job_id)
    job = cluster.client.job(job_id).job
    assert job.progress.lost_steps <= INTERVAL_STEPS, cluster.story(job_id)
    assert {step for _, step in cluster.steps(job_id)} == set(range(1, STEPS + 1))


def run_until_stepping(cluster: ProcessCluster, gate: Gate, job_id: str) -> None:
    """Let the first attempt save once and step on; the gate is shut before its next save."""
    attempt_id = f"{job_id}.1"
    gate.let_pass_until(lambda: cluster.has_saved(attempt_id, INTERVAL_STEPS), f"{attempt_id} has saved")
    cluster.wait_state(job_id, JobState.RUNNING)


def ranks_of(cluster: ProcessCluster, attempt_id: str) -> dict[int, int]:
    return dict(wait_until(lambda: cluster.rank_pids(attempt_id), f"the ranks of {attempt_id} are up"))


@pytest.mark.parametrize("name", VICTIMS)
def test_killed_while_the_job_is_queued(cluster: ProcessCluster, name: str) -> None:
    victim = Victim(cluster, name)
    with cluster.drained():
        job_id = cluster.submit(tiny())
        victim.kill(None)
        victim.come_back()
    cluster.wait_succeeded(job_id)
    assert_undisturbed(cluster, job_id)


@pytest.mark.parametrize("name", VICTIMS)
def test_killed_while_the_job_is_starting(cluster: ProcessCluster, name: str) -> None:
    victim = Victim(cluster, name)
    job_id, gate = cluster.submit_gated(tiny())
    cluster.wait_entry(job_id, EntryKind.ATTEMPT_STARTED)
    before = ranks_of(cluster, f"{job_id}.1")
    victim.kill(f"{job_id}.1")
    victim.come_back()
    if name != "worker":
        assert cluster.rank_pids(f"{job_id}.1") == before
    gate.open()
    cluster.wait_succeeded(job_id)
    if name == "worker":
        assert_repeats_at_most_an_interval(cluster, job_id)
        assert cluster.client.job(job_id).job.epoch == 2
    else:
        assert_undisturbed(cluster, job_id)


@pytest.mark.parametrize("name", VICTIMS)
def test_killed_while_the_job_is_running(cluster: ProcessCluster, name: str) -> None:
    victim = Victim(cluster, name)
    job_id, gate = cluster.submit_gated(tiny())
    run_until_stepping(cluster, gate, job_id)
    before = ranks_of(cluster, f"{job_id}.1")
    assert len(before) == 2
    victim.kill(f"{job_id}.1")
    victim.come_back()
    if name != "worker":
        assert cluster.rank_pids(f"{job_id}.1") == before
    gate.open()
    cluster.wait_succeeded(job_id)
    if name == "worker":
        assert_repeats_at_most_an_interval(cluster, job_id)
        assert cluster.client.job(job_id).job.epoch == 2
    else:
        assert_undisturbed(cluster, job_id)


@pytest.mark.parametrize("name", VICTIMS)
def test_killed_while_the_job_is_reconfiguring(cluster: ProcessCluster, name: str) -> None:
    victim = Victim(cluster, name)
    job_id, gate = cluster.submit_gated(tiny("first", gpus={"min": 1, "max": 2}))
    run_until_stepping(cluster, gate, job_id)
    second = cluster.submit(tiny("second", kind="rigid", gpus={"count": 1}))
    cluster.wait_state(job_id, JobState.RECONFIGURING)
    ranks_of(cluster, f"{job_id}.1")
    victim.kill(f"{job_id}.1")
    victim.come_back()
    gate.open()
    for each in (job_id, second):
        cluster.wait_succeeded(each)
    assert_finished_once(cluster, second)
    assert_repeats_at_most_an_interval(cluster, job_id)
    if name != "worker":
        assert cluster.client.job(job_id).job.progress.lost_steps == 0, cluster.story(job_id)


@pytest.mark.parametrize("name", VICTIMS)
def test_killed_while_the_job_is_finishing(cluster: ProcessCluster, name: str) -> None:
    victim = Victim(cluster, name)
    job_id, gate = cluster.submit_gated(tiny())
    attempt_id = f"{job_id}.1"
    gate.let_pass_until(lambda: cluster.reports(attempt_id, "finishing"), "the job is finishing")
    cluster.wait_state(job_id, JobState.FINISHING)
    victim.kill(attempt_id)
    victim.come_back()
    gate.open()
    cluster.wait_succeeded(job_id)
    if name == "worker":
        assert_repeats_at_most_an_interval(cluster, job_id)
    else:
        assert_undisturbed(cluster, job_id)
