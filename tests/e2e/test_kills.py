"""kill -9 of scheduler, agent and worker at every moment of a job's life: nothing lost, nothing twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from arena.domain.job import JobSpec
from arena.domain.records import EntryKind, JobState
from tests.builders import train_spec
from tests.fakes.local_cluster import Gate, ProcessCluster, process_cluster, wait_until

pytestmark = pytest.mark.slow

VICTIMS = ("scheduler", "agent", "worker")
STEPS = 120
INTERVAL_STEPS = 20
MODEL = {"layers": 2, "hidden": 32, "heads": 2, "seq_len": 32}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path_factory.mktemp("kills"), nodes=2, gpus=1) as cluster:
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
        for node_id in self.cluster.nodes:
            wait_until(lambda node_id=node_id: self.cluster.node_state(node_id), f"node {node_id} is back")  # type: ignore[misc]


def run_until_saved(cluster: ProcessCluster, gate: Gate, attempt_id: str, step: int) -> None:
    """Let a job train until it has a checkpoint; it stops at the next one."""
    gate.let_pass_until(lambda: cluster.has_saved(attempt_id, step), f"{attempt_id} has saved step {step}")


def assert_each_step_once(cluster: ProcessCluster, job_id: str, step_count: int = STEPS) -> None:
    assert cluster.steps(job_id) == [(f"{job_id}.1", step) for step in range(1, step_count + 1)]


def assert_finished_once(cluster: ProcessCluster, job_id: str, step_count: int = STEPS) -> None:
    job = cluster.client.job(job_id).job
    assert job.progress.step == step_count
    ends = [entry.data["after"] for entry in cluster.entries(job_id, EntryKind.JOB_STATE)]
    assert ends.count(JobState.SUCCEEDED.value) == 1, cluster.story(job_id)
    assert not set(ends) & {JobState.FAILED.value, JobState.CANCELLED.value}
    launched = [entry.attempt_id for entry in cluster.entries(job_id, EntryKind.ATTEMPT_LAUNCHED)]
    assert len(launched) == len(set(launched)) == job.epoch


@pytest.mark.parametrize("name", ["scheduler", "agent"])
def test_a_running_job_goes_on_while_it_is_away(cluster: ProcessCluster, name: str) -> None:
    victim = Victim(cluster, name)
    job_id, gate = cluster.submit_gated(tiny())
    attempt_id = f"{job_id}.1"
    run_until_saved(cluster, gate, attempt_id, INTERVAL_STEPS)
    cluster.wait_state(job_id, JobState.RUNNING)
    before = cluster.rank_pids(attempt_id)
    assert len(before) == 2
    victim.kill(attempt_id)
    run_until_saved(cluster, gate, attempt_id, 2 * INTERVAL_STEPS)
    victim.come_back()
    assert cluster.rank_pids(attempt_id) == before
    gate.open()
    cluster.wait_succeeded(job_id)
    assert_finished_once(cluster, job_id)
    assert cluster.client.job(job_id).job.epoch == 1
    assert_each_step_once(cluster, job_id)
