"""Nodes that are taken away, for real: with a word beforehand nothing is lost, without one what was not saved is."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from arena.domain.cluster import NodeState
from arena.domain.records import EntryKind
from tests.fakes.lent_nodes import (
    STEPS_BEFORE,
    end,
    endless,
    goes_on,
    is_taken_away,
    notice_of,
    running,
    view_of,
)
from tests.fakes.local_cluster import ProcessCluster, process_cluster, wait_until

pytestmark = pytest.mark.slow

INTERVAL_STEPS = 20


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    words = ("--policy", "fcfs", "--node-grace", 3)
    with process_cluster(tmp_path_factory.mktemp("reclaims"), nodes=2, gpus=1, words=words) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ProcessCluster) -> Iterator[ProcessCluster]:
    yield shared
    for node in tuple(shared.nodes.values()):
        notice_of(node).unlink(missing_ok=True)
        if not node.service.is_alive:  # lent anew, with nothing on its disk
            shared.add_node(node.node_id, gpus=1)
        shared.wait_ready(node.node_id)
    shared.assert_sound()


def test_with_a_word_beforehand_no_step_is_lost(cluster: ProcessCluster) -> None:
    job_id, node, other = running(cluster, endless())
    notice_of(node).write_text("25 the spot market has spoken")
    wait_until(lambda: cluster.client.job(job_id).job.epoch == 2, "it starts elsewhere")
    is_taken_away(node)
    resumed_step = goes_on(cluster, job_id, other)
    stopped = cluster.entries(job_id, EntryKind.ATTEMPT_STOPPED)[0]
    assert resumed_step == stopped.data["step"] == stopped.data["durable_step"]
    assert resumed_step >= STEPS_BEFORE
    job = cluster.client.job(job_id).job
    assert (job.progress.lost_steps, job.restart_count, job.preemption_count) == (0, 0, 1)
    (told,) = cluster.entries(job_id, EntryKind.JOB_PREEMPTED)
    assert told.message.startswith(f"node {node.node_id} is reclaimed in 2")
    assert told.message.endswith("s: the spot market has spoken")
    steps = [step for _, step in cluster.steps(job_id)]
    assert steps == list(range(1, len(steps) + 1)), "each step once"
    end(cluster, job_id)


def test_without_a_word_all_that_was_not_saved_is_lost(cluster: ProcessCluster) -> None:
    job_id, node, other = running(cluster, endless())
    is_taken_away(node)
    assert goes_on(cluster, job_id, other) == 0
    job = cluster.client.job(job_id).job
    assert job.progress.lost_steps >= STEPS_BEFORE
    assert job.restart_count == 1
    end(cluster, job_id)


def test_a_word_that_comes_too_late_is_no_fault_of_the_job(cluster: ProcessCluster) -> None:
    """The node goes at once: the job is killed and starts elsewhere without being counted as failed."""
    job_id, node, other = running(cluster, endless(retry={"restarts_max": 0}))
    notice_of(node).write_text("0")
    assert goes_on(cluster, job_id, other) == 0
    (ended,) = cluster.entries(job_id, EntryKind.ATTEMPT_ENDED)
    assert ended.data["outcome"] == "killed"
    (asked,) = cluster.entries(job_id, EntryKind.ATTEMPT_STOP_REQUESTED)
    assert asked.data["cause"] == "node_reclaimed"
    job = cluster.client.job(job_id).job
    assert (job.restart_count, job.launch_failure_count) == (0, 0)
    end(cluster, job_id)


def test_a_save_that_is_not_over_in_time_leaves_the_one_before(cluster: ProcessCluster) -> None:
    """A gate keeps the ranks from their checkpoint place until the node is empty."""
    job_id, gate = cluster.submit_gated(
        endless(checkpoint={"interval_steps": INTERVAL_STEPS}, retry={"restarts_max": 0})
    )
    attempt_id = f"{job_id}.1"
    gate.let_pass_until(lambda: cluster.saved_step(attempt_id) >= INTERVAL_STEPS, "it has a checkpoint")
    (name,) = cluster.entries(job_id, EntryKind.ATTEMPT_LAUNCHED)[0].data["nodes"]  # type: ignore[misc]
    node, other = cluster.nodes[name], next(one for one in cluster.nodes.values() if one.node_id != name)
    notice_of(node).write_text("2 the spot market has spoken")
    ended = cluster.wait_entry(job_id, EntryKind.ATTEMPT_ENDED)
    saved_step = cluster.saved_step(attempt_id)
    gate.open()
    assert ended.data["outcome"] == "killed"
    assert goes_on(cluster, job_id, other) == saved_step >= INTERVAL_STEPS
    job = cluster.client.job(job_id).job
    assert job.progress.lost_steps <= 2 * INTERVAL_STEPS  # one is made while the one before is written
    assert job.restart_count == 0
    end(cluster, job_id)


def test_a_cancel_does_not_wait_for_a_save_that_its_node_leaves_time_for(cluster: ProcessCluster) -> None:
    """A gate keeps the ranks from their checkpoint place; the node is there for half an hour."""
    job_id, gate = cluster.submit_gated(endless(checkpoint={"interval_steps": INTERVAL_STEPS}, grace_s=1.0))
    gate.let_pass_until(lambda: cluster.saved_step(f"{job_id}.1") >= INTERVAL_STEPS, "it has a checkpoint")
    # As far as the scheduler knows, too: one that has made no step is stopped at once, and would go on elsewhere.
    cluster.wait_entry(job_id, EntryKind.CHECKPOINT_SAVED)
    (name,) = cluster.entries(job_id, EntryKind.ATTEMPT_LAUNCHED)[0].data["nodes"]  # type: ignore[misc]
    # Within ten minutes a job leaves at once; so much longer than this test waits.
    notice_of(cluster.nodes[name]).write_text("590 the spot market has spoken")
    cluster.wait_entry(job_id, EntryKind.ATTEMPT_STOP_REQUESTED)
    end(cluster, job_id)
    gate.open()
    (ended,) = cluster.entries(job_id, EntryKind.ATTEMPT_ENDED)
    assert ended.data["outcome"] == "killed"


def test_the_word_outlives_the_agent_and_can_be_withdrawn(cluster: ProcessCluster) -> None:
    node = cluster.nodes["n2"]
    notice_of(node).write_text("3600")
    wait_until(lambda: cluster.node_state("n2") is NodeState.DRAINED, "it takes no more work")
    node.service.end(signal.SIGKILL)
    wait_until(lambda: not view_of(cluster, node).connected, "it is missed")
    node.service.start()
    wait_until(lambda: view_of(cluster, node).connected, "it is back")
    found = view_of(cluster, node)
    assert found.state is NodeState.DRAINED
    assert found.drain is not None
    assert found.drain.until_s is not None
    assert 3500 < found.drain.until_s - found.drain.at_s < 3600, "the seconds since it was written count"
    assert (found.drain.by, found.drain.why) == ("its lender", "its lender takes it back")
    notice_of(node).unlink()
    cluster.wait_ready("n2")


def test_an_undrain_outlives_the_agent_until_the_lender_speaks_again(cluster: ProcessCluster) -> None:
    node = cluster.nodes["n2"]
    notice_of(node).write_text("3600")
    wait_until(lambda: cluster.node_state("n2") is NodeState.DRAINED, "it takes no more work")
    cluster.client.undrain("n2")
    cluster.wait_ready("n2")
    for _ in range(2):
        node.service.end(signal.SIGKILL)
        wait_until(lambda: not view_of(cluster, node).connected, "it is missed")
        node.service.start()
        wait_until(lambda: view_of(cluster, node).connected, "it is back")
        assert view_of(cluster, node).state is NodeState.READY
    notice_of(node).write_text("3500")
    wait_until(lambda: cluster.node_state("n2") is NodeState.DRAINED, "another word counts again")


def test_an_admin_empties_a_node_within_a_time(cluster: ProcessCluster) -> None:
    job_id, node, other = running(cluster, endless())
    done = cluster.arena("drain", node.node_id, "--why", "new fans", "--within", "2m")
    assert done.returncode == 0, done.stderr
    assert goes_on(cluster, job_id, other) >= STEPS_BEFORE
    assert cluster.client.job(job_id).job.progress.lost_steps == 0
    wait_until(lambda: cluster.node_state(node.node_id) is NodeState.DRAINED, "it is empty")
    assert "empty by" in cluster.arena("nodes").stdout
    end(cluster, job_id)
    cluster.client.undrain(node.node_id)
