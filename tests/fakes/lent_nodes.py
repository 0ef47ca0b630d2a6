"""Jobs on real nodes that are taken away: what a test does to them and asks of them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from arena.domain.job import JobSpec
from arena.domain.records import EntryKind, JobState
from arena.rpc.views import NodeView
from tests.builders import train_spec
from tests.fakes.local_cluster import Node, ProcessCluster, pids_of, wait_until

STEPS_BEFORE = 40
"""None of them saved by itself."""
MODEL = {"layers": 2, "hidden": 32, "heads": 2, "seq_len": 32}


def endless(**fields: Any) -> JobSpec:
    """A job of one GPU that nobody's checkpoint saves but one that it is asked for."""
    defaults = {"gpus": {"count": 1}, "kind": "rigid", "stop": {"steps": 10_000_000}, "grace_s": 30.0}
    checkpoint = {"interval_steps": 10_000_000}
    return train_spec("endless", model=MODEL, **{"checkpoint": checkpoint, **defaults, **fields})


def notice_of(node: Node) -> Path:
    return node.state_dir / "notice"


def running(cluster: ProcessCluster, spec: JobSpec) -> tuple[str, Node, Node]:
    """A job that has made some steps, its node, and the other one."""
    job_id = cluster.submit(spec)
    wait_until(lambda: cluster.client.job(job_id).job.progress.step >= STEPS_BEFORE, "it has made some steps")
    (name,) = cluster.entries(job_id, EntryKind.ATTEMPT_LAUNCHED)[0].data["nodes"]  # type: ignore[misc]
    return job_id, cluster.nodes[name], next(node for node in cluster.nodes.values() if node.node_id != name)


def is_taken_away(node: Node) -> None:
    """Its agent and all that runs there end without a word."""
    node.service.end(signal.SIGKILL)
    while left := pids_of(node.state_dir):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def goes_on(cluster: ProcessCluster, job_id: str, node: Node) -> int:
    """Wait for the second attempt's first step and return the step that it resumed from."""
    attempt_id = f"{job_id}.2"
    wait_until(lambda: any(name == attempt_id for name, _ in cluster.steps(job_id)), "it goes on")
    launched = cluster.entries(job_id, EntryKind.ATTEMPT_LAUNCHED)[-1]
    assert (launched.attempt_id, launched.data["nodes"]) == (attempt_id, [node.node_id])
    (resumed,) = (one for one in cluster.entries(job_id, EntryKind.ATTEMPT_READY) if one.attempt_id == attempt_id)
    return int(str(resumed.data["resumed_step"]))


def view_of(cluster: ProcessCluster, node: Node) -> NodeView:
    return next(one for one in cluster.client.nodes() if one.node_id == node.node_id)


def end(cluster: ProcessCluster, job_id: str) -> None:
    cluster.client.cancel([job_id])
    cluster.wait_state(job_id, JobState.CANCELLED)
