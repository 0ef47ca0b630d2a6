"""A job that no GPU type of the cluster holds alone is given several together, by the default policy, and trains."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from arena.domain.records import EntryKind, JobState
from tests.builders import train_spec
from tests.fakes.local_cluster import ProcessCluster, process_cluster

pytestmark = pytest.mark.slow

GROUP = "t4 1, v100-16 2"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path_factory.mktemp("mixed"), nodes=0, gpus=0, words=["--restart", 3]) as cluster:
        cluster.add_node("old", gpus=1, words=["--gpu-type", "t4"])
        cluster.add_node("new", gpus=2, words=["--gpu-type", "v100-16"])
        yield cluster


def test_a_job_that_wants_more_gpus_than_any_type_has_trains_on_two(cluster: ProcessCluster) -> None:
    spec = train_spec("wide", train={"global_batch": 8}, gpus={"count": 3}, stop={"steps": 200})
    job_id = cluster.submit(spec)
    launched = cluster.wait_entry(job_id, EntryKind.ATTEMPT_LAUNCHED, group=GROUP)
    cluster.wait_state(job_id, JobState.RUNNING)

    assert launched.data["cause"] == "started"
    shown = cluster.arena_json("job", job_id)["job"]
    assert {share["node_id"] for share in shown["allocation"]["shares"]} == {"old", "new"}
    named = {one["gpu_type"] for stage in shown["plan"]["stages"] for one in stage["replicas"]}
    assert named == {"t4", "v100-16"}
    assert GROUP in cluster.arena("job", job_id).stdout

    cluster.wait_succeeded(job_id)
    assert cluster.client.job(job_id).job.restart_count == 0
