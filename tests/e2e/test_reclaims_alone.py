"""Nodes that are taken away while no scheduler is there: their agents have the jobs save by themselves."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from arena.domain.records import EntryKind, JobState
from tests.fakes.lent_nodes import STEPS_BEFORE, end, endless, goes_on, is_taken_away, notice_of, running
from tests.fakes.local_cluster import Node, ProcessCluster, attempts_alive, process_cluster, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    words = ("--policy", "fcfs", "--node-grace", 12)  # an agent may take seven seconds to find its scheduler again
    with process_cluster(tmp_path_factory.mktemp("alone"), nodes=2, gpus=1, words=words) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ProcessCluster) -> Iterator[ProcessCluster]:
    yield shared
    if not shared.scheduler.is_alive:
        shared.start_scheduler()
    for node in tuple(shared.nodes.values()):
        notice_of(node).unlink(missing_ok=True)
        if not node.service.is_alive:  # lent anew, with nothing on its disk
            shared.add_node(node.node_id, gpus=1)
        shared.wait_ready(node.node_id)
    shared.assert_sound()


def left_alone(cluster: ProcessCluster, job_id: str, node: Node, word: str) -> None:
    """The scheduler dies, then the node is told that it goes: wait until nothing of the job is left there."""
    cluster.scheduler.end(signal.SIGKILL)
    notice_of(node).write_text(word)

    def ends() -> list[dict[str, Any]]:
        return [line for line in node.journal() if line["kind"] == "ended" and line["attempt_id"] == f"{job_id}.1"]

    (ended,) = wait_until(ends, "its agent has had it save and stop")
    assert (ended["end"]["kind"], ended["end"]["left_for"]) == ("stopped", "the spot market has spoken")


def test_without_a_scheduler_the_agent_has_a_job_save_and_says_so_when_it_is_back(cluster: ProcessCluster) -> None:
    job_id, node, other = running(cluster, endless(retry={"restarts_max": 0}))
    left_alone(cluster, job_id, node, "50 the spot market has spoken")
    cluster.start_scheduler()
    resumed_step = goes_on(cluster, job_id, other)
    assert resumed_step == cluster.reports(f"{job_id}.1", "stopped")[0]["step"] >= STEPS_BEFORE
    job = cluster.client.job(job_id).job
    assert (job.progress.lost_steps, job.restart_count, job.preemption_count) == (0, 0, 1)
    (asked,) = cluster.entries(job_id, EntryKind.ATTEMPT_STOP_REQUESTED)
    assert asked.data["cause"] == "node_reclaimed"
    left = f"it had to leave node {node.node_id}: the spot market has spoken (by its lender)"
    assert asked.message == f"stopped by its agent, with no scheduler to ask: {left}"
    end(cluster, job_id)


def test_a_node_that_is_gone_before_the_scheduler_is_back_takes_no_step_with_it(cluster: ProcessCluster) -> None:
    job_id, node, other = running(cluster, endless())
    left_alone(cluster, job_id, node, "50 the spot market has spoken")
    stopped_step = cluster.reports(f"{job_id}.1", "stopped")[0]["step"]
    is_taken_away(node)
    cluster.start_scheduler()
    assert goes_on(cluster, job_id, other) == stopped_step >= STEPS_BEFORE
    assert cluster.client.job(job_id).job.progress.lost_steps == 0
    end(cluster, job_id)


def test_a_gang_of_which_one_node_goes_is_saved_whole_without_a_scheduler(cluster: ProcessCluster) -> None:
    job_id = cluster.submit(endless(gpus={"count": 2}, retry={"restarts_max": 0}))
    wait_until(lambda: cluster.client.job(job_id).job.progress.step >= STEPS_BEFORE, "it has made some steps")
    nodes = cluster.entries(job_id, EntryKind.ATTEMPT_LAUNCHED)[0].data["nodes"]
    assert isinstance(nodes, list)
    last = cluster.nodes[nodes[1]]  # where rank 0 is not
    left_alone(cluster, job_id, last, "50 the spot market has spoken")
    wait_until(lambda: not attempts_alive(cluster.nodes[nodes[0]].state_dir), "its other half has ended too")
    cluster.start_scheduler()
    cluster.wait_state(job_id, JobState.QUEUED)
    notice_of(last).unlink()
    wait_until(lambda: any(name == f"{job_id}.2" for name, _ in cluster.steps(job_id)), "it goes on")
    job = cluster.client.job(job_id).job
    assert (job.progress.lost_steps, job.restart_count, job.preemption_count) == (0, 0, 1)
    end(cluster, job_id)
