"""What a scheduler ran becomes a trace that is checked and replayed: real jobs, `arena export`, `arena replay`."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from arena.client import ArenaClient, ClientSettings
from arena.domain.job import JobId
from arena.domain.records import JobState
from arena.domain.trace import TraceJob, TraceOutcome
from arena_traces.reading import read_trace
from tests.builders import command_spec, train_spec
from tests.fakes.local_cluster import ProcessCluster, process_cluster, wait_until

pytestmark = pytest.mark.slow

CLUSTER = "nodes: [{type: cpu, count: 1, gpus: 2}]\n"
SLEEP = (sys.executable, "-c", "import time; time.sleep(0.3)")
FAIL = (sys.executable, "-c", "raise SystemExit(3)")


def over(cluster: ProcessCluster, job_id: str) -> JobState:
    """How a job ended, once it has."""
    wait_until(lambda: cluster.client.job(job_id).job.state.is_terminal, f"{job_id} is over")
    return cluster.client.job(job_id).job.state


def run_jobs(cluster: ProcessCluster) -> dict[str, str]:
    """Run a job of each kind to its end, and leave one that cannot start; return their ids by name."""
    secret = {"argv": SLEEP, "env": {"PASSWORD": "hunter2"}}
    trained = train_spec("trained", train={"global_batch": 4}, gpus={"min": 1, "max": 2}, stop={"steps": 12})
    jobs = [
        command_spec("slept", count=2, command=secret),
        command_spec("failed", command={"argv": FAIL}),
        trained,
    ]
    ids = {spec.name: cluster.submit(spec) for spec in jobs}
    ended = {name: over(cluster, job_id) for name, job_id in ids.items()}
    assert ended == {"slept": JobState.SUCCEEDED, "failed": JobState.FAILED, "trained": JobState.SUCCEEDED}
    large = train_spec("large", train={"global_batch": 64}, kind="rigid", gpus={"count": 64}, stop={"steps": 5})
    ids["large"] = cluster.client.submit(large, allow_infeasible=True).job_id
    return ids


def test_what_ran_is_exported_checked_and_replayed(tmp_path: Path) -> None:
    with process_cluster(tmp_path, nodes=1, gpus=2) as cluster:
        ids = run_jobs(cluster)
        before = cluster.client.job(ids["trained"])
        # What is exported is what the store kept: the scheduler knows nothing else any more.
        cluster.scheduler.end()
        cluster.start_scheduler()
        log = tmp_path / "log.jsonl"
        told = cluster.arena_json("export", "--out", log)
        plain = cluster.arena("export")
        assert plain.returncode == 0, plain.stderr
        cluster.client.cancel([ids["large"]])
        assert over(cluster, ids["large"]) is JobState.CANCELLED
    assert (told["job_count"], told["live_count"], told["hidden_count"]) == (4, 1, 0)
    assert plain.stderr.strip() == "4 jobs, 1 of them not over"
    assert [json.loads(line)["kind"] for line in plain.stdout.splitlines()] == ["head", *["job"] * 4, "end"]
    assert "hunter2" not in log.read_text()
    attempts = next(
        job["attempts"] for job in map(json.loads, log.read_text().splitlines()) if job.get("job_id") == ids["trained"]
    )
    assert [one["first_step_at_s"] for one in attempts] == [one.first_step_at_s for one in before.attempts]
    jobs = {job.job_id: job for job in read_trace(log).jobs}
    check_jobs({name: jobs[JobId(job_id)] for name, job_id in ids.items()})
    check_replay(cluster, log, tmp_path)


def check_jobs(jobs: Mapping[str, TraceJob]) -> None:
    assert {name: job.outcome for name, job in jobs.items()} == {
        "slept": TraceOutcome.COMPLETED,
        "failed": TraceOutcome.FAILED,
        "trained": TraceOutcome.COMPLETED,
        "large": TraceOutcome.RUNNING,
    }
    assert (jobs["slept"].gpu_count, jobs["trained"].step_count) == (2, 12)
    assert jobs["slept"].duration_s is not None
    assert jobs["slept"].duration_s >= 0.3


def check_replay(cluster: ProcessCluster, log: Path, directory: Path) -> None:
    file = directory / "cluster.yaml"
    file.write_text(CLUSTER)
    checked = cluster.arena_json("trace", "check", log)
    assert (checked["format"], checked["job_count"], checked["dropped_count"]) == ("arena-log", 4, 0)
    options = ("--cluster", file, "--policy", "fcfs,srtf,elastic", "--restart-s", 1, "--drop-unplaceable", "--check")
    done = cluster.arena_json("replay", log, *options)
    assert (done["replayed_job_count"], done["unplaceable_count"]) == (3, 1)
    for policy in done["policies"]:
        assert policy["whole"]["unfinished_count"] == 0


def test_users_export_their_own_jobs_and_an_admin_all(tmp_path: Path) -> None:
    grants = {"ann": "user", "bob": "user", "root": "admin"}
    tokens = tmp_path / "tokens.yaml"
    lines = [
        f"{hashlib.sha256(user.encode()).hexdigest()}: {{user: {user}, role: {role}}}" for user, role in grants.items()
    ]
    tokens.write_text("\n".join(lines) + "\n")
    spec = command_spec("mine", command={"argv": ("true",)})
    with process_cluster(tmp_path, nodes=0, words=["--tokens", tokens], settings={"token": "root"}) as cluster:
        ids = {}
        for user in ("ann", "bob"):
            with ArenaClient(ClientSettings(address=cluster.address, token=user)) as client:
                ids[user] = client.submit(spec, allow_infeasible=True).job_id
        told = {user: cluster.arena_json("export", "--out", tmp_path / user, ARENA_TOKEN=user) for user in grants}
        chosen = cluster.arena_json("export", "--user", "bob", "--out", tmp_path / "bobs", ARENA_TOKEN="root")
        cluster.client.cancel(list(ids.values()))
    counts = {user: (one["job_count"], one["hidden_count"]) for user, one in told.items()}
    assert counts == {"ann": (1, 1), "bob": (1, 1), "root": (2, 0)}
    assert chosen["job_count"] == 1
    assert ids["bob"] not in (tmp_path / "ann").read_text()
