"""Evaluations on their way from a program through agent, scheduler and store to people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.local_cluster import ProcessCluster, process_cluster

pytestmark = pytest.mark.slow

EVALUATE = """
from arena_agent.report import report_evaluation, report_step
for step in (1, 2, 3):
    report_step(step, loss=4.0 - step, step_time_s=0.1)
    report_evaluation(step, loss=5.0 - step, sample_count=32, evaluate_s=0.5, accuracy=step / 10)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path, nodes=1, gpus=1, agent_words=["--cold"]) as cluster:
        yield cluster
        cluster.assert_sound()


def test_evaluations_of_a_program_are_shown_and_kept(cluster: ProcessCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EVALUATE)
    job_id = cluster.arena_json("submit", "--gpus", 1, "--", sys.executable, "train.py", cwd=tmp_path)["job_id"]
    cluster.wait_succeeded(job_id)
    assert (
        "evaluation  loss 2.0000 at step 3, accuracy 0.3000, 32 samples in 0.5s\n"
        in cluster.arena("job", job_id).stdout
    )
    events = cluster.arena("events", job_id).stdout
    assert [f"evaluated at step {step}" in events for step in (1, 2, 3)] == [True] * 3
    assert "job_progress" not in events
    lines = [json.loads(line) for line in cluster.arena("--json", "events", job_id).stdout.splitlines()]
    assert [line["data"]["loss"] for line in lines if line["kind"] == "job_evaluated"] == [4.0, 3.0, 2.0]
    assert "job_progress" in {line["kind"] for line in lines}
    evaluation = cluster.arena_json("job", job_id)["job"]["progress"]["evaluation"]
    assert (evaluation["step"], evaluation["loss"], evaluation["sample_count"]) == (3, 2.0, 32)
