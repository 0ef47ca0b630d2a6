"""Two projects share four GPUs of a real cluster: what one does not use it lends, and gets back when it has work."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arena.domain.job import JobSpec
from arena.domain.records import EntryKind, JobState
from arena.rpc.views import TenantShare
from tests.builders import command_spec, train_spec
from tests.fakes.local_cluster import ProcessCluster, process_cluster, wait_until

pytestmark = pytest.mark.slow

GRACE_S = 20.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "tenants.yaml"
    found.write_text("projects:\n  red: {gpus: 2}\n  blue: {gpus: {cpu: 2}}\n")
    return found


@pytest.fixture
def cluster(tmp_path: Path, file: Path) -> Iterator[ProcessCluster]:
    words = ["--restart", 3, "--tenants", file]
    with process_cluster(tmp_path / "cluster", nodes=2, gpus=2, words=words) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def directory(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()


def of_two(name: str, project: str, **fields: Any) -> JobSpec:
    """A job on two GPUs that ends when it is cancelled."""
    fields |= {"kind": "rigid", "gpus": {"count": 2}, "stop": {"steps": 1_000_000}, "grace_s": GRACE_S}
    return train_spec(name, project=project, **fields)


def shares(cluster: ProcessCluster) -> dict[str, TenantShare]:
    return {one.project: one for one in cluster.client.status().tenants}


def test_lent_gpus_are_taken_back_and_lent_again(cluster: ProcessCluster) -> None:
    stays, gone = blue = [cluster.submit(of_two(f"of-{rank}", "blue", priority=rank)) for rank in (6, 0)]
    for job_id in blue:
        cluster.wait_state(job_id, JobState.RUNNING)
    lent = TenantShare(project="red", guaranteed={"any": 2}, lent=2)
    assert shares(cluster)["red"] == lent
    assert shares(cluster)["blue"].used == 4

    red = cluster.submit(of_two("owner", "red"))
    cluster.wait_state(red, JobState.RUNNING)
    assert cluster.client.job(stays).job.preemption_count == 0
    entry = cluster.wait_entry(gone, EntryKind.JOB_PREEMPTED)
    assert "gives back 2 borrowed GPUs: project red has work for 2 cpu GPUs of the 2 it is guaranteed" in entry.message
    started = cluster.wait_entry(red, EntryKind.ATTEMPT_FIRST_STEP)
    assert started.at_s - cluster.client.job(red).job.submitted_at_s < GRACE_S + 30.0, cluster.story(red)
    assert shares(cluster)["red"].lent == 0
    wait_until(lambda: cluster.client.job(gone).job.state is JobState.QUEUED, "the borrower waits")
    why = cluster.arena_json("why", gone)
    (share,) = [one for one in why["explanation"] if one["code"] == "share"]
    assert share["names"]["share"] == "2 cpu"
    assert share["numbers"]["used"] == 2
    text = cluster.arena("status").stdout
    assert "red uses 2 of 2 of any type, 1 running\n" in text
    assert "blue uses 2 of 2 cpu, 1 running, 1 waiting\n" in text

    cluster.client.cancel([red])
    wait_until(lambda: shares(cluster)["red"] == lent, "what red had is lent again")
    wait_until(lambda: cluster.client.job(gone).job.state is JobState.RUNNING, "the borrower runs again")
    assert cluster.client.job(gone).job.progress.lost_steps == 0, "it was saved before it was stopped"
    cluster.client.cancel(blue)


@pytest.fixture
def cold_cluster(tmp_path: Path, file: Path) -> Iterator[ProcessCluster]:
    """A cluster for programs: nothing that trains is kept ready."""
    words = ["--restart", 3, "--tenants", file]
    with process_cluster(tmp_path / "cluster", nodes=2, gpus=2, words=words, agent_words=["--cold"]) as cluster:
        yield cluster


def sleeper(name: str, project: str) -> JobSpec:
    """A program on two GPUs that leaves the processor to others, and ends when it is cancelled."""
    return command_spec(name, count=2, command={"argv": ("sleep", "1000")}, project=project, grace_s=GRACE_S)


def test_a_changed_file_holds_from_the_next_start(cold_cluster: ProcessCluster, file: Path) -> None:
    cluster = cold_cluster
    blue = [cluster.submit(sleeper(name, "blue")) for name in ("first", "second")]
    for job_id in blue:
        cluster.wait_state(job_id, JobState.RUNNING)
    cluster.scheduler.end(signal.SIGTERM)
    file.write_text("projects: {blue: {gpus: 4}}\n")
    cluster.start_scheduler()
    waiting = cluster.submit(sleeper("owner", "red"))
    wait_until(lambda: "blue" in cluster.arena("why", waiting).stdout, "what red waits for is known")
    assert cluster.client.job(waiting).job.state is JobState.QUEUED
    assert all(cluster.client.job(job_id).job.preemption_count == 0 for job_id in blue)
    assert shares(cluster)[""].waiting_jobs == 1

    cluster.scheduler.end(signal.SIGTERM)
    file.write_text("projects: {red: {gpus: 5}}\n")
    cluster.start_scheduler()
    cluster.wait_state(waiting, JobState.RUNNING)
    warnings = cluster.client.status().warnings
    assert any("5 GPUs are guaranteed in all, the cluster has 4" in one for one in warnings)
    cluster.client.cancel([*blue, waiting])


def test_a_file_that_is_wrong_is_told_before_anything_starts(tmp_path: Path, file: Path) -> None:
    with process_cluster(tmp_path / "cluster", nodes=0, words=["--tenants", file]) as cluster:
        file.write_text("projects: {red: {gpus: {cpus: 5}}}\n")
        cluster.scheduler.end(signal.SIGTERM)
        cluster.scheduler.start()
        wait_until(lambda: not cluster.scheduler.is_alive, "the scheduler gives up")
        assert "unknown GPU type 'cpus', did you mean 'cpu'?" in cluster.scheduler.text()
        file.write_text("projects: {}\n")
        cluster.start_scheduler()
