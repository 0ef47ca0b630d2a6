"""Deadlines and budgets on a real cluster: what is promised is kept, and who has spent its budget is saved and held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from arena.domain.job import JobSpec
from arena.domain.records import JobState
from arena.errors import IllegalTransitionError, RefusedError, UserError
from tests.builders import train_spec
from tests.fakes.local_cluster import ProcessCluster, process_cluster, wait_until

pytestmark = pytest.mark.slow

USD_PER_S = 0.05 / 3600.0
"""Of one virtual GPU."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path_factory.mktemp("terms"), nodes=1, gpus=2, words=["--restart", 3]) as cluster:
        yield cluster


def job(name: str, steps: int, **fields: Any) -> JobSpec:
    return train_spec(name, train={"global_batch": 8}, gpus={"min": 1, "max": 2}, stop={"steps": steps}, **fields)


def test_a_deadline_is_promised_and_kept_and_one_that_cannot_be_is_told(cluster: ProcessCluster) -> None:
    answer = cluster.client.submit(job("in-time", 50, deadline_s=300.0))
    assert answer.deadline is not None
    assert answer.deadline.is_promised
    late = cluster.client.submit(job("too-soon", 50, deadline_s=0.5))
    assert late.deadline is not None
    assert not late.deadline.is_promised
    assert late.deadline.earliest_end_at_s is not None
    assert late.deadline.earliest_end_at_s > late.deadline.deadline_at_s
    for found in (answer, late):
        cluster.wait_succeeded(found.job_id)
    kept = cluster.client.job(answer.job_id).job
    assert kept.is_deadline_promised
    assert kept.ended_at_s is not None
    assert kept.deadline_at_s is not None
    assert kept.ended_at_s <= kept.deadline_at_s
    assert not cluster.client.job(late.job_id).job.is_deadline_promised


def test_a_strict_deadline_is_refused_with_the_date_and_a_dry_run_submits_nothing(cluster: ProcessCluster) -> None:
    before = len(list(cluster.client.jobs()))
    with pytest.raises(RefusedError, match="the earliest end that can be promised is in"):
        cluster.client.submit(job("strict", 50, deadline_s=0.5, is_deadline_strict=True))
    tried = cluster.client.submit(job("tried", 50, deadline_s=300.0), dry_run=True)
    assert tried.job_id == ""
    assert tried.deadline is not None
    assert tried.deadline.is_promised
    assert len(list(cluster.client.jobs())) == before


def test_who_has_spent_its_budget_is_saved_and_held(cluster: ProcessCluster) -> None:
    """It declares no length, so it is not known before that the budget will not do."""
    budget_usd = 60.0 * USD_PER_S  # half a minute for its grace, and one to start and make a step
    endless = train_spec("endless", gpus={"min": 1, "max": 1}, stop={}, budget_usd=budget_usd)
    job_id = cluster.submit(endless)
    cluster.wait_state(job_id, JobState.HELD)
    found = cluster.arena_json("job", job_id)["job"]
    assert found["budget_usd"] == budget_usd
    assert 0.0 < found["spent_usd"] < budget_usd + 10.0 * USD_PER_S  # its grace is paid for, a late kill is not
    assert found["spent_usd"] == pytest.approx(found["gpu_seconds"] * USD_PER_S, rel=1e-6)
    assert [reason["code"] for reason in found["reasons"]] == ["budget_spent"]
    assert found["progress"]["durable_step"] > 0
    with pytest.raises(IllegalTransitionError, match=f"it has cost .*arena release {job_id} --budget"):
        cluster.client.release(job_id)
    with pytest.raises(UserError, match="it has cost"):
        cluster.client.release(job_id, budget_usd=found["spent_usd"] / 2.0)
    saved_step = found["progress"]["durable_step"]
    assert cluster.client.release(job_id, budget_usd=10.0 * budget_usd).budget_usd == 10.0 * budget_usd
    wait_until(lambda: cluster.client.job(job_id).job.progress.step > saved_step, "the job goes on")
    assert cluster.client.job(job_id).attempts[-1].resumed_step == saved_step
    cluster.client.cancel([job_id])
    wait_until(lambda: cluster.client.job(job_id).job.state is JobState.CANCELLED, "the job is cancelled")
