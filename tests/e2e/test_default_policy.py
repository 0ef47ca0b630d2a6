"""The default policy on a real cluster: jobs share it without thrashing, and each can be told why it is where it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from arena.domain.job import JobSpec
from arena.domain.reason import Reason, ReasonCode
from arena.domain.records import JobState
from tests.builders import command_spec, train_spec
from tests.fakes.local_cluster import ProcessCluster, process_cluster, wait_until

pytestmark = pytest.mark.slow

CHANGES_MAX = 4
"""Of one job: two others come and go while it runs, and each may take GPUs and give them back."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path_factory.mktemp("default"), nodes=1, gpus=2, words=["--restart", 3]) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ProcessCluster) -> Iterator[ProcessCluster]:
    """The cluster of this module; what a test leaves running is cancelled, also when it failed."""
    yield shared
    if left := [job.job_id for job in shared.client.jobs() if not job.state.is_terminal]:
        shared.client.cancel(left)
    shared.assert_sound()


def malleable(name: str, steps: int, **fields: Any) -> JobSpec:
    return train_spec(name, train={"global_batch": 8}, gpus={"min": 1, "max": 2}, stop={"steps": steps}, **fields)


def test_three_malleable_jobs_finish_without_thrashing(cluster: ProcessCluster) -> None:
    assert cluster.client.status().policy == "arena"
    first = cluster.submit(malleable("first", 200))
    cluster.wait_state(first, JobState.RUNNING)
    for job_id in (first, *(cluster.submit(malleable(name, 150)) for name in ("second", "third"))):
        cluster.wait_succeeded(job_id)
        job = cluster.client.job(job_id).job
        assert job.restart_count == 0
        assert job.reconfiguration_count + job.preemption_count <= CHANGES_MAX, cluster.story(job_id)


def test_one_that_waits_knows_whom_it_could_displace_and_what_they_save(cluster: ProcessCluster) -> None:
    """Of three jobs one waits on two GPUs at least, whatever is decided; none ends before it was asked."""
    jobs = [cluster.submit(malleable(name, 1_000_000)) for name in ("left", "right", "late")]
    told: dict[ReasonCode, Reason] = {}

    def one_knows() -> bool:  # "nobody" while someone starts or stops
        for job_id in jobs:
            told.clear()
            found = cluster.client.job(job_id, explain=True)
            told.update({reason.code: reason for reason in (*found.job.reasons, *found.explanation)})
            displaced = told[ReasonCode.DISPLACES].names["jobs"] if ReasonCode.DISPLACES in told else ""
            if any(one in displaced for one in jobs if one != job_id):
                return True
        return False

    wait_until(one_knows, "a job waits for others that run")
    offer = next(told[code] for code in (ReasonCode.OUTBID, ReasonCode.TIED, ReasonCode.INDIVISIBLE) if code in told)
    assert offer.numbers.keys() >= {"value", "price"}
    assert offer.names["group"].startswith("cpu")
    assert "others save" in str(offer)
    assert told[ReasonCode.DISPLACES].numbers["loss"] >= 0
    assert all(cluster.arena("why", job_id).stdout.startswith(f"{job_id} is ") for job_id in jobs)


def test_a_job_that_runs_knows_what_it_has_and_decisions_show_their_prices(cluster: ProcessCluster) -> None:
    job_id = cluster.submit(malleable("alone", 400))
    cluster.wait_state(job_id, JobState.RUNNING)
    found = cluster.arena_json("why", job_id)
    assert {item["code"] for item in found["explanation"]} == {"kept", "next_best"}
    assert found["explanation"][0]["code"] == "kept"
    assert found["explanation"][0]["numbers"]["value"] > 0
    decisions = cluster.arena_json("decisions", "--last", 50)["decisions"]
    started = [decision for decision in decisions if any(job["job_id"] == job_id for job in decision["jobs"])]
    assert started[0]["numbers"].keys() >= {"value", "bound", "gap", "price cpu/default"}
    assert started[0]["numbers"]["value"] <= started[0]["numbers"]["bound"] * (1 + 1e-9)


def test_a_program_that_began_is_left_alone_and_one_that_declares_nothing_runs_beside(cluster: ProcessCluster) -> None:
    """A program keeps its GPU when a short job comes, which starts once it has ended, beside a job without an end."""
    spec = command_spec("program", command={"argv": ("sleep", "6")}, preemptible=False)
    program = cluster.submit(spec)
    cluster.wait_state(program, JobState.RUNNING)
    endless = cluster.submit(train_spec("endless", gpus={"min": 1, "max": 1}, stop={}))
    cluster.wait_state(endless, JobState.RUNNING)
    short = cluster.submit(malleable("short", 20))
    for job_id in (program, short):
        cluster.wait_succeeded(job_id)
    assert cluster.client.job(program).job.preemption_count == 0
